"""`scrapy frontier limit`: list the limits of slots, or show and change those of one while the crawl runs."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.options import add_limit
from scrapy_prioqueue.commands.output import Cell, duration, listed, number, pairs
from scrapy_prioqueue.commands.sharing import LIMITS, closing_text
from scrapy_prioqueue.commands.verb import FINE, NOTHING, WRONG_USE, Stop, Verb
from scrapy_prioqueue.commands.writing import check_name, operator_of
from scrapy_prioqueue.frontier.policy import SlotLimit, values_of
from scrapy_prioqueue.frontier.redis.operators.limits import LimitFound, SlotClock
from scrapy_prioqueue.settings.policies import SLOT_READERS, slots


class LimitVerb(Verb):
    name = "limit"
    summary = "limits of slots: list, show, or change them while the crawl runs"
    syntax = "[SLOT]"
    examples = (
        "",
        "shop.example",
        "shop.example --delay 2 --burst 5",
        "'*.example.com' --reset",
        "shop.example --open",
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        what = "usually a host; *.example.com for all below, * for all"
        parser.add_argument("slot", nargs="?", metavar="SLOT", help=what)
        for what, words in LIMITS.items():
            parser.add_argument(f"--{what}", metavar=words.metavar, help=words.help)
        parser.add_argument(
            "--reset", action="store_true", help="remove the operators' limits; the settings apply again"
        )
        parser.add_argument(
            "--open", action="store_true", help="serve the slot at once, even if a Retry-After has closed it"
        )
        add_limit(parser, 50)

    def run(self, context: Context, options: Namespace) -> int:
        context.state()
        wanted = _wanted(options)
        if options.slot is None:
            if wanted != SlotLimit() or options.reset or options.open:
                raise Stop("which slot? Give its name, usually a host, or * for all slots", WRONG_USE)
            return _list(context, options)
        if not context.inspector.limits.knows(options.slot):  # a spider may name a slot as it likes
            check_name(slots, "SLOT", options.slot)
        if options.reset and wanted != SlotLimit():
            raise Stop("--reset removes all that operators have set; give no values with it", WRONG_USE)
        if options.open and "*" in options.slot:
            raise Stop("--open opens a single slot; give its name", WRONG_USE)
        has_limit = options.reset or wanted != SlotLimit()
        if has_limit or options.open:
            context.open_state(
                "limits that operators set last until the end of the crawl; PRIOQUEUE_SLOTS sets those of the next"
                " crawl"
            )
        if options.open:
            operator_of(context).open_slot(options.slot)
        if has_limit:
            operator_of(context).limit(options.slot, None if options.reset else wanted)
        return _show(context, options.slot, has_changed=has_limit or options.open)


def _wanted(options: Namespace) -> SlotLimit:
    given = {what: value for what in LIMITS if (value := getattr(options, what)) is not None}
    return SlotLimit(**{what: SLOT_READERS[what](f"--{what}", value) for what, value in given.items()})


def _list(context: Context, options: Namespace) -> int:
    limits = context.inspector.limits
    found = [*limits.entries(), *limits.learnt()]
    rows, columns = [_row(entry) for entry in found], ("slot", *(f"{what}>" for what in LIMITS), "source")
    shown = listed(columns, rows, options.limit, fold="slot")
    nothing = "" if found else context.nothing("no slot has a limit")
    ending = context.ending_notes()
    context.output.found([_document(entry) for entry in found], *shown, *ending, nothing=nothing)
    return NOTHING if ending else FINE


def _row(entry: LimitFound) -> Sequence[Cell]:
    values = values_of(entry.limit)
    cells = (words.value(values[what]) if what in values else "-" for what, words in LIMITS.items())
    return (entry.pattern, *cells, entry.source)


def _document(entry: LimitFound) -> dict[str, Any]:
    return {"slot": entry.pattern, "source": entry.source, **asdict(entry.limit)}


def _show(context: Context, slot: str, *, has_changed: bool) -> int:
    inspector = context.inspector
    entries = inspector.limits.about(slot)
    (clock,) = inspector.limits.of([slot]) if "*" not in slot else (None,)
    facts: list[tuple[str, Cell]] = [(entry.source, _text(slot, entry)) for entry in entries] or [("source", "none")]
    if clock is not None:
        facts += _now(clock, inspector.now_ms())
    document = {"slot": slot, "entries": [_document(entry) for entry in entries], "now": clock}
    title = f"{slot}{', from now on for all workers' if has_changed else ''}:"
    ending = context.ending_notes()
    context.output.found(document, title, pairs(facts), *ending)
    return NOTHING if ending else FINE


def _text(slot: str, entry: LimitFound) -> str:
    parts = [f"{what} {LIMITS[what].value(value)}" for what, value in values_of(entry.limit).items()]
    return ", ".join(parts or ["nothing"]) + (f" (as {entry.pattern})" if entry.pattern != slot else "")


def _now(clock: SlotClock, now_ms: int) -> list[tuple[str, Cell]]:
    in_force, leased = clock.limit, number(clock.running)
    if in_force.concurrency:
        leased += f" of {number(in_force.concurrency)}"
    parts = [text for words in LIMITS.values() if (text := words.in_force(in_force))]
    facts: list[tuple[str, Cell]] = [("in force", "; ".join(parts) or "no limit"), ("leased", leased)]
    if clock.closed_until_ms > now_ms:
        facts.append(("is", f"{closing_text(clock.closed_until_ms, now_ms)}; --open opens it"))
    return [*facts, ("next", _next(clock, now_ms))]


def _next(clock: SlotClock, now_ms: int) -> str:
    if clock.is_full:
        return "when a lease has ended"
    return f"in {duration((clock.opens_ms - now_ms) / 1000)}" if clock.opens_ms > now_ms else "at any time"
