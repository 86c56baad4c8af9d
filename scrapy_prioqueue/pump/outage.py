"""Outages: when to retry, which requests to start meanwhile, and what to send to the frontier first afterwards."""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from scrapy_prioqueue.errors import FrontierRefused
from scrapy_prioqueue.frontier.base import Claim, Exchanged, Frontier, Joined, Lease, Order, Push
from scrapy_prioqueue.frontier.memory.pending import Envelope, Pending, lease_id_of
from scrapy_prioqueue.frontier.policy import Note
from scrapy_prioqueue.logs import CrawlLog, event
from scrapy_prioqueue.printable import counted
from scrapy_prioqueue.pump.delegate import Delegate, PumpConfig
from scrapy_prioqueue.pump.leases import Leases
from scrapy_prioqueue.pump.outbox import Entry, HeldRequest, Outbox
from scrapy_prioqueue.pump.shares import LimitShares, Shares
from scrapy_prioqueue.pump.timing import FIRST_RETRY_S, LAST_RETRY_S, RENEWALS_PER_TTL, SLOW_S, SPREAD_PER_WORKER_S
from scrapy_prioqueue.runtime import Alarm
from scrapy_prioqueue.stats import OUTAGES_STAT

if TYPE_CHECKING:
    from scrapy import Spider

logger = logging.getLogger(__name__)

Tag = TypeVar("Tag")

MOST_WARNINGS, MOST_LOGGED = 5, 100
"""Maximum number of different errors that are warned of in one outage, so that the first doesn't hide the last; and of
those that are logged at all."""


