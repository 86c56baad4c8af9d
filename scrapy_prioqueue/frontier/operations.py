"""Operations of a worker, as plain data: pushes of requests, and the ends of its leases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


# Not frozen, like `Ack`, since creating a frozen one would take twice as long.
@dataclass(slots=True, unsafe_hash=True)
class Push:
    """Store a request, unless it is a duplicate.

    Args:
        rank: see `scrapy_prioqueue.rank`; lower is served first.
        slot: Scrapy's download slot, the unit of fairness.
        payload: the encoded request.
        fingerprint: at least 10 bytes; a second push with the same one is a duplicate. None: never a duplicate.
        is_start: start requests come after others of equal rank and slot, in the order pushed.
        is_lifo_start: the newest start request comes first instead; only with `is_start`.
        start_mark: identifies the n-th occurrence of a request in `start()`. Each mark is pushed once per crawl, by
            any worker; it is checked before the fingerprint.
        delay_ms: how long it is delayed, from when it is stored.
        not_before_ms: Unix time in milliseconds before which it is not served; 0 for any time.
        revisit_s: seconds after which its fingerprint counts as new again, None for the default of `SeenPolicy`; only
            if that has times.
    """

    rank: int
    slot: str
    payload: bytes
    fingerprint: bytes | None = None
    is_start: bool = False
    start_mark: bytes | None = None
    delay_ms: int = 0
    not_before_ms: int = 0
    revisit_s: int | None = None
    is_lifo_start: bool = False

    @property
    def is_delayed(self) -> bool:
        """Whether it may have to wait, even if workers are free."""
        return self.delay_ms > 0 or self.not_before_ms > 0

    def due_ms(self, now_ms: int) -> int:
        """Return when it may be served, if it is stored now."""
        return max(self.not_before_ms, now_ms + self.delay_ms)


@dataclass(frozen=True, slots=True)
class Spent:
    """The cost of a request, for its budgets.

    Args:
        bytes: of the body of its response, as received.
        time_ms: of downloading and processing.
    """

    bytes: int = 0
    time_ms: int = 0


@dataclass(slots=True, unsafe_hash=True)
class Ack:
    """The leased request is done. Void unless this worker holds this very lease.

    Args:
        spent: its cost, None if it has no budget keys.
    """

    lease_id: int
    attempt: int
    spent: Spent | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """Return a lease unstarted; the request keeps its position, and the attempt isn't counted. Void as `Ack` is."""

    lease_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Refuse(Release):
    """Return a lease that this worker can't decode, since it runs another version of the spider.

    This worker doesn't get it again while another living worker has not refused it.

    Args:
        delay_ms: how long the request is delayed.
    """

    delay_ms: int


@dataclass(frozen=True, slots=True)
class Fail:
    """Give up a leased request: it becomes a dead letter. Void as `Ack` is.

    Args:
        reason: one word, see `DEAD_REASONS`.
        detail: what happened, in one line.
        traceback: its end, if there is one.
        spent: as in `Ack`.
    """

    lease_id: int
    attempt: int
    reason: str
    detail: str
    traceback: str = ""
    spent: Spent | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """Lease a request that this worker is already working on; store it if the frontier doesn't know it.

    For requests that were found and started in an outage, and for leases that the server has lost.
    It is rejected if the request is done, given up or leased to another worker.

    Args:
        push: the request.
        lease_id: its id before the server lost the lease, None for a request that never had one.
        attempt: how often it has been leased, including this time.
    """

    push: Push
    lease_id: int | None = None
    attempt: int = 1


Operation = Push | Ack | Release | Fail | Claim


def payload_size(operation: Operation) -> int:
    """Return the size in bytes of the payload that an operation stores, 0 if it stores none."""
    push = operation.push if isinstance(operation, Claim) else operation
    return len(push.payload) if isinstance(push, Push) else 0


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive operations of a worker's outbox.

    Batches of a worker are numbered 1, 2, 3, …; the frontier applies each once, as a whole or not at all, in order.
    A batch that was applied already is answered with an empty `Committed`; one that comes too early is not applied.
    """

    number: int
    operations: Sequence[Operation]


@dataclass(frozen=True, slots=True)
class Committed:
    """The result of a batch; positions are indexes into `Batch.operations`.

    Args:
        number: of the batch.
        duplicates: pushes with a fingerprint that was seen before.
        repeated_starts: pushes with a start mark that was pushed before.
        void: acks, releases and fails of leases that this worker no longer holds.
        claimed: (lease id, attempt) of each granted claim, by position; repeated if the batch is sent again before
            the next one was applied.
    """

    number: int
    duplicates: Sequence[int] = ()
    repeated_starts: Sequence[int] = ()
    void: Sequence[int] = ()
    claimed: Mapping[int, tuple[int, int]] = field(default_factory=dict)
