"""Writes the Grafana dashboard deploy/grafana/scrapy-prioqueue.json; run it after a change."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATH = Path(__file__).resolve().parent.parent / "deploy" / "grafana" / "scrapy-prioqueue.json"

SOURCE = {"type": "prometheus", "uid": "${datasource}"}

WIDTH = 24
"""Columns of Grafana's grid."""

GOOD, WARNING, BAD = "green", "orange", "red"


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel with curves.

    Args:
        unit: in Grafana's words.
        queries: by their legends.
        about: what it shows, if the title doesn't say that.
    """

    title: str
    unit: str
    queries: Mapping[str, str]
    about: str = ""
    is_stacked: bool = False


def ours(metric: str, labels: str = "") -> str:
    """Return a selector of the chosen frontiers."""
    return f'{metric}{{frontier=~"$frontier"{labels and ", " + labels}}}'


def rate(metric: str) -> str:
    """Return the rate of a counter, added up by frontier."""
    return f"sum by (frontier) (rate({ours(metric)}[$__rate_interval]))"


def by(label: str, metric: str, labels: str = "") -> str:
    """Return a gauge, added up by a label."""
    return f"sum by ({label}) ({ours(metric, labels)})"


def quantile(part: float) -> str:
    """Return a quantile of the durations of exchanges."""
    buckets = ours("prioqueue_worker_exchange_duration_seconds_bucket")
    return f"histogram_quantile({part}, sum by (le) (rate({buckets}[$__rate_interval])))"


LIVING = 'state!="silent"'

UNFINISHED = 'state=~"pending|delayed|leased"'

NUMBERS: Sequence[tuple[str, str, str, Sequence[tuple[str, float | None]]]] = (
    ("Left", "short", f"sum({ours('prioqueue_requests', UNFINISHED)})", [(GOOD, None)]),
    ("Done per second", "reqps", f"sum({rate('prioqueue_requests_done_total')})", [(GOOD, None)]),
    ("Time left", "s", f"max({ours('prioqueue_crawl_left_seconds')})", [(GOOD, None)]),
    (
        "Workers",
        "short",
        f"sum({ours('prioqueue_workers', LIVING)})",
        [(BAD, None), (GOOD, 1)],
    ),
    ("Dead letters", "short", f"sum({ours('prioqueue_dead_letters')})", [(GOOD, None), (WARNING, 1)]),
    (
        "Memory of the server",
        "percentunit",
        "max(prioqueue_redis_memory_used_bytes / (prioqueue_redis_memory_limit_bytes > 0))",
        [(GOOD, None), (WARNING, 0.7), (BAD, 0.8)],
    ),
)
"""Single numbers: title, unit, query, and colours from which value on."""

ROWS: Sequence[tuple[str, Sequence[Panel]]] = (
    (
        "What is left, and what holds it back",
        (
            Panel(
                "Requests by state",
                "short",
                {"{{state}}": by("state", "prioqueue_requests", UNFINISHED)},
                is_stacked=True,
            ),
            Panel("Pending by tier", "short", {"{{tier}}": by("tier", "prioqueue_pending_requests")}, is_stacked=True),
            Panel(
                "Rates",
                "reqps",
                {
                    "done {{frontier}}": rate("prioqueue_requests_done_total"),
                    "accepted {{frontier}}": rate("prioqueue_requests_accepted_total"),
                },
                "The crawl grows while more requests are accepted than done.",
            ),
            Panel(
                "Slots with pending requests",
                "short",
                {"{{state}}": by("state", "prioqueue_slots")},
                "Slots that are not ready wait for their delay, their concurrency or the end of a Retry-After.",
            ),
            Panel("Workers by state", "short", {"{{state}}": by("state", "prioqueue_workers")}, is_stacked=True),
            Panel(
                "State of the crawl",
                "short",
                {"{{frontier}} {{state}}": f"{ours('prioqueue_crawl_state')} == 1"},
                "Each state that applies.",
            ),
        ),
    ),
    (
        "What goes wrong",
        (
            Panel("Dead letters by reason", "short", {"{{reason}}": by("reason", "prioqueue_dead_letters")}),
            Panel(
                "Lost leases",
                "short",
                {
                    "expired": f"sum(increase({ours('prioqueue_leases_reaped_total')}[$__rate_interval]))",
                    "ended too late": f"sum(increase({ours('prioqueue_leases_void_total')}[$__rate_interval]))",
                },
                "Leases expire when a worker is killed or has no contact.",
            ),
            Panel(
                "Requests that stay in their workers",
                "short",
                {
                    "in memory now {{frontier}}": by("frontier", "prioqueue_requests_kept"),
                    "could not be stored {{frontier}}": by("frontier", "prioqueue_requests_unserializable"),
                },
                "A kill repeats the pages on which these requests were found.",
            ),
            Panel(
                "Retries, and errors in logs",
                "short",
                {
                    "retries": f"sum(rate({ours('prioqueue_retries_total')}[$__rate_interval]))",
                    "errors": f"sum(rate({ours('prioqueue_log_errors_total')}[$__rate_interval]))",
                },
                "Per second.",
            ),
            Panel(
                "Silent for",
                "s",
                {
                    "{{frontier}}": by("frontier", "prioqueue_heartbeat_lag_seconds"),
                    "event loop of {{instance}}": f"{ours('prioqueue_worker_loop_lag_seconds')} > 1",
                },
                "The living worker that is silent longest, and event loops that are late.",
            ),
            Panel(
                "Budgets",
                "percentunit",
                {"{{frontier}} {{cost}}": ours("prioqueue_budget_used_ratio")},
                "The budget key nearest to its cap, by cost.",
            ),
        ),
    ),
    (
        "Workers",
        (
            Panel(
                "Pages and items by worker",
                "reqps",
                {
                    "pages {{instance}}": f"rate({ours('prioqueue_worker_pages_total')}[$__rate_interval])",
                    "items {{instance}}": f"rate({ours('prioqueue_worker_items_total')}[$__rate_interval])",
                },
                "Per second.",
            ),
            Panel(
                "Duration of exchanges",
                "s",
                {"median": quantile(0.5), "90 %": quantile(0.9), "99 %": quantile(0.99)},
                "A worker never waits for an exchange; slow ones make it prefetch more.",
            ),
            Panel(
                "Inbox, outbox and requests in progress",
                "short",
                {
                    "in progress": f"sum({ours('prioqueue_worker_leases_held')})",
                    "inbox": f"sum({ours('prioqueue_worker_inbox_requests')})",
                    "outbox": f"sum({ours('prioqueue_worker_outbox_requests')})",
                },
                "The outbox grows while the server is full or away.",
            ),
            Panel(
                "Duplicates",
                "reqps",
                {
                    "recognised by workers": f"sum({rate('prioqueue_worker_duplicates_total')})",
                    "found by the server": f"sum({rate('prioqueue_duplicates_total')})",
                },
                "Per second.",
            ),
            Panel(
                "Memory of workers",
                "bytes",
                {"{{instance}}": f"process_resident_memory_bytes and on (instance) {ours('prioqueue_worker_info')}"},
            ),
            Panel(
                "Processor time of workers",
                "percentunit",
                {
                    "{{instance}}": "rate(process_cpu_seconds_total[$__rate_interval]) and on (instance)"
                    f" {ours('prioqueue_worker_info')}"
                },
            ),
        ),
    ),
    (
        "Redis",
        (
            Panel(
                "Memory",
                "bytes",
                {
                    "used": "prioqueue_redis_memory_used_bytes",
                    "maxmemory": "prioqueue_redis_memory_limit_bytes > 0",
                },
            ),
            Panel("Commands", "ops", {"per second": "rate(prioqueue_redis_commands_total[$__rate_interval])"}),
            Panel(
                "Clients, and evicted keys",
                "short",
                {"clients": "prioqueue_redis_clients", "evicted keys": "prioqueue_redis_evicted_keys_total"},
                "Any evicted key is lost data.",
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    return {
        "uid": "scrapy-prioqueue",
        "title": "Crawls with scrapy-prioqueue",
        "tags": ["scrapy"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_source(), _frontiers()]},
        "panels": _numbered([*_numbers(), *_rows()]),
    }


def _source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _frontiers() -> dict[str, Any]:
    return {
        "name": "frontier",
        "label": "Frontier",
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": "label_values(prioqueue_frontier_exists, frontier)", "refId": "frontiers"},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
        "sort": 1,
    }


def _numbers() -> list[dict[str, Any]]:
    width = WIDTH // len(NUMBERS)
    return [
        {
            **_panel("stat", title, unit, {"": query}, x=number * width, y=0, width=width, height=4),
            "options": {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value"},
            "fieldConfig": {
                "defaults": {
                    "unit": unit,
                    "thresholds": {
                        "mode": "absolute",
                        "steps": [{"color": color, "value": value} for color, value in colors],
                    },
                },
                "overrides": [],
            },
        }
        for number, (title, unit, query, colors) in enumerate(NUMBERS)
    ]


def _rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    y, width, height = 4, WIDTH // 3, 8
    for title, panels in ROWS:
        found.append({"type": "row", "title": title, "collapsed": False, "gridPos": _place(0, y, WIDTH, 1)})
        y += 1
        for at, panel in enumerate(panels):
            x, row = at % 3 * width, y + at // 3 * height
            made = _panel("timeseries", panel.title, panel.unit, panel.queries, x=x, y=row, width=width, height=height)
            if panel.is_stacked:
                custom = {"stacking": {"mode": "normal"}, "fillOpacity": 30}
                made["fieldConfig"]["defaults"]["custom"] = custom
            if panel.about:
                made["description"] = panel.about
            found.append(made)
        y += -(-len(panels) // 3) * height
    return found


def _panel(
    kind: str, title: str, unit: str, queries: Mapping[str, str], *, x: int, y: int, width: int, height: int
) -> dict[str, Any]:
    return {
        "type": kind,
        "title": title,
        "datasource": SOURCE,
        "gridPos": _place(x, y, width, height),
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": SOURCE, "expr": query, "legendFormat": legend}
            for number, (legend, query) in enumerate(queries.items())
        ],
    }


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _numbered(panels: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"id": number, **panel} for number, panel in enumerate(panels, 1)]


def text() -> str:
    """Return the file."""
    return json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), "utf-8")
