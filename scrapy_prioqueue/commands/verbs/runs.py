"""`scrapy frontier runs`: the runs of workers, from their join to their close."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.options import add_limit
from scrapy_prioqueue.commands.output import (
    Cell,
    FittedTable,
    counted,
    duration,
    fields_of,
    moment,
    more,
    number,
    pairs,
    part,
    rate,
)
from scrapy_prioqueue.commands.verb import FINE, NOTHING, Verb
from scrapy_prioqueue.commands.verbs.status import sparkline
from scrapy_prioqueue.frontier.runs import CONFIDENCE_CLASSES, Run, latency_s

_STYLES = {"running": "green", "closed": "", "lost": "red"}


class RunsVerb(Verb):
    name = "runs"
    summary = "runs of workers: times, pages, items, errors, why each was closed"
    syntax = "[RUN]"
    examples = ("", "--crawl-id 2026-11-30", "5f0c9d1e27a84b36")

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("run_id", nargs="?", metavar="RUN", help="show everything about the run with this id")
        parser.add_argument("--crawl-id", metavar="ID", help="only runs of the crawl with this PRIOQUEUE_CRAWL_ID")
        add_limit(parser, 30)

    def run(self, context: Context, options: Namespace) -> int:
        context.state()
        found = [run for run in context.inspector.runs.all() if _is_meant(run, options)]
        documents = [as_json(run) for run in found[: options.limit]]
        if options.run_id is not None and found:
            context.output.found(documents[0], sheet(found[0]))
        else:
            context.output.found(documents, *_table(found, options.limit), nothing=_nothing(options))
        return FINE if found or {options.run_id, options.crawl_id} == {None} else NOTHING


def _nothing(options: Namespace) -> str:
    run = "no run" if options.run_id is None else f"no run {options.run_id!r}"
    return f"{run}{'' if options.crawl_id is None else f' of crawl {options.crawl_id!r}'} is recorded"


def _is_meant(run: Run, options: Namespace) -> bool:
    return options.run_id in (None, run.run_id) and options.crawl_id in (None, run.crawl_id)


def as_json(run: Run) -> dict[str, object]:
    """Return a run for JSON: its fields, its figures and some computed values."""
    fields = fields_of(run)
    figures = fields_of(fields.pop("figures"))
    median, most = (latency_s(run.figures.latency, each) for each in (0.5, 0.95))
    computed = {"seconds": run.seconds, "pages_per_s": run.pages_per_s, "domains": run.figures.domains}
    return {**fields, **figures, **computed, "latency_p50_s": median, "latency_p95_s": most}


_COLUMNS: Mapping[str, Callable[[Run], Cell]] = {
    "run": lambda run: run.run_id,
    "worker": lambda run: run.worker,
    "crawl": lambda run: run.crawl_id,
    "joined": lambda run: moment(run.joined_ms),
    "length>": lambda run: duration(run.seconds),
    "pages>": lambda run: run.figures.pages,
    "rate>": lambda run: rate(run.pages_per_s),
    "items>": lambda run: run.figures.items,
    "confidence": lambda run: sparkline(run.figures.confidence),
    "errors>": lambda run: Text(number(run.figures.errors), style="red" if run.figures.errors else ""),
    "retries>": lambda run: run.figures.retries,
    "dead>": lambda run: run.figures.dead,
    "end": lambda run: Text(run.figures.reason if run.state == "closed" else run.state, style=_STYLES[run.state]),
}

_BELOW = ("run", "crawl", "retries", "rate", "confidence", "dead", "joined")


def _table(found: Sequence[Run], limit: int) -> Iterator[RenderableType]:
    shown = found[:limit]
    left_out = {name for name in ("crawl", "confidence") if not any(str(_COLUMNS[name](run)) for run in shown)}
    columns = {name: cell for name, cell in _COLUMNS.items() if name not in left_out}
    rows = [[cell(run) for cell in columns.values()] for run in shown]
    yield FittedTable(list(columns), rows, fold=("worker",), below=_BELOW)
    if len(found) > limit:
        yield more(limit, len(found) - limit)


def sheet(run: Run) -> RenderableType:
    """Return everything about a run."""
    figures = run.figures
    facts: list[tuple[str, Cell]] = [
        ("run", run.run_id),
        ("worker", run.worker),
        ("process", f"{run.pid} on {run.host}" if run.host else ""),
        ("spider", f"{figures.spider}, scrapy-prioqueue {figures.version}" if figures.spider else ""),
        ("crawl", run.crawl_id),
        ("joined", moment(run.joined_ms)),
        ("end", Text(_ending(run), style=_STYLES[run.state])),
        ("pages", f"{number(figures.pages)}, {rate(run.pages_per_s)}"),
        ("items", number(figures.items)),
        ("errors", number(figures.errors)),
        ("retries", number(figures.retries)),
        ("escalations", number(figures.escalations) if figures.escalations else ""),
        ("dead", number(figures.dead)),
        ("exchanges", exchanges_text(figures.latency)),
        ("confidence", confidence_text(figures.confidence)),
        ("by tier", shares(figures.tiers)),
        ("by domain", shares(figures.domains)),
    ]  # fmt: skip
    return Group(pairs([(name, value) for name, value in facts if str(value)]), "", pairs(figures.settings.items()))


def _ending(run: Run) -> str:
    if run.state == "running":
        return f"running for {duration(run.seconds)}, by its last report"
    if run.state == "lost":
        return f"lost; its last report is of {moment(run.heard_ms)}, after {duration(run.seconds)}"
    return f"{run.figures.reason} at {moment(run.heard_ms)}, after {duration(run.seconds)}"


def exchanges_text(latency: Sequence[int]) -> str:
    """Return the number of exchanges and how long they took, empty if there were none."""
    median, most = latency_s(latency, 0.5), latency_s(latency, 0.95)
    if median is None or most is None:
        return ""
    return f"{number(sum(latency))}, half of them within {median * 1000:.3g} ms, 95% within {most * 1000:.3g} ms"


def confidence_text(counts: Sequence[int]) -> str:
    """Return the distribution of items by confidence, empty if none has one."""
    total = sum(counts)
    if not total:
        return ""
    width = 100 // CONFIDENCE_CLASSES
    parts = (f"{low * width}+: {part(count / total)}" for low, count in enumerate(counts) if count)
    return f"{sparkline(counts)} of {counted(total, 'item')}; {', '.join(parts)}"


def shares(counts: Mapping[str, int]) -> str:
    """Return counts by name with their parts of the total."""
    total = sum(counts.values())
    return ", ".join(f"{name} {number(count)} ({part(count / total)})" for name, count in counts.items())
