"""What a worker has to tell the frontier: one ordered log, cut into numbered batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Generic, TypeVar

from scrapy_prioqueue.frontier.base import Batch, Committed, Operation, Push

BATCH_SIZE = 200
"""Operations of one batch, so that one script call takes the server a few milliseconds at most."""

MAX_BATCHES = 8
"""Batches of one exchange."""

Tag = TypeVar("Tag")


@dataclass(frozen=True, slots=True)
class Settled(Generic[Tag]):
    """What became of one operation.

    Args:
        operation: as it was put in.
        tag: what was put in with it.
        is_duplicate: a push whose fingerprint was seen before.
        is_repeated_start: a start request that was pushed before.
        is_void: an ack, release or fail that came too late.
    """

    operation: Operation
    tag: Tag | None
    is_duplicate: bool
    is_repeated_start: bool
    is_void: bool


class Outbox(Generic[Tag]):
    """The log. Its first operations may be under way; they stay until the frontier has confirmed them.

    A batch, once cut, keeps its number and its operations until it is confirmed,
    so that sending it again after a lost answer does no harm.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Operation, Tag | None]] = deque()
        self._cut: deque[tuple[Batch, Sequence[Tag | None]]] = deque()
        self._next_number = 1
        self._pushes = 0

    def __len__(self) -> int:
        return len(self._waiting) + sum(len(batch.operations) for batch, _ in self._cut)

    @property
    def pushes(self) -> int:
        """Requests that are not confirmed yet."""
        return self._pushes

    def put(self, operation: Operation, tag: Tag | None = None) -> None:
        """Append an operation; the tag comes back with its outcome."""
        self._waiting.append((operation, tag))
        self._pushes += isinstance(operation, Push)

    def leases(self) -> list[tuple[int, int]]:
        """Return (lease id, attempt) of every lease that an unconfirmed operation settles."""
        sent = (operation for batch, _ in self._cut for operation in batch.operations)
        waiting = (operation for operation, _ in self._waiting)
        settling = (operation for operation in chain(sent, waiting) if not isinstance(operation, Push))
        return [(operation.lease_id, operation.attempt) for operation in settling]

    def batches(self) -> Sequence[Batch]:
        """Return what is to be sent now: what was sent and not confirmed, then new batches."""
        while self._waiting and len(self._cut) < MAX_BATCHES:
            entries = list(islice(self._waiting, BATCH_SIZE))
            for _ in entries:
                self._waiting.popleft()
            batch = Batch(self._next_number, [operation for operation, _ in entries])
            self._cut.append((batch, [tag for _, tag in entries]))
            self._next_number += 1
        return [batch for batch, _ in self._cut]

    def confirm(self, committed: Sequence[Committed]) -> list[Settled[Tag]]:
        """Drop the batches that the frontier has applied and return what became of their operations."""
        settled: list[Settled[Tag]] = []
        for answer in committed:
            batch, tags = self._cut.popleft()
            assert batch.number == answer.number, "the frontier answers batches in order"
            duplicates, repeated, void = set(answer.duplicates), set(answer.repeated_starts), set(answer.void)
            for index, (operation, tag) in enumerate(zip(batch.operations, tags, strict=True)):
                self._pushes -= isinstance(operation, Push)
                settled.append(Settled(operation, tag, index in duplicates, index in repeated, index in void))
        return settled

    def abandon(self) -> int:
        """Drop everything, when there is no crawl left to tell it to; return how many requests that were."""
        pushes, self._pushes = self._pushes, 0
        self._waiting.clear()
        self._cut.clear()
        return pushes
