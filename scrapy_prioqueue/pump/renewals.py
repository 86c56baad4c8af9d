"""When the leases of this worker are renewed: by the loop, and from a thread while the loop is held up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from scrapy_prioqueue.frontier.base import Frontier
from scrapy_prioqueue.pump.heartbeat import Heartbeat, warn_of_lost
from scrapy_prioqueue.pump.host import Host
from scrapy_prioqueue.pump.inbox import Inbox
from scrapy_prioqueue.pump.possession import Possession
from scrapy_prioqueue.pump.timing import RENEWALS_PER_TTL


class Renewals:
    """Follows the renewals of both.

    Args:
        ttl_s: seconds until a lease expires that nobody renews.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        frontier: Frontier,
        possession: Possession[Any],
        inbox: Inbox,
        host: Host[Any],
        ttl_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._possession = possession
        self._inbox = inbox
        self._host = host
        self._ttl_s = ttl_s
        self._clock = clock
        self._heartbeat = Heartbeat(frontier, possession.tokens, ttl_s)
        self._latest = self._sent = clock()

    def start(self) -> None:
        """Begin to watch the loop."""
        self._heartbeat.start()

    def close(self) -> None:
        """Stop watching it."""
        self._heartbeat.close()

    @property
    def due_at(self) -> float:
        """When the loop renews next."""
        return max(self._latest, self._sent) + self._ttl_s / RENEWALS_PER_TTL

    def have_failed(self, now: float, since: float = 0.0) -> bool:
        """Tell whether leases that were granted at some time, None later than that, have expired by now."""
        return max(since, self._latest) + self._ttl_s <= now

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
            self._latest = max(self._latest, beat.at)
            self._host.count("prioqueue/heartbeat/renewed", beat.renewed)
            # Not those whose acks were under way.
            here = {lease_id for lease_id, _ in self._possession.tokens()}
            self._note_lost([lease_id for lease_id in beat.lost if lease_id in here])

    def _note_lost(self, lost: Sequence[int]) -> None:
        self._inbox.discard(lost)
        self._possession.lose(lost)
        self._host.count("prioqueue/lease/lost", len(lost))
        warn_of_lost(len(lost))
