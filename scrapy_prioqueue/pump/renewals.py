"""When the leases of this worker are renewed: by the loop, and from a thread while the loop is held up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from scrapy_prioqueue.frontier.base import Frontier
from scrapy_prioqueue.pump.heartbeat import Heartbeat, PagesAtWork, warn_of_lost
from scrapy_prioqueue.pump.host import Host
from scrapy_prioqueue.pump.inbox import Inbox
from scrapy_prioqueue.pump.possession import Possession
from scrapy_prioqueue.pump.timing import RENEWALS_PER_TTL


class Renewals:
    """Follows the renewals of both.

    Args:
        ttl_s: seconds until a lease expires that nobody renews.
        slow_s: seconds after which a loop that doesn't turn counts as blocked.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        frontier: Frontier,
        possession: Possession[Any],
        inbox: Inbox,
        host: Host[Any],
        ttl_s: float,
        slow_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._possession = possession
        self._inbox = inbox
        self._host = host
        self._ttl_s = ttl_s
        self._clock = clock
        self._heartbeat = Heartbeat(
            frontier, possession.tokens, ttl_s, slow_s, possession.started_tokens, host.has_own_work
        )
        self._latest = self._sent = clock()
        self._gave_back_at = -inf

    def start(self, pages_at_work: PagesAtWork) -> None:
        """Begin to watch the loop."""
        self._heartbeat.start(pages_at_work)

    def close(self) -> None:
        """Stop watching it."""
        self._heartbeat.close()

    def take_blocked(self) -> bool:
        """Tell, once, whether the frontier was told that the loop is blocked, which it isn't any more."""
        was_blocked, self._heartbeat.has_noted = self._heartbeat.has_noted, False
        return was_blocked

    @property
    def due_at(self) -> float:
        """When the loop renews next."""
        return max(self._latest, self._sent) + self._ttl_s / RENEWALS_PER_TTL

    def have_failed(self, now: float, since: float = 0.0) -> bool:
        """Tell whether leases that were granted at some time, None later than that, have expired by now."""
        return max(since, self._latest) + self._ttl_s <= now

    def may_be_elsewhere(self, now: float, since: float) -> bool:
        """Tell whether others may have leases that were granted at some time and have not been seen here until now."""
        return self.have_failed(now, since) or since <= self._gave_back_at

    def note_begin(self) -> None:
        """A renewal by the loop is sent now."""
        self._sent = self._clock()

    def note_end(self, lost: Sequence[int]) -> None:
        """It was answered; these are not held here any more."""
        self._latest = max(self._latest, self._sent)
        self._heartbeat.note_renewal(self._latest)
        self._note_lost(lost)

    def note_beats(self) -> None:
        """Take note of what the thread has done."""
        for beat in self._heartbeat.collect():
            if not (beat.gives_back or beat.is_warning):
                self._latest = max(self._latest, beat.at)
            self._host.count("prioqueue/heartbeat/renewed", beat.renewed)
            self._host.count("prioqueue/slow", int(beat.is_warning))
            if beat.gives_back:
                self._gave_back_at = beat.at
                self._possession.give_back(self._inbox.take_all())
            # Not those whose acks were under way.
            here = {lease_id for lease_id, _ in self._possession.tokens()}
            self._note_lost([lease_id for lease_id in beat.lost if lease_id in here])

    def _note_lost(self, lost: Sequence[int]) -> None:
        self._inbox.discard(lost)
        self._possession.lose(lost)
        self._host.count("prioqueue/lease/lost", len(lost))
        warn_of_lost(len(lost))
