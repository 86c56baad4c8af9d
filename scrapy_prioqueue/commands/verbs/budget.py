"""`scrapy frontier budget`: list the budget keys, or show and change the caps of one while the crawl runs."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.options import add_limit
from scrapy_prioqueue.commands.output import Cell, FittedTable, counted, listed, name_text, number
from scrapy_prioqueue.commands.sharing import amount, nearest_text
from scrapy_prioqueue.commands.verb import FINE, NOTHING, WRONG_USE, Stop, Verb
from scrapy_prioqueue.commands.writing import check_name, operator_of
from scrapy_prioqueue.frontier.base import DEAD_BY_BUDGET
from scrapy_prioqueue.frontier.policy import EVERY, Budget
from scrapy_prioqueue.frontier.redis.operators.budgets import CAPS, BudgetFound
from scrapy_prioqueue.frontier.redis.operators.findings import State
from scrapy_prioqueue.hints import frontier_command
from scrapy_prioqueue.settings.policies import budgets, byte_count
from scrapy_prioqueue.settings.readers import limit, seconds

WIDE = 140
"""Minimum width of a terminal on which the list shows the caps, in columns."""


class BudgetVerb(Verb):
    name = "budget"
    summary = "budgets by key: show use and caps, change caps while the crawl runs"
    syntax = "[KEY]"
    examples = ("", "example.com", "example.com --pages 5000", "'*' --seconds 3600")

    def add_arguments(self, parser: ArgumentParser) -> None:
        what = "usually a registered domain; * for all without caps of their own"
        parser.add_argument("key", nargs="?", metavar="KEY", help=what)
        parser.add_argument("--pages", metavar="N", help="maximum number of requests fetched")
        parser.add_argument("--renders", metavar="N", help="maximum number of requests rendered by a browser")
        parser.add_argument("--bytes", metavar="N", help="maximum bytes of response bodies, such as 5e8")
        parser.add_argument("--seconds", metavar="S", help="maximum seconds of downloading and processing")
        parser.add_argument("--reset", action="store_true", help="remove the operators' caps; the settings apply again")
        add_limit(parser, 30)

    def run(self, context: Context, options: Namespace) -> int:
        state, wanted = context.state(), _wanted(options)
        if options.key is None:
            if wanted != Budget() or options.reset:
                raise Stop("which budget? Give a key, or * for all keys without caps of their own", WRONG_USE)
            return _list(context, options)
        check_name(budgets, "KEY", options.key)
        if options.reset and wanted != Budget():
            raise Stop("--reset removes all that operators have set; give no values with it", WRONG_USE)
        if not options.reset and wanted == Budget():
            return _show(context, options.key)
        context.open_state(
            "caps that operators set last until the end of the crawl; PRIOQUEUE_BUDGETS sets those of the next crawl"
        )
        operator_of(context).budget(options.key, None if options.reset else wanted)
        _show(context, options.key)
        if not context.output.as_json:
            context.output.show(*_advice(context, state, options.key))
        return FINE


def _wanted(options: Namespace) -> Budget:
    return Budget(
        None if options.pages is None else limit("--pages", _whole(options.pages)),
        None if options.renders is None else limit("--renders", _whole(options.renders)),
        None if options.bytes is None else byte_count("--bytes", _whole(options.bytes)),
        None if options.seconds is None else seconds("--seconds", options.seconds),
    )


def _whole(text: str) -> str:
    """Return 5e8 as 500000000."""
    try:
        value = float(text)
    except ValueError:
        return text
    return str(int(value)) if value.is_integer() else text


def _list(context: Context, options: Namespace) -> int:
    found = context.inspector.budgets.all()
    with_caps = context.output.console.width >= WIDE
    rows = [_row(budget, with_caps=with_caps) for budget in found]
    columns = ("key", "pages>", "renders>", "bytes>", "time>", "nearest cap>", "over>")
    shown = listed(columns, rows, options.limit, fold="key", below=("over", "nearest cap", "time"))
    nothing = "" if found else context.nothing("no budget key has been used yet")
    ending = context.ending_notes()
    context.output.found(found, *shown, *ending, nothing=nothing)
    return NOTHING if ending else FINE


def _row(budget: BudgetFound, *, with_caps: bool) -> Sequence[Cell]:
    used = (_used(budget, what, with_cap=with_caps) for what in CAPS)
    return (name_text(budget.key), *used, nearest_text(budget), budget.over)


def _used(budget: BudgetFound, what: str, *, with_cap: bool) -> str:
    cap, text = budget.caps.get(what), amount(what, budget.used[what])
    return f"{text} of {amount(what, cap.value)}" if with_cap and cap is not None else text


def _show(context: Context, key: str) -> int:
    (found,) = context.inspector.budgets.of([key])
    rows = [_cap_row(found, what) for what in CAPS]
    title = f"{key}, every key without caps of its own" if key == EVERY else name_text(key)
    notes = [f"{counted(found.over, 'request')} given up over it"] if found.over else []
    is_known = any(found.used.values()) or found.over or any(cap.pattern == key for cap in found.caps.values())
    unknown = "no caps are set for it" if key == EVERY else "no request with this key has been fetched"
    notes += [] if is_known else [unknown]
    ending = context.ending_notes()
    context.output.found(found, f"{title}:", FittedTable(("", "used>", "cap>", "source"), rows), *notes, *ending)
    return FINE if is_known and not ending else NOTHING


def _cap_row(budget: BudgetFound, what: str) -> Sequence[Cell]:
    used = "-" if budget.key == EVERY else amount(what, budget.used[what])
    cap = budget.caps.get(what)
    if cap is None:
        return what, used, "-", ""
    pattern = f" (as {cap.pattern})" if cap.pattern != budget.key else ""
    return what, used, amount(what, cap.value), cap.source + pattern


def _advice(context: Context, state: State, key: str) -> Sequence[str]:
    """Return lines about what else the operator should do after changing a budget."""
    if not state.policy.has_budgets:
        return ["no worker sets PRIOQUEUE_BUDGETS, so nothing is counted yet: set it, even to {}"]
    letters = list(context.inspector.requests.dead(DEAD_BY_BUDGET))
    fit = letters if key == EVERY else [stored for stored in letters if stored.detail.startswith(f"budget {key}: ")]
    if not fit:
        return []
    what = f"{counted(len(letters), 'dead letter')} with the reason budget"
    what += f", {number(len(fit))} of them over {name_text(key)}" if key != EVERY else ""
    return [f"{what}: {frontier_command('dead replay --reason budget', context.name)} puts them back"]
