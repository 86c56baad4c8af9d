"""`scrapy frontier slots`: pending requests by download slot, usually a host."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from rich.console import RenderableType

from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.options import add_limit
from scrapy_prioqueue.commands.output import Cell, FittedTable, duration, number
from scrapy_prioqueue.commands.sharing import delay_text
from scrapy_prioqueue.commands.verb import FINE, NOTHING, Verb
from scrapy_prioqueue.commands.verbs.status import existing_state
from scrapy_prioqueue.frontier.redis.findings import SlotFound
from scrapy_prioqueue.frontier.redis.inspector import tier_name

CLOSED = "closed: the site asked for it (Retry-After); limit SLOT --open opens it"


class SlotsVerb(Verb):
    """Lists the slots."""

    name = "slots"
    summary = "by slot, usually a host: pending, leased, rate, best tier, when it may be served"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add how many, and in which order."""
        add_limit(parser, 30)
        parser.add_argument(
            "--sort",
            choices=("pending", "leased", "name", "order"),
            default="pending",
            help="longest queue first, most leased first, by name, or in the order to be served (default: %(default)s)",
        )

    def run(self, context: Context, options: Namespace) -> int:
        """Show them."""
        tiers, now_ms = existing_state(context).tiers, context.inspector.now_ms()
        found = context.inspector.slots()
        _sort(found, options.sort)
        shown = found[: options.limit]
        if context.output.as_json:
            context.output.json({"count": len(found), "slots": shown})
        elif found:
            context.output.show(_drawing(shown, tiers, now_ms))
            if len(found) > len(shown):
                context.output.show(f"… and {number(len(found) - len(shown))} more slots")
            if any(slot.closed_until_ms for slot in shown):
                context.output.show(CLOSED)
        else:
            context.output.show("nothing is pending or leased")
        return FINE if found else NOTHING


def _sort(slots: list[SlotFound], order: str) -> None:
    """Sort slots that come in the order to be served."""
    if order == "pending":
        slots.sort(key=lambda slot: -slot.pending)
    elif order == "leased":
        slots.sort(key=lambda slot: -(slot.leased or 0))
    elif order == "name":
        slots.sort(key=lambda slot: slot.name)


def _drawing(slots: Sequence[SlotFound], tiers: Sequence[str], now_ms: int) -> RenderableType:
    # Without limits there is nothing to be said of them.
    with_delay = any(slot.limit.delay_s for slot in slots)
    rows: list[Sequence[Cell]] = [
        (
            slot.name,
            slot.pending,
            _leased(slot),
            f"{slot.done_per_s:.1f}",
            "-" if slot.rank is None else tier_name(tiers, slot.rank),
            *((delay_text(slot.limit.delay_s) if slot.limit.delay_s else "-",) if with_delay else ()),
            _waits(slot, now_ms),
        )
        for slot in slots
    ]
    optional = ("delay>",) if with_delay else ()
    return FittedTable(
        ("slot", "pending>", "leased>", "done/s>", "best tier", *optional, "waits>"), rows, cut=("slot",)
    )


def _leased(slot: SlotFound) -> str:
    leased = number(slot.leased or 0)
    return f"{leased} of {number(slot.limit.concurrency)}" if slot.limit.concurrency else leased


def _waits(slot: SlotFound, now_ms: int) -> str:
    if slot.closed_until_ms:
        return f"closed {duration((slot.waiting_until_ms - now_ms) / 1000)}"
    if slot.is_full:
        return "full"
    return duration((slot.waiting_until_ms - now_ms) / 1000) if slot.waiting_until_ms > now_ms else "-"
