"""The frontiers that the contract tests use: one class for each kind of storage, and a worker with blocking calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from scrapy_prioqueue.frontier.base import (
    ANY_NUMBER,
    Ack,
    Batch,
    Committed,
    DeadLetter,
    Demand,
    Depth,
    Exchanged,
    Fail,
    Frontier,
    FrontierConfig,
    Joined,
    Lease,
    Operation,
    Push,
    Release,
    Spent,
)
from scrapy_prioqueue.frontier.labels import Label, labelled, unlabelled
from scrapy_prioqueue.frontier.memory import MemoryFrontier, MemoryStore
from scrapy_prioqueue.frontier.policy import Note
from tests.support.clocks import UnixClock
from tests.support.coroutines import run
from tests.support.letters import letters_of

TTL_S = 10.0

T = TypeVar("T")


class Worker:
    """A worker on a frontier, which numbers its batches itself."""

    def __init__(self, frontier: Frontier, worker_id: str) -> None:
        self.frontier = frontier
        self.worker_id = worker_id
        self.last_batch = Batch(0, ())
        self.is_in = False

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the frontier to its end; one that is local never suspends."""
        if not self.frontier.is_local:
            return run(coroutine)
        try:
            coroutine.send(None)
        except StopIteration as stop:
            return cast(T, stop.value)
        raise AssertionError(f"{coroutine} suspends")

    def join(self) -> Joined:
        """Enter the crawl, as a new process does; batches are counted from 1 again."""
        joined = self.run(self.frontier.join())
        self.last_batch, self.is_in = Batch(0, ()), True
        return joined

    def leave(self) -> None:
        """Report this worker gone."""
        self.run(self.frontier.leave())
        self.is_in = False

    def exchange(self, *batches: Batch, demand: Demand | None) -> Exchanged:
        """Make an exchange with these very batches."""
        return self.run(self.frontier.exchange(batches, demand))

    def send(self, *operations: Operation, demand: Demand | None) -> Exchanged:
        """Make an exchange with the next batch."""
        self.last_batch = Batch(self.last_batch.number + 1, operations)
        return self.exchange(self.last_batch, demand=demand)

    def commit(self, *operations: Operation) -> Committed:
        """Send the next batch, demand nothing, and return what became of the batch."""
        answer = self.send(*operations, demand=None)
        if answer.rejection is not None:
            raise answer.rejection
        (committed,) = answer.committed
        assert committed.number == self.last_batch.number
        return committed

    def ask(
        self,
        limit: int = 0,
        *,
        is_idle: bool = False,
        is_fair: bool = False,
        slot_room: Mapping[str, int] | None = None,
        slot_limit: int = 2**31,
        may_take_suspect: bool = True,
        suspect_room: int = ANY_NUMBER,
        suspects_held: int = 0,
        later_limit: int = 0,
        horizon_ms: int = 0,
        reserve_ms: int = 0,
        notes: Sequence[Note] = (),
    ) -> Exchanged:
        """Make an exchange without a batch."""
        demand = Demand(
            *(limit, slot_limit, slot_room or {}, is_idle, is_fair),
            suspect_room=suspect_room if may_take_suspect else 0,
            suspects_held=suspects_held,
            later_limit=later_limit,
            horizon_ms=horizon_ms,
            reserve_ms=reserve_ms,
            notes=notes,
        )
        return self.exchange(demand=demand)

    def lease(self, limit: int = 1, **demand: Any) -> Sequence[Lease]:
        """Make an exchange without a batch and return what it leased."""
        return self.ask(limit, **demand).leases

    def lease_payloads(self, limit: int = 1000, **demand: Any) -> list[str]:
        """Lease and return the payloads as text; without a limit, all there are."""
        return [text_of(lease.payload) for lease in self.lease(limit, **demand)]

    def depth(self) -> Depth:
        """Return the counts of the crawl."""
        return self.ask().depth

    def renew(self, *held: Lease) -> Sequence[int]:
        """Renew leases; return the ids that are not held any more."""
        return self.run(self.frontier.renew(tokens_of(held)))

    def known(self, *pushes: Push) -> list[int]:
        """Return the indexes of those that would be duplicates."""
        return list(self.run(self.frontier.known(pushes)))

    def leases(self) -> Sequence[tuple[int, int]]:
        """Return what the frontier believes to be here."""
        return self.run(self.frontier.leases())

    def reconcile(self, *held: Lease) -> int:
        """Give back all leases but these."""
        return self.run(self.frontier.reconcile(tokens_of(held)))

    def dead_letters(self) -> Sequence[DeadLetter]:
        """Return the newest dead letters."""
        return self.run(letters_of(self.frontier))

    def close(self) -> None:
        """Close the connections, as the end of a process does."""
        self.run(self.frontier.close())


