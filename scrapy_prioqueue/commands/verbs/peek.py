"""`scrapy frontier peek`: show the requests that would be served next."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.listing import request_documents, request_table
from scrapy_prioqueue.commands.options import add_limit
from scrapy_prioqueue.commands.verb import FINE, NOTHING, Verb


class PeekVerb(Verb):
    name = "peek"
    summary = "the next requests, in serving order"
    examples = ("", "-n 100", "--json")

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_limit(parser, 20)

    def run(self, context: Context, options: Namespace) -> int:
        tiers = context.state().tiers
        found = context.inspector.peek(options.limit)
        nothing = "" if found else context.nothing("nothing is pending")
        context.output.found(request_documents(found, tiers), request_table(found, tiers), nothing=nothing)
        return FINE if found else NOTHING
