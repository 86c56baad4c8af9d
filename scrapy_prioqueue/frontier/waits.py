"""What an idle worker waits for, and pages that may never end, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MOST_LOOKED_AT = 200
"""Maximum number of leases that are examined for the waits of a worker; if there are more, its counts are partial."""

MOST_SLOTS = 3
"""Maximum number of slots that are named."""


@dataclass(frozen=True, slots=True)
class SlowPage:
    """A request that has been in progress for a long time.

    Args:
        lease_id: of the request.
        callback: name of its callback.
        stage: what is being done, for messages: its download, its callback.
        age_s: seconds since it began.
    """

    lease_id: int
    url: str
    callback: str
    stage: str
    age_s: float


@dataclass(frozen=True, slots=True)
class Blocked:
    """A worker whose event loop is blocked by code of its spider.

    Args:
        where: the blocking code, for messages: function, file and line.
        age_s: seconds since the loop last turned.
        is_idle: other workers have all of its requests, so the crawl doesn't wait for it.
    """

    where: str
    age_s: float
    is_idle: bool = False


@dataclass(frozen=True, slots=True)
class Holder:
    """Another worker that holds requests.

    Args:
        host: its machine, empty if unknown.
        leases: number of its leases, of those examined.
        expires_in_s: seconds until the last of them expires, unless it is renewed; negative if it has expired.
        heard_s: seconds since it was last heard of.
        slow: its pages that may never end.
        blocked: set if its event loop is blocked.
    """

    worker: str
    host: str
    leases: int
    expires_in_s: float
    heard_s: float
    slow: Sequence[SlowPage] = ()
    blocked: Blocked | None = None


@dataclass(frozen=True, slots=True)
class SlotWait:
    """A slot with requests that may not be served yet.

    Args:
        opens_in_s: seconds until it may be served.
        is_closed: its site has asked for a pause (`Retry-After`).
    """

    slot: str
    opens_in_s: float
    is_closed: bool


@dataclass(frozen=True, slots=True)
class Waits:
    """Why the frontier has nothing for a worker.

    Args:
        pending: total number of pending requests.
        leased: total number of leased requests.
        holders: other workers that hold requests, those with the most first.
        busy: other living workers that have not reported that they are idle.
        blocked: those of them whose event loop is blocked.
        delayed: number of delayed requests.
        due_in_s: seconds until the first of them is due.
        slots: number of slots whose requests wait for the slot to open.
        first_slots: the first of them to open.
        last_opens_in_s: seconds until the last of them opens.
        full_slots: number of slots at their concurrency, whose requests wait for a lease to end.
        is_paused: an operator has paused the crawl.
    """

    pending: int = 0
    leased: int = 0
    holders: Sequence[Holder] = ()
    busy: Sequence[str] = ()
    blocked: Mapping[str, Blocked] = field(default_factory=dict)
    delayed: int = 0
    due_in_s: float = 0.0
    slots: int = 0
    first_slots: Sequence[SlotWait] = ()
    last_opens_in_s: float = 0.0
    full_slots: int = 0
    is_paused: bool = False
