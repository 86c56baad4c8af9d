"""The part of the model for operators' changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from scrapy_prioqueue.frontier.base import Demand, Orders, Push
from scrapy_prioqueue.frontier.redis.operators.findings import Stored
from tests.contract.backends import text_of
from tests.property.model import Crawl, Model, Request


class OperatedModel(Model):
    """The model, heeding operators.

    What they name they have looked at before, so it may have changed since.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.letters: dict[str, tuple[Request, Crawl]] = {}

    def _dead_letter(self, request: Request, reason: str, detail: str = "") -> None:
        super()._dead_letter(request, reason, detail)
        self.letters[request.payload] = request, self.crawl

    def _take(self, worker: str, limit: int, demand: Demand) -> tuple[list[Request], Counter[str]]:
        if self.crawl.orders.is_paused:
            limit, demand = 0, replace(demand, later_limit=0)
        return super()._take(worker, limit, demand)

    def push_as_operator(self, pushes: Sequence[Push]) -> list[int]:
        """Store requests behind all of equal rank; return the indexes of duplicates."""
        fates = [self._push(replace(push, is_start=True, start_mark=None)) for push in pushes]
        return [index for index, fate in enumerate(fates) if fate]

    def remove(self, seen: Iterable[Stored]) -> int:
        """Take requests out of the crawl; return how many were still there."""
        before = self.crawl.accepted
        for request in map(self._waiting, seen):
            if request is not None:
                self._take_out(request)
        return before - self.crawl.accepted

    def move(self, seen: Stored, rank: int) -> int:
        """Give a request another rank; return 1 if it was still there."""
        request = self._waiting(seen)
        if request is None:
            return 0
        old, is_queued = self._position_of(request), request.state == "pending" and not request.is_suspect
        request.rank = rank
        if is_queued and all(self._position_of(other) != old for other in self._ordinary()):
            self.crawl.turns.remove(old)
        if is_queued:
            self._queue_up(request)
        return 1

    def replay(self, seen: Iterable[Stored]) -> int:
        """Put dead letters back, as if they had never been tried; return how many there still were."""
        found = [found for found in map(self._pop_letter, seen) if found is not None]
        for request, crawl in found:
            if crawl is self.crawl:
                self.crawl.finished["dead"] -= 1
            else:
                self.crawl.accepted += 1
            request.state, request.attempts = "pending", 0
            self.crawl.requests.append(request)
            self._queue_up(request)
        return len(found)

    def purge(self, seen: Iterable[Stored]) -> int:
        """Throw dead letters away; return how many there still were."""
        return sum(self._pop_letter(each) is not None for each in seen)

    def evict(self, worker: str) -> int:
        """Take all leases from a worker, and forget it; return how many there were."""
        held = sorted(self.held_by(worker), key=lambda request: request.tie)
        for request in held:
            self._lose(request)
        self.crawl.sessions.pop(worker, None)
        return len(held)

    def drop(self) -> int:
        """Take everything out that waits; return how much that was."""
        found = self._in("pending", "delayed")
        self.crawl.requests = self._in("leased")
        self.crawl.turns.clear()
        self.crawl.accepted -= len(found)
        return len(found)

    def forget(self, fingerprints: Sequence[bytes]) -> list[int]:
        """Forget fingerprints; return the indexes of those that were seen."""
        found = []
        for index, fingerprint in enumerate(fingerprints):
            if self.was_seen(fingerprint):
                found.append(index)
            self.crawl.seen.pop(fingerprint, None)
        return found

    def forget_all(self) -> None:
        """Forget all fingerprints and marks."""
        self.crawl.seen.clear()
        self.crawl.marks.clear()

    def give_orders(self, *, paused: bool | None, drained: bool | None) -> None:
        """Give the fleet a command."""
        orders = self.crawl.orders
        self.crawl.orders = Orders(
            orders.is_paused if paused is None else paused, orders.is_drained if drained is None else drained
        )

    def reset(self) -> None:
        """Drop everything."""
        self.crawl = Crawl(has_ended=True)
        self.dead_letters.clear()
        self.letters.clear()

    def facts(self) -> list[tuple[str, str, int, int, str]]:
        """Return what there is, as `facts_of` has it."""
        found = [(each.payload, each.state, each.attempts, each.rank, each.slot) for each in self.crawl.requests]
        letters = [request for request, _ in self.letters.values()]
        return [*found, *((each.payload, "dead", each.attempts, each.rank, each.slot) for each in letters)]

    def _waiting(self, seen: Stored) -> Request | None:
        """Return a request that still waits and was not lost since; what is delayed is known by its rank, too."""
        request = self.find(text_of(seen.payload))
        if request is None or request.state == "leased" or request.attempts > seen.attempts:
            return None
        return None if request.state == "delayed" and request.rank != seen.rank else request

    def _take_out(self, request: Request) -> None:
        if request.state == "pending" and not request.is_suspect:
            self._leave_queue(request)
        self.crawl.requests = [other for other in self.crawl.requests if other is not request]
        self.crawl.accepted -= 1

    def _pop_letter(self, seen: Stored) -> tuple[Request, Crawl] | None:
        found = self.letters.pop(text_of(seen.payload), None)
        self.dead_letters = [letter for letter in self.dead_letters if letter[0] != text_of(seen.payload)]
        return found


def facts_of(stored: Stored) -> tuple[str, str, int, int, str]:
    """Return what the model knows of a request, too."""
    return text_of(stored.payload), stored.state, stored.attempts, stored.rank, stored.slot
