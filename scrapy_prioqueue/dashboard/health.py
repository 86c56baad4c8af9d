"""Whether a crawl is healthy, what holds it back, and when it will be done: a pure function of its summary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite

from scrapy_prioqueue.commands.outlook import outlook_of
from scrapy_prioqueue.commands.output import counted, duration, moment, name_text, number, part, rate, size
from scrapy_prioqueue.commands.sharing import flood_text, nearest_text
from scrapy_prioqueue.frontier.redis.operators.doctor import SEVERITIES, Severity
from scrapy_prioqueue.frontier.redis.operators.findings import Status
from scrapy_prioqueue.hints import evict_command, frontier_command

NEAR = 0.9
"""Used part of the memory, or of a budget's cap, from which on there is a finding about it."""

MANY_DEAD = 0.05
"""Part of the requests done or given up: if more than that are dead letters, that is a warning."""

NAMED = 2
"""Maximum number of workers or pages that are named."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that holds a crawl back, or that its operator should know.

    Args:
        command: the command that helps; empty if there is nothing to do.
    """

    severity: Severity
    text: str
    command: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """What an operator should see at a glance.

    Args:
        severity: of the worst finding.
        headline: the state of the crawl.
        finish: when it will be done.
        detail: the sentence below.
    """

    severity: Severity
    headline: str
    finish: str
    detail: str
    findings: Sequence[Finding]


def health_of(status: Status) -> Health:
    """Return the health of a crawl."""
    findings = [finding for cause in CAUSES for finding in cause(status)] if not status.state.has_ended else []
    findings += _dead(status)
    findings.sort(key=lambda finding: -SEVERITIES.index(finding.severity))
    finish, detail = _finish(status)
    worst = findings[0].severity if findings else "fine"
    # A note alone doesn't change the severity of a crawl that makes progress.
    severity: Severity = worst if worst in ("warning", "wrong") else "fine" if _makes_progress(status) else "note"
    return Health(severity, _headline(status), finish, detail, findings)


def _makes_progress(status: Status) -> bool:
    """Return whether a crawl runs, or is done."""
    if status.state.has_ended:
        return True
    return status.state.phase == "open" and status.has_workers and "paused" not in status.state.orders


def _headline(status: Status) -> str:
    state, pace = status.state, status.pace
    if state.has_ended:
        return "The crawl has ended"
    if state.phase != "open":
        return {"importing": "A crawl is being imported", "clearing": "The crawl is being deleted"}.get(
            state.phase, f"The crawl is {state.phase}"
        )
    if "stopping" in state.orders:
        return "The workers are stopping"
    if "paused" in state.orders:
        return "The crawl is paused"
    if not status.has_workers:
        return "No worker is running"
    if status.waiting_workers:
        return "The workers wait for requests"
    doing = "Draining" if "drained" in state.orders else "Crawling"
    if pace.done_per_s:
        per_s = f"{pace.done_per_s:,.1f}" if pace.done_per_s < 100 else number(pace.done_per_s)
        return f"{doing} {per_s} pages a second"
    if status.is_idle:
        return "Everything has to wait"
    return f"{doing}; no page was done in the last minute" if status.counts["done"] else "The crawl has begun"


def _finish(status: Status) -> tuple[str, str]:
    state, now_ms = status.state, status.now_ms
    if state.has_ended:
        took = duration(max(0, state.ended_ms - state.created_ms) / 1000)
        return f"took {took}", f"It ended at {moment(state.ended_ms)}."
    left = counted(status.left, "request")
    if not status.left:
        waiting, nothing = status.waiting_workers, "No request is waiting or in progress"
        if not waiting or "paused" in state.orders:
            return "nothing left", f"{nothing}."
        wait = "waits" if len(waiting) == 1 else "wait"
        return "nothing left", f"{nothing}; {counted(len(waiting), 'worker')} {wait} for {status.awaited}."
    outlook = outlook_of(status)
    if outlook.basis == "stopped":
        return f"{left} left", "Nothing is fetched now, so there is no time to estimate."
    if outlook.basis == "waiting":
        return f"{left} left", f"The next one may start in {duration((status.idle_until_ms - now_ms) / 1000)}."
    # A frontier that grows adds requests to its slots, so no time at which they are empty can be named.
    if outlook.is_growing:
        return "no end in sight yet", f"{left} left, and more are accepted than done."
    if outlook.left_s is None:
        return f"{left} left", "How long that takes can't be estimated yet."
    at = _at(now_ms, outlook.left_s)
    detail = f"The slowest slot needs until {at} for its requests."
    if outlook.basis == "pace":
        detail = f"{left} left; the queue shrinks by {rate(status.pace.drain_per_s)} and is empty at about {at}."
    return f"done in {outlook.text}", detail


def _at(now_ms: int, left_s: float) -> str:
    return moment(int(now_ms + left_s * 1000)) if isfinite(left_s) and left_s < 1e9 else "some day"


def _orders(status: Status) -> Iterator[Finding]:
    if "paused" in status.state.orders:
        yield Finding("note", "An operator has paused the crawl: no request starts.", _command(status, "resume"))
    if "drained" in status.state.orders:
        text = "An operator drains the crawl: requests that are found are dropped."
        yield Finding("note", text, _command(status, "resume"))


