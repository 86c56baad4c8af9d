"""`scrapy frontier report`."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from scrapy_prioqueue.frontier.base import Report
from scrapy_prioqueue.frontier.runs import Figures
from tests.commands.conftest import Run
from tests.contract.backends import RedisBackend, Worker, ack, fail, push

HOSTILE = "<script>alert(1)</script>\"'&\x1b\u202e{{7*7}}"
VOID = {"meta", "path", "rect"}


class Page(HTMLParser):
    """Collects the elements and the text of a page, and checks that elements are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def report(run: Run) -> str:
    ran = run("report", "--output", "-")
    assert (ran.code, ran.err) == (0, "")
    return ran.out


def record(worker: Worker, **figures: Any) -> None:
    stats = figures.pop("stats", {})
    worker.run(worker.frontier.record(Report(Figures(**{"latency": [0, 3], **figures}), stats)))


def crawl(backend: RedisBackend, slot: str = "a.example", name: str = "w1") -> Worker:
    """Have a worker with samples, dead letters, stats and settings, and names from crawled pages in all of them."""
    worker = backend.join(name)
    worker.commit(*(push(f"{number}", slot=slot) for number in range(9)))
    record(worker, pages=1)
    done, dead, _ = worker.lease(3)
    worker.commit(ack(done), fail(dead, "download", slot))
    backend.clock.advance(3)
    stats = {
        "item_scraped_count": 7,
        "log_count/ERROR": 2,
        "request_depth_max": 1.5,
        f"prioqueue/done/slot/{slot}": 3,
        "prioqueue/done/tier/normal": 3,
        "prioqueue/confidence/90-100": 2,
        f"x{slot}": 1,
    }
    record(worker, pages=3, retries=1, errors=2, stats=stats, settings={"A": slot}, spider=slot, version="1")
    return worker


def test_a_report_has_everything_of_a_running_crawl(run: Run, backend: RedisBackend) -> None:
    crawl(backend)

    page = report(run)
    text = Page(page).text

    for heading in (
        *("Waiting requests by tier", "Requests per second", "Workers", "Slots with requests", "Latency of exchanges"),
        *("Retries per second", "Dead letters by reason", "Memory of Redis", "Pages by tier", "Pages by domain"),
        *("Items by confidence", "Slots with the longest queues", "Runs of workers", "Scrapy's stats of all runs"),
    ):
        assert f">{heading}</h2>" in page, heading
    assert "Requests given up: 1." in text
    assert "90–100" in text
    assert "request_depth_max" in text
    assert "prioqueue/done" not in text


def test_names_from_crawled_pages_stay_text_and_nothing_is_loaded(run: Run, backend: RedisBackend) -> None:
    crawl(backend, HOSTILE, HOSTILE)

    page = Page(report(run))

    assert not {tag for tag, _ in page.elements} & {"script", "iframe", "object", "link", "img", "a", "form"}
    attributes = {name for _, found in page.elements for name in found}
    assert not {name for name in attributes if name.startswith("on")} | ({"src", "href", "style"} & attributes)
    assert page.text.count("<script>alert(1)</script>\"'&\\x1b\\u202e{{7*7}}") >= 5
    assert not set("\x1b\u202e") & set(page.text)
    (policy,) = [found["content"] for _, found in page.elements if found.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none';")


def test_a_crawl_without_samples_and_one_that_has_ended_are_reported(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1")
    assert "There are no samples of this crawl yet" in report(run)
    record(worker, reason="finished")
    assert worker.ask(is_idle=True).has_ended
    worker.leave()

    assert ">finished</span>" in report(run)


def test_a_report_is_written_to_a_file_named_after_the_frontier(
    run: Run, backend: RedisBackend, frontier_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.join()
    monkeypatch.chdir(tmp_path)

    assert f"report-{frontier_name}.html" in run("report").out

    assert Page((tmp_path / f"report-{frontier_name}.html").read_text("utf-8")).elements
    assert run("report", "--output", str(tmp_path)).code == 2


def test_without_jinja2_the_command_says_what_to_install(
    run: Run, backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.join()
    monkeypatch.setitem(sys.modules, "jinja2", None)

    ran = run("report")

    assert ran.code == 2
    assert 'pip install "scrapy-prioqueue[dashboard]"' in ran.err
