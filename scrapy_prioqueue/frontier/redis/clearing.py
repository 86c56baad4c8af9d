"""Clearing a frontier: which keys are dropped, in calls of bounded size.

The keys are derived from the state: slots are in lanes, and the shape of the seen sets says how many keys these may
have. So the cost of a clearing depends on the frontier alone, not on the rest of the server. The state records the
progress, and a worker that takes a clearing over continues from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice

from scrapy_prioqueue.frontier.redis.key_types import MANY, TYPES
from scrapy_prioqueue.frontier.redis.keys import LAYOUT, Keys
from scrapy_prioqueue.frontier.redis.scripts import Argument, Call
from scrapy_prioqueue.frontier.redis.seen.shapes import DEFAULT_SHAPE, chunks_of

KEYS_PER_CALL = 1000
"""Keys per call; a call takes the server about a millisecond."""

CALLS_PER_TRIP = 8

WAIT_S = 0.2
"""Seconds between two looks at a clearing by another client."""

FIELDS = ("layout", "seen_shape", "seen_levels", "seen_moved", "seen", "seen_name", "cleared")
"""Fields of the state that a clearing needs."""

Fields = Sequence[bytes | None]
Name = str | bytes


def must_scan(fields: Fields) -> bool:
    """Return whether an earlier version may have left keys that only a scan of the whole server finds."""
    layout, _, levels, _, seen, seen_name, _ = fields
    if layout is not None and layout != LAYOUT.encode():
        return True
    # If another frontier stores the fingerprints, the shape is the other one's.
    return int(seen or 0) > 0 if levels is None else seen_name is not None


def seen_names(keys: Keys, fields: Fields) -> Iterator[Name]:
    """Yield all keys that the seen sets may have."""
    shape, levels, moved = fields[1:4]
    chunks = chunks_of(DEFAULT_SHAPE if shape is None else shape.decode(), int(moved or 0))
    for level, count in enumerate(chunks[: int(levels or 0)]):
        yield from (keys.seen(level, number) for number in range(count))


class Clearing:
    """The script calls of one clearing.

    Args:
        keys: of the frontier.
        client: the worker or program that clears the frontier.
        scope: see `Keys.is_cleared_by`.
        fields: of the state, in the order of `FIELDS`.
        now: returns the time for a script, empty to use the server's clock.
    """

    def __init__(
        self, keys: Keys, client: str, scope: str, fields: Fields, now: Callable[[], Argument] = lambda: ""
    ) -> None:
        self._keys, self._client, self._scope, self._now = keys, client, scope, now
        self._fields = fields
        self.must_scan = must_scan(fields)
        self._queue_calls = 1
        earlier, _, done = (fields[-1] or b"").decode().partition(" ")
        self.done = int(done) if earlier == scope else 0
        """Number of names processed, by this clearing and by the one that it continues."""
        self.dropped = 0
        """Number of queues dropped."""

    def queues(self) -> Sequence[Call]:
        """Return the calls that drop queues of slots in lanes, to be repeated until `are_gone`."""
        calls, self._queue_calls = self._queue_calls, CALLS_PER_TRIP
        return [self._call((), queues=KEYS_PER_CALL)] * calls

    def are_gone(self, replies: Sequence[tuple[int, int]]) -> bool:
        """Return whether, by these replies, no slot is left in a lane."""
        self.dropped += sum(positions for _, positions in replies)
        return replies[-1][1] < KEYS_PER_CALL

    def found(self, names: Iterable[bytes]) -> Call:
        """Return the call that drops keys found by a scan; without keys it reports that the scan goes on."""
        return self._call([name for name in names if self._keys.is_cleared_by(name, self._scope)])

    def trips(self) -> Iterator[Sequence[Call]]:
        """Yield the calls of each round trip for all other keys; the last call ends the clearing."""
        rest = islice(self._names(), self.done, None)
        while True:
            calls: list[Call] = []
            while len(calls) < CALLS_PER_TRIP and (part := list(islice(rest, KEYS_PER_CALL))):
                self.done += len(part)
                calls.append(self._call(part))
            if len(calls) < CALLS_PER_TRIP:
                yield [*calls, self._call((), is_last=True)]
                return
            yield calls

    def _names(self) -> Iterator[Name]:
        nouns = chain((noun for noun in TYPES if noun not in MANY), ("counted:limits", "counted:budgets"))
        for name in map(self._keys.of, nouns):
            if self._keys.is_cleared_by(name.encode(), self._scope):
                yield name
        if self._scope != "keep":
            yield from seen_names(self._keys, self._fields)

    def _call(self, names: Iterable[Name], *, queues: int = 0, is_last: bool = False) -> Call:
        progress = "" if is_last else f"{self._scope} {self.done}"
        return "clear", (self._now(), self._client, queues, progress, *names)
