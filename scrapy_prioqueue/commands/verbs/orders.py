"""`scrapy frontier pause`, `resume`, `drain` and `stop`: commands to all workers."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.output import counted, number
from scrapy_prioqueue.commands.verb import FINE, NOTHING, Stop, Verb
from scrapy_prioqueue.commands.writing import add_confirmation, confirm, operator_of


class PauseVerb(Verb):
    name = "pause"
    summary = "start no more requests, until resume"
    examples = ("",)
    is_read = False

    def run(self, context: Context, options: Namespace) -> int:
        context.open_state("nothing is left to pause")
        workers = operator_of(context).order(paused=True)
        will = "no worker is running, and those that start wait for resume"
        if workers:
            will = f"{counted(len(workers), 'worker')} will finish requests in progress and start no others"
        context.output.show(f"paused: {will}")
        return FINE


class ResumeVerb(Verb):
    name = "resume"
    summary = "continue after pause or drain"
    examples = ("",)
    is_read = False

    def run(self, context: Context, options: Namespace) -> int:
        state = context.state()
        orders = [order for order in state.orders if order in ("paused", "drained")]
        if not orders:
            # The crawl is in the wanted state, unless it has ended.
            context.output.show(context.nothing("the crawl was neither paused nor drained"))
            return NOTHING if state.has_ended else FINE
        operator_of(context).order(paused=False, drained=False)
        context.output.show(context.nothing(f"resumed: the crawl was {' and '.join(orders)}"))
        return FINE


class DrainVerb(Verb):
    name = "drain"
    summary = "fetch what is pending and drop new requests, until resume"
    examples = ("", "--yes")
    is_read = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_confirmation(parser)

    def run(self, context: Context, options: Namespace) -> int:
        context.open_state("nothing is left to drain")
        confirm(context, options, f"drop all new requests found on pages of frontier {context.name!r}")
        workers = operator_of(context).order(drained=True)
        who = counted(len(workers), "worker") if workers else "no worker is running, and those that start"
        context.output.show(f"draining: {who} will fetch pending requests and drop new ones")
        return FINE


class StopVerb(Verb):
    name = "stop"
    summary = "close every worker once its requests in progress are done"
    examples = ("", "--reason maintenance --yes")
    is_read = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--reason", default="stopped", help="reason with which the workers close (default: %(default)s)"
        )
        add_confirmation(parser)

    def run(self, context: Context, options: Namespace) -> int:
        context.state()
        present = context.inspector.workers()
        if not present:
            raise Stop(context.nothing("no worker is running"))
        workers, silent = counted(len(present), "worker"), sum(not worker.is_alive for worker in present)
        confirm(context, options, f"close {workers} of frontier {context.name!r}")
        operator_of(context).order(stop_reason=options.reason or "stopped")
        rest = f"; silent ones ({number(silent)}) do so if they come back" if silent else ""
        context.output.show(f"asked {workers} to close with the reason {options.reason!r}{rest}")
        return FINE
