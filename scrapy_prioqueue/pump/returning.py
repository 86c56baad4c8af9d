"""Reports after an outage: until the server has them from all workers, it hands out nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from scrapy_prioqueue.frontier.base import Claim, Lease
from scrapy_prioqueue.pump.host import Host, PumpConfig
from scrapy_prioqueue.pump.outbox import Entry, Outbox
from scrapy_prioqueue.pump.shares import Shares
from scrapy_prioqueue.pump.timing import RENEWALS_PER_TTL

PIECE = 200
"""Pending requests that are read at a time, to find those that were fetched here: some milliseconds of work."""

MOST_READ = 20_000
"""Pending requests that are read after an outage at most; what is not found by then is fetched again."""

Tag = TypeVar("Tag")


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
