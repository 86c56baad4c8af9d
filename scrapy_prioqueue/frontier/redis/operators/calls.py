"""Script calls over a blocking connection: many in one round trip; scripts are loaded if the server lacks them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from redis import exceptions

from scrapy_prioqueue.frontier.redis.connection import OLDEST_VERSION, parse_version
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.scripts import OPERATOR_NAMES, Argument, Call, Script, scripts_for
from scrapy_prioqueue.frontier.redis.servers import is_node_of_cluster
from scrapy_prioqueue.frontier.redis.wire import pieces

SHARED_NAMES = ("clear", "evict")
"""Scripts of the workers that other programs call, too."""

ITEMS_PER_CALL = 50
"""A call with this many items takes the server some milliseconds."""

MOST_CALLS_PER_TRIP = 20

S_PER_CALL = 0.02
"""A round trip may have one call for each time that it takes this long, so workers have the server most of the time."""

BYTES_PER_TRIP = 2**20
"""Approximate size of a round trip after which no call is added."""


class ScriptCalls:
    """Calls the scripts of programs that aren't workers.

    Args:
        link: to the server.
        state_key: of the frontier.
    """

    def __init__(self, link: Link, state_key: str) -> None:
        self._link = link
        self._state_key = state_key
        self._scripts: dict[str, Script] = {}

    @property
    def per_trip(self) -> int:
        """Maximum number of calls in one round trip: one, unless the server is far away.

        The server executes the calls of a round trip without a break, so all other clients wait for them.
        """
        return max(1, min(MOST_CALLS_PER_TRIP, int(self._link.round_trip_s / S_PER_CALL)))

    def run(self, calls: Sequence[Call]) -> list[Any]:
        """Run scripts in one round trip and return their replies, in order.

        Raises:
            FrontierUnavailable: the connection failed or the server refused; some may have been executed.
            FrontierFull: the server has no memory for the write of one of them; others may have been executed.
        """
        scripts = self.loaded()
        commands = [scripts[name].call(self._state_key, arguments) for name, arguments in calls]
        replies = self._link.attempt(*commands)
        if any(isinstance(reply, exceptions.NoScriptError) for reply in replies):
            self._load()
            missing = [at for at, reply in enumerate(replies) if isinstance(reply, exceptions.NoScriptError)]
            repeated = self._link.attempt(*(commands[at] for at in missing))
            for at, reply in zip(missing, repeated, strict=True):
                replies[at] = reply
        self._link.refuse(replies)
        return replies

    def loaded(self) -> dict[str, Script]:
        """Load the scripts unless that is done, and return them.

        Raises:
            FrontierUnavailable: the connection failed or the server refused.
        """
        if not self._scripts:
            server = self._link.info("server") or {}
            # Code for the oldest version works on all.
            version = parse_version(str(server.get("redis_version", ""))) or OLDEST_VERSION
            in_cluster = self._link.in_cluster or is_node_of_cluster(server)
            self._scripts = scripts_for(version, (*OPERATOR_NAMES, *SHARED_NAMES), in_cluster=in_cluster)
            self._load()
        return self._scripts

    def _load(self) -> None:
        self._link.pipe(*(("SCRIPT LOAD", script.source) for script in self._scripts.values()))


def trips(items: Iterable[Sequence[Argument]], calls_at_most: int) -> Iterator[Sequence[Sequence[Argument]]]:
    """Yield the calls of one round trip after the other, each call as the arguments of its items.

    Args:
        items: read as needed, those of the next round trip when this one has ended.
        calls_at_most: maximum number of calls in a round trip.
    """
    calls, size = list[Sequence[Argument]](), 0
    for part in pieces(items, ITEMS_PER_CALL):
        calls.append([argument for item in part for argument in item])
        size += sum(len(argument) for argument in calls[-1] if not isinstance(argument, int))
        if len(calls) >= calls_at_most or size >= BYTES_PER_TRIP:
            yield calls
            calls, size = [], 0
    if calls:
        yield calls
