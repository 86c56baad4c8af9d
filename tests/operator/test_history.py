"""Workers record their runs and the history of the crawl; operators read both."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from scrapy_prioqueue.errors import FrontierUnavailable
from scrapy_prioqueue.frontier.base import Recall, Report
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.inspector import Inspector
from scrapy_prioqueue.frontier.redis.operators.operator import Operator
from scrapy_prioqueue.frontier.runs import (
    Dropped,
    Figures,
    Run,
    Stats,
    latency_class,
    read_stats,
    record_json,
    stats_json,
    totals_of,
)
from scrapy_prioqueue.rank import TIER_WIDTH
from tests.contract.backends import RedisBackend, Worker, ack, fail, push
from tests.support.servers import RedisServer

STEP_S = 2
MOST_SAMPLES = 360
MOST_RUNS = 1000


@pytest.fixture
def inspector(redis_server: RedisServer, frontier_name: str) -> Iterator[Inspector]:
    link = Link(redis_server.url)
    yield Inspector(link, frontier_name, lease_ttl_s=10)
    link.close()


@pytest.fixture(autouse=True)
def clock_is_ahead_of_the_server(backend: RedisBackend) -> None:
    """Make the frontier's clock that of the test: it is never behind the workers'."""
    backend.clock.now_ms = round(time.time() * 1000) + 3_600_000


def exchanges(*seconds: float) -> list[int]:
    """Return counts of exchanges that took so long."""
    counts = [0] * 14
    for each in seconds:
        counts[latency_class(each)] += 1
    return counts


def report(reason: str = "", stats: dict[str, float] | None = None, **figures: Any) -> Report:
    return Report(Figures(**{"latency": exchanges(), **figures}, reason=reason), stats or {})


def record(worker: Worker, said: Report) -> float:
    return worker.run(worker.frontier.record(said))


def leave(worker: Worker, said: Report) -> Any:
    worker.is_in = False
    return worker.run(worker.frontier.leave(said))


def end(worker: Worker) -> None:
    """Let the crawl end."""
    assert worker.ask(is_idle=True).has_ended


# Runs


def test_a_run_is_found_with_its_last_figures(inspector: Inspector, backend: RedisBackend) -> None:
    worker = backend.join("w1", worker_info={"host": "a.example", "pid": "7"}, crawl_id="monday")
    record(worker, report(pages=1))
    backend.clock.advance(5)
    record(worker, report(pages=10, items=4, tiers={"urgent": 10}, confidence=[0] * 9 + [4], settings={"A": "1"}))

    (run,) = inspector.runs.all()

    assert (run.worker, run.host, run.pid, run.crawl_id) == ("w1", "a.example", "7", "monday")
    assert (run.state, run.figures.pages, run.figures.items) == ("running", 10, 4)
    assert (run.seconds, run.pages_per_s) == (5, 2)
    assert (run.figures.tiers, run.figures.confidence[9], run.figures.settings) == ({"urgent": 10}, 4, {"A": "1"})


def test_a_run_that_closes_has_a_reason_and_a_killed_one_is_lost(inspector: Inspector, backend: RedisBackend) -> None:
    closed, lost, running = (backend.join(name) for name in ("closed", "lost", "running"))
    for worker in (closed, lost, running):
        record(worker, report(pages=3))
    leave(closed, report("shutdown", pages=4))
    backend.clock.advance(11)
    running.ask()

    found = {run.worker: (run.state, run.figures.reason, run.figures.pages) for run in inspector.runs.all()}

    assert found == {"closed": ("closed", "shutdown", 4), "lost": ("lost", "", 3), "running": ("running", "", 3)}


def test_a_report_that_comes_after_the_last_one_changes_nothing(inspector: Inspector, backend: RedisBackend) -> None:
    worker, other = backend.join("w1"), backend.join("w2")
    leave(worker, report("shutdown", pages=4))

    record(worker, report(pages=3))

    assert [(run.state, run.figures.pages) for run in inspector.runs.all()] == [("closed", 4)]
    assert record(other, report())


def test_a_later_process_under_the_same_id_is_another_run(inspector: Inspector, backend: RedisBackend) -> None:
    killed = backend.join()
    record(killed, report(pages=3))
    backend.clock.advance(1)
    again = backend.join()
    record(again, report(pages=5))

    assert [(run.state, run.figures.pages) for run in inspector.runs.all()] == [("running", 5), ("lost", 3)]


def test_the_newest_thousand_runs_are_kept(
    operator: Operator, inspector: Inspector, backend: RedisBackend, redis_server: RedisServer
) -> None:
    worker = backend.join()
    client, keys = redis_server.client(), operator.keys
    old = {f"run{number}": number for number in range(1, MOST_RUNS + 50)}
    client.zadd(keys.of("ran"), old)
    for noun in ("runs", "numbers"):
        client.hset(keys.of(noun), mapping=dict.fromkeys(map(str.encode, old), "{}"))

    record(worker, report(pages=1))

    assert [client.zcard(keys.of("ran")), *(client.hlen(keys.of(noun)) for noun in ("runs", "numbers"))] == [
        MOST_RUNS
    ] * 3
    assert [run.figures.pages for run in inspector.runs.all()] == [1]


def test_runs_that_are_no_longer_kept_stay_in_the_totals_and_counters(
    operator: Operator, inspector: Inspector, backend: RedisBackend, redis_server: RedisServer
) -> None:
    worker = backend.join(worker_info={"host": "a"})
    record(worker, report(pages=1, items=1, tiers={"high": 1}, stats={"x": 1}))
    (run,), keys, client = inspector.runs.all(), operator.keys, redis_server.client()
    began_ms = run.joined_ms
    names = ("item_scraped_count", "request_depth_max", "max", "memusage/startup", "a/min", "min_x", "maximal", "x-max")
    runs: list[Run] = [run]
    stats: list[Stats] = [{"x": 1.0}]
    for number in range(MOST_RUNS + 50):
        backend.clock.advance(0.001)
        reason, heard_ms = "" if number % 7 else "finished", backend.clock.now_ms
        identity: dict[str, Any] = {"worker": "w", "epoch": run.epoch, "joined_ms": began_ms - number, "host": "a"}
        state: Any = "closed" if reason else "lost"
        runs.append(Run(f"run{number}", state=state, heard_ms=heard_ms, figures=Figures(reason=reason), **identity))
        stats.append({name: (number * 37) % 101 - 50.5 for name in names if number % 3} | {"n/\u202e\ud800?": 1})
        client.hset(keys.of("runs"), f"run{number}", record_json(Figures(reason=reason), **identity))
        client.hset(keys.of("numbers"), f"run{number}", stats_json(stats[-1]))
        client.zadd(keys.of("ran"), {f"run{number}": heard_ms})
    stats = [read_stats(stats_json(each).encode()) for each in stats]
    client.zadd(keys.of("ran"), {run.run_id: heard_ms})

    backend.clock.advance(1)
    record(worker, report(pages=3, items=2, tiers={"high": 2, "low": 1}, stats={"x": 3}))
    stats[0], runs[0] = {"x": 3}, replace(run, heard_ms=backend.clock.now_ms)

    assert len(inspector.runs.all()) == MOST_RUNS
    found = inspector.runs.totals()
    assert found is not None
    assert found.stats == pytest.approx(totals_of(runs, stats, Dropped()).stats)
    assert replace(found, stats={}) == replace(totals_of(runs, stats, Dropped()), stats={})
    sums = inspector.runs.sums()
    assert (sums["items"], sums["by_tier"]) == (2, {"high": 2, "low": 1})


def test_a_run_is_recorded_anew_on_a_server_that_has_lost_it_when_the_worker_has_joined_again(
    operator: Operator, inspector: Inspector, backend: RedisBackend, redis_server: RedisServer
) -> None:
    worker = backend.join()
    record(worker, report(pages=1))
    redis_server.client().flushall()

    with pytest.raises(FrontierUnavailable):
        record(worker, report(pages=2))
    assert not redis_server.client().keys(operator.keys.pattern())

    assert worker.ask().has_forgotten
    record(worker, report(pages=3))
    assert [(run.state, run.figures.pages) for run in inspector.runs.all()] == [("running", 3)]
    assert [sample.pages for sample in inspector.runs.history().samples] == [3]


def test_a_worker_leaves_although_its_last_report_cannot_be_stored(
    operator: Operator, inspector: Inspector, backend: RedisBackend, redis_server: RedisServer
) -> None:
    worker = backend.join()
    record(worker, report(pages=1))
    client = redis_server.client()
    (run_id,) = client.hkeys(operator.keys.of("runs"))
    client.hset(operator.keys.of("runs"), run_id, "foreign")
    end(worker)

    assert leave(worker, report("finished")).runs == 0
    assert client.hget(operator.keys.state, "is_clear") == b"1"


def test_reports_leave_a_change_of_the_server_for_the_exchanges_to_find(own_server: RedisServer) -> None:
    backend = RedisBackend("books", own_server.url)
    worker = backend.join()
    worker.commit(push("1"))
    record(worker, report(pages=1))
    own_server.restart()

    with pytest.raises(FrontierUnavailable):
        record(worker, report(pages=2))
    with pytest.raises(FrontierUnavailable):
        record(worker, report(pages=2))

    answers = [worker.ask(), worker.ask()]
    assert [answer.recall for answer in answers if answer.recall is not None] == [Recall(resent=1)]
    record(worker, report(pages=3))
    backend.close()


# Totals


def test_the_last_worker_of_a_crawl_gets_the_totals_of_all(inspector: Inspector, backend: RedisBackend) -> None:
    first, killed = backend.join("w1", worker_info={"host": "a"}), backend.join("w2", worker_info={"host": "b"})
    record(killed, report(stats={"item_scraped_count": 1, "memusage/max": 70}))
    backend.clock.advance(11)
    last = backend.join("w3", worker_info={"host": "a"})
    assert leave(first, report("shutdown", {"item_scraped_count": 2, "memusage/max": 50, "a/min": 3})) is None
    backend.clock.advance(4)
    end(last)

    totals = leave(last, report("finished", {"item_scraped_count": 4, "a/min": 2}))

    assert (totals.runs, totals.lost, totals.running, totals.hosts, totals.seconds) == (3, 1, 0, 2, 15)
    assert totals.stats == {
        "item_scraped_count": 7,
        "memusage/max": 70,
        "a/min": 2,
    }
    assert inspector.runs.totals() == totals


def test_the_next_crawl_keeps_the_runs_and_has_totals_and_a_history_of_its_own(
    inspector: Inspector, backend: RedisBackend
) -> None:
    worker = backend.join()
    record(worker, report(pages=3, stats={"item_scraped_count": 3}))
    end(worker)
    leave(worker, report("finished", {"item_scraped_count": 3}, pages=3))
    assert inspector.runs.history().samples
    backend.clock.advance(1)
    later = backend.join()
    assert inspector.runs.totals() is None
    record(later, report(pages=1, stats={"item_scraped_count": 1}))

    totals = inspector.runs.totals()
    assert totals is not None
    assert (totals.runs, totals.stats) == (1, {"item_scraped_count": 1})
    assert [sample.pages for sample in inspector.runs.history().samples] == [1]
    assert [run.figures.pages for run in inspector.runs.all()] == [1, 3]
    assert len({run.epoch for run in inspector.runs.all()}) == 2


def test_a_reset_forgets_runs_and_history(
    operator: Operator, inspector: Inspector, backend: RedisBackend, redis_server: RedisServer
) -> None:
    worker = backend.join()
    record(worker, report())
    leave(worker, report("shutdown"))
    operator.reset()

    assert not inspector.runs.all()
    assert inspector.runs.history().samples == []
    assert inspector.runs.totals() is None


# History


def test_a_sample_counts_what_there_is(inspector: Inspector, backend: RedisBackend) -> None:
    worker, other = backend.join("w1"), backend.join("w2")
    worker.commit(*(push(f"{number}", slot=f"{number % 3}.example") for number in range(6)))
    worker.commit(push("low", TIER_WIDTH), push("b", TIER_WIDTH))
    done, dead, _ = worker.lease(3)
    worker.commit(ack(done), fail(dead))
    record(worker, report(pages=2, retries=1, latency=exchanges(0.003, 0.03)))
    record(other, report(pages=5, latency=exchanges(0.3)))

    backend.clock.advance(STEP_S)
    record(other, report(pages=7, items=4, latency=exchanges(0.3, 0.4)))
    history = inspector.runs.history()

    assert (history.tiers, history.step_s) == (("urgent", "normal"), STEP_S)
    first, sample = history.samples
    assert (first.accepted, first.done, first.pages, first.retries) == (8, 1, 2, 1)
    assert (sample.pending, sample.leased, sample.done, sample.dead) == (5, 1, 1, 1)
    assert (sample.tiers, sample.letters, sample.workers, sample.slots) == ((3, 2), {"decode": 1}, 2, 4)
    assert (sample.pages, sample.items, sample.retries, sum(sample.latency)) == (9, 4, 1, 4)
    assert sample.memory > 0
    assert (first.done_per_s, sample.done_per_s, sample.retries_per_s) == (None, 0, 0)
    assert sample.latency_p50_s is not None and 0.2 < sample.latency_p50_s < 0.5


def test_only_a_closing_worker_changes_the_last_sample_before_the_next_is_due(
    inspector: Inspector, backend: RedisBackend
) -> None:
    worker = backend.join()
    assert record(worker, report(pages=1)) == STEP_S
    backend.clock.advance(1)
    assert record(worker, report(pages=2)) == 1
    assert [sample.pages for sample in inspector.runs.history().samples] == [1]
    leave(worker, report("shutdown", pages=3))

    assert [sample.pages for sample in inspector.runs.history().samples] == [3]


def test_the_resolution_halves_when_the_history_is_full(
    operator: Operator, inspector: Inspector, backend: RedisBackend, redis_server: RedisServer
) -> None:
    worker = backend.join()
    record(worker, report(pages=1))
    client, name = redis_server.client(), operator.keys.of("history")
    first: Any = json.loads(client.hget(name, "1") or "")
    samples: dict[Any, Any] = {
        str(number): json.dumps({**first, "sums": {"pages": number}}) for number in range(1, MOST_SAMPLES + 1)
    }
    client.hset(name, mapping=samples | {"count": MOST_SAMPLES})
    backend.clock.advance(STEP_S)

    assert record(worker, report(pages=1000)) == 2 * STEP_S

    history = inspector.runs.history()
    assert history.step_s == 2 * STEP_S
    assert [sample.pages for sample in history.samples] == [*range(1, MOST_SAMPLES, 2), 1000]
    assert client.hlen(name) == MOST_SAMPLES / 2 + 1 + len(("count", "step_ms", "sampled_ms", "sums"))


def test_tiers_of_many_slots_are_estimated(inspector: Inspector, backend: RedisBackend) -> None:
    worker = backend.join()
    worker.commit(*(push(f"{number}", slot=f"{number}.example") for number in range(500)))
    record(worker, report())

    (sample,) = inspector.runs.history().samples
    assert sample.tiers == (500, 0)
    assert sample.slots == 500
