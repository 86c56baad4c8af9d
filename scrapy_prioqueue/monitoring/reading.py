"""One reading of a frontier for any number of viewers; together they take at most a hundredth of the server's time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from scrapy_prioqueue.errors import FrontierUnavailable, PrioQueueError
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.inspector import Inspector

SHARE = 0.0075
"""Part of the server's time that readings may take; less than 1 %, since a part of each reading isn't measured."""

SAVED_S = 4.0
"""Maximum number of seconds whose share is saved while nothing is read."""

MOST_REST_S = 30.0
"""Maximum seconds without readings; a reading that would need a longer rest was delayed by something else."""

FIRST_WAIT_S = 10.0
"""Seconds to wait for a value that was never read."""

MOST_PARTS = 100
"""Maximum number of values that are kept; those that were asked for longest ago are dropped."""

BUSY = "not read yet, since other readings have taken their share of the server's time: try again in a few seconds"

T = TypeVar("T")

Question = Callable[[Inspector], T]
"""Reads one value from the server."""


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """A value as last read.

    Args:
        value: None if it was never read, or if there is no such frontier.
        age_s: seconds since it was read; None if it never was.
        trouble: why it can't be read now, empty if it can.
        is_away: the reason is that the server doesn't answer.
    """

    value: T | None
    age_s: float | None
    trouble: str = ""
    is_away: bool = False


class _Part:
    """A value, and when it was read and asked for."""

    def __init__(self, question: Question[Any], interval_s: float) -> None:
        self.question = question
        self.interval_s = interval_s
        self.value: Any = None
        self.read_at: float | None = None
        self.tried_at: float | None = None
        self.waiting_since: float | None = None
        self.trouble = ""

    def is_due(self, now: float, asked_at: float) -> bool:
        if self.tried_at is None:
            return True
        return self.tried_at < asked_at and now - self.tried_at >= self.interval_s


class _Allowance:
    """The server's time that readings may take: a share of the time that passes."""

    def __init__(self, share: float, clock: Callable[[], float]) -> None:
        self._share = share
        self._clock = clock
        self._left_s = share * SAVED_S
        self._counted_at = clock()

    def rest_s(self) -> float:
        """Return the seconds until the next reading, 0 if it may begin."""
        now = self._clock()
        self._left_s = min(self._left_s + (now - self._counted_at) * self._share, SAVED_S * self._share)
        self._counted_at = now
        return max(0.0, -self._left_s / self._share)

    @contextmanager
    def spending(self, link: Link) -> Iterator[None]:
        """Charge the processor time of the server meanwhile, for all clients, but at most the time that passes."""
        begun, busy_s = self._clock(), _busy_s(link)
        yield
        taken_s, busier_s = self._clock() - begun, _busy_s(link)
        # The counter of a server that was restarted meanwhile has begun at 0 again.
        if busy_s is not None and busier_s is not None and busier_s >= busy_s:
            taken_s = min(taken_s, busier_s - busy_s)
        self._left_s = max(self._left_s - taken_s, -MOST_REST_S * self._share)


def _busy_s(link: Link) -> float | None:
    """Return the processor time that the server's main thread has taken, None if unknown."""
    found = link.info("cpu") or {}
    for names in (("used_cpu_user_main_thread", "used_cpu_sys_main_thread"), ("used_cpu_user", "used_cpu_sys")):
        if all(name in found for name in names):
            return sum(float(found[name]) for name in names)
    return None


class FrontierReading:
    """Reads a frontier for viewers in any number of threads.

    A viewer gets the value that was read last. If the value is due, and the server's time allows it, the viewer's
    thread reads it first. Without viewers nothing is read.

    Args:
        interval_s: least seconds between two readings of the same value.
        share: part of the server's time that all readings together may take.
        first_wait_s: seconds to wait for a value that was never read.
    """

    def __init__(
        self,
        inspector: Inspector,
        *,
        interval_s: float = 1.0,
        share: float = SHARE,
        first_wait_s: float = FIRST_WAIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inspector = inspector
        self._interval_s = interval_s
        self._first_wait_s = first_wait_s
        self._allowance = _Allowance(share, clock)
        self._clock = clock
        self._parts: dict[Hashable, _Part] = {}
        self._changed = threading.Condition()
        self._is_reading = False
        self._trouble = ""

    def get(
        self, name: Hashable, question: Question[T | None], *, interval_s: float = 0.0, wait_s: float = 0.0
    ) -> Reading[T]:
        """Return a value.

        Args:
            name: of the value, the same for all viewers of it.
            interval_s: least seconds between two readings of it, if longer than that of the others.
            wait_s: seconds to wait for a value that is not due; a value that was never read is always waited for.
        """
        begun = self._clock()
        with self._changed:
            part = self._part(name, question, max(interval_s, self._interval_s))
            until = begun + (wait_s if part.read_at is not None else max(wait_s, self._first_wait_s))
        while part.is_due(now := self._clock(), begun):
            with self._changed:
                part.waiting_since = now if part.waiting_since is None else part.waiting_since
                rest_s = self._allowance.rest_s()
                if self._is_reading or rest_s:
                    if now >= until or (self._trouble and part.tried_at is not None):
                        break
                    # A thread that reads notifies the others at its end; the end of a rest is only a matter of time.
                    self._changed.wait(min(until - now, rest_s or until - now))
                    continue
                self._is_reading = True
                first = min(self._parts.values(), key=lambda each: (each.waiting_since is None, each.waiting_since))
            self._read(first)
        return self._reading_of(part)

    def expire(self) -> None:
        """Make all values due, after a change that viewers should see."""
        with self._changed:
            for part in self._parts.values():
                part.tried_at = None

    def _part(self, name: Hashable, question: Question[Any], interval_s: float) -> _Part:
        part = self._parts.pop(name, None) or _Part(question, interval_s)
        # The order of the dictionary is that in which the parts were asked for.
        self._parts[name] = part
        if len(self._parts) > MOST_PARTS:
            del self._parts[next(iter(self._parts))]
        return part

    def _read(self, part: _Part) -> None:
        """Read a value, and charge what that took."""
        value, trouble, is_away = part.value, "", False
        try:
            with self._allowance.spending(self.inspector.link):
                value = part.question(self.inspector)
        except PrioQueueError as error:
            trouble, is_away = str(error), isinstance(error, FrontierUnavailable)
        except Exception as error:  # other programs may have written anything; one such value must not hide the others
            trouble = f"can't be read: {error!r}"
        with self._changed:
            part.tried_at = self._clock()
            if not trouble:
                part.value, part.read_at = value, part.tried_at
            part.trouble, part.waiting_since = trouble, None
            self._trouble = trouble if is_away else ""
            self._is_reading = False
            self._changed.notify_all()

    def _reading_of(self, part: _Part) -> Reading[Any]:
        age_s = None if part.read_at is None else self._clock() - part.read_at
        trouble = part.trouble or self._trouble or ("" if age_s is not None else BUSY)
        return Reading(part.value, age_s, trouble, bool(self._trouble))
