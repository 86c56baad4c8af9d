"""Commands on frontiers with more slots, or longer queues, than they read completely."""

from __future__ import annotations

from typing import Any

import pytest

from scrapy_prioqueue.commands import explain
from scrapy_prioqueue.frontier.policy import Policy, SlotLimit
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators import ahead, audit, slots
from scrapy_prioqueue.frontier.redis.operators import requests as reading
from scrapy_prioqueue.frontier.redis.operators.checkup import frontier_findings
from scrapy_prioqueue.frontier.redis.operators.inspector import Inspector
from tests.commands.conftest import Run
from tests.commands.requests import TIERS, page
from tests.contract.backends import RedisBackend, ack
from tests.support.servers import RedisServer

POLICIES = {
    "one line": Policy(),
    "lines": Policy(weights=[1, 2, 3, 4]),
    "waiting": Policy(slots={"*": SlotLimit(delay=100)}, weights=[1, 1, 1, 1]),
}


def calls_of(client: Any) -> int:
    """Return how many commands the server has run."""
    return sum(int(each["calls"]) for each in client.info("commandstats").values())


@pytest.fixture
def low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets `explain` take a frontier of a few slots and requests for a large one."""
    monkeypatch.setattr(explain, "SLOT_LIMIT", 10)
    monkeypatch.setattr(explain, "READ_LIMIT", 10)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_first_slots_are_those_of_all(
    run: Run, backend: RedisBackend, monkeypatch: pytest.MonkeyPatch, policy: Policy
) -> None:
    worker = backend.join("w1", tiers=TIERS, policy=policy)
    worker.commit(*(page(f"https://s{number % 41}.example/{number}", tier=number % 3) for number in range(100)))
    worker.commit(page("https://gone.example/", priority=9))
    worker.lease(9)

    def first(sort: str) -> Any:
        return run("slots", "-n", "7", "--sort", sort, "--json").json["slots"]

    pending, whole = first("pending"), {sort: first(sort) for sort in ("leased", "name", "order")}
    monkeypatch.setattr(slots, "LOOK_LIMIT", 10)
    monkeypatch.setattr(slots, "DEPTHS_PER_CALL", 4)

    assert {sort: first(sort) for sort in whole} == whole
    # Which of equal queues are the first is open.
    assert [slot["pending"] for slot in first("pending")] == [slot["pending"] for slot in pending]
    found = run("slots", "-n", "7", "--json").json
    assert (found["count"], found["sort"], found["slots"]) == (42, "order", whole["order"])
    assert "in serving order" in run("slots").out


def test_first_slots_cost_the_same_for_any_number(
    run: Run, backend: RedisBackend, monkeypatch: pytest.MonkeyPatch, client: Any
) -> None:
    monkeypatch.setattr(slots, "LOOK_LIMIT", 10)
    worker = backend.join("w1")
    costs = []
    for number in (20, 500):
        worker.commit(*(page(f"https://s{number}-{index}.example/") for index in range(number)))
        before = calls_of(client)
        assert len(run("slots", "-n", "5", "--json").json["slots"]) == 5
        costs.append(calls_of(client) - before)

    assert costs[0] == costs[1]


def kinds(run: Run, url: str, *options: str) -> list[str]:
    return [reason["kind"] for reason in run("explain", url, "--json", *options).json["reasons"]]


def test_explain_looks_into_the_slot_of_the_url(
    run: Run, backend: RedisBackend, monkeypatch: pytest.MonkeyPatch, client: Any
) -> None:
    monkeypatch.setattr(explain, "SLOT_LIMIT", 10)
    monkeypatch.setattr(explain, "READ_LIMIT", 10)
    monkeypatch.setattr(ahead, "SLOT_LIMIT", 3)
    worker = backend.join("w1")
    worker.commit(page("https://a.example/1"), page("https://done.example/", tier=0, priority=9))
    worker.commit(ack(worker.lease(1)[0]))
    costs = []
    for number in (20, 700):
        worker.commit(*(page(f"https://s{number}-{index}.example/", tier=1) for index in range(number)))
        before = calls_of(client)
        assert kinds(run, "https://a.example/1") == ["pending", "nobody"]
        assert kinds(run, "https://done.example/") == ["done", "skipped"]
        costs.append(calls_of(client) - before)

    # Its own slot is in the sample of slots, or not.
    assert abs(costs[0] - costs[1]) <= 3


@pytest.mark.parametrize("name", ["one line", "discovery", "waiting"])
@pytest.mark.parametrize(("high", "normal"), [(1, 5), (50, 1)])
def test_place_among_many_slots_is_estimated_from_a_random_sample(
    run: Run, backend: RedisBackend, monkeypatch: pytest.MonkeyPatch, name: str, high: int, normal: int
) -> None:
    monkeypatch.setattr(ahead, "SLOT_LIMIT", 60)
    policies = {
        "one line": Policy(),
        "discovery": Policy(discovery=(3,), high_water=10**6, low_water=10**5),
        "waiting": Policy(slots={"*": SlotLimit(delay=100)}),
    }
    worker = backend.join("w1", tiers=TIERS, policy=policies[name])
    hosts = ["own", *(f"h{number}" for number in range(20)), *(f"n{number}" for number in range(100))]
    worker.commit(*(page(f"https://{slot}.example/first") for slot in hosts))
    assert len(worker.lease(len(hosts))) == len(hosts)
    low, middle = "https://own.example/low", "https://own.example/normal"
    worker.commit(page(low, tier=3), page(middle, tier=2))
    # The slots that stand first in line have much shorter queues than the others, or much longer ones.
    worker.commit(*(page(f"https://h{number % 20}.example/{number}", tier=1) for number in range(20 * high)))
    worker.commit(*(page(f"https://n{number % 100}.example/{number}", tier=2) for number in range(100 * normal)))

    def before(url: str) -> int:
        facts = run("explain", url, "--json").json["reasons"][0]["facts"]
        assert not facts["is_exact"]
        return int(facts["ahead"])

    others = 20 * high + 100 * normal
    assert before(low) == others + 1
    # Far from what chance may bring.
    assert 6 * high < before(middle) <= others


def test_one_long_queue_changes_no_estimate_of_a_place_among_short_ones(
    run: Run, backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "SLOT_LIMIT", 60)
    worker = backend.join("w1", tiers=TIERS)
    worker.commit(*(page(f"https://s{number % 200}.example/{number}") for number in range(600)))
    worker.commit(*(page(f"https://long.example/{number}") for number in range(2000)))
    second = "https://s7.example/207"

    told = {run("explain", second, "--json").json["reasons"][0]["facts"]["ahead"] for _ in range(8)}

    # Each of 200 slots has one or two turns before it, whether the sample has the long queue of 2,000 or not.
    assert min(told) >= 150
    assert max(told) <= 450


def test_explain_finds_everything_with_thorough(run: Run, backend: RedisBackend, low_limits: None) -> None:
    worker = backend.join("w1")
    worker.commit(page("https://a.example/?x=1&y=2"), page("https://b.example/", slot="other"))
    worker.commit(*(page(f"https://s{number}.example/") for number in range(30)))
    worker.commit(*(page(f"https://a.example/{number}") for number in range(20)))

    for url in ("https://a.example/?y=2&x=1", "https://b.example/"):
        assert kinds(run, url) == ["done", "skipped"]
        assert kinds(run, url, "--thorough") == ["pending", "nobody"]


def test_another_spelling_is_found_where_few_requests_wait_in_its_slot(
    run: Run, backend: RedisBackend, low_limits: None
) -> None:
    worker = backend.join("w1")
    worker.commit(page("https://a.example/?x=1&y=2"), *(page(f"https://s{number}.example/") for number in range(30)))

    assert kinds(run, "https://a.example/?y=2&x=1") == ["pending", "nobody"]


def test_requests_of_little_slots_are_read_by_ever_larger_calls(
    backend: RedisBackend, monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer, frontier_name: str
) -> None:
    monkeypatch.setattr(reading, "SLOTS_PER_CALL", 3)
    monkeypatch.setattr(reading, "MOST_SLOTS_PER_CALL", 12)
    backend.join("w1").commit(*(page(f"https://s{number}.example/") for number in range(50)))
    looked: list[tuple[int, int]] = []
    requests = reading.Requests(link := Link(redis_server.url), Keys(frontier_name))
    requests.progress = lambda looked_at, expected: looked.append((looked_at, expected))

    assert len(list(requests.each(["pending"]))) == 50
    # And the suspects.
    assert looked == [(0, 50), *((count, 0) for count in (3, 6, 12, 12, 12, 5, 0))]
    link.close()


def test_doctor_shows_its_progress_and_reads_the_keys_once(
    backend: RedisBackend,
    monkeypatch: pytest.MonkeyPatch,
    redis_server: RedisServer,
    frontier_name: str,
    client: Any,
) -> None:
    monkeypatch.setattr(audit, "SLOTS_PER_CALL", 20)
    backend.join("w1").commit(*(page(f"https://s{number}.example/") for number in range(50)))
    inspector, told = Inspector(Link(redis_server.url), frontier_name), dict[str, list[int]]()
    client.config_resetstat()

    found = list(frontier_findings(inspector, TIERS, lambda doing, done: told.setdefault(doing, []).append(done)))

    scans = client.info("commandstats")["cmdstat_scan"]["calls"]
    assert not [finding for finding in found if finding.severity == "wrong"]
    assert told["reading slots"] == [20, 40, 50]
    assert len(told["reading keys"]) == scans
    assert told["reading keys"][-1] > 50
    inspector.link.close()
