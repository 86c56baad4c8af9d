"""Notes of a worker about slots that are not sent yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from scrapy_prioqueue.frontier.policy import Closing, Note

MOST_NOTES = 1_000
"""Notes that are kept while the frontier doesn't answer; then the oldest go."""

MOST_TOLD = 200
"""Notes of one exchange."""


class Notes:
    """Notes in their order; each goes with a demand, until one that it went with has been answered.

    Args:
        clock: monotonic, in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._notes: deque[tuple[float, Note]] = deque(maxlen=MOST_NOTES)

    def __bool__(self) -> bool:
        return bool(self._notes)

    @property
    def since(self) -> float:
        """When the oldest was made; there must be one."""
        return self._notes[0][0]

    def add(self, note: Note) -> None:
        """Keep a note until it is sent."""
        self._notes.append((self._clock(), note))

    def told(self) -> Sequence[Note]:
        """Return the notes to send now."""
        if not self._notes:
            return ()
        now = self._clock()
        return [_as_of(note, now - at) for at, note in list(self._notes)[:MOST_TOLD]]

    def confirm(self, count: int) -> None:
        """Drop so many of the oldest notes, which were sent."""
        for _ in range(min(count, len(self._notes))):
            self._notes.popleft()


def _as_of(note: Note, ago_s: float) -> Note:
    """Return a note that was made some time ago as what it says of the time from now on."""
    if isinstance(note, Closing):
        return replace(note, wait_ms=max(0, note.wait_ms - int(ago_s * 1000)))
    return note
