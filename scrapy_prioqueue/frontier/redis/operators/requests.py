"""Reads the requests of a frontier one after the other, in bounded pieces, whatever its size."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import Any

from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Command, Link
from scrapy_prioqueue.frontier.redis.operators.findings import STATES, Letter, RequestState, Stored
from scrapy_prioqueue.frontier.redis.operators.lanes import Lanes
from scrapy_prioqueue.frontier.redis.wire import DIED_RANGES, ID, decoded, encoded, letter_fields, pieces, read_lease

SCAN_COUNT = 500
"""Approximate number of requests that one call reads."""

SLOTS_PER_CALL = 50
MOST_SLOTS_PER_CALL = 500
"""Maximum, used if slots have few requests."""

LITTLE = 2000
"""A call that finds up to this many requests is followed by one for twice as many slots."""

_DELAYED = struct.Struct(">dI")
_LENGTH = struct.Struct(">I")
_HEAD = 9
"""Bytes of the id and of the attempts."""


class Requests:
    """Reads requests of one frontier, without a snapshot: one that moves meanwhile may come twice or not at all."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._keys = keys
        self.progress: Callable[[int, int], object] | None = None
        """Called with the number of further requests that were read, before these are yielded; and first with the
        number of requests that will be read."""

    def each(
        self, states: Collection[RequestState] = STATES, *, slot: str | None = None, containing: Sequence[bytes] = ()
    ) -> Iterator[Stored]:
        """Iterate over requests, leased ones first, some hundred per call.

        Args:
            states: the states to read.
            slot: only requests of this slot.
            containing: only requests that contain one of these byte strings (a hint: others may come, too, and one may
                come several times).
        """
        matches = [b"*" + escaped(run) + b"*" if run else b"" for run in containing] or [b""]
        readers: Mapping[RequestState, Callable[[], Iterator[Stored]]] = {
            "leased": self.leased,
            "pending": lambda: self._pending(slot, matches),
            "delayed": lambda: self._delayed(matches),
            "dead": self.dead,
        }
        self._expect(states, slot)
        for state in STATES:
            if state in states:
                for stored in readers[state]():
                    if slot is None or stored.slot == slot:
                        yield stored

    def count(self, states: Collection[RequestState] = STATES, *, slot: str | None = None) -> int:
        """Return the number of requests that `each` reads."""
        if slot is None:
            pending: list[Command] = [("HGET", self._keys.of("stats"), "pending")]
        else:
            queue = self._keys.queue(encoded(slot))
            pending = [("ZCARD", queue), ("ZCARD", self._keys.of("suspects"))]
        questions: dict[RequestState, list[Command]] = {
            "leased": [("HLEN", self._keys.leased)],
            "pending": pending,
            "delayed": [("ZCARD", self._keys.of("delayed"))],
            "dead": [("ZCARD", self._keys.died)],
        }
        found = self._link.pipe(*(question for state in states for question in questions[state]))
        return sum(int(count or 0) for count in found)

    def by_id(self, lease_id: int, *, searches: bool = True) -> Stored | None:
        """Return the request with that id.

        Args:
            searches: also look for it among pending and delayed requests, all of which may have to be read.
        """
        key = ID.pack(lease_id)
        leased, expiry, dead, lost = self._link.pipe(
            ("HGET", self._keys.leased, key),
            ("ZSCORE", self._keys.leases, key),
            ("HGET", self._keys.dead, key),
            ("HGET", self._keys.of("lost"), key),
        )
        if leased:
            return read_leased(key, leased, expiry, lost)
        if dead:
            return read_dead(key, dead)
        if not searches:
            return None
        matches = [escaped(key) + b"*"]
        self._expect(("pending", "delayed"))
        found = (stored for scan in (self._pending(None, matches), self._delayed(matches)) for stored in scan)
        return next((stored for stored in found if stored.lease_id == lease_id), None)

    def leased(self) -> Iterator[Stored]:
        """Iterate over leased requests."""
        ((cursor, found),) = self._link.pipe(self._scan_leased(0))
        while found or cursor:
            # The next ones are read in the same round trip as further data of these.
            commands: list[Command] = [self._scan_leased(cursor)] if cursor else []
            if found:
                commands += [("ZMSCORE", self._keys.leases, *found), ("HMGET", self._keys.of("lost"), *found)]
            answers = self._link.pipe(*commands)
            self._report(len(found))
            if found:
                for (key, value), expiry, names in zip(found.items(), *answers[-2:], strict=True):
                    yield read_leased(key, value, expiry, names)
            cursor, found = answers[0] if cursor else (0, {})

    def _scan_leased(self, cursor: int) -> Command:
        return ("HSCAN", self._keys.leased, cursor, "COUNT", SCAN_COUNT)

    def dead(self, reason: str | None = None) -> Iterator[Stored]:
        """Iterate over dead letters, the newest first.

        Args:
            reason: only those with this reason.
        """
        ranges = list(DIED_RANGES.values()) if reason is None else [DIED_RANGES.get(reason, DIED_RANGES[""])]
        newest = self._link.pipe(*(self._range_dead(last, first, 0) for first, last in ranges))
        letters = (self._dead(first, pairs) for (first, _), pairs in zip(ranges, newest, strict=True))
        found = merge(*letters, key=lambda stored: -stored.at_ms)
        return (stored for stored in found if reason in (None, stored.reason))

    def letters(self, chosen: Iterable[Letter]) -> Iterator[Stored]:
        """Iterate over these dead letters, except those that are gone."""
        for part in pieces(chosen, SCAN_COUNT):
            keys = [ID.pack(letter.lease_id) for letter in part]
            (values,) = self._link.pipe(("HMGET", self._keys.dead, *keys))
            for letter, key, value in zip(part, keys, values, strict=True):
                if value and (stored := read_dead(key, value)).letter == letter:
                    yield stored

    def _dead(self, oldest: int, pairs: Sequence[tuple[bytes, float]]) -> Iterator[Stored]:
        """Iterate over dead letters of one reason; `pairs` has the ids and scores of the newest ones."""
        score, skipped = 0.0, 0
        while pairs:
            # The next piece begins with the last score of this one, of which there may be more.
            skipped = sum(each == pairs[-1][1] for _, each in pairs) + (skipped if pairs[-1][1] == score else 0)
            score = pairs[-1][1]
            keys = [key for key, _ in pairs]
            is_last = len(pairs) < SCAN_COUNT
            following = () if is_last else (self._range_dead(score, oldest, skipped),)
            values, *more = self._link.pipe(("HMGET", self._keys.dead, *keys), *following)
            self._report(len(keys))
            for key, value in zip(keys, values, strict=True):
                if value:
                    yield read_dead(key, value)
            pairs = more[0] if more else ()

    def _range_dead(self, newest: float, oldest: int, skipped: int) -> Command:
        limits = ("LIMIT", skipped, SCAN_COUNT, "WITHSCORES")
        return ("ZREVRANGEBYSCORE", self._keys.died, f"{newest:.0f}", oldest, *limits)

    def _pending(self, slot: str | None, matches: Sequence[bytes]) -> Iterator[Stored]:
        names = Lanes(self._link, self._keys).names() if slot is None else iter([encoded(slot)])
        count = SLOTS_PER_CALL
        while part := list(islice(names, count)):
            scans = [(name, self._keys.queue(name), match) for name in part for match in matches]
            found = self._link.pipe(
                *(_zscan(queue, 0, match) for _, queue, match in scans),
                *(("ZCARD", self._keys.queue(name)) for name in part),
            )
            found, lengths = found[: len(scans)], found[len(scans) :]
            open_scans: dict[bytes, dict[bytes, int]] = {}
            for (name, _, match), (cursor, _) in zip(scans, found, strict=True):
                if cursor:
                    open_scans.setdefault(name, {})[match] = cursor
            looked_at = dict(zip(part, lengths, strict=True))
            looked_at |= {name: min(SCAN_COUNT, looked_at[name]) for name in open_scans}
            is_reported_at_once = sum(looked_at.values()) <= LITTLE
            if is_reported_at_once:
                self._report(sum(looked_at.values()))
            for (name, _, match), (_, pairs) in zip(scans, found, strict=True):
                if match == matches[0] and not is_reported_at_once:
                    self._report(looked_at[name])
                yield from (read_pending(member, rank, name) for member, rank in pairs)
            for name, cursors in open_scans.items():
                for member, rank in self._scan(self._keys.queue(name), cursors, looked_at[name]):
                    yield read_pending(member, rank, name)
            has_little = not open_scans and sum(len(pairs) for _, pairs in found) <= LITTLE
            count = min(2 * count, MOST_SLOTS_PER_CALL) if has_little else SLOTS_PER_CALL
        for member, rank in self._scan(self._keys.of("suspects"), dict.fromkeys(matches, 0)):
            yield read_suspect(member, rank)

    def _delayed(self, matches: Sequence[bytes]) -> Iterator[Stored]:
        for member, due_ms in self._scan(self._keys.of("delayed"), dict.fromkeys(matches, 0)):
            yield read_delayed(member, due_ms)

    def _scan(self, key: str | bytes, cursors: Mapping[bytes, int], done: int = 0) -> Iterator[tuple[bytes, float]]:
        """Yield members that match a glob, from its cursor on; `done` members were read before."""
        while cursors:
            length, *found = self._link.pipe(
                ("ZCARD", key), *(_zscan(key, cursor, match) for match, cursor in cursors.items())
            )
            cursors = {match: cursor for match, (cursor, _) in zip(cursors, found, strict=True) if cursor}
            looked_at = max(0, min(SCAN_COUNT if cursors else length, length - done))
            done += looked_at
            self._report(looked_at)
            for _, pairs in found:
                yield from pairs

    def _expect(self, states: Collection[RequestState], slot: str | None = None) -> None:
        if self.progress is not None:
            self.progress(0, self.count(states, slot=slot))

    def _report(self, looked_at: int) -> None:
        if self.progress is not None:
            self.progress(looked_at, 0)


