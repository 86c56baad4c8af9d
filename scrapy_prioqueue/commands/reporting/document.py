"""Gathers the contents of a report, and renders it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from scrapy_prioqueue.commands.listing import dead_text
from scrapy_prioqueue.commands.outlook import outlook_of
from scrapy_prioqueue.commands.output import counted, duration, moment, number, rate, size
from scrapy_prioqueue.commands.reporting.charts import Chart, brief, charts_of, seconds
from scrapy_prioqueue.domains import by_domain
from scrapy_prioqueue.frontier.redis.operators.findings import SlotFound, Status
from scrapy_prioqueue.frontier.redis.operators.inspector import Inspector, tier_name
from scrapy_prioqueue.frontier.runs import FleetTotals, Run, Stats, latency_s
from scrapy_prioqueue.hints import frontier_command
from scrapy_prioqueue.queues.recording import CONFIDENCE_STATS
from scrapy_prioqueue.stats import CONFIDENCE_STAT, DONE_SLOT_STAT, DONE_TIER_STAT

MOST_SLOTS, MOST_RUNS = 20, 100


@dataclass(frozen=True, slots=True)
class Bar:
    """A count, and its part of the largest one."""

    name: str
    count: int
    part: float


@dataclass(frozen=True, slots=True)
class Document:
    """The contents of a report.

    Args:
        runs: of this crawl, the newest first, at most `MOST_RUNS`.
        earlier_runs: number of runs of earlier crawls.
        slots: the longest queues.
        notes: problems as text, each with the command that helps, empty for none.
        tiers: pages done, by tier.
        domains: pages done, by domain.
        confidence: items, by confidence.
        stats: sums of the stats of all runs, without those that the bars show.
    """

    status: Status
    totals: FleetTotals | None
    runs: Sequence[Run]
    earlier_runs: int
    charts: Sequence[Chart]
    slots: Sequence[SlotFound]
    notes: Sequence[tuple[str, str]]
    tiers: Sequence[Bar]
    domains: Sequence[Bar]
    confidence: Sequence[Bar]
    stats: Stats
    made_ms: int


def gather(inspector: Inspector, status: Status) -> Document:
    """Read everything for the report."""
    totals, runs = inspector.runs.totals(), inspector.runs.all()
    own = [run for run in runs if run.epoch == status.state.epoch]
    stats = {} if totals is None else totals.stats
    slots = inspector.slots(MOST_SLOTS).slots if status.slots else ()
    return Document(
        status=status,
        totals=totals,
        runs=own[:MOST_RUNS],
        earlier_runs=len(runs) - len(own),
        charts=list(charts_of(inspector.runs.history())),
        slots=slots,
        notes=list(_notes(status, totals)),
        tiers=_bars(_under(stats, DONE_TIER_STAT)),
        domains=_bars(by_domain(_under(stats, DONE_SLOT_STAT))),
        confidence=_confidence(_under(stats, CONFIDENCE_STAT)),
        stats={name: value for name, value in stats.items() if not name.startswith(_DRAWN)},
        made_ms=status.now_ms,
    )


def _prefix(stat: str) -> str:
    return stat.partition("<")[0]


_DRAWN = tuple(map(_prefix, (CONFIDENCE_STAT, DONE_SLOT_STAT, DONE_TIER_STAT)))
"""Prefixes of the stats that bars show."""


def _under(stats: Mapping[str, float], stat: str) -> dict[str, int]:
    """Return the values of the stats with this prefix, by the rest of their names."""
    prefix = _prefix(stat)
    return {name.removeprefix(prefix): int(value) for name, value in stats.items() if name.startswith(prefix)}


def _bars(counts: Mapping[str, int]) -> list[Bar]:
    """Return counts as bars, the largest first; the last one is the sum of all others."""
    most = max(counts.values(), default=0)
    ordered = sorted(counts.items(), key=lambda item: (item[0].startswith("("), -item[1], item[0]))
    return [Bar(name, count, count / most if most else 0.0) for name, count in ordered]


def _confidence(counts: Mapping[str, int]) -> list[Bar]:
    """Return the number of items by class of confidence, the highest first, including classes without items."""
    if not counts:
        return []
    classes = [stat.removeprefix(_prefix(CONFIDENCE_STAT)) for stat in reversed(CONFIDENCE_STATS)]
    most = max(counts.values())
    return [Bar(name.replace("-", "–"), counts.get(name, 0), counts.get(name, 0) / most) for name in classes]


def _notes(status: Status, totals: FleetTotals | None) -> Iterator[tuple[str, str]]:
    name, counts, kept = status.name, status.counts, sum(worker.kept for worker in status.workers)
    if counts["dead"]:
        yield f"Requests given up: {dead_text(status)}", frontier_command("dead", name)
    if totals is not None and totals.lost:
        yield f"Runs without a last report, killed or cut off: {number(totals.lost)}", frontier_command("runs", name)
    if status.left and not status.has_workers:
        yield f"Requests left while no worker is running: {number(status.left)}", ""
    if kept:
        yield f"Requests that can't be stored and stay in workers: {number(kept)}", frontier_command("doctor", name)
    for order in status.state.orders:
        yield f"By an operator's command the crawl is {order}", ""
    if counts["reaped"]:
        yield f"Leases that expired, so that pages may have been fetched twice: {number(counts['reaped'])}", ""


def render(document: Document) -> str:
    """Return the report as HTML."""
    # Imported here, since only this needs Jinja2, which need not be installed.
    from scrapy_prioqueue.commands.reporting.templating import environment

    texts = (brief, counted, duration, headline, latency_text, moment, number, rate, size, tier_name)
    template = environment("scrapy_prioqueue.commands.reporting", *texts).get_template("report.html")
    return template.render(doc=document, s=document.status, totals=document.totals)


def headline(document: Document) -> tuple[str, str]:
    """Return the state of the crawl, as a word and as a sentence."""
    status = document.status
    state = status.state
    length = duration(max(0, (state.ended_ms or status.now_ms) - state.created_ms) / 1000)
    done = counted(status.counts["done"], "request")
    if state.has_ended:
        return "finished", f"{done} done in {length}"
    if status.left and not status.has_workers:
        return "stopped", f"{done} done, {number(status.left)} left, and no worker is running"
    outlook = outlook_of(status)
    left = f", {outlook.text}" if outlook.text else ""
    return "running", f"{done} done in {length}, {number(status.left)} left{left}"


def latency_text(run: Run) -> str:
    """Return the latency of most exchanges of a run."""
    found = latency_s(run.figures.latency, 0.95)
    return "–" if found is None else seconds(found)