class Failures:
    """Counts consecutive failures; logs the first one, each new kind of error, and the end.

    An outage begins when an answer is overdue.

    Args:
        clock: monotonic, in seconds.
        goes_on: whether requests are started meanwhile.
        lease_ttl_s: lifetime of a lease; there must be time for another attempt before one expires.
        grace_s: seconds during which only leased requests are started.
        spider: for log records.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        goes_on: bool,
        lease_ttl_s: float = 60.0,
        grace_s: float = 0.0,
        spider: Spider | None = None,
    ) -> None:
        self._log = CrawlLog(logger, spider)
        self._clock = clock
        self._goes_on = goes_on
        self._grace_s = grace_s
        self._longest_s = min(LAST_RETRY_S, lease_ttl_s / RENEWALS_PER_TTL)
        self._failures = 0
        self._is_slow = False
        self._was_refused = False
        self._logged: set[str] = set()
        self.since = self.retry_at = clock()
        """When the outage began, and the time of the next attempt."""
        self._started = self._found = 0

    @property
    def is_on(self) -> bool:
        """Whether the last attempt has failed."""
        return self._failures > 0

    @property
    def is_away(self) -> bool:
        """Whether the server doesn't answer: the last attempt has failed, or an answer is overdue."""
        return self._failures > 0 or self._is_slow

    @property
    def keeps_from_starting(self) -> bool:
        """Whether no request may be started now."""
        return self.is_on and not self._goes_on

    @property
    def found_from(self) -> float:
        """When requests found here may be started, if the outage is not over by then."""
        return self.since + self._grace_s

    def may_try(self) -> bool:
        """Return whether it is time for an attempt."""
        return self.retry_at <= self._clock()

    def retry_soon(self, workers: int) -> None:
        """Make the next attempt at once, since the server has moved; if it fails, begin with short pauses again.

        Args:
            workers: number of workers that will do the same.
        """
        self._failures = min(self._failures, 1)
        self.retry_at = min(self.retry_at, self._clock() + random.uniform(0, self._spread_s(workers)))

    def _spread_s(self, workers: int) -> float:
        return min(self._longest_s, workers * SPREAD_PER_WORKER_S)

    def note_started(self) -> None:
        """Count a request started in the outage."""
        self._started += 1

    def note_found(self) -> None:
        """Count a request found in the outage."""
        self._found += 1

    def note_slow(self, address: str) -> bool:
        """Begin an outage, because an answer is overdue by `SLOW_S`; return False if one has begun already."""
        if self.is_away:
            return False
        self._is_slow = True
        self._reset(SLOW_S)
        self._log.info(
            "No answer from the frontier at %s for %g s; this worker continues with its leased requests",
            address,
            SLOW_S,
            extra=event("frontier_degraded", cause="outage"),
        )
        return True

    def _reset(self, ago_s: float) -> None:
        self.since = self._clock() - ago_s
        self._started = self._found = 0

    def begin(
        self, error: BaseException, *, only_leased: bool = False, has_limits: bool = False, workers: int = 1
    ) -> None:
        """Note a failed attempt.

        Args:
            only_leased: only leased requests may be started.
            has_limits: slots have limits.
            workers: number of workers that will retry, as far as is known.
        """
        longest = min(self._longest_s, FIRST_RETRY_S * 2 ** min(self._failures, 10))
        # An attempt that ran into its time-out has been a pause, too, and the server may be back since.
        attempt_s = max(0.0, self._clock() - self.retry_at) if self._failures else 0.0
        self._failures += 1
        pause_s = max(0.0, longest * random.uniform(0.5, 1) - attempt_s)
        self.retry_at = self._clock() + pause_s + random.uniform(0, self._spread_s(workers))
        is_first, is_refused = self._failures == 1, isinstance(error, FrontierRefused)
        is_new = is_first and not self._is_slow
        if is_first:
            self._was_refused = False
            if is_new:
                self._reset(0)
        # A `FrontierRefused` doesn't pass by itself, so it is logged even after a lost connection.
        if not is_first and (self._was_refused or not is_refused):
            self._log_further(error)
            return
        self._was_refused = is_refused
        self._logged.add(str(error))
        after = f"after {self._grace_s:g} s (PRIOQUEUE_OUTAGE_GRACE)"
        does = f"continues with leased requests, and {after} with its share of those that it finds"
        if has_limits:
            does += " and of the limits of slots"
        if not self._goes_on:
            does = "starts no new requests until then"
        elif only_leased:
            does = "starts only leased requests until then, since there are budgets, or limits of other workers"
        self._log.log(
            logging.ERROR if is_refused else logging.WARNING,
            "%s; this worker keeps trying to reconnect and %s",
            error,
            does,
            extra=event("frontier_degraded", cause="outage") if is_new else {},
        )

    def _log_further(self, error: BaseException) -> None:
        """Log a further error once in an outage: a warning, as long as there are few."""
        text = str(error)
        if text not in self._logged and len(self._logged) < MOST_LOGGED:
            level = logging.WARNING if len(self._logged) < MOST_WARNINGS else logging.DEBUG
            self._logged.add(text)
            self._log.log(level, "The frontier is still unavailable: %s", error)

    def end(self, address: str) -> bool:
        """Note a successful attempt; return whether the last one had failed."""
        was_on = self.is_on
        if was_on or self._is_slow:
            self._failures, self._is_slow = 0, False
            after_s = self._clock() - self.since
            self._logged.clear()
            self._log.info(
                "The frontier at %s is available again after %.1f s; meanwhile this worker started %s and found %s",
                address,
                after_s,
                counted(self._started, "request"),
                counted(self._found, "request"),
                extra=event("frontier_recovered", cause="outage", after_s=after_s),
            )
        return was_on


REPEATS_PER_PAGE = 0.03
"""Expected number of pages fetched twice, per page that this worker has fetched; the goal is 5 % in all."""

WINDOW = 200
"""Number of requests after which an earlier outcome counts a third, since the chance changes during a crawl."""


class Repeats:
    """Limits how many pages that may have been fetched before this worker starts in an outage.

    A request that is new to this worker may have been fetched by another one before the outage, or by an earlier
    process of this crawl. The chance of that is measured before: the part of its pushes that the server had seen.
    Each start adds this chance, and the sum is limited to `REPEATS_PER_PAGE` per page.
    """

    def __init__(self) -> None:
        self._pushed = self._known = 0.0
        self._prior = 0
        self._pages = self._repeats = 0
        self._risk = 0.0

    def note_joined(self, joined: Joined) -> None:
        """Note that this worker has joined; it knows nothing of the requests that the crawl has already."""
        self._prior = 0 if joined.is_new else 1

    def note_pushed(self, push: Push, *, was_known: bool) -> None:
        """Note whether the frontier had seen a request that was new to this worker."""
        if push.fingerprint is not None:
            rest = 1 - 1 / WINDOW
            self._pushed, self._known = self._pushed * rest + 1, self._known * rest + was_known

    def note_page(self) -> None:
        """Count a page that this worker has fetched."""
        self._pages += 1

    @property
    def chance(self) -> float:
        """Chance that a request that is new to this worker was seen by the frontier, and may have been fetched."""
        return (self._known + self._prior) / (self._pushed + 1)

    def may_start(self) -> bool:
        """Return whether one more request may be started that may have been fetched before."""
        chance = self.chance
        return not chance or self._repeats + self._risk + chance <= REPEATS_PER_PAGE * self._pages

    def note_start(self) -> None:
        """Note the start of such a request."""
        self._risk += self.chance

    def note_repeats(self, count: int) -> None:
        """Note how many of these requests had been fetched before."""
        self._repeats += count

    def note_settled(self) -> None:
        """Note that the frontier has the outcomes of all of them, so none is uncertain any more."""
        self._risk = 0.0


