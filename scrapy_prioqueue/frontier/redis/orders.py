"""What operators have ordered, as a worker remembers it, to tell a server that has forgotten some of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from scrapy_prioqueue.frontier.policy import SlotLimit
from scrapy_prioqueue.frontier.redis.scripts import Argument
from scrapy_prioqueue.frontier.redis.session import Session
from scrapy_prioqueue.frontier.redis.wire import OK, slot_text

_LIMITS = b"limits!"

ORDERS_PER_CALL = 500
"""How many orders a call of `remind` takes, and tells, at most."""


@dataclass(frozen=True, slots=True)
class _Order:
    """What was ordered last, of one thing.

    Args:
        at_ms: by the frontier's clock; of two orders about the same thing the later one counts.
        value: as the frontier keeps it, empty where it was taken back.
    """

    at_ms: int
    value: bytes


class OrderBook:
    """The orders of one crawl that a worker knows: pauses, stops, limits, budgets."""

    def __init__(self) -> None:
        self._orders: dict[bytes, _Order] = {}
        self.newest_ms = 0
        """When the newest of them was given, as the server has said last."""

    def limits(self) -> Mapping[str, SlotLimit]:
        """Return what was said of slots, by name or pattern."""
        found = {}
        for name, order in self._orders.items():
            if name.startswith(_LIMITS) and order.value:
                entry = json.loads(order.value)
                limit = SlotLimit(entry.get("delay"), entry.get("concurrency"), entry.get("burst"))
                found[slot_text(name.removeprefix(_LIMITS))] = limit
        return found

    async def read(self, session: Session) -> None:
        """Learn the orders that are new, and tell the server again those that it doesn't know."""
        if await self._learn(session, self.newest_ms) != len(self._orders):
            await self.remind(session)

    async def remind(self, session: Session) -> int:
        """Tell the server all orders that are known here; return how many it had forgotten."""
        if not self._orders:
            return 0
        orders = list(self._orders.items())
        taken = 0
        for first in range(0, len(orders), ORDERS_PER_CALL):
            part = orders[first : first + ORDERS_PER_CALL]
            triples: Iterable[Argument] = chain.from_iterable((name, each.at_ms, each.value) for name, each in part)
            taken += (await self._call(session, self.newest_ms, *triples))[1]
        await self._learn(session, 0)
        return taken

    async def _learn(self, session: Session, since_ms: int) -> int:
        """Return how many orders the server knows."""
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
        # Of a crawl that is over, or was forgotten meanwhile, the next exchange hears.
        return reply if reply[0] == OK else (reply[0], 0, self.newest_ms, len(self._orders), ())
