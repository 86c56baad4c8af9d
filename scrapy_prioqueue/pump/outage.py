"""Outages: when to try again, what is worked on meanwhile, and what the frontier is told first afterwards."""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from scrapy_prioqueue.errors import FrontierRefused
from scrapy_prioqueue.frontier.base import Claim, Lease, Order, Push
from scrapy_prioqueue.frontier.memory.pending import Envelope, Pending, lease_id_of
from scrapy_prioqueue.pump.host import Host, PumpConfig
from scrapy_prioqueue.pump.outbox import Entry, Hold, Outbox
from scrapy_prioqueue.pump.shares import OwnRates, Shares
from scrapy_prioqueue.pump.timing import FIRST_RETRY_S, LAST_RETRY_S, RENEWALS_PER_TTL, SLOW_S, SPREAD_PER_WORKER_S

logger = logging.getLogger(__name__)

Tag = TypeVar("Tag")

MOST_TOLD = 5
"""Different errors of one outage that are logged, so that the first doesn't hide the last."""


class Outage:
    """Counts failures in a row; one line at the first and at each of another kind, one when it is over.

    It begins when an answer is overdue.

    Args:
        clock: monotonic, in seconds.
        goes_on: whether requests are started meanwhile.
        lease_ttl_s: seconds in which a lease expires here; one more try must fit in before.
        grace_s: seconds in which only what is leased is started.
    """

    def __init__(
        self, clock: Callable[[], float], *, goes_on: bool, lease_ttl_s: float = 60.0, grace_s: float = 0.0
    ) -> None:
        self._clock = clock
        self._goes_on = goes_on
        self._grace_s = grace_s
        self._longest_s = min(LAST_RETRY_S, lease_ttl_s / RENEWALS_PER_TTL)
        self._failures = 0
        self._is_slow = False
        self._was_refused = False
        self._told: set[str] = set()
        self._since = self.retry_at = clock()
        self._started = self._found = 0

    @property
    def is_on(self) -> bool:
        """The last try has failed."""
        return self._failures > 0

    @property
    def keeps_from_starting(self) -> bool:
        """Nothing is to be started now."""
        return self.is_on and not self._goes_on

    @property
    def since(self) -> float:
        """When it began."""
        return self._since

    @property
    def found_from(self) -> float:
        """When requests that were found here may be started, if it is not over by then."""
        return self._since + self._grace_s

    def may_try(self) -> bool:
        """Tell whether it is time for a try."""
        return self.retry_at <= self._clock()

    def note_started(self) -> None:
        """A request is started."""
        self._started += self.is_on or self._is_slow

    def note_found(self) -> None:
        """A request was found."""
        self._found += self.is_on or self._is_slow

    def note_slow(self, address: str) -> None:
        """An answer is overdue by `SLOW_S`."""
        if self.is_on or self._is_slow:
            return
        self._is_slow = True
        self._reset(SLOW_S)
        logger.info(
            "No answer from the frontier at %s for %g s; this worker continues with its leased requests",
            address,
            SLOW_S,
        )

    def _reset(self, ago_s: float) -> None:
        self._since = self._clock() - ago_s
        self._started = self._found = 0

    def begin(
        self, error: BaseException, *, only_leased: bool = False, has_limits: bool = False, workers: int = 1
    ) -> None:
        """A try has failed.

        Args:
            only_leased: nothing is started but what the frontier has handed out.
            has_limits: slots have limits.
            workers: how many will try again, as far as is known.
        """
        longest = min(self._longest_s, FIRST_RETRY_S * 2 ** min(self._failures, 10))
        self._failures += 1
        spread = min(self._longest_s, workers * SPREAD_PER_WORKER_S)
        self.retry_at = self._clock() + longest * random.uniform(0.5, 1) + random.uniform(0, spread)
        is_first, is_refused = self._failures == 1, isinstance(error, FrontierRefused)
        if is_first:
            self._was_refused = False
            if not self._is_slow:
                self._reset(0)
        # What waiting won't mend is told also where the connection was only lost at first.
        if not is_first and (self._was_refused or not is_refused):
            logger.log(self._level_of(error), "The frontier is still unavailable: %s", error)
            return
        self._was_refused = is_refused
        self._told.add(str(error))
        does = f"continues with leased requests, and after {self._grace_s:g} s with its share of those that it finds"
        if has_limits:
            does += " and of the limits of slots"
        if not self._goes_on:
            does = "starts no new requests until then"
        elif only_leased:
            does = "starts only leased requests until then, since there are budgets, or limits of other workers"
        logger.log(
            logging.ERROR if is_refused else logging.WARNING,
            "%s; this worker keeps trying to reconnect and %s",
            error,
            does,
        )

    def _level_of(self, error: BaseException) -> int:
        """Return how loudly to tell a further failure: as a warning where it is another one than those before."""
        text = str(error)
        if text in self._told or len(self._told) >= MOST_TOLD:
            return logging.DEBUG
        self._told.add(text)
        return logging.WARNING

    def end(self, address: str) -> bool:
        """A try has succeeded; return whether the last one had failed."""
        was_on = self.is_on
        if was_on or self._is_slow:
            self._failures, self._is_slow = 0, False
            self._told.clear()
            logger.info(
                "The frontier at %s is available again after %.1f s; meanwhile %d requests were started and %d"
                " were found here",
                address,
                self._clock() - self._since,
                self._started,
                self._found,
            )
        return was_on


