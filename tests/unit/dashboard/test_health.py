"""One look: whether a crawl is well, what holds it back, and when it will be done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scrapy_prioqueue.dashboard.health import health_of
from scrapy_prioqueue.dashboard.samples import MOST_SAMPLES, Seen, continued
from scrapy_prioqueue.dashboard.templating import web_address
from scrapy_prioqueue.frontier.redis.operators.findings import (
    HANDLERS,
    Memory,
    PolicyFound,
    Rates,
    State,
    Status,
    TierDepth,
    WorkerFound,
)
from scrapy_prioqueue.frontier.redis.operators.history import Sample
from scrapy_prioqueue.frontier.waits import Blocked, SlowPage

pytestmark = pytest.mark.in_process

COUNTS = {"accepted": 1000, "pending": 500, "delayed": 0, "leased": 10, "done": 490, "dead": 0}
STATE = State("1", "open", "1", "", 1_000_000, 0, ("high", "low"), "lifo", "restart", 1000)
WORKER = WorkerFound("w1", "host", "1", 1.0, True, True, False)

STATUS = Status(
    *("books", "redis://there", STATE, {**COUNTS, "dead_dropped": 0}, [TierDepth("high", 400), TierDepth("low", 100)]),
    is_sampled=False,
    slots=4,
    pace=Rates(10.0, 2.0, 64.0),
    workers=[WORKER],
    memory=Memory(1000, 10_000),
    next_due_ms=0,
    now_ms=2_000_000,
)


def changed(**fields: Any) -> Status:
    return replace(STATUS, **fields)


def in_state(**fields: Any) -> Status:
    return replace(STATUS, state=replace(STATE, **fields))


def counting(**counts: int) -> Status:
    return replace(STATUS, counts={**STATUS.counts, **counts})


CASES: dict[str, tuple[Status, str, str, str]] = {
    "fine": (STATUS, "fine", "Crawling 10.0 pages a second", "done in about 1 min 4 s"),
    "ended": (in_state(phase="ended", ended_ms=1_900_000), "fine", "The crawl has ended", "took 15 min"),
    "paused": (in_state(orders=["paused"]), "note", "The crawl is paused", "510 requests left"),
    "drained": (in_state(orders=["drained"]), "fine", "Draining 10.0 pages", "done in about"),
    "nobody": (changed(workers=[]), "wrong", "No worker is running", "510 requests left"),
    "silent": (
        changed(workers=[WORKER, replace(WORKER, name="w2", heard_s=90.0, is_alive=False)]),
        *("warning", "Crawling", "done in about"),
    ),
    "blocked": (changed(workers=[replace(WORKER, blocked=Blocked("sleep() in spider.py:7", 90.0))]), "wrong", "C", "d"),
    "slow": (
        changed(workers=[replace(WORKER, slow=[SlowPage(7, "u", "parse", "its download", 900.0)])]),
        *("warning", "C", "d"),
    ),
    "kept": (changed(workers=[replace(WORKER, kept=3, kept_pages=1)]), "warning", "Crawling", "done"),
    "growing": (changed(pace=Rates(10.0, 20.0, None, is_growing=True)), "fine", "Crawling", "no end in sight yet"),
    "growing and limited": (
        changed(rate_left_s=7200.0, pace=Rates(9.0, 61.0, None, is_growing=True)),
        *("fine", "Crawling", "no end in sight yet"),
    ),
    "nearly done": (
        replace(counting(pending=1, leased=0), pace=Rates(1.0, 0.8, 6.0)),
        "fine",
        "C",
        "done in about 6 s",
    ),
    "limited": (
        changed(waiting_for_rate=3, rate_left_s=7200.0),
        *("fine", "Crawling", "done in at least 2 h"),
    ),
    "waiting": (
        replace(counting(leased=0), waiting_for_rate=4, opening_ms=(2_060_000, 2_090_000), pace=Rates(0.0, 0.0, None)),
        *("fine", "Everything has to wait", "500 requests left"),
    ),
    "begun": (
        changed(pace=Rates(0.0, 0.0, None), counts={**STATUS.counts, "done": 0}),
        "fine",
        "The crawl has begun",
        "510",
    ),
    "stuck": (changed(pace=Rates(0.0, 0.0, None)), "warning", "Crawling; no page was done", "510 requests left"),
    "full": (changed(memory=Memory(9_900, 10_000)), "wrong", "Crawling", "done"),
    "nearly full": (changed(memory=Memory(9_200, 10_000)), "warning", "Crawling", "done"),
    "flooded": (in_state(policy=PolicyFound(high_water=400, is_flooded=True)), "fine", "Crawling", "done"),
    "dead": (counting(dead=100), "warning", "Crawling", "done"),
    "few dead": (counting(dead=2), "fine", "Crawling", "done"),
    "idle": (counting(pending=0, leased=0), "fine", "The workers wait for requests", "nothing left"),
    "importing": (in_state(phase="importing"), "note", "A crawl is being imported", "510"),
}


@pytest.mark.parametrize(("status", "severity", "headline", "finish"), CASES.values(), ids=CASES)
def test_health(status: Status, severity: str, headline: str, finish: str) -> None:
    found = health_of(status)

    assert found.severity == severity, found
    assert found.headline.startswith(headline)
    assert found.finish.startswith(finish)
    assert all(finding.text.endswith((".", "7")) for finding in found.findings)


def test_causes_come_with_what_helps() -> None:
    (paused,) = health_of(in_state(orders=["paused"])).findings
    assert paused.command == "scrapy frontier resume --name books"

    (limited,) = health_of(changed(waiting_for_rate=3)).findings
    assert "3 of 4 slots wait: 3 for their rate. More workers" in limited.text


def test_the_estimate_names_the_rate_that_it_is_made_of() -> None:
    """This is not the rate of the headline, since further requests are found."""
    found = health_of(changed(pace=Rates(24.2, 23.6, 850.0)))

    assert found.detail.startswith("510 requests left; the queue shrinks by 0.6/s and is empty at about ")


def test_one_slot_waits() -> None:
    (finding,) = health_of(changed(slots=1, waiting_for_rate=1)).findings

    assert finding.text.startswith("1 of 1 slot waits: ")


def test_worst_finding_comes_first() -> None:
    severities = [
        each.severity for each in health_of(replace(counting(dead=1), workers=[], waiting_for_rate=4)).findings
    ]

    assert severities == ["wrong", "note", "note"]


# Samples


def test_what_was_recorded_comes_before_what_was_seen() -> None:
    recorded, seen = ([Sample(ms=1000 * at, done=10 * at) for at in range(count)] for count in (3, 5))

    found = continued(recorded, seen)
    assert [(each.ms, each.done_per_s) for each in found] == [(0, None), *((1000 * at, 10) for at in range(1, 5))]
    assert [each.ms for each in continued([], seen)] == [0, 1000, 2000, 3000, 4000]


def test_samples_are_bounded_and_belong_to_one_crawl() -> None:
    seen = Seen()
    for number in range(3 * MOST_SAMPLES):
        seen.add(changed(now_ms=1000 * number))
    assert MOST_SAMPLES / 4 < len(seen.samples) <= MOST_SAMPLES
    assert seen.samples[0].ms == 0
    assert seen.samples[-1].ms > 1000 * 3 * MOST_SAMPLES * 0.95

    seen.add(replace(in_state(epoch="2"), now_ms=10))
    assert [sample.ms for sample in seen.samples] == [10]


def test_no_sample_is_later_than_the_end_of_the_crawl() -> None:
    seen = Seen()
    seen.add(changed(now_ms=1_800_000))
    for now_ms in (1_900_500, 1_901_500, 2_000_000):
        seen.add(replace(in_state(phase="ended", ended_ms=1_900_000), now_ms=now_ms))

    assert [sample.ms for sample in seen.samples] == [1_800_000, 1_900_000]


def test_only_web_addresses_may_be_opened() -> None:
    assert web_address("https://shop.example/1") == "https://shop.example/1"
    for url in (
        "javascript:alert(1)",
        "data:text/html,x",
        "file:///etc/passwd",
        "https:///x",
        "http://[",
        "http://a/\u202e",
    ):
        assert web_address(url) == ""


@pytest.mark.parametrize(
    ("worker", "awaited"),
    [
        (replace(WORKER, has_handlers=True), HANDLERS),
        (replace(WORKER, has_more_starts=True), "more requests of start()"),
        (WORKER, "pushed requests or the end of PRIOQUEUE_MAX_IDLE"),
    ],
)
def test_what_keeps_an_empty_crawl_open_is_named(worker: WorkerFound, awaited: str) -> None:
    status = replace(counting(pending=0, leased=0), workers=[worker])

    assert health_of(status).detail == f"No request is waiting or in progress; 1 worker waits for {awaited}."
