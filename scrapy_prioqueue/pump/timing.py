"""Every time of the pump, in seconds, and why it is as long as it is; nothing else lives here."""

from __future__ import annotations

AHEAD_S = 0.05
"""Seconds of work that the inbox holds, where two round trips are shorter; one exchange then serves several pages."""

MOST_AHEAD, MOST_AHEAD_PER_PLACE = 64, 4
"""The most requests in the inbox, in all and per place, where pages are done sooner than in two round trips.

What a killed worker holds comes back only when its leases expire. Elsewhere they are less than run at a time.
"""

FRESH_S = 0.25
"""Seconds after which an unstarted lease is exchanged: something better may have been pushed meanwhile."""

FLUSH_S = 0.05
"""Longest time that something waits in the outbox before an exchange is due for it alone."""

OUTRANKED_S = 0.025
"""Shortest time between two exchanges made because something better than the inbox was pushed here."""

EMPTY_FLUSH_S = 0.002
"""The same where the frontier had nothing for us: what we have found may be all there is to do."""

POLL_S = 3.0
"""Time between two questions for work where the frontier had none; its bell and the next expiry shorten it."""

POLL_WITHOUT_BELL_S = 0.4
"""The same where the server lets us hear no bell."""

BELL_RETRY_S = 20.0
"""Time until a worker that hears no bell tries to listen again; up to half of it is taken off by chance."""

TICK_S = 0.25
"""Longest time until the pump looks around, for example whether the spider is being closed."""

HORIZON_S = 0.25
"""So long before its time a request of a slot with limits is handed out, so that it starts right then."""

MOST_KEPT_S = 5.0
"""Longest time for which a place is kept for a request of a better tier whose slot lets it start only then."""

SLOT_POLL_S, LAST_SLOT_POLL_S = 0.01, 0.08
"""Shortest time between two questions because of slots that open, doubled while they bring nothing.

The frontier lets a worker ask half of `HORIZON_S` before a slot opens, so none of these makes a request late.
"""

FULL_RETRY_S = 1.0
"""Time between two tries to push to a server that has no memory left."""

SLOW_S = 3.0
"""Time after which an answer that hasn't come is not waited for any more: the crawl goes on with what is here."""

LOOK_S = 0.1
"""Time between two looks whether the answer is there; so many of them as make `SLOW_S` have to be in vain."""

FIRST_RETRY_S, LAST_RETRY_S = 0.1, 5.0
"""Time between two tries, doubled from the first to the last, with jitter so that a fleet doesn't try in step."""

SPREAD_PER_WORKER_S = 0.001
"""Time that is left to chance before each try, for each living worker: a server that comes back is to greet them one
after the other, not all within the first `FIRST_RETRY_S`."""

RENEWALS_PER_TTL = 3
"""Renewals of a lease within its time to live, so that one that fails does no harm."""