def _fleet(status: Status) -> Iterator[Finding]:
    if not status.has_workers and status.left and status.state.phase == "open":
        yield Finding("wrong", f"{counted(status.left, 'request')} left, but no worker is running: start one.")
    silent = [worker for worker in status.workers if not worker.is_alive]
    if silent and status.has_workers:
        names = ", ".join(f"{worker.name} for {duration(worker.heard_s)}" for worker in silent[:NAMED])
        text = f"{counted(len(silent), 'worker')} silent ({names}); others get {_its(len(silent))} requests."
        yield Finding("warning", text)
    for worker in [worker for worker in status.workers if worker.is_alive and worker.blocked][:NAMED]:
        if worker.blocked is not None:
            text = f"The event loop of {worker.name} is blocked for {duration(worker.blocked.age_s)}: "
            yield Finding("wrong", text + worker.blocked.where, evict_command(worker.name, status.name))
    for name, page in [(worker.name, page) for worker in status.workers for page in worker.slow][:NAMED]:
        text = f"{page.url} takes {duration(page.age_s)} at {name}, now in {page.stage}."
        yield Finding("warning", text, _command(status, f"release {page.lease_id}"))


def _its(count: int) -> str:
    return "its" if count == 1 else "their"


def _waits(status: Status) -> Iterator[Finding]:
    waiting = status.waiting_for_rate + status.closed_waiting
    leases, slots = status.waiting_for_leases, status.slots
    if slots and waiting + leases >= slots / 2:
        parts = [f"{number(status.waiting_for_rate)} for their rate"] * bool(status.waiting_for_rate)
        parts += [f"{number(leases)} for pages in progress"] * bool(leases)
        parts += [f"{number(status.closed_waiting)} for Retry-After"] * bool(status.closed_waiting)
        verb = "waits" if waiting + leases == 1 else "wait"
        text = f"{number(waiting + leases)} of {counted(slots, 'slot')} {verb}: {', '.join(parts)}."
        yield Finding("note", f"{text} More workers don't make it faster.", _command(status, "limit"))
    elif status.closed_waiting:
        text = f"{counted(status.closed_waiting, 'slot')} closed by Retry-After of {_its(status.closed_waiting)} site."
        yield Finding("note", text, _command(status, "limit"))
    if status.counts["delayed"] and status.counts["delayed"] == status.left:
        wait = duration(max(0, status.next_due_ms - status.now_ms) / 1000)
        yield Finding("note", f"All requests that are left are delayed; the first one is due in {wait}.")


def _stall(status: Status) -> Iterator[Finding]:
    is_free = status.has_workers and status.state.phase == "open" and "paused" not in status.state.orders
    waits = status.is_idle or status.waiting_workers
    if is_free and not waits and status.left and status.counts["done"] and status.pace.done_per_s == 0:
        text = "Workers are running, but no page was done in the last minute."
        yield Finding("warning", text, _command(status, "workers"))


def _flood(status: Status) -> Iterator[Finding]:
    policy = status.state.policy
    if policy.is_flooded:
        yield Finding("note", f"Discovery is held back: {flood_text(policy, status.counts['pending'])}.")


def _memory(status: Status) -> Iterator[Finding]:
    memory = status.memory
    if memory.limit and memory.used >= NEAR * memory.limit:
        severity: Severity = "wrong" if memory.used >= 0.98 * memory.limit else "warning"
        text = f"Redis uses {part(memory.used / memory.limit)} of its {size(memory.limit)}."
        yield Finding(severity, text, _command(status, "doctor"))


def _budgets(status: Status) -> Iterator[Finding]:
    if status.budgets.over:
        text = f"{counted(status.budgets.over, 'request')} given up over budgets."
        yield Finding("note", text, _command(status, "budget"))
    near = [budget for budget in status.budgets.nearest if budget.nearest and budget.nearest[1] >= NEAR]
    if near:
        names = ", ".join(f"{name_text(budget.key)} ({nearest_text(budget)})" for budget in near)
        yield Finding("note", f"Budgets nearly or fully used: {names}.", _command(status, "budget"))


def _kept(status: Status) -> Iterator[Finding]:
    kept = [worker for worker in status.workers if worker.kept or worker.unstorable]
    if kept:
        count = sum(worker.kept for worker in kept)
        what = counted(count, "request can't be stored and stays", "requests can't be stored and stay")
        text = f"{what} in the memory of {kept[0].name}"
        text += f" and {counted(len(kept) - 1, 'more worker')}" if len(kept) > 1 else ""
        yield Finding("warning", f"{text}.", "scrapy frontier check")


def _suspects(status: Status) -> Iterator[Finding]:
    if status.suspects:
        yield Finding("warning", f"{counted(status.suspects, 'request')} waiting whose workers were lost repeatedly.")


def _dead(status: Status) -> Sequence[Finding]:
    dead, done, kept = status.counts["dead"], status.counts["done"], status.own_letters
    if not dead:
        return []
    is_open = kept > 0 or not status.state.keeps_letters
    severity: Severity = "warning" if is_open and dead >= MANY_DEAD * (dead + done) else "note"
    share = f"{_percent(dead / (dead + done))} of the requests done or given up"
    if kept != dead:
        text = f"{counted(dead, 'request')} given up, {share}; {number(kept)} of them kept as dead letters."
        return [Finding(severity, text)]
    return [Finding(severity, f"{counted(dead, 'dead letter')}, {share}.")]


def _percent(value: float) -> str:
    return "under 1%" if 0 < value < 0.01 else part(value)


def _command(status: Status, verb: str) -> str:
    return frontier_command(verb, status.name)


CAUSES: Sequence[Callable[[Status], Iterator[Finding]]] = (
    *(_fleet, _orders, _memory, _kept, _stall, _waits, _flood, _budgets, _suspects),
)
"""Each yields its findings; those of one severity are shown in this order."""
