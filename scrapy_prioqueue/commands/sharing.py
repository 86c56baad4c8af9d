"""Texts about limits, weights, budgets and water marks, shared by the verbs that show them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from scrapy_prioqueue.commands.output import Cell, counted, duration, moment, name_text, number, part, size
from scrapy_prioqueue.frontier.policy_parts import PARTS
from scrapy_prioqueue.frontier.redis.operators.budgets import BudgetFound
from scrapy_prioqueue.frontier.redis.operators.findings import PolicyFound, State, Status
from scrapy_prioqueue.frontier.redis.operators.limits import LimitShown, Source

SHORT_S = 60

_SAY = {
    "operator": "set by an operator",
    "settings": "from the settings",
    "robots.txt": "from its robots.txt",
    "throttle": "from its latency",
}


def sharing_facts(status: Status) -> Sequence[tuple[str, Cell]]:
    """Return names and texts for the summary; a text is empty if that policy is not set."""
    return (
        ("limits", _limits(status)),
        ("weights", _weights(status.state)),
        ("flood", _flood(status.state.policy, status.counts["pending"])),
        ("budgets", _budgets(status)),
        ("policy", _owners(status.state.policy)),
    )


def _owners(policy: PolicyFound) -> str:
    """Return which worker published the parts of the policy that are in force, and when."""
    found: dict[tuple[int, str], list[str]] = {}
    for name in PARTS:
        owner = policy.owners.get(name)
        if owner is not None and owner.digest:
            found.setdefault((owner.ms, owner.by), []).append(name.replace("_", " "))
    return "; ".join(f"{', '.join(parts)} set by {by} at {moment(ms)}" for (ms, by), parts in sorted(found.items()))


def _limits(status: Status) -> str:
    rate, leases = status.waiting_for_rate, status.waiting_for_leases
    if not status.state.policy.has_limits:
        return ""
    entries = [f"{number(status.limits)} set"] + [f"{number(status.learnt_delays)} learnt"] * bool(status.learnt_delays)
    waiting = [f"{counted(rate, 'slot')} for {'its' if rate == 1 else 'their'} rate"] * bool(rate)
    waiting += [f"{counted(leases, 'slot')} for leases to end"] * bool(leases)
    closed = f"; closed by Retry-After: {counted(status.closed_slots, 'slot')}" if status.closed_slots else ""
    waits = f"waiting: {', '.join(waiting)}" if waiting else "no slot is waiting"
    return f"{', '.join(entries)}; {waits}{closed}"


def _weights(state: State) -> str:
    names = [f"{tier} {weight}" for tier, weight in zip(state.tiers, state.policy.weights, strict=False)]
    return ", ".join(names)


def share_text(state: State, tier: int) -> str:
    """Return the share of the served requests that a tier gets."""
    weights = state.policy.weights
    weight = weights[tier] if 0 <= tier < len(weights) else 0
    return f"which gets {number(weight)} of {number(sum(weights))}"


def _flood(policy: PolicyFound, pending: int) -> Cell:
    if policy.is_flooded:
        return Text(flood_text(policy, pending), style="yellow")
    limit = f"; {number(policy.pending_limit)} at most, with those of slots that must wait"
    if policy.high_water:
        marks = f"none: from {_pending(policy.high_water)} on, until {number(policy.low_water)}"
        return marks + (limit if policy.pending_limit else "")
    if policy.pending_limit:
        return f"none: from {_pending(policy.pending_limit)} on"
    return ""


def _pending(count: int) -> str:
    return counted(count, "pending request")


def flood_text(policy: PolicyFound, pending: int) -> str:
    """Return why discovery is held at this number of pending requests, and until when."""
    if policy.is_memory_high:
        return "the server is short of memory; discovery continues when it isn't"
    if not policy.high_water or 0 < policy.pending_limit <= pending:
        return f"{number(policy.pending_limit)} or more pending requests; discovery continues below that"
    return f"past {_pending(policy.high_water)}; discovery continues at {number(policy.low_water)}"


def _budgets(status: Status) -> str:
    found = status.budgets
    if not (status.state.policy.has_budgets or found.keys):
        return ""
    about = "more than " if found.is_sampled else ""
    text = f"{about}{counted(found.keys, 'key')}"
    if found.nearest:
        text += ", nearest: " + ", ".join(f"{name_text(budget.key)} {nearest_text(budget)}" for budget in found.nearest)
    return text + (f"; {counted(found.over, 'request')} given up" if found.over else "")


def nearest_text(budget: BudgetFound) -> str:
    """Return how much of its nearest cap a budget has used: 98% of pages."""
    if budget.nearest is None:
        return "-"
    what, used = budget.nearest
    return f"{part(used)} of {what}"


def use_text(budget: BudgetFound, what: str) -> str:
    """Return how much of one cap a budget has used: pages 98 of 100."""
    cap = budget.caps.get(what)
    limit = f" of {amount(what, cap.value)}" if cap else ""
    return f"{what} {amount(what, budget.used[what])}{limit}"


def amount(what: str, value: float) -> str:
    """Return an amount in the unit of the cap: bytes as a size, seconds as a duration, else a number."""
    if what == "bytes":
        return size(value)
    return duration(value) if what == "seconds" else number(value)


def closing_text(until_ms: int, now_ms: int) -> str:
    """Return until when Retry-After closes a slot."""
    left = duration((until_ms - now_ms) / 1000)
    return f"closed until {moment(until_ms)}, for {left} more, by Retry-After"


def delay_text(delay_s: float) -> str:
    """Return a short delay with all its digits, and a long one as a duration."""
    return f"{delay_s:g} s" if delay_s < SHORT_S else duration(delay_s)


def by(source: Source | None) -> str:
    """Return where a limit comes from: "set by an operator"."""
    return _SAY.get(source or "settings", "")


@dataclass(frozen=True, slots=True)
class LimitWords:
    """How the commands read and show a field of a slot's limit.

    Args:
        metavar: of its option.
        help: of its option.
        value: returns a value as text.
        in_force: returns the effect of a limit as text; empty for none.
        has_column: whether `slots` has a column for it, if a slot sets it.
    """

    metavar: str
    help: str
    value: Callable[[Any], str]
    in_force: Callable[[LimitShown], str]
    has_column: bool = False


def _rate(limit: LimitShown) -> str:
    if not limit.delay:
        return ""
    return f"a request every {delay_text(limit.delay)} ({1 / limit.delay:,.3g}/s), {by(limit.delay_by)}"


LIMITS: Mapping[str, LimitWords] = {
    "delay": LimitWords(
        "S", "seconds between two requests of all workers, 0 for none", delay_text, _rate, has_column=True
    ),
    "concurrency": LimitWords(
        "N",
        "requests in progress at a time, 0 for no limit",
        lambda value: number(value) if value else "any",
        lambda limit: f"{number(limit.concurrency)} at a time" if limit.concurrency else "",
    ),
    "burst": LimitWords(
        "N",
        "requests that may start at once after a pause",
        number,
        lambda limit: f"{number(limit.burst)} at once after a pause" if limit.delay and limit.burst > 1 else "",
    ),
}
"""The fields of `SlotLimit`."""
