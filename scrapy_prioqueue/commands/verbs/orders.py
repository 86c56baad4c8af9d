"""`scrapy frontier pause`, `resume`, `drain` and `stop`: commands to the whole fleet."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.output import counted
from scrapy_prioqueue.commands.verb import FINE, NOTHING, Stop, Verb
from scrapy_prioqueue.commands.writing import add_confirmation, is_wanted, operator_of


class PauseVerb(Verb):
    """Makes the fleet start no more requests."""

    name = "pause"
    summary = "start no more requests, until resume"
    examples = ("",)
    is_read = False

    def run(self, context: Context, options: Namespace) -> int:
        _require_open(context)
        workers = _these(operator_of(context).order(paused=True))
        context.output.show(f"paused: {workers} will finish requests in progress and start no others")
        return FINE


class ResumeVerb(Verb):
    """Ends pause and drain."""

    name = "resume"
    summary = "continue after pause or drain"
    examples = ("",)
    is_read = False

    def run(self, context: Context, options: Namespace) -> int:
        orders = [order for order in context.state().orders if order in ("paused", "drained")]
        operator_of(context).order(paused=False, drained=False)
        context.output.show(
            f"resumed: it was {' and '.join(orders)}" if orders else "it was neither paused nor drained"
        )
        return FINE


class DrainVerb(Verb):
    """Makes the fleet drop new requests and fetch only pending ones."""

    name = "drain"
    summary = "fetch what is pending and drop new requests, until resume"
    examples = ("", "--yes")
    is_read = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_confirmation(parser)

    def run(self, context: Context, options: Namespace) -> int:
        _require_open(context)
        if not is_wanted(context, options, f"drop all new requests found on pages of frontier {context.name!r}"):
            return NOTHING
        workers = _these(operator_of(context).order(drained=True))
        context.output.show(f"draining: {workers} will fetch pending requests and drop new ones")
        return FINE


class StopVerb(Verb):
    """Makes every worker close."""

    name = "stop"
    summary = "close every worker once its requests in progress are done"
    examples = ("", "--reason maintenance --yes")
    is_read = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--reason", default="stopped", help="finish reason of the workers (default: %(default)s)")
        add_confirmation(parser)

    def run(self, context: Context, options: Namespace) -> int:
        context.state()
        present = [worker.name for worker in context.inspector.workers()]
        if not present:
            context.output.show("no worker is running")
            return NOTHING
        if not is_wanted(context, options, f"close {_these(present)} of frontier {context.name!r}"):
            return NOTHING
        workers = _these(operator_of(context).order(stop_reason=options.reason or "stopped"))
        context.output.show(f"told {workers} to close with the reason {options.reason!r}")
        return FINE


def _require_open(context: Context) -> None:
    """Refuse a command after the end of a crawl: the next crawl would not get it."""
    if context.state().phase == "ended":
        raise Stop(f"the crawl of frontier {context.name!r} has ended; pause and drain need an open crawl")


def _these(workers: Sequence[str] | None) -> str:
    return counted(len(workers or ()), "worker")
