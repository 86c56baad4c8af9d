"""`scrapy frontier scale`: how many workers are useful now."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from contextlib import suppress
from threading import Event

from rich.console import Group, RenderableType
from rich.text import Text

from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.options import count, in_options, seconds
from scrapy_prioqueue.commands.output import Cell, counted, duration, number, pairs, rate
from scrapy_prioqueue.commands.verb import FINE, Verb
from scrapy_prioqueue.errors import FrontierFull, FrontierUnavailable
from scrapy_prioqueue.monitoring.adviser import Adviser, FrontierMissing, write_scale_key
from scrapy_prioqueue.monitoring.scaling import Advice

WATCH_S, RETRY_S = 15.0, 1.0


class ScaleVerb(Verb):
    name = "scale"
    summary = "how many workers are useful now, and why; for autoscalers"
    examples = ("", "--json", "--watch", "--watch 30 --json")

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--watch",
            type=seconds,
            nargs="?",
            const=WATCH_S,
            metavar="S",
            help="store the number in Redis every S seconds, as the length of a list (default: %(const)s)",
        )
        parser.add_argument(
            "--count", type=count, metavar="N", help="with --watch: quit after storing it N times (default: never)"
        )

    def run(self, context: Context, options: Namespace) -> int:
        adviser = Adviser(context.config)
        if options.watch is None:
            try:
                advice = adviser.read(context.inspector)
            except FrontierMissing:
                # This says why, as for other verbs.
                context.state()
                raise
            context.output.found(advice, drawing(advice, context.name))
            return FINE
        with suppress(KeyboardInterrupt):  # Ctrl-C is the usual way to end this
            _watch(context, adviser, options)
        return FINE


def _watch(context: Context, adviser: Adviser, options: Namespace) -> None:
    """Store the number repeatedly; while it is unknown, or the server unavailable or full, retry."""
    output, pause, done, trouble = context.output, Event(), 0, ""
    while True:
        before, trouble, pause_s = trouble, "", options.watch
        try:
            advice = adviser.read(context.inspector)
            write_scale_key(context.link, context.name, advice.workers)
            document: object = advice
            line = f"{counted(advice.workers, 'worker')} useful, {number(advice.running)} running: {advice.why}"
        except (FrontierUnavailable, FrontierFull, FrontierMissing) as error:
            # A server that comes back empty has lost the number, too, so the number is stored again soon.
            trouble, pause_s = in_options(str(error), options), min(options.watch, RETRY_S)
            document, line = {"error": trouble}, f"{trouble}; trying again"
        if not trouble or trouble != before:
            output.json_line(document) if output.as_json else output.show(line)
        done += 1
        if done == options.count:
            return
        pause.wait(pause_s)


def drawing(advice: Advice, name: str) -> RenderableType:
    """Return the advice for people."""
    headline = Text.assemble(
        (name, "bold"), ": ", (counted(advice.workers, "worker"), "green"), f" useful, {number(advice.running)} running"
    )
    about = "≈" if advice.is_sampled else ""
    held_back = {
        "limits": advice.held_by_limits,
        "budgets": advice.held_by_budgets,
        "flood": advice.held_by_flood,
    }
    facts: list[tuple[str, Cell]] = [
        ("why", advice.why),
        ("bound by", f"{advice.bound_by}; from {number(advice.least)} to {counted(advice.most, 'worker')}"),
        ("left", counted(advice.left, "request")),
        ("can start", f"{about}{number(advice.runnable)} in {duration(advice.drain_s)}, or in progress"),
        *((f"held by {what}", about + number(count)) for what, count in held_back.items() if count),
        ("rate", f"{rate(advice.done_per_s)} now, {rate(advice.per_worker_per_s)} for a worker with enough to do"),
    ]
    return Group(headline, "", pairs(facts))
