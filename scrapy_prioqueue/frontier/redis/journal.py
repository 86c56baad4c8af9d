"""What a worker has committed lately, for a server that may have lost it in a crash; nothing here talks to a server."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from time import monotonic

from scrapy_prioqueue.frontier.base import Batch, Claim, Fail, Operation
from scrapy_prioqueue.frontier.operations import payload_size

JOURNAL_BYTES = 32 * 2**20
"""Of payloads and tracebacks that are kept at most."""


class Journal:
    """The newest batches that were confirmed, in order.

    Args:
        keep_s: seconds for which a batch is kept, counted until the newest one was confirmed.
        limit: operations that are kept at most; of large ones, as many as make `JOURNAL_BYTES`.
        clock: monotonic, in seconds.
    """

    def __init__(self, keep_s: float, limit: int, clock: Callable[[], float] = monotonic) -> None:
        self._keep_s = keep_s
        self._limit = limit
        self._clock = clock
        self._entries: deque[tuple[float, Batch, int]] = deque()
        """When a batch was confirmed, and how many bytes it keeps."""
        self._operations = self._bytes = 0
        self.start = 0
        """Number of the last batch that is not kept any more; all later ones are."""

    def add(self, batches: Iterable[Batch]) -> None:
        """Note batches that the server has just confirmed."""
        now = self._clock()
        for batch in batches:
            size = _size(batch)
            self._entries.append((now, batch, size))
            self._operations += len(batch.operations)
            self._bytes += size
        while self._entries and (self._is_too_large or self._entries[0][0] < now - self._keep_s):
            _, oldest, size = self._entries.popleft()
            self._operations -= len(oldest.operations)
            self._bytes -= size
            self.start = oldest.number

    @property
    def _is_too_large(self) -> bool:
        return self._operations > self._limit or self._bytes > JOURNAL_BYTES

    def renew(self, position: int) -> None:
        """Note that the batches with numbers above that were confirmed again just now: they may be lost once more."""
        now = self._clock()
        self._entries = deque(
            (now if batch.number > position else at, batch, size) for at, batch, size in self._entries
        )

    def after(self, position: int) -> list[Batch]:
        """Return the batches with numbers above that."""
        return [batch for _, batch, _ in self._entries if batch.number > position]


def _size(batch: Batch) -> int:
    return sum(
        len(each.detail) + len(each.traceback) if isinstance(each, Fail) else payload_size(each)
        for each in batch.operations
    )


def without_claims(operations: Sequence[Operation]) -> list[Operation]:
    """Return what is sent again of a batch.

    A claim would be granted an id that nobody here knows; what is still held is claimed once more afterwards.
    But a request that was found here, and not leased from the server, has to be stored.
    """
    kept: list[Operation] = []
    for operation in operations:
        if not isinstance(operation, Claim):
            kept.append(operation)
        elif operation.lease_id is None:
            kept.append(operation.push)
    return kept
