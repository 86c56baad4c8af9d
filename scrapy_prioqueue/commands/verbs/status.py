"""`scrapy frontier status`: requests by state, workers, rate and time left."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Collection, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.listing import dead_text, suspects_text
from scrapy_prioqueue.commands.outlook import outlook_of
from scrapy_prioqueue.commands.output import (
    Cell,
    FittedTable,
    counted,
    duration,
    fields_of,
    moment,
    name_text,
    number,
    pairs,
    rate,
    size,
)
from scrapy_prioqueue.commands.sharing import sharing_facts
from scrapy_prioqueue.commands.verb import FINE, NOTHING, Verb
from scrapy_prioqueue.frontier.redis.operators.findings import SeedsFound, State, Status, WorkerFound
from scrapy_prioqueue.frontier.runs import FleetTotals
from scrapy_prioqueue.hints import evict_command, frontier_command
from scrapy_prioqueue.printable import clean, in_a_line

MAX_WORKERS = 20


_BARS = "▁▂▃▄▅▆▇█"


class StatusVerb(Verb):
    name = "status"
    summary = "requests by state, workers, rate and time left"
    examples = ("", "--name books", "--stats", "--json")

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--stats", action="store_true", help="also show the sums of the workers' Scrapy stats")

    def run(self, context: Context, options: Namespace) -> int:
        status, totals = context.status(), context.inspector.runs.totals()
        shown = drawing(status, totals=totals)
        if totals is not None and (options.stats or status.state.has_ended):
            shown = Group(shown, "", stats_table(totals))
        context.output.found({**as_json(status), "totals": totals}, shown)
        return NOTHING if status.state.has_ended else FINE


def as_json(status: Status) -> dict[str, object]:
    """Return the summary for JSON: its fields and some computed values."""
    return {
        **fields_of(status),
        "pace": {**fields_of(status.pace), "drain_per_s": status.pace.drain_per_s},
        "left": status.left,
        "idle_until_ms": status.idle_until_ms,
    }


def drawing(
    status: Status,
    *,
    max_workers: int = MAX_WORKERS,
    rate_of_workers: str = "average",
    without: Collection[str] = (),
    totals: FleetTotals | None = None,
) -> RenderableType:
    """Return the summary for people.

    Args:
        totals: sums over the runs of the crawl.
        rate_of_workers: over which time the rates of workers are computed.
        without: facts that are left out, `history`, `tiers` or `empty tiers`.
    """
    facts = [(name, value) for name, value in _facts(status, totals) if (name or "history") not in without]
    parts: list[RenderableType] = [_headline(status), "", pairs(facts)]
    if "tiers" not in without:
        parts += ["", _tiers(status, with_empty="empty tiers" not in without)]
    if status.workers:
        shown, has_leases = status.workers[:max_workers], status.counts["leased"] > 0
        parts += ["", worker_table(shown, status.state, has_leases=has_leases, rate_is=rate_of_workers)]
    if len(status.workers) > max_workers:
        parts.append(
            f"… and {number(len(status.workers) - max_workers)} more: {frontier_command('workers', status.name)}"
        )
    return Group(*parts, *slow_pages(status.workers, status.name))


def _headline(status: Status) -> Text:
    state = status.state
    words = [state.phase, *state.orders, *(("flooded",) if state.policy.is_flooded else ())]
    if status.waiting_workers and "paused" not in state.orders:
        words.insert(1, "waiting for requests")
    if state.has_ended:
        words = [f"ended at {moment(state.ended_ms)}"]
    line = Text()
    line.append(name_text(status.name), style="bold")
    line.append(in_a_line(f" at {status.address}: "))
    line.append(in_a_line(", ".join(words)), style="green" if words == ["open"] else "yellow")
    if state.crawl_id:
        line.append(in_a_line(f", crawl id {state.crawl_id}"))
    return line


def _facts(status: Status, totals: FleetTotals | None) -> Sequence[tuple[str, Cell]]:
    counts, state = status.counts, status.state
    length = duration(max(0, (state.ended_ms or status.now_ms) - state.created_ms) / 1000)
    facts: list[tuple[str, Cell]] = [
        ("pending", _pending(status)),
        ("delayed", _delayed(status)),
        ("leased", number(counts["leased"])),
        ("kept", _kept(status.workers)),
        ("done", f"{number(counts['done'])} of {number(counts['accepted'])} accepted"),
        ("dead", Text(dead_text(status), style="red" if counts["dead"] else "")),
        ("seen", _seen(state, counts["duplicates"])),
        ("pace", _pace(status)),
        ("", Text(sparkline(status.pace.history), style="green")),
        ("left", _left(status)),
        ("runs", "" if totals is None else runs_text(totals)),
        ("seeds", _seeds(status)),
        *sharing_facts(status),
        ("began", f"{moment(state.created_ms)}, {f'{length} before its end' if state.ended_ms else f'{length} ago'}"),
        ("Redis", _memory(status)),
    ]  # fmt: skip
    return [(name, value) for name, value in facts if str(value)]


def runs_text(totals: FleetTotals) -> str:
    """Return the number of runs, and the most important sums of their stats."""
    lost = f", {number(totals.lost)} of them lost" if totals.lost else ""
    where = f"{counted(totals.runs, 'run')} on {counted(totals.hosts, 'machine')}{lost}"
    sums = [
        f"{name}: {shown(value)}" for stat, (name, shown) in _SUMMED.items() if (value := totals.stats.get(stat, 0))
    ]
    return f"{where}; {', '.join(sums)}" if sums else where


_SUMMED: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "response_received_count": ("responses", number),
    "downloader/response_bytes": ("downloaded", size),
    "item_scraped_count": ("items", number),
    "retry/count": ("retries", number),
    "log_count/ERROR": ("errors", number),
}


def stats_table(totals: FleetTotals) -> RenderableType:
    """Return the stats of all runs together."""
    times: list[tuple[str, Cell]] = [
        ("start_time", moment(totals.began_ms)),
        ("finish_time", moment(totals.ended_ms)),
        ("elapsed_time_seconds", f"{totals.seconds:,.1f}"),
    ]
    sums = [
        (name, f"{value:,.0f}" if float(value).is_integer() else f"{value:,.3f}")
        for name, value in totals.stats.items()
    ]
    return FittedTable(("stat of all runs", "sum>"), [*times, *sums], cut=("stat of all runs",))


def _kept(workers: Sequence[WorkerFound]) -> str:
    """Return a text about requests that exist only in the memory of workers, empty if there are none."""
    requests, pages = sum(worker.kept for worker in workers), sum(worker.kept_pages for worker in workers)
    if not requests:
        return ""
    stay = f"{counted(pages, 'page')} {'stays' if pages == 1 else 'stay'}"
    return f"{number(requests)} more in the memory of their workers; {stay} leased until these are done"


def _seen(state: State, duplicates: int) -> str:
    # Workers recognise most duplicates themselves, and count them only in their own stats.
    found = f"{counted(duplicates, 'duplicate')} found by the server"
    if state.has_ended and not state.seen:
        return f"dropped at the end of the crawl; {found}"
    return f"{number(state.seen)}; {found}{_lost(state)}"


def _lost(state: State) -> str:
    return f"; about {number(round(state.seen_lost))} of these were new" if state.seen_mode == "bloom" else ""


def _pending(status: Status) -> str:
    in_slots = max(0, status.counts["pending"] - status.suspects)
    text = f"{number(in_slots)} in {counted(status.slots, 'slot')}"
    if not status.suspects:
        return text
    return f"{text}, and {suspects_text(status.suspects)}" if in_slots else suspects_text(status.suspects)


def _delayed(status: Status) -> str:
    count = number(status.counts["delayed"])
    if not status.next_due_ms:
        return count
    wait_s = (status.next_due_ms - status.now_ms) / 1000
    return f"{count}, the first {'in ' + duration(wait_s) if wait_s > 0 else 'now'}"


def _pace(status: Status) -> str:
    pace = status.pace
    drain = pace.drain_per_s
    if drain is None:
        return ""
    trend = f"{'drains' if drain >= 0 else 'grows'} by {rate(abs(drain))}"
    trend = "paused" if "paused" in status.state.orders else trend
    return f"{rate(pace.done_per_s)} done, {rate(pace.accepted_per_s)} accepted, {trend}"


def sparkline(values: Sequence[int]) -> str:
    """Return values as a line of bars, in the given order."""
    most = max(values, default=0)
    return "".join(_BARS[round(value / most * (len(_BARS) - 1))] for value in values) if most else ""


def _left(status: Status) -> str:
    if not status.left:
        return _nothing(status)
    left = counted(status.left, "request")
    if "paused" in status.state.orders:
        return f"{left}, {_paused(status)}"
    if not status.has_workers:
        return f"{left}, but no worker is running"
    outlook = outlook_of(status)
    if outlook.basis == "waiting":
        return f"{left}, {_waiting(status)}"
    grows = ", and growing" if outlook.is_growing else ""
    if not outlook.text:
        return f"{left}{grows or ', time unknown'}"
    rates = ", at the rates of their slots" if outlook.basis == "rates of slots" else ""
    return f"{left}, {outlook.text}{rates}{grows}"


def _nothing(status: Status) -> str:
    """Return the text for a crawl without requests, with what keeps it open."""
    waiting = status.waiting_workers
    if not waiting:
        is_open = status.state.phase == "open" and not status.has_workers
        return "nothing; the next worker ends the crawl, unless it adds requests" if is_open else "nothing"
    if "paused" in status.state.orders:
        return f"nothing, {_paused(status)}"
    return f"nothing now; {counted(len(waiting), 'worker')} waiting for {status.awaited}"


def _paused(status: Status) -> str:
    return f"paused: {frontier_command('resume', status.name)} continues"


def _seeds(status: Status) -> Cell:
    text = "; ".join(f"{found.key}: {_seeds_text(found)}" for found in status.seeds)
    if not any(found.entries for found in status.seeds):
        return Text(clean(text), style="yellow")
    return text if status.has_workers else f"{text}; no worker is running to take them"


def _seeds_text(found: SeedsFound) -> str:
    if found.entries is None:
        return f"a {found.kind}, not a list, set or sorted set" if found.kind else "can't be read"
    return counted(found.entries, "entry", "entries") if found.entries else "empty or missing"


def _waiting(status: Status) -> str:
    """Return what all requests that are left wait for, and until when."""
    waits, (first_ms, last_ms), slots = [], status.opening_ms, status.waiting_for_rate + status.closed_waiting
    if slots == 1:
        waits.append(f"the slot opens {_in(first_ms - status.now_ms)}")
    elif slots:
        span = f"{_in(first_ms - status.now_ms)} to {duration((last_ms - status.now_ms) / 1000)}"
        waits.append(f"{counted(slots, 'slot opens', 'slots open')} {span}")
    if status.next_due_ms:
        waits.append(f"the first delayed one is due {_in(status.next_due_ms - status.now_ms)}")
    return f"{'all ' if status.left > 1 else ''}waiting: {', '.join(waits)}"


def _in(wait_ms: float) -> str:
    return f"in {duration(wait_ms / 1000)}"


def _memory(status: Status) -> str:
    memory = status.memory
    if not memory.used:
        return f"{status.server_version or 'version and memory unknown'}"
    limit = f" of {size(memory.limit)}" if memory.limit else ", no maxmemory"
    return f"{status.server_version}, {size(memory.used)} used{limit}"


def _tiers(status: Status, *, with_empty: bool) -> RenderableType:
    about = "≈" if status.is_sampled else ""
    most = max([tier.pending for tier in status.tiers], default=0)
    shown = [tier for tier in status.tiers if with_empty or tier.pending]
    rows = [(tier.tier, f"{about}{number(tier.pending)}", _bar(tier.pending, most)) for tier in shown]
    return FittedTable(("tier", "pending>", ""), rows)


def _bar(value: int, most: int) -> Text:
    width = round(30 * value / most) if most else 0
    return Text("█" * max(width, 1 if value else 0), style="cyan")


def worker_table(
    workers: Sequence[WorkerFound], state: State, *, has_leases: bool, rate_is: str = "average"
) -> RenderableType:
    """Return a table of workers, with the number of their leases if it is known.

    Args:
        has_leases: whether any worker has leases.
        rate_is: the heading of their rates.
    """
    with_leased = any(worker.leased is not None for worker in workers)
    with_kept = any(worker.kept for worker in workers)
    # A worker's default name contains its host and its pid.
    with_host = not all(worker.host and worker.name.startswith(worker.host) for worker in workers)
    with_pid = not all(worker.pid and f":{worker.pid}:" in worker.name for worker in workers)
    rows: list[Sequence[Cell]] = [
        (
            worker.name,
            *((worker.host,) if with_host else ()),
            *((worker.pid,) if with_pid else ()),
            Text(duration(worker.heard_s), style="" if worker.is_alive else "red"),
            *((worker.leased or 0,) if with_leased else ()),
            *((worker.kept,) if with_kept else ()),
            "-" if worker.done is None else worker.done,
            rate(worker.rate_per_s),
            doing(worker, state, has_leases=has_leases if worker.leased is None else worker.leased > 0),
        )
        for worker in workers
    ]
    optional = (*(("leased>",) if with_leased else ()), *(("kept>",) if with_kept else ()))
    process = (*(("host",) if with_host else ()), *(("pid>",) if with_pid else ()))
    columns = ("worker", *process, "heard>", *optional, "done>", f"{rate_is}>", "is")
    return FittedTable(columns, rows, fold=("worker",), below=(rate_is, "host", "pid", "done"))


def slow_pages(workers: Sequence[WorkerFound], name: str) -> Sequence[RenderableType]:
    """Return lines about blocked workers, and about pages that may never end."""
    lines = [
        f"blocked: event loop of {worker.name} for {duration(worker.blocked.age_s)}, {worker.blocked.where}; end that"
        f" process, or {evict_command(worker.name, name)} gives its requests to others"
        for worker in workers
        if worker.blocked is not None and worker.is_alive
    ]
    lines += [
        f"slow: {page.url} ({page.callback}) at {worker.name} for {duration(page.age_s)}, now in {page.stage};"
        f" {frontier_command(f'release {page.lease_id}', name)} gives it to others"
        for worker in workers
        for page in worker.slow
    ]
    return [Text(in_a_line(line), style="yellow") for line in lines]


def doing(worker: WorkerFound, state: State, *, has_leases: bool) -> Text:
    """Return what a worker does, in a word or two."""
    if not worker.is_alive:
        return Text("silent", style="red")
    if worker.stop:
        return Text("stopping", style="yellow")
    if worker.blocked is not None:
        return Text("blocked", style="red")
    if worker.is_paused:
        return Text("paused (engine)", style="yellow")
    if worker.is_busy and (has_leases or worker.kept):
        return Text("busy", style="green")
    if "paused" in state.orders and not state.has_ended:
        return Text("paused", style="yellow")
    if not worker.is_busy:
        return Text("idle", style="dim")
    what = "reads start()" if worker.has_more_starts else "runs handlers" if worker.has_handlers else "waiting"
    return Text(what, style="dim")
