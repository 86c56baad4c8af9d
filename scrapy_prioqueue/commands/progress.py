"""The progress of a verb: a bar on a terminal, and text for a verb that is interrupted."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.output import counted, number


class Work:
    """Counts the steps of a verb and shows them; as text it is "1,200 of 3,000".

    Args:
        doing: what the verb does, in a word or two.
        total: number of steps, None if unknown.
    """

    def __init__(self, bar: Progress, doing: str, total: int | None = None) -> None:
        self.done = 0
        self.total = total
        self._is_about = False
        self._bar = bar
        self._task: TaskID | None = None
        self._doing = doing

    def __str__(self) -> str:
        return number(self.done) + ("" if self.total is None else f"{self._of}{number(self.total)}")

    @property
    def _of(self) -> str:
        return " of about " if self._is_about else " of "

    def counted(self, noun: str) -> str:
        """Return the text with what was counted: 1,200 of 3,000 requests."""
        if self.total is None:
            return counted(self.done, noun)
        return f"{number(self.done)}{self._of}{counted(self.total, noun)}"

    def note(self, done: int, *, part: float | None = None, doing: str | None = None) -> None:
        """Set the number of steps done.

        Args:
            part: the done part of the whole, from 0 to 1, if the total is unknown.
            doing: what the verb does from now on, if that changes.
        """
        self.done, self._doing = done, doing or self._doing
        if part and done:
            self._is_about = part < 1
            # The total is an estimate, so it is rounded to three digits.
            about = round(done / part)
            self.total = max(done, round(about, 3 - len(str(about)))) if part < 1 else done
        if self._task is None:
            self._task = self._bar.add_task(self._doing, total=self.total, text="")
        self._bar.update(self._task, description=self._doing, completed=done, total=self.total, text=str(self))

    def look(self, looked_at: int, expected: int) -> None:
        """Add requests that were read, and requests that are still to be read."""
        if expected:
            self.total = (self.total or 0) + expected
        self.note(self.done + looked_at)


@contextmanager
def working(doing: str, total: int | None = None) -> Iterator[Work]:
    """Yield a counter; it is shown on standard error, if that is a terminal, from its first step on."""
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(show_speed=True),
        TextColumn("{task.fields[text]}", markup=False),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    )
    with bar:
        yield Work(bar, doing, total)


@contextmanager
def looking(context: Context) -> Iterator[Work]:
    """Show how many of the frontier's requests have been read."""
    requests = context.inspector.requests
    with working("reading requests") as work:
        requests.progress = work.look
        context.so_far = lambda: f"{work.counted('request')} read"
        try:
            yield work
        finally:
            requests.progress = None
        context.so_far = None
