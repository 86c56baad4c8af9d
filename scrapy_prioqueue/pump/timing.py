"""All times of the pump, in seconds, with their reasons."""

from __future__ import annotations

AHEAD_S = 0.05
"""Work held in the inbox if two round trips are shorter; then one exchange serves several pages."""

MOST_AHEAD, MOST_AHEAD_PER_PLACE = 64, 4
"""Maximum size of the inbox, in all and per place, if pages take less than two round trips.

The leases of a killed worker are blocked until they expire. Otherwise the inbox is smaller than the concurrency.
"""

STALE_AFTER_S = 0.25
"""Age at which an unstarted lease is released, since a better request may have been pushed meanwhile."""

FLUSH_S = 0.05
"""Maximum time that an operation waits in the outbox before an exchange is due for it alone."""

OUTRANKED_S = 0.025
"""Minimum time between two exchanges that are due because a better request than the inbox's was pushed here."""

EMPTY_FLUSH_S = 0.002
"""Likewise if the frontier has nothing for this worker: the requests found here may be all that is left."""

POLL_S = 3.0
"""Time between two polls without work; the bell and the next expiry shorten it."""

POLL_WITHOUT_BELL_S = 0.4
"""Likewise if this worker can't hear the bell."""

BELL_RETRY_S = 20.0
"""Time until a worker without the bell tries to listen again; reduced by up to half at random."""

TICK_S = 0.25
"""Maximum time between two checks, for example whether the spider is closing."""

HORIZON_S = 0.25
"""How long before its start a request of a slot with limits is leased, so that it starts on time."""

MOST_RESERVED_S = 5.0
"""Maximum time for which a place is reserved for a request of a better tier."""

SLOT_POLL_S, LAST_SLOT_POLL_S = 0.01, 0.08
"""Minimum time between two polls because of slots that open, doubled while they bring nothing.

The frontier lets a worker poll half of `HORIZON_S` before a slot opens, so no poll makes a request late.
"""

FULL_RETRY_S = 1.0
"""Time between two attempts to push to a full server."""

SLOW_S = 3.0
"""Time after which an answer is overdue, and the crawl continues with what is here."""

ANSWER_CHECK_S = 0.1
"""Time between two checks for an answer; an answer is overdue after `SLOW_S` / `ANSWER_CHECK_S` checks."""

FIRST_RETRY_S, LAST_RETRY_S = 0.1, 5.0
"""Time between two attempts, doubled from the first to the last, with jitter so that a fleet doesn't retry in step."""

SPREAD_PER_WORKER_S = 0.001
"""Random time before each attempt, per living worker: a server that comes back should get their calls one after the
other, not all within the first `FIRST_RETRY_S`."""

RENEWALS_PER_TTL = 3
"""Renewals of a lease within its lifetime, so that a failed one does no harm."""
