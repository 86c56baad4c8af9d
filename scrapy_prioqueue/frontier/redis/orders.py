"""Operators' commands that a worker remembers, to send them to a server that has lost some of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from scrapy_prioqueue.frontier.policy import SlotLimit
from scrapy_prioqueue.frontier.redis.scripts import Argument
from scrapy_prioqueue.frontier.redis.session import Session
from scrapy_prioqueue.frontier.redis.wire import OK, decoded, pieces

_LIMITS = b"limits!"

ORDERS_PER_CALL = 500
"""Maximum number of commands that a call of `remind` sends and returns."""


@dataclass(frozen=True, slots=True)
class _Order:
    """The last command about one thing.

    Args:
        at_ms: on the frontier's clock; the later of two commands about the same thing is valid.
        value: as the frontier stores it, empty if the command was revoked.
    """

    at_ms: int
    value: bytes


class OrderBook:
    """The commands of one crawl that a worker knows: pauses, stops, limits, budgets."""

    def __init__(self) -> None:
        self._orders: dict[bytes, _Order] = {}
        self.newest_ms = 0
        """Time of the newest command, by the last reply of the server."""

    def limits(self) -> Mapping[str, SlotLimit]:
        """Return operators' limits by slot or pattern."""
        found = {}
        for name, order in self._orders.items():
            if name.startswith(_LIMITS) and order.value:
                found[decoded(name.removeprefix(_LIMITS))] = SlotLimit(**json.loads(order.value))
        return found

    async def read(self, session: Session) -> None:
        """Read the new commands, and send all known ones if the server has fewer."""
        if await self._learn(session, self.newest_ms) != len(self._orders):
            await self.remind(session)

    async def remind(self, session: Session) -> int:
        """Send the server all known commands; return how many it had lost."""
        if not self._orders:
            return 0
        taken = 0
        for part in pieces(list(self._orders.items()), ORDERS_PER_CALL):
            triples: Iterable[Argument] = chain.from_iterable((name, each.at_ms, each.value) for name, each in part)
            taken += (await self._call(session, self.newest_ms, *triples))[1]
        await self._learn(session, 0)
        return taken

    async def _learn(self, session: Session, since_ms: int) -> int:
        """Read commands since a time; return how many the server has."""
        while True:
            _, _, newest_ms, count, flat = await self._call(session, since_ms)
            for name, at_ms, value in zip(*(flat[at::3] for at in range(3)), strict=True):
                if name not in self._orders or self._orders[name].at_ms < at_ms:
                    self._orders[name] = _Order(at_ms, value)
                since_ms = at_ms
            if len(flat) < 3 * ORDERS_PER_CALL:
                self.newest_ms = newest_ms
                return int(count)

    async def _call(self, session: Session, since_ms: int, *triples: Argument) -> Sequence[Any]:
        reply = await session.call("remind", (session.now(), session.epoch, since_ms, ORDERS_PER_CALL, *triples))
        # If the crawl is over or was lost meanwhile, the next exchange finds out.
        return reply if reply[0] == OK else (reply[0], 0, self.newest_ms, len(self._orders), ())
