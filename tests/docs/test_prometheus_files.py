"""The alerts, their tests, the configuration and the dashboard in deploy/ use metrics that there are, as they are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import write_grafana_dashboard
import yaml

from scrapy_prioqueue.monitoring.fleet import FRONTIER_METRICS, SERVER_METRICS, WORKER_STATES
from scrapy_prioqueue.monitoring.metrics import Metric
from scrapy_prioqueue.monitoring.worker import WORKER_METRICS
from tests.docs.markdown import REPOSITORY, names

PROMETHEUS = REPOSITORY / "deploy" / "prometheus"
DASHBOARD = REPOSITORY / "deploy" / "grafana" / "scrapy-prioqueue.json"

# Prometheus adds these labels, or an aggregation keeps them.
SELECTOR = re.compile(r"\b((?:prioqueue|process)_[a-z_]+)(?:\{([^}]*)\})?")
SCRAPED = {"instance", "job"}
HISTOGRAM_SUFFIXES = ("_bucket", "_count", "_sum")

pytestmark = pytest.mark.in_process


def exported() -> Mapping[str, set[str]]:
    """Return the labels of each series, by its name."""
    found: dict[str, set[str]] = {}
    tables: list[tuple[set[str], Sequence[Metric[Any]]]] = [
        *(({"frontier"}, table) for table in (WORKER_METRICS, FRONTIER_METRICS)),
        (set(), SERVER_METRICS),
    ]
    for common, table in tables:
        for metric in table:
            labels = {*common, *metric.labels, *SCRAPED}
            is_histogram = metric.kind == "histogram"
            series = [metric.name + suffix for suffix in HISTOGRAM_SUFFIXES] if is_histogram else [metric.name]
            found |= dict.fromkeys(series, labels | ({"le"} if is_histogram else set()))
    # Of the library.
    return found | {"process_resident_memory_bytes": SCRAPED, "process_cpu_seconds_total": SCRAPED}


def selectors(text: str) -> Iterator[tuple[str, set[str]]]:
    """Yield the names of series in a query, with the labels by which they are selected."""
    for name, labels in SELECTOR.findall(text):
        yield name, set(re.findall(r"([a-z_]+) *[=!]~?", labels))


def assert_known(text: str) -> None:
    known = exported()
    for name, labels in selectors(text):
        assert name in known, text
        assert labels <= known[name], text


def alerts() -> list[dict[str, Any]]:
    document = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text("utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


def test_alerts_use_metrics_that_there_are() -> None:
    for alert in alerts():
        assert_known(alert["expr"])
        assert {*alert} - {"for"} == {"alert", "expr", "labels", "annotations"}
        labels = set(re.findall(r"\$labels\.(\w+)", str(alert["annotations"])))
        assert labels <= set.union(*(exported()[name] for name, _ in selectors(alert["expr"]))) | SCRAPED
        states = re.findall(r'prioqueue_workers\{state="(\w+)"', alert["expr"])
        assert {*states} <= {*WORKER_STATES}


def test_alerts_are_those_of_the_documentation() -> None:
    assert [alert["alert"] for alert in alerts()] == names(REPOSITORY / "docs" / "monitoring.md", "alert")


def test_every_alert_is_tested_for_firing_and_for_silence() -> None:
    document = yaml.safe_load((PROMETHEUS / "alerts_test.yml").read_text("utf-8"))
    cases = [case for test in document["tests"] for case in test["alert_rule_test"]]
    ours = {alert["alert"] for alert in alerts()}

    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == ours
    assert {case["alertname"] for case in cases if not case.get("exp_alerts")} == ours
    for test in document["tests"]:
        for series in test["input_series"]:
            assert_known(series["series"])


def exposition() -> str:
    """Return all metrics as they are served, with a sample each."""
    lines: list[str] = []
    metrics: list[Metric[Any]] = [*WORKER_METRICS, *FRONTIER_METRICS, *SERVER_METRICS]
    for metric in metrics:
        name, is_histogram = metric.name, metric.kind == "histogram"
        samples = (
            [f'{name}_bucket{{le="+Inf"}} 1', f"{name}_sum 1", f"{name}_count 1"] if is_histogram else [f"{name} 1"]
        )
        lines += [f"# HELP {name} {metric.doc}", f"# TYPE {name} {metric.kind}", *samples]
    return "\n".join(lines) + "\n"


def test_promtool_accepts_them_where_it_is_installed() -> None:
    promtool = shutil.which("promtool")
    files = ["check rules alerts.yml", "test rules alerts_test.yml", "check config prometheus.yml"]
    commands = {**dict.fromkeys(files, ""), "check metrics": exposition()}
    for command, text in commands.items() if promtool else ():
        ended = subprocess.run(
            [promtool or "", *command.split()], cwd=PROMETHEUS, input=text, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_configuration_reads_the_alerts_at_the_default_port() -> None:
    document = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text("utf-8"))

    assert all((PROMETHEUS / name).exists() for name in document["rule_files"])
    targets = [
        target for job in document["scrape_configs"] for each in job["static_configs"] for target in each["targets"]
    ]
    assert targets[0] == "exporter:9450"


def test_the_dashboard_is_what_its_program_writes_and_uses_metrics_that_there_are() -> None:
    text = DASHBOARD.read_text("utf-8")

    assert text == write_grafana_dashboard.text(), "run scripts/write_grafana_dashboard.py"
    document = json.loads(text)
    queries = [target["expr"] for panel in document["panels"] for target in panel.get("targets", [])]
    queries += [
        variable["query"]["query"] for variable in document["templating"]["list"] if variable["type"] == "query"
    ]
    assert len(queries) > 30
    for query in queries:
        assert list(selectors(query))
        assert_known(query)
        assert set(re.findall(r"by \((\w+)\)", query)) <= set.union(*(exported()[name] for name, _ in selectors(query)))
