"""`scrapy frontier show`: show one request in full."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.listing import request_document, request_sheet
from scrapy_prioqueue.commands.options import count
from scrapy_prioqueue.commands.progress import looking
from scrapy_prioqueue.commands.verb import FINE, Stop, Verb


class ShowVerb(Verb):
    name = "show"
    summary = "everything known about a request, by its id"
    syntax = "ID"
    examples = ("4711",)

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "id", type=count, metavar="ID", help="id of a request, as shown by peek, find and dead list"
        )

    def run(self, context: Context, options: Namespace) -> int:
        tiers = context.state().tiers
        with looking(context):
            stored = context.inspector.requests.by_id(options.id) if options.id < 2**64 else None
        if stored is None:
            what = f"no request {options.id} in frontier {context.name!r}: it is done, was removed, or never existed"
            raise Stop(context.nothing(what))
        context.output.found(request_document(stored, tiers), request_sheet(stored, tiers))
        return FINE
