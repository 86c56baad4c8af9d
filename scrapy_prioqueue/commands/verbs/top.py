"""`scrapy frontier top`: the summary, live."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.options import count, seconds
from scrapy_prioqueue.commands.output import duration, rate
from scrapy_prioqueue.commands.verb import FINE, Verb
from scrapy_prioqueue.commands.verbs.status import as_json, drawing, read_status
from scrapy_prioqueue.errors import FrontierUnavailable
from scrapy_prioqueue.frontier.redis.findings import Status

WINDOW_S = 10.0
"""Rates are those of the last so many seconds."""


@dataclass(frozen=True, slots=True)
class _Sample:
    now_ms: int
    epoch: str
    done: int
    accepted: int


class Meter:
    """Rates between summaries taken one after the other."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()

    def add(self, status: Status) -> None:
        """Take a summary into account."""
        counts = status.counts
        sample = _Sample(status.now_ms, status.state.epoch, counts["done"], counts["accepted"])
        if self._samples and self._samples[-1].epoch != sample.epoch:
            self._samples.clear()
        self._samples.append(sample)
        while len(self._samples) > 2 and sample.now_ms - self._samples[1].now_ms >= WINDOW_S * 1000:
            self._samples.popleft()

    def rates(self) -> tuple[float | None, float | None]:
        """Return how many requests are done, and how many accepted, per second; None as long as that isn't known."""
        first, last = self._samples[0], self._samples[-1]
        passed_s = (last.now_ms - first.now_ms) / 1000
        if passed_s <= 0:
            return None, None
        return (last.done - first.done) / passed_s, (last.accepted - first.accepted) / passed_s


class TopVerb(Verb):
    """Shows the summary again and again, in place on a terminal."""

    name = "top"
    summary = "status, live; Ctrl-C ends it"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add how often."""
        parser.add_argument(
            "--interval", type=seconds, default=1.0, metavar="S", help="seconds in between (default: %(default)s)"
        )
        parser.add_argument("--count", type=count, metavar="N", help="end after so many (default: go on)")

    def run(self, context: Context, options: Namespace) -> int:
        """Show it until interrupted."""
        read_status(context)
        output = context.output

        def show(status: Status, meter: Meter) -> None:
            if output.as_json:
                output.json_line(as_json(status))
            else:
                output.show(_screen(status, meter, options), "")

        try:
            if output.console.is_terminal and not output.as_json:
                with Live(console=output.console, screen=True, auto_refresh=False) as live:

                    def update(status: Status, meter: Meter) -> None:
                        live.update(_screen(status, meter, options), refresh=True)

                    _repeat(context, options, update)
            else:
                _repeat(context, options, show)
        except KeyboardInterrupt:
            # The usual way out, so no error.
            return FINE
        return FINE


def _repeat(context: Context, options: Namespace, show: Callable[[Status, Meter], object]) -> None:
    """Read and show; a server that is away for a while is waited for, once it has answered."""
    meter, pause, shown = Meter(), Event(), 0
    while True:
        try:
            status = read_status(context)
        except FrontierUnavailable as error:
            context.output.show(f"{error}; trying again")
        else:
            meter.add(status)
            show(status, meter)
        shown += 1
        if shown == options.count:
            return
        pause.wait(options.interval)


def _screen(status: Status, meter: Meter, options: Namespace) -> RenderableType:
    done, accepted = meter.rates()
    now = Text.assemble(
        ("now  ", "bold"),
        f"{rate(done)} done, {rate(accepted)} accepted",
        (f"   every {duration(options.interval)}, Ctrl-C ends", "dim"),
    )
    return Group(drawing(status), "", now)
