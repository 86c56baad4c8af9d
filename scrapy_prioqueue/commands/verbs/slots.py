"""`scrapy frontier slots`: list pending requests by download slot, usually a host."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.listing import suspects_text
from scrapy_prioqueue.commands.options import add_limit
from scrapy_prioqueue.commands.output import Cell, FittedTable, counted, duration, number
from scrapy_prioqueue.commands.progress import working
from scrapy_prioqueue.commands.sharing import LIMITS
from scrapy_prioqueue.commands.verb import FINE, NOTHING, Verb
from scrapy_prioqueue.frontier.redis.operators.findings import SlotFound, SlotsFound
from scrapy_prioqueue.frontier.redis.operators.inspector import tier_name
from scrapy_prioqueue.frontier.redis.operators.slots import LOOK_LIMIT

CLOSED = "closed: the site asked for it (Retry-After); limit SLOT --open opens it"

NOT_BY_PENDING = (
    "in serving order, since there are so many: --sort pending reads all of them to find the longest queues"
)


class SlotsVerb(Verb):
    name = "slots"
    summary = "slots, usually hosts: pending, leased, rate, best tier, when each may be served"
    examples = ("", "--sort leased -n 50")

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_limit(parser, 30)
        parser.add_argument(
            "--sort",
            choices=("pending", "leased", "name", "order"),
            help="longest queue first, most leases first, by name, or in serving order (default: pending, or"
            f" order if there are more than {number(LOOK_LIMIT)} slots)",
        )

    def run(self, context: Context, options: Namespace) -> int:
        tiers, now_ms = context.state().tiers, context.inspector.now_ms()
        with working("reading slots") as work:
            found = context.inspector.slots(options.limit, options.sort, work.note)
        if not (found.slots or found.suspects):
            context.output.found(found, context.nothing("nothing is pending or leased"))
            return NOTHING
        context.output.found(found, *_shown(found, options.sort or "pending", tiers, now_ms))
        return FINE


def _shown(found: SlotsFound, sort: str, tiers: Sequence[str], now_ms: int) -> Iterator[RenderableType]:
    if found.slots:
        yield _table(found.slots, tiers, now_ms)
    if found.count > len(found.slots):
        yield f"… and {counted(found.count - len(found.slots), 'more slot')}"
    if found.suspects:
        yield f"{'and ' if found.slots else ''}{suspects_text(found.suspects)}"
    if any(slot.closed_until_ms for slot in found.slots):
        yield CLOSED
    if found.sort != sort:
        yield NOT_BY_PENDING


def _table(slots: Sequence[SlotFound], tiers: Sequence[str], now_ms: int) -> RenderableType:
    limits = {
        what: words
        for what, words in LIMITS.items()
        if words.has_column and any(getattr(slot.limit, what) for slot in slots)
    }
    rows: list[Sequence[Cell]] = [
        (
            slot.name,
            slot.pending,
            _leased(slot),
            f"{slot.done_per_s:.1f}",
            "-" if slot.rank is None else tier_name(tiers, slot.rank),
            *(words.value(value) if (value := getattr(slot.limit, what)) else "-" for what, words in limits.items()),
            waits(slot, now_ms),
        )
        for slot in slots
    ]
    optional = (f"{what}>" for what in limits)
    columns = ("slot", "pending>", "leased>", "done/s>", "best tier", *optional, "waits>")
    return FittedTable(columns, rows, fold=("slot",), below=("done/s", "best tier", *LIMITS))


def _leased(slot: SlotFound) -> str:
    leased = number(slot.leased or 0)
    return f"{leased} of {number(slot.limit.concurrency)}" if slot.limit.concurrency else leased


def waits(slot: SlotFound, now_ms: int) -> str:
    """Return what a slot waits for, - for nothing."""
    if slot.closed_until_ms:
        return f"closed {duration((slot.waiting_until_ms - now_ms) / 1000)}"
    if slot.is_full:
        return "full"
    return duration((slot.waiting_until_ms - now_ms) / 1000) if slot.waiting_until_ms > now_ms else "-"