class OutageQueue(Generic[Tag]):
    """Offers requests of the outbox to start them in an outage.

    A request that is taken is claimed when the server is back; the others are pushed as usual.
    Leases from here have negative ids, which no server uses.

    Args:
        order: order of requests of equal rank and slot.
    """

    def __init__(
        self, outbox: Outbox[Tag], order: Order, shares: Shares, repeats: Repeats, limit_shares: LimitShares
    ) -> None:
        self._outbox = outbox
        self._repeats = repeats
        self._order: Order = order
        self._shares = shares
        self._limit_shares = limit_shares
        self._arrivals = 0
        self._leases = 0
        self.is_on = False
        self._forget()

    def _forget(self) -> None:
        self._filtered, self._unfiltered = Pending(), Pending()
        self._entries: dict[int, Entry[Tag]] = {}
        self._fingerprints: set[bytes] = set()

    def begin(self) -> None:
        """Offer the requests in no batch, which the server can't have; call it again when there are more."""
        self.is_on = True
        self._forget()
        taken = (push.fingerprint for push in self._outbox.taken_requests())
        self._fingerprints.update(fingerprint for fingerprint in taken if fingerprint is not None)
        for entry in self._outbox.uncut_pushes():
            self.offer(entry)

    def end(self) -> None:
        """Stop offering requests: the server grants leases again."""
        self.is_on = False
        self._forget()

    def offer(self, entry: Entry[Tag]) -> None:
        """Offer one more request if it is this worker's, not delayed, and no other with its fingerprint was offered."""
        push = entry.operation
        if not self.is_on or not isinstance(push, Push) or push.fingerprint in self._fingerprints or push.is_delayed:
            return
        if not self._shares.is_mine(push):
            return
        if push.fingerprint is not None:
            self._fingerprints.add(push.fingerprint)
        self._arrivals += 1
        lease_id = lease_id_of(
            self._arrivals, order=self._order, is_start=push.is_start, is_lifo_start=push.is_lifo_start
        )
        self._entries[lease_id] = entry
        pending = self._unfiltered if push.fingerprint is None else self._filtered
        pending.put(push.slot, Envelope(push.rank, lease_id, 0, push.payload))

    def best_rank(self) -> int | None:
        """Return the rank of the best request on offer, None if there is none."""
        ranks = [pending.best_rank() for pending in self._offered()]
        return min((rank for rank in ranks if rank is not None), default=None)

    def _offered(self) -> list[Pending]:
        # A request that isn't filtered is found by this worker only, so it can't be a repeat.
        return [self._filtered, self._unfiltered] if self._repeats.may_start() else [self._unfiltered]

    def take(self, may_start: Callable[[str], bool]) -> HeldRequest | None:
        """Take the best request whose slot suits, as one that is running from now on; None if there is none."""
        for pending in sorted(self._offered(), key=lambda pending: pending.best_rank() or 0):
            taken = pending.take_one(lambda slot: may_start(slot) and self._limit_shares.may_start(slot))
            if taken is not None:
                break
        else:
            return None
        if pending is self._filtered:
            self._repeats.note_start()
        slot, envelope = taken
        self._leases += 1
        held = HeldRequest(Lease(-self._leases, 1, envelope.rank, slot, envelope.payload))
        self._outbox.begin(self._entries.pop(envelope.lease_id), held)
        return held


PIECE = 200
"""Number of pending requests read at a time, to find those that were fetched here; takes some milliseconds."""

MOST_READ = 20_000
"""Maximum number of pending requests read after an outage; those not found by then are fetched again."""


