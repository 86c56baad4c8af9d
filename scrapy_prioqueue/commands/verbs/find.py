"""`scrapy frontier find`: search requests by URL."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from itertools import islice

from scrapy_prioqueue.codec.plain import PlainRequest, plain_or_none
from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.listing import request_documents, request_table
from scrapy_prioqueue.commands.options import add_limit, add_pattern, add_states
from scrapy_prioqueue.commands.output import more
from scrapy_prioqueue.commands.progress import looking
from scrapy_prioqueue.commands.verb import FINE, NOTHING, Verb
from scrapy_prioqueue.frontier.redis.operators.findings import STATES, Stored


class FindVerb(Verb):
    name = "find"
    summary = "requests whose URLs match, in any state"
    syntax = "PATTERN"
    examples = (
        "'/product/[0-9]+$'",
        "checkout --in leased",
        "'/fr/' --slot shop.example --json",
        ". --callback parse_old",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_pattern(parser)
        add_states(parser)
        add_limit(parser, 100)

    def run(self, context: Context, options: Namespace) -> int:
        tiers = context.state().tiers
        with looking(context):
            found = list(islice(find(context, options), options.limit + 1))
        rest = [more(options.limit)] if len(found) > options.limit else []
        found = found[: options.limit]
        table = request_table(found, tiers, with_state=True)
        nothing = "" if found else context.nothing(f"no request matches {options.pattern.pattern}")
        context.output.found(request_documents(found, tiers), table, *rest, nothing=nothing)
        return FINE if found else NOTHING


def find(context: Context, options: Namespace) -> Iterator[Stored]:
    """Yield the requests selected by the options, each once."""
    seen = set()
    for stored in context.inspector.requests.each(options.states or STATES, slot=options.slot):
        plain = plain_or_none(stored.payload, stored.slot)
        # A request that changes its state meanwhile may be read twice.
        if plain and _matches(plain, options) and stored.lease_id not in seen:
            seen.add(stored.lease_id)
            yield stored


def _matches(plain: PlainRequest, options: Namespace) -> bool:
    is_wanted = options.callback in (None, plain.callback or "parse")
    return is_wanted and options.pattern.search(plain.url) is not None
