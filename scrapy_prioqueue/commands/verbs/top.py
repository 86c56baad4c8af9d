"""`scrapy frontier top`: the live summary."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Event

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.text import Text

from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.options import count, in_options, seconds
from scrapy_prioqueue.commands.output import duration, rate
from scrapy_prioqueue.commands.verb import FINE, Verb
from scrapy_prioqueue.commands.verbs.status import MAX_WORKERS, as_json, drawing
from scrapy_prioqueue.errors import FrontierUnavailable
from scrapy_prioqueue.frontier.redis.operators.findings import Status, WorkerFound
from scrapy_prioqueue.printable import clean

WINDOW_S = 10.0
"""Length of the period over which rates are computed."""

LEAST_WORKERS = 3
"""Number of workers that a low terminal shows at least; other parts are left out for them."""

LESS_IMPORTANT = ("empty tiers", "history", "Redis", "began", "seen", "dead", "delayed", "policy", "tiers")
"""Parts of the summary that are left out on a low terminal, the first ones first."""


class Meter:
    """Computes rates from consecutive summaries."""

    def __init__(self) -> None:
        self._latest: deque[Status] = deque()

    def add(self, status: Status) -> None:
        if self._latest and self._latest[-1].state.epoch != status.state.epoch:
            self._latest.clear()
        self._latest.append(status)
        while len(self._latest) > 2 and status.now_ms - self._latest[1].now_ms >= WINDOW_S * 1000:
            self._latest.popleft()

    def rates(self) -> tuple[float | None, float | None]:
        """Return requests done and accepted per second; None without at least two summaries."""
        first, last = self._latest[0], self._latest[-1]
        passed_s = (last.now_ms - first.now_ms) / 1000
        if passed_s <= 0:
            return None, None
        done, accepted = (last.counts[name] - first.counts[name] for name in ("done", "accepted"))
        return done / passed_s, accepted / passed_s

    def with_recent_rates(self) -> Status:
        """Return the latest summary with the workers' rates over the same period in place of their averages."""
        first, last = self._latest[0], self._latest[-1]
        passed_s, done = (last.now_ms - first.now_ms) / 1000, {worker.name: worker.done for worker in first.workers}

        def rate_of(worker: WorkerFound) -> float | None:
            before = done.get(worker.name)
            if passed_s <= 0 or before is None or worker.done is None:
                return None
            return (worker.done - before) / passed_s

        workers = [replace(worker, rate_per_s=rate_of(worker)) for worker in last.workers]
        return replace(last, workers=workers)


class TopVerb(Verb):
    name = "top"
    summary = "live status; Ctrl-C quits"
    examples = ("", "--interval 5", "--json --count 1")

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--interval", type=seconds, default=1.0, metavar="S", help="seconds between updates (default: %(default)s)"
        )
        parser.add_argument("--count", type=count, metavar="N", help="quit after N updates (default: never)")

    def run(self, context: Context, options: Namespace) -> int:
        output, first = context.output, context.status()
        with suppress(KeyboardInterrupt):  # Ctrl-C is the usual way to end this verb
            if output.as_json:
                _repeat(context, options, first, lambda view: output.json_line(view.document))
            elif output.console.is_terminal:
                with Live(console=output.console, screen=True, auto_refresh=False) as live:
                    _repeat(context, options, first, lambda view: live.update(view, refresh=True))
            else:
                _repeat(context, options, first, lambda view: output.show(view.drawing(), ""))
        return FINE


@dataclass(frozen=True, slots=True)
class View:
    """One update of the display, with as many workers as the height of the terminal allows.

    Args:
        interval_s: seconds until the next update.
        trouble: why the summary is outdated, empty if it is current.
    """

    status: Status
    done_per_s: float | None
    accepted_per_s: float | None
    interval_s: float
    trouble: str = ""

    @property
    def document(self) -> dict[str, object]:
        """The update for JSON."""
        return {"error": self.trouble} if self.trouble else as_json(self.status)

    def drawing(self, max_workers: int = MAX_WORKERS, *, without: Collection[str] = ()) -> RenderableType:
        """Return the update for people; see `drawing()` of `status`."""
        line = Text.assemble(
            ("now  ", "bold"),
            f"{rate(self.done_per_s)} done, {rate(self.accepted_per_s)} accepted",
            (f"   every {duration(self.interval_s)}, Ctrl-C quits", "dim"),
        )
        if self.trouble:
            line = Text(clean(f"{self.trouble}; trying again; below is the last summary"), style="red")
        return Group(line, "", drawing(self.status, max_workers=max_workers, rate_of_workers="rate", without=without))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the update without its less important parts, if there is no room for some workers otherwise."""
        height, count = options.max_height, len(self.status.workers)
        natural = options.update(height=None)

        def fits(workers: int, omitted: int) -> bool:
            drawn = self.drawing(workers, without=LESS_IMPORTANT[:omitted])
            return len(console.render_lines(drawn, natural, pad=False)) <= height

        most = len(LESS_IMPORTANT)
        omitted = next((each for each in range(most + 1) if fits(min(count, LEAST_WORKERS), each)), most)
        # As many workers as fit: the first number that doesn't, less one.
        workers = bisect_left(range(1, count + 1), 1, key=lambda each: not fits(each, omitted))
        yield self.drawing(max(1, workers), without=LESS_IMPORTANT[:omitted])


def _repeat(context: Context, options: Namespace, status: Status, show: Callable[[View], object]) -> None:
    """Read and show the summary repeatedly; while the server is unavailable, retry."""
    meter, pause, shown, trouble = Meter(), Event(), 0, ""
    while True:
        if not trouble:
            meter.add(status)
        show(View(meter.with_recent_rates(), *meter.rates(), options.interval, trouble))
        shown += 1
        if shown == options.count:
            return
        pause.wait(options.interval)
        try:
            status, trouble = context.status(), ""
        except FrontierUnavailable as error:
            trouble = in_options(str(error), options)