class Claims(Generic[Tag]):
    """Claims, after an outage, the requests started in it; the outage lasts until the server has all of these claims.

    A request found and fetched here may have been pending in the frontier before. Then its claim is rejected, like that
    of any request that was seen. So the queues of such slots are read, and requests found there are claimed by id.

    Args:
        delegate: knows the fingerprints of pending requests.
        repeats: counts requests that were fetched twice.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        outbox: Outbox[Tag],
        delegate: Delegate[Tag],
        repeats: Repeats,
        config: PumpConfig,
        clock: Callable[[], float],
    ) -> None:
        self._outbox = outbox
        self._repeats = repeats
        self._delegate = delegate
        # In an outage shorter than this, no lease expires and no request is started that others could have.
        self._short_s = min(config.outage_grace_s, config.lease_ttl_s / RENEWALS_PER_TTL)
        self._clock = clock
        self._since: float | None = None
        self._is_reported = True
        self._wanted: dict[str, dict[bytes, Entry[Tag]]] = {}
        self._slots: deque[str] = deque()
        self._read_of_slot = self._read = 0

    def note_outage(self, since: float) -> None:
        """Note that the server has been away since this time."""
        if self._since is None:
            self._since = since

    def away_ms(self) -> int:
        """Return the duration of the outage in ms; 0 if it had no effect on others, or has been reported completely."""
        away_s = 0.0 if self._since is None else self._clock() - self._since
        if away_s <= self._short_s and not self._has_claims():
            return 0
        return max(1, round(away_s * 1000))

    def _has_claims(self) -> bool:
        return self._outbox.has_begun or self._outbox.has_rejected or bool(self._wanted)

    def note_sent(self, away_ms: int) -> None:
        """Note that the frontier has got this duration."""
        self._is_reported = away_ms == 0

    @property
    def must_report(self) -> bool:
        """Whether the frontier still waits for this worker, which has nothing more to report."""
        return self._since is None and not self._is_reported

    def look(self, *, is_back: bool) -> bool:
        """Check whether the outage is over; return True once when it is.

        Args:
            is_back: the server answers, and leases are renewed and claimed as far as necessary.
        """
        if self._since is None or not is_back or self._has_claims():
            return False
        self._since = None
        self._read = 0
        return True

    # Claims of pending requests

    @property
    def must_find(self) -> bool:
        """Whether claims were rejected, so that the queues of their slots must be read."""
        return bool(self._slots) or (self._outbox.has_rejected and not self._outbox.has_begun)

    def next_piece(self) -> tuple[str, int, int]:
        """Return slot, position and length of the next piece to read."""
        for entry in self._outbox.take_rejected():
            assert isinstance(entry.operation, Claim)
            push = entry.operation.push
            if push.slot not in self._wanted:
                self._slots.append(push.slot)
            self._wanted.setdefault(push.slot, {})[push.fingerprint or b""] = entry
        return self._slots[0], self._read_of_slot, PIECE

    def note_piece(self, pending: Sequence[Lease]) -> None:
        """Claim the wanted requests among these pending ones; give up those that the whole queue doesn't have."""
        slot = self._slots[0]
        wanted = self._wanted[slot]
        for lease in pending:
            push = self._delegate.push_of(lease)
            entry = wanted.pop(push.fingerprint, None) if push.fingerprint is not None else None
            if entry is not None and entry.held is not None:
                entry.held.lease = lease._replace(attempt=lease.attempt + 1)
                self._outbox.claim(push, entry.held)
        self._read_of_slot += len(pending)
        self._read += len(pending)
        if len(pending) == PIECE and wanted and self._read < MOST_READ:
            return
        self._slots.popleft()
        self._read_of_slot = 0
        del self._wanted[slot]
        self._repeats.note_repeats(len(wanted))
        self._give_up(list(wanted.values()))

    def give_up(self) -> None:
        """Stop searching, and give up the remaining claims."""
        left = [entry for wanted in self._wanted.values() for entry in wanted.values()]
        self._wanted.clear()
        self._slots.clear()
        self._give_up([*left, *self._outbox.take_rejected()])

    def _give_up(self, entries: Sequence[Entry[Tag]]) -> None:
        for outcome in self._outbox.give_up_claims(entries):
            self._delegate.note_outcome(outcome)


