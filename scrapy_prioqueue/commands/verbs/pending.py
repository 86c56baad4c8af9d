"""`scrapy frontier move` and `remove`: pending and delayed requests get another rank, or are taken out."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator

from scrapy_prioqueue.codec.detached import with_meta
from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.output import number
from scrapy_prioqueue.commands.patterns import add_pattern
from scrapy_prioqueue.commands.verb import FINE, NOTHING, Verb
from scrapy_prioqueue.commands.verbs.find import find
from scrapy_prioqueue.commands.verbs.status import existing_state
from scrapy_prioqueue.commands.writing import add_confirmation, is_wanted, looking, operator_of, tier_index
from scrapy_prioqueue.errors import DecodeError
from scrapy_prioqueue.frontier.redis.findings import Stored
from scrapy_prioqueue.rank import priority_of, rank_of
from scrapy_prioqueue.tiers import TIER_META


class MoveVerb(Verb):
    """Gives requests another tier."""

    name = "move"
    summary = "give pending requests whose URLs match another tier"
    is_read = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add which and where to."""
        add_pattern(parser)
        parser.add_argument("--tier", required=True, help="name of the new tier")
        parser.add_argument("--slot", help="only those of this slot, usually a host; much faster")
        add_confirmation(parser, can_be_tried=True)

    def run(self, context: Context, options: Namespace) -> int:
        """Move them."""
        tier = tier_index(context, list(existing_state(context).tiers), options.tier)
        with looking(context):
            count = sum(1 for _ in _moves(context, options, tier))
        what = f"move {number(count)} of the pending and delayed requests that match to tier {options.tier!r}"
        if count == 0:
            context.output.show(f"no pending or delayed request in another tier matches {options.pattern}")
            return NOTHING
        if not is_wanted(context, options, what):
            return FINE if options.dry_run else NOTHING
        with looking(context):
            moved = operator_of(context).move(_moves(context, options, tier))
        context.output.show(f"{number(moved)} moved to tier {options.tier!r}")
        return FINE


class RemoveVerb(Verb):
    """Takes requests out."""

    name = "remove"
    summary = "take pending requests whose URLs match out of the crawl"
    is_read = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add which."""
        add_pattern(parser)
        parser.add_argument("--slot", help="only those of this slot, usually a host; much faster")
        add_confirmation(parser, can_be_tried=True)

    def run(self, context: Context, options: Namespace) -> int:
        """Remove them."""
        existing_state(context)
        with looking(context):
            count = sum(1 for _ in _waiting(context, options))
        if count == 0:
            context.output.show(f"no pending or delayed request matches {options.pattern}")
            return NOTHING
        what = f"remove {number(count)} pending and delayed requests, which stay seen"
        if not is_wanted(context, options, what):
            return FINE if options.dry_run else NOTHING
        with looking(context):
            removed = operator_of(context).remove(_waiting(context, options))
        context.output.show(f"{number(removed)} removed")
        return FINE


def _waiting(context: Context, options: Namespace) -> Iterator[Stored]:
    options.places = ("pending", "delayed")
    return find(context, options)


def _moves(context: Context, options: Namespace, tier: int) -> Iterator[tuple[Stored, int, bytes]]:
    for stored in _waiting(context, options):
        rank = rank_of(tier, priority_of(stored.rank))
        if rank != stored.rank:
            yield stored, rank, _in_tier(stored, options.tier)


def _in_tier(stored: Stored, tier: str) -> bytes:
    """Return the payload of a request with the tier in `meta`, so that retries stay in it."""
    try:
        return with_meta(stored.payload, stored.slot, {TIER_META: tier})
    except DecodeError:
        return stored.payload
