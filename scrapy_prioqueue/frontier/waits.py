"""What a worker without work waits for, and pages that may never end, as plain data; nothing else lives here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MOST_LOOKED_AT = 200
"""Leases that a worker which asks what it waits for has looked at; of more than that only so many are told apart."""

MOST_SLOTS = 3
"""Slots that are named."""


@dataclass(frozen=True, slots=True)
class SlowPage:
    """A request that has been in progress for long.

    Args:
        lease_id: of the request.
        callback: name of its callback.
        stage: what it is at, for people: its download, its callback.
        age_s: for how long it has been in progress.
    """

    lease_id: int
    url: str
    callback: str
    stage: str
    age_s: float


@dataclass(frozen=True, slots=True)
class Blocked:
    """A worker whose event loop doesn't turn, since code of its spider blocks it.

    Args:
        where: the code that blocks, for people: function, file and line.
        age_s: for how long the loop has not turned.
        is_idle: other workers have all that it held, and the crawl doesn't wait for it.
    """

    where: str
    age_s: float
    is_idle: bool = False


@dataclass(frozen=True, slots=True)
class Holder:
    """Another worker that holds requests.

    Args:
        host: where it runs, empty where it hasn't said.
        leases: how many it holds, of those looked at.
        expires_in_s: seconds until the last of them expires, unless it is renewed; below 0 for one that has.
        heard_s: seconds since it was last heard of.
        slow: those of its pages that may never end.
        blocked: its event loop doesn't turn.
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
        opens_in_s: seconds until it may be.
        is_closed: since its site has asked for a pause (`Retry-After`).
    """

    slot: str
    opens_in_s: float
    is_closed: bool


@dataclass(frozen=True, slots=True)
class Waits:
    """Why the frontier has nothing for a worker.

    Args:
        pending: requests that wait to be served, in all.
        leased: requests that are leased, in all.
        holders: other workers that hold some, those with the most first.
        busy: other living workers that have not said that they are idle.
        blocked: those of them whose event loop doesn't turn.
        delayed: requests that are not to be served yet.
        due_in_s: seconds until the first of them is.
        slots: how many slots with requests wait for their time.
        first_slots: the first of them to open.
        last_opens_in_s: seconds until the last of them opens.
        full_slots: slots with requests that wait for a lease to end, since they are at their concurrency.
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