class Backend(ABC):
    """One kind of storage, with any number of workers on one frontier, and one clock.

    Args:
        name: the frontier's name, where a worker's configuration says no other.
    """

    def __init__(self, name: str) -> None:
        self.clock = UnixClock()
        self.workers: list[Worker] = []
        self._config = FrontierConfig(
            *(name, ("urgent", "normal"), "w1"), lease_ttl_s=TTL_S, clock=self.clock, suspect_groups=()
        )

    def frontier(self, **config: Any) -> Frontier:
        """Return the frontier as one more worker sees it, not joined yet."""
        return self._frontier(replace(self._config, **config))

    def worker(self, worker_id: str = "w1", **config: Any) -> Worker:
        """Return a worker that has not joined yet."""
        worker = Worker(self.frontier(worker=worker_id, **config), worker_id)
        self.workers.append(worker)
        return worker

    def join(self, worker_id: str = "w1", **config: Any) -> Worker:
        """Return a worker that has joined."""
        worker = self.worker(worker_id, **config)
        worker.join()
        return worker

    def close(self) -> None:
        """Close the connections of all workers."""
        for worker in self.workers:
            worker.close()

    @abstractmethod
    def _frontier(self, config: FrontierConfig) -> Frontier: ...


class MemoryBackend(Backend):
    """The in-process frontier."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._stores: defaultdict[str, MemoryStore] = defaultdict(MemoryStore)

    def _frontier(self, config: FrontierConfig) -> Frontier:
        return MemoryFrontier(config, self._stores[config.name])


class RedisBackend(Backend):
    """The frontier on a Redis server; each worker has connections of its own, as separate processes have."""

    def __init__(self, name: str, url: str) -> None:
        super().__init__(name)
        self._url = url

    def _frontier(self, config: FrontierConfig) -> Frontier:
        from scrapy_prioqueue.frontier.redis.connection import Connection
        from scrapy_prioqueue.frontier.redis.frontier import RedisFrontier

        return RedisFrontier(config, Connection(self._url))


def push(payload: str, rank: int = 0, slot: str = "a.example", **fields: Any) -> Push:
    """Return a push of a payload given as text."""
    return Push(rank, slot, payload.encode(), **fields)


def labelled_push(payload: str, *keys: str, is_rendered: bool = False, **fields: Any) -> Push:
    """Return a push of a payload that carries these budget keys."""
    request = push(payload, **fields)
    return replace(request, payload=labelled(request.payload, Label(is_rendered, keys)))


def text_of(payload: bytes) -> str:
    """Return the text of a payload, be it labelled or not."""
    return unlabelled(payload).decode()


def tokens_of(leases: Iterable[Lease]) -> list[tuple[int, int]]:
    """Return what a frontier knows leases by."""
    return [(lease.lease_id, lease.attempt) for lease in leases]


def ack(lease: Lease, spent: Spent | None = None) -> Ack:
    """Return the ack of a lease."""
    return Ack(lease.lease_id, lease.attempt, spent)


def release(lease: Lease) -> Release:
    """Return the release of a lease."""
    return Release(lease.lease_id, lease.attempt)


def fail(lease: Lease, reason: str = "decode", detail: str = "", spent: Spent | None = None) -> Fail:
    """Return the failure of a lease."""
    return Fail(lease.lease_id, lease.attempt, reason, detail, spent=spent)


def is_balanced(depth: Depth) -> bool:
    """Return whether every accepted request is accounted for."""
    return depth.accepted == depth.pending + depth.delayed + depth.leased + depth.dead + depth.done