class Outage(Generic[Tag]):
    """Coordinates what a worker does while the server is away, and what it sends to the server first afterwards.

    Args:
        failures: of the calls of the frontier.
        leases: those that continue meanwhile.
        delegate: woken when more requests may start.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        frontier: Frontier,
        failures: Failures,
        leases: Leases[Tag],
        delegate: Delegate[Tag],
        config: PumpConfig,
        clock: Callable[[], float],
    ) -> None:
        self._frontier = frontier
        self.failures = failures
        self._delegate = delegate
        self._goes_on = config.goes_on
        self._clock = clock
        self._policy = frontier.config.policy
        self._has_limits = self._policy.limits_slots
        self._has_budgets = self._policy.budgets is not None
        self._grace = Alarm(clock, self._on_grace)
        self._shares = Shares(frontier.config.worker, clock)
        self._limit_shares = LimitShares(frontier, self._shares, leases, clock, delegate.engine.wake)
        self.repeats = Repeats()
        self.claims: Claims[Tag] = Claims(leases.outbox, delegate, self.repeats, config, clock)
        self.queue: OutageQueue[Tag] = OutageQueue(
            leases.outbox, frontier.config.order, self._shares, self.repeats, self._limit_shares
        )

    def note_answer(self, answer: Exchanged, away_ms: int) -> None:
        """Process the answer to a demand that has reported for how long this worker was cut off."""
        self._has_limits = answer.must_ask or self._policy.limits_slots
        self._has_budgets = answer.has_budgets or self._policy.budgets is not None
        self._shares.note_alive(answer.depth.workers)
        self.claims.note_sent(away_ms)

    def note(self, note: Note) -> None:
        """Apply what this worker has learned about a slot."""
        self._limit_shares.note(note)

    def next_call(self) -> tuple[Coroutine[Any, Any, Any], Callable[[Any], None]] | None:
        """Return a call that must come before the next exchange, and the function for its answer; None without one."""
        frontier, shares, limit_shares = self._frontier, self._shares, self._limit_shares
        if self.claims.must_find:
            return frontier.pending(*self.claims.next_piece()), self.claims.note_piece
        if frontier.is_local:
            return None
        if shares.must_list:
            return frontier.workers(), shares.note_workers
        if self._goes_on and self._has_limits and limit_shares.must_look:
            return frontier.limits_in_force(), limit_shares.note_in_force
        return None

    # While the server is away

    def fail(self, error: BaseException, workers: int) -> None:
        """Note that a call has failed.

        Args:
            workers: number of workers that will retry, as far as is known.
        """
        self._delegate.count(OUTAGES_STAT, not self.failures.is_on)
        if not self.failures.is_away:
            self._delegate.degraded("outage", str(error))
        self.failures.begin(error, only_leased=self._only_leased, has_limits=self._has_limits, workers=workers)
        self.claims.note_outage(self.failures.since)

    def begin(self) -> None:
        """Begin to start requests found here, if allowed; called again at each failed attempt."""
        if not self._goes_on:
            return
        if self.failures.note_slow(self._frontier.address):
            self._delegate.degraded(
                "outage", f"no answer from the frontier at {self._frontier.address} for {SLOW_S:g} s"
            )
        self.claims.note_outage(self.failures.since)
        if self._has_limits:
            self._limit_shares.begin()
        self._offer_found()
        self._delegate.engine.wake()

    @property
    def _only_leased(self) -> bool:
        """Whether only leased requests may be started."""
        return self._has_budgets or (self._has_limits and not self._limit_shares.are_known)

    def _offer_found(self) -> None:
        if self._only_leased:
            return
        if self._clock() < self.failures.found_from:
            self._grace.set(self.failures.found_from)
        else:
            self.queue.begin()

    def _on_grace(self) -> None:
        self._offer_found()
        self._delegate.engine.wake()

    def note_found(self, entry: Entry[Tag]) -> None:
        """Note a request that was found in the outage."""
        self.failures.note_found()
        self.queue.offer(entry)

    def note_start(self, slot: str) -> None:
        """Note the start of a request in the outage."""
        self.failures.note_started()
        self._limit_shares.note_start(slot)

    # After an outage

    def end(self) -> bool:
        """Note that the server answers; return whether the last call had failed."""
        if self.queue.is_on:
            self.queue.end()
        self._limit_shares.end()
        self._grace.cancel()
        if self.failures.is_away:
            self._delegate.recovered("outage", self._clock() - self.failures.since)
        return self.failures.end(self._frontier.address)

    def look(self, *, is_back: bool) -> None:
        """End the outage if the server has all claims by now.

        Args:
            is_back: the server answers, and leases are renewed and claimed as far as necessary.
        """
        if self.claims.look(is_back=is_back):
            self.repeats.note_settled()

    def close(self) -> None:
        """Stop starting requests and searching for claims."""
        self._grace.cancel()
        self.claims.give_up()
