"""`scrapy frontier release`: end leases, so that other workers fetch their pages."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.options import count
from scrapy_prioqueue.commands.output import counted
from scrapy_prioqueue.commands.progress import looking
from scrapy_prioqueue.commands.verb import FINE, NOTHING, Stop, Verb
from scrapy_prioqueue.commands.writing import add_confirmation, confirm, operator_of


class ReleaseVerb(Verb):
    name = "release"
    summary = "take pages that never end from their workers, and give them to others"
    syntax = "ID ..."
    examples = ("4711 4712",)
    is_read = False
    takes_more = ("ids", count)

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "ids",
            nargs="+",
            type=count,
            metavar="ID",
            help="id of a request, as shown by status, workers, find and doctor",
        )
        add_confirmation(parser)

    def run(self, context: Context, options: Namespace) -> int:
        context.state()
        with looking(context):
            found = [context.inspector.requests.by_id(each) if each < 2**64 else None for each in options.ids]
        held: dict[str, list[int]] = {}
        for each, stored in zip(options.ids, found, strict=True):
            if stored is None or stored.state != "leased":
                where = "does not exist" if stored is None else f"is {stored.state}"
                raise Stop(context.nothing(f"request {each} {where}; only a leased request can be released"))
            held.setdefault(stored.worker, []).append(each)
        pages, workers = counted(len(found), "page"), ", ".join(map(repr, held))
        what = f"take {pages} from {workers}; those that end there are fetched twice"
        confirm(context, options, what)
        operator, max_attempts = operator_of(context), context.config.max_attempts
        taken = sum(operator.take_leases(worker, ids, max_attempts=max_attempts) for worker, ids in held.items())
        context.output.show(f"{counted(taken, 'page')} given to others")
        return FINE if taken else NOTHING
