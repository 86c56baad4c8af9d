"""`scrapy frontier peek`: what would be served next."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.listing import request_document, request_table
from scrapy_prioqueue.commands.options import add_limit
from scrapy_prioqueue.commands.verb import FINE, NOTHING, Verb
from scrapy_prioqueue.commands.verbs.status import existing_state


class PeekVerb(Verb):
    """Shows the next requests in the order in which they would be served, and takes none."""

    name = "peek"
    summary = "the next requests, in serving order"

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_limit(parser, 20)

    def run(self, context: Context, options: Namespace) -> int:
        tiers = existing_state(context).tiers
        found = context.inspector.peek(options.limit)
        if context.output.as_json:
            context.output.json([request_document(stored, tiers) for stored in found])
        elif found:
            context.output.show(request_table(found, tiers))
        else:
            context.output.show("nothing is pending")
        return FINE if found else NOTHING
