"""Script calls over a blocking connection: many in one round trip; scripts are loaded if the server lacks them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis import exceptions

from scrapy_prioqueue.errors import FrontierUnavailable
from scrapy_prioqueue.frontier.redis.connection import OLDEST_VERSION, Call, parse_version
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.trips import calls_per_trip
from scrapy_prioqueue.frontier.redis.scripts import OPERATOR_NAMES, Script, scripts_for
from scrapy_prioqueue.frontier.redis.troubles import is_forbidden

SHARED_NAMES = ("clear", "evict")
"""Scripts of the workers that other programs call, too."""


class ScriptCalls:
    """Calls the scripts of programs that aren't workers.

    Args:
        link: to the server.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._scripts: dict[str, Script] = {}

    @property
    def per_trip(self) -> int:
        """Maximum number of calls in one round trip."""
        return calls_per_trip(self._link.round_trip_s)

    def run(self, calls: Sequence[Call]) -> list[Any]:
        """Run scripts in one round trip and return their replies, in order.

        Raises:
            FrontierUnavailable: the connection failed or the server refused; some may have been executed.
            FrontierFull: the server has no memory for the write of one of them; others may have been executed.
        """
        scripts = self._loaded()
        commands = [scripts[name].call(state_key, arguments) for name, state_key, arguments in calls]
        replies = self._link.attempt(*commands)
        if any(isinstance(reply, exceptions.NoScriptError) for reply in replies):
            self._load()
            missing = [at for at, reply in enumerate(replies) if isinstance(reply, exceptions.NoScriptError)]
            repeated = self._link.attempt(*(commands[at] for at in missing))
            for at, reply in zip(missing, repeated, strict=True):
                replies[at] = reply
        self._link.refuse(replies)
        return replies

    def _loaded(self) -> dict[str, Script]:
        if not self._scripts:
            self._scripts = scripts_for(self._version(), (*OPERATOR_NAMES, *SHARED_NAMES))
            self._load()
        return self._scripts

    def _version(self) -> tuple[int, ...]:
        try:
            return parse_version(str(self._link.ask(lambda client: client.info("server"))["redis_version"]))
        except FrontierUnavailable as error:
            if is_forbidden(error.__cause__):
                # Code for the oldest version works on all.
                return OLDEST_VERSION
            raise

    def _load(self) -> None:
        self._link.pipe(*(("SCRIPT LOAD", script.source) for script in self._scripts.values()))
