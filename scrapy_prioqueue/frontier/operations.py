"""Operations of a worker, as plain data: pushes of requests, and the ends of its leases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


# Not frozen, as is `Ack`: to make one would take twice as long.
@dataclass(slots=True, unsafe_hash=True)
class Push:
    """Store a request, unless it was seen.

    Args:
        rank: see `scrapy_prioqueue.rank`; lower is served first.
        slot: Scrapy's download slot, the unit of fairness.
        payload: the encoded request.
        fingerprint: at least 10 bytes; a second push with the same one is a duplicate. None: never a duplicate.
        is_start: start requests come after others of equal rank and slot, in the order pushed.
        is_lifo_start: it goes before earlier start requests instead; only with `is_start`.
        start_mark: identifies the n-th occurrence of a request in `start()`; the same mark is pushed once per crawl,
            whoever pushes it, before the fingerprint is looked at.
        delay_ms: how long it is kept back, from when it is stored.
        not_before_ms: Unix time in milliseconds before which it is not served; 0 for any time.
        revisit_s: seconds after which its fingerprint counts as new again, None for those of `SeenPolicy`; only where
            that has times.
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
        """It may have to wait, whoever is free."""
        return self.delay_ms > 0 or self.not_before_ms > 0

    def due_ms(self, now_ms: int) -> int:
        """Return when it may be served, if it is stored now."""
        return max(self.not_before_ms, now_ms + self.delay_ms)


@dataclass(frozen=True, slots=True)
class Spent:
    """What a request has cost, for its budgets.

    Args:
        bytes: of the body of its response, as it came.
        time_ms: of downloading and processing.
    """

    bytes: int = 0
    time_ms: int = 0


@dataclass(slots=True, unsafe_hash=True)
class Ack:
    """The leased request is fully processed. Void unless this worker holds this very lease.

    Args:
        spent: what it has cost, None where it carries no budget keys.
    """

    lease_id: int
    attempt: int
    spent: Spent | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """Give a lease back unstarted; it keeps its place and does not count as an attempt. Void as `Ack` is."""

    lease_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Refuse(Release):
    """Give a lease back that this worker can't read, as it runs another version of the spider.

    This worker doesn't get it again while another one lives that has not refused it.

    Args:
        delay_ms: how long it is kept back.
    """

    delay_ms: int


@dataclass(frozen=True, slots=True)
class Fail:
    """Give a leased request up: it becomes a dead letter. Void as `Ack` is.

    Args:
        reason: one word, see `DEAD_REASONS`.
        detail: what happened, in a line.
        traceback: the end of it, where there is one.
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
    """Lease a request that this worker works on already; store it if the frontier doesn't know it.

    For what was found and begun while the server was away, and for leases that the server has forgotten.
    It is not granted if the request is done, given up or leased to another worker.

    Args:
        push: the request.
        lease_id: its id before the server forgot the lease, None for a request that never had one.
        attempt: how often it has been leased, this time included.
    """

    push: Push
    lease_id: int | None = None
    attempt: int = 1


Operation = Push | Ack | Release | Fail | Claim


def payload_size(operation: Operation) -> int:
    """Return the bytes of the payload that an operation stores, 0 for none."""
    push = operation.push if isinstance(operation, Claim) else operation
    return len(push.payload) if isinstance(push, Push) else 0


@dataclass(frozen=True, slots=True)
class Batch:
    """A piece of a worker's outbox.

    Batches of a worker are numbered 1, 2, 3, …; the frontier applies each once, whole or not at all, and in order:
    one that was applied already is answered with an empty `Committed`, one that comes too early is not applied.
    """

    number: int
    operations: Sequence[Operation]


@dataclass(frozen=True, slots=True)
class Committed:
    """What became of a batch; positions are indexes into `Batch.operations`.

    Args:
        number: that of the batch.
        duplicates: pushes whose fingerprint was seen before.
        repeated_starts: pushes whose start mark was pushed before.
        void: acks, releases and fails of leases that this worker does not hold any more.
        claimed: (lease id, attempt) of each claim that was granted, by position; told again if the batch is repeated
            before another one was applied.
    """

    number: int
    duplicates: Sequence[int] = ()
    repeated_starts: Sequence[int] = ()
    void: Sequence[int] = ()
    claimed: Mapping[int, tuple[int, int]] = field(default_factory=dict)