class Standby(Generic[Tag]):
    """Offers the requests that wait in the outbox, so that the crawl goes on with them.

    What is taken here is claimed when the server is back, and what is not is pushed as if nothing had happened.
    Leases from here have ids below zero, which no server gives.

    Args:
        outbox: where the requests wait.
        order: which of two requests of equal rank and slot goes first.
        shares: decides which of them are this worker's, and how many may be begun.
        rates: decides how many of a slot may be begun, and when.
    """

    def __init__(self, outbox: Outbox[Tag], order: Order, shares: Shares, rates: OwnRates) -> None:
        self._outbox = outbox
        self._order: Order = order
        self._shares = shares
        self._rates = rates
        self._arrivals = 0
        self._leases = 0
        self.is_on = False
        self._forget()

    def _forget(self) -> None:
        self._filtered, self._unfiltered = Pending(), Pending()
        self._entries: dict[int, Entry[Tag]] = {}
        self._fingerprints: set[bytes] = set()

    def begin(self) -> None:
        """Offer what no batch holds, and so the server can't know; said again when there is more of it."""
        self.is_on = True
        self._forget()
        taken = (push.fingerprint for push in self._outbox.taken_requests())
        self._fingerprints.update(fingerprint for fingerprint in taken if fingerprint is not None)
        for entry in self._outbox.uncut_pushes():
            self.offer(entry)

    def end(self) -> None:
        """Offer nothing any more: the server hands out requests again."""
        self.is_on = False
        self._forget()

    def offer(self, entry: Entry[Tag]) -> None:
        """Offer one more request of this worker's share, unless one with its fingerprint was; a delayed one waits."""
        push = entry.operation
        if not self.is_on or not isinstance(push, Push) or push.fingerprint in self._fingerprints or push.is_delayed:
            return
        if not self._shares.is_mine(push):
            return
        if push.fingerprint is not None:
            self._fingerprints.add(push.fingerprint)
        self._arrivals += 1
        place = lease_id_of(self._arrivals, order=self._order, is_start=push.is_start, is_lifo_start=push.is_lifo_start)
        self._entries[place] = entry
        pending = self._unfiltered if push.fingerprint is None else self._filtered
        pending.put(push.slot, Envelope(push.rank, place, 0, push.payload))

    def best_rank(self) -> int | None:
        """Return the rank of the best request here, None if there is none."""
        ranks = [pending.best_rank() for pending in self._offered()]
        return min((rank for rank in ranks if rank is not None), default=None)

    def _offered(self) -> list[Pending]:
        # What is never filtered is found by nobody else, and so costs no repeat.
        return [self._filtered, self._unfiltered] if self._shares.may_start() else [self._unfiltered]

    def take(self, may_start: Callable[[str], bool]) -> Hold | None:
        """Return the best request whose slot suits, as one that is worked on from now on."""
        for pending in sorted(self._offered(), key=lambda pending: pending.best_rank() or 0):
            taken = pending.take_one(lambda slot: may_start(slot) and self._rates.may_start(slot))
            if taken is not None:
                break
        else:
            return None
        if pending is self._filtered:
            self._shares.note_start()
        slot, envelope = taken
        self._leases += 1
        hold = Hold(Lease(-self._leases, 1, envelope.rank, slot, envelope.payload))
        self._outbox.begin(self._entries.pop(envelope.lease_id), hold)
        return hold