def _zscan(key: str | bytes, cursor: int, match: bytes) -> tuple[Any, ...]:
    return ("ZSCAN", key, cursor, *(("MATCH", match) if match else ()), "COUNT", SCAN_COUNT)


def escaped(text: bytes) -> bytes:
    """Return a glob that matches exactly these bytes."""
    return b"".join(b"\\" + bytes([byte]) if byte in b"*?[]\\" else bytes([byte]) for byte in text)


def read_pending(member: bytes, rank: float, slot: bytes) -> Stored:
    """Return the request of a member of a slot's queue."""
    if len(member) < _HEAD:
        return _foreign(member, "pending", rank, decoded(slot))
    return Stored(_id(member), "pending", member[8], int(rank), decoded(slot), member[_HEAD:])


def read_suspect(member: bytes, rank: float) -> Stored:
    """Return the request of a member of the suspects."""
    try:
        slot, payload = _slot_and_payload(member, _HEAD)
    except struct.error:
        return _foreign(member, "pending", rank)
    return Stored(_id(member), "pending", member[8], int(rank), slot, payload, is_suspect=True)


def read_delayed(member: bytes, due_ms: float) -> Stored:
    """Return the request of a member of the delayed ones."""
    try:
        rank, _ = _DELAYED.unpack_from(member, _HEAD)
        slot, payload = _slot_and_payload(member, _HEAD + 8)
        rank = int(rank)
    except (struct.error, ValueError, OverflowError):
        return _foreign(member, "delayed", 0)
    return Stored(_id(member), "delayed", member[8], rank, slot, payload, at_ms=int(due_ms))


def read_leased(key: bytes, value: bytes, expiry_ms: float | None, lost: bytes | None) -> Stored:
    """Return the request of a lease."""
    lease = read_lease(value)
    return Stored(
        *(_id(key), "leased", lease.attempt, int(lease.rank), decoded(lease.slot), lease.payload),
        at_ms=int(expiry_ms or 0),
        worker=decoded(lease.worker),
        lost_by=decoded(lost or b""),
    )


def read_dead(key: bytes, value: bytes) -> Stored:
    """Return the request of a dead letter."""
    fields = letter_fields(value)
    return Stored(_id(key), "dead", at_ms=fields.pop("died_ms"), **fields)


def _foreign(member: bytes, state: RequestState, rank: float, slot: str = "") -> Stored:
    """Return an entry that another program has written: all of it is the payload."""
    return Stored(_id(member), state, 0, int(rank), slot, member)


def _id(member: bytes) -> int:
    found: int = ID.unpack(member[:8].ljust(8, b"\0"))[0]
    return found


def _slot_and_payload(member: bytes, at: int) -> tuple[str, bytes]:
    (length,) = _LENGTH.unpack_from(member, at)
    first = at + _LENGTH.size
    return decoded(member[first : first + length]), member[first + length :]
