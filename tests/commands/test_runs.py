"""`scrapy frontier runs`, and the totals in `scrapy frontier status`."""

from __future__ import annotations

from typing import Any

import pytest

from scrapy_prioqueue.frontier.base import Report
from scrapy_prioqueue.frontier.runs import Figures
from tests.commands.conftest import Run
from tests.contract.backends import RedisBackend, Worker

HOSTILE = "evil\x1b[31m<b>.example"


def record(worker: Worker, stats: dict[str, float] | None = None, **figures: Any) -> None:
    worker.run(worker.frontier.record(Report(Figures(**{"latency": [0, 0, 3], **figures}), stats or {})))


@pytest.fixture
def recorded(backend: RedisBackend) -> Worker:
    """A crawl with a lost and a living run; returns the living one's worker."""
    stats = {"item_scraped_count": 10, "request_depth_max": 3, "log_count/ERROR": 1, "downloader/response_bytes": 5e6}
    lost = backend.join("lost", clock=None, crawl_id="monday", worker_info={"host": "a", "pid": "1"})
    record(lost, stats, pages=1200, items=10, errors=1, confidence=[0, 0, 0, 0, 0, 0, 0, 1, 2, 1])
    lost.close()
    worker = backend.join("w2", clock=None, crawl_id="monday", worker_info={"host": "b", "pid": "2"})
    record(
        worker,
        stats,
        pages=7,
        slots={HOSTILE: 4, "www.a.co.uk": 2, "a.co.uk": 1},
        settings={"CONCURRENT_REQUESTS": "7"},
    )
    return worker


def test_runs_lists_them_the_newest_first(run: Run, recorded: Worker) -> None:
    found = run("runs", "--json").json

    assert [(each["worker"], each["pages"], each["crawl_id"]) for each in found] == [
        ("w2", 7, "monday"),
        ("lost", 1200, "monday"),
    ]
    assert {"seconds", "pages_per_s", "latency_p50_s", "latency_p95_s", "settings"} <= set(found[0])
    listed = run("runs", columns=200).out
    assert "1,200" in listed
    assert "▁▁▁▁▁▁▁▅█▅" in listed
    assert len(run("runs", "--limit", "1", "--json").json) == 1
    assert "1 more" in run("runs", "--limit", "1").out


def test_runs_of_a_crawl(run: Run, recorded: Worker) -> None:
    assert len(run("runs", "--crawl-id", "monday", "--json").json) == 2
    none = run("runs", "--crawl-id", "sunday")
    assert (none.code, none.out) == (1, "no run of crawl 'sunday' is recorded\n")


def test_one_run_is_shown_with_its_settings_and_without_control_characters(run: Run, recorded: Worker) -> None:
    run_id = run("runs", "--json").json[0]["run_id"]

    shown = run("runs", run_id).out

    assert "CONCURRENT_REQUESTS" in shown
    assert "evil\\x1b[31m<b>.example 4 (57%), a.co.uk 3 (42%)" in shown
    assert run("runs", run_id, "--json").json["pages"] == 7
    assert run("runs", "unknown").code == 1


def test_no_text_of_a_spider_is_obeyed_by_the_terminal_or_forges_a_line(run: Run, backend: RedisBackend) -> None:
    hostile = "by \x1b[31mred\nforged \u202erow\x9b"
    info = {"host": hostile, "pid": "1"}
    worker = backend.join(hostile, clock=None, crawl_id=hostile, worker_info=info)
    figures = {"reason": hostile, "spider": hostile, "version": hostile, "settings": {hostile: hostile}}
    record(worker, {hostile: 3}, **figures, tiers={hostile: 2}, slots={hostile: 2})
    run_id = run("runs", "--json").json[0]["run_id"]

    for command in (["runs"], ["runs", run_id], ["status", "--stats"], ["workers"], ["runs", "--crawl-id", "\x1b\n"]):
        out = run(*command, columns=80).out
        assert all(letter.isprintable() or letter == "\n" for letter in out)
        assert not any(line.startswith("forged") for line in out.splitlines())


def test_runs_fits_60_columns(run: Run, recorded: Worker) -> None:
    assert max(map(len, run("runs", columns=60).out.splitlines())) <= 60


def test_status_sums_up_the_runs_and_shows_stats_on_request_or_after_the_end(run: Run, recorded: Worker) -> None:
    text = "2 runs on 2 machines; downloaded: 10.0 MB, items: 20, errors: 2"
    open_one = run("status", columns=200)
    assert text in open_one.out
    assert "request_depth_max" not in open_one.out
    assert "request_depth_max" in run("status", "--stats").out
    assert recorded.ask(is_idle=True).has_ended is False
    totals = run("status", "--json").json["totals"]
    assert (totals["runs"], totals["stats"]["request_depth_max"]) == (2, 3)


def test_status_of_an_ended_crawl_shows_all_sums(run: Run, backend: RedisBackend) -> None:
    worker = backend.join()
    record(worker, {"item_scraped_count": 1234})
    assert worker.ask(is_idle=True).has_ended
    worker.leave()

    assert "item_scraped_count" in run("status").out


def test_a_frontier_without_runs_has_none(run: Run, backend: RedisBackend) -> None:
    backend.join()

    assert (run("runs").code, run("runs").out) == (0, "no run is recorded\n")
    assert run("status", "--json").json["totals"] is None