PIECE = 200
"""Pending requests that are read at a time, to find those that were fetched here: some milliseconds of work."""

MOST_READ = 20_000
"""Pending requests that are read after an outage at most; what is not found by then is fetched again."""


class Returning(Generic[Tag]):
    """Follows an outage until this worker has told the server what it did meanwhile.

    A request that was found and fetched here may have been pending in the frontier before. Its claim is refused then,
    as of anything that was seen. So the queues of such slots are read, and what is found there is claimed by its id.

    Args:
        host: knows the fingerprint of what is pending.
        shares: counts what was fetched again.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        outbox: Outbox[Tag],
        host: Host[Tag],
        shares: Shares,
        config: PumpConfig,
        clock: Callable[[], float],
    ) -> None:
        self._outbox = outbox
        self._shares = shares
        self._host = host
        # Within this time no lease expires, and nothing is started that others could have.
        self._short_s = min(config.outage_grace_s, config.lease_ttl_s / RENEWALS_PER_TTL)
        self._clock = clock
        self._since: float | None = None
        self._is_told = True
        self._wanted: dict[str, dict[bytes, Entry[Tag]]] = {}
        self._slots: deque[str] = deque()
        self._read_of_slot = self._read = 0

    def note_outage(self, since: float) -> None:
        """The server is away since then."""
        if self._since is None:
            self._since = since

    def away_ms(self) -> int:
        """Return for how long it was, 0 where that costs nobody anything, or where all is told."""
        away_s = 0.0 if self._since is None else self._clock() - self._since
        if away_s <= self._short_s and not self._has_claims():
            return 0
        return max(1, round(away_s * 1000))

    def _has_claims(self) -> bool:
        return self._outbox.has_begun or self._outbox.has_refused or bool(self._wanted)

    def note_sent(self, away_ms: int) -> None:
        """The frontier has heard this."""
        self._is_told = away_ms == 0

    @property
    def must_tell(self) -> bool:
        """The frontier waits for this worker, which has nothing more to say."""
        return self._since is None and not self._is_told

    def look(self, *, is_back: bool) -> bool:
        """Take note of how things stand; return whether it is over just now.

        Args:
            is_back: the server answers, and leases are renewed and claimed as far as that is necessary.
        """
        if self._since is None or not is_back or self._has_claims():
            return False
        self._since = None
        self._read = 0
        return True

    # Claims of what is pending

    @property
    def must_find(self) -> bool:
        """Claims were refused, and the queues of their slots are to be read."""
        return bool(self._slots) or (self._outbox.has_refused and not self._outbox.has_begun)

    def next_piece(self) -> tuple[str, int, int]:
        """Return slot, position and length of what is to be read now."""
        for entry in self._outbox.take_refused():
            assert isinstance(entry.operation, Claim)
            push = entry.operation.push
            if push.slot not in self._wanted:
                self._slots.append(push.slot)
            self._wanted.setdefault(push.slot, {})[push.fingerprint or b""] = entry
        return self._slots[0], self._read_of_slot, PIECE

    def note_piece(self, pending: Sequence[Lease]) -> None:
        """Claim what is among these, and give up what is nowhere."""
        slot = self._slots[0]
        wanted = self._wanted[slot]
        for lease in pending:
            push = self._host.push_of(lease)
            entry = wanted.pop(push.fingerprint, None) if push.fingerprint is not None else None
            if entry is not None and entry.hold is not None:
                entry.hold.lease = lease._replace(attempt=lease.attempt + 1)
                self._outbox.claim(push, entry.hold)
        self._read_of_slot += len(pending)
        self._read += len(pending)
        if len(pending) == PIECE and wanted and self._read < MOST_READ:
            return
        self._slots.popleft()
        self._read_of_slot = 0
        del self._wanted[slot]
        self._shares.note_repeats(len(wanted))
        self._give_up(list(wanted.values()))

    def give_up(self) -> None:
        """Look for nothing any more."""
        left = [entry for wanted in self._wanted.values() for entry in wanted.values()]
        self._wanted.clear()
        self._slots.clear()
        self._give_up([*left, *self._outbox.take_refused()])

    def _give_up(self, entries: Sequence[Entry[Tag]]) -> None:
        for outcome in self._outbox.give_up_claims(entries):
            self._host.settled(outcome)
