"""Limits, weights, water marks and budgets in `status`, `slots` and `explain`."""

from __future__ import annotations

import re
from typing import Any

import pytest

from scrapy_prioqueue.frontier.base import Ack, Demand, Spent
from scrapy_prioqueue.frontier.policy import Budget, Closing, Policy, SlotLimit, Throttle
from scrapy_prioqueue.frontier.policy_parts import PARTS
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.operators import budgets
from tests.commands.conftest import Run
from tests.commands.requests import TIERS, page, with_budgets
from tests.contract.backends import RedisBackend, Worker
from tests.support.servers import RedisServer

EVERYTHING = Policy(
    slots={
        "slow.example": SlotLimit(delay=100, burst=1),
        "*.shop.example": SlotLimit(concurrency=2),
        "*": SlotLimit(burst=2),
    },
    weights=[8, 4, 2, 1],
    budgets={"*": Budget(pages=10, bytes=1_000_000)},
    high_water=20,
    low_water=5,
    discovery=[3],
)


@pytest.fixture
def worker(backend: RedisBackend) -> Worker:
    """On a crawl with everything there is, by the server's clock."""
    worker = backend.join("w1", tiers=TIERS, policy=EVERYTHING, clock=None)
    worker.commit(
        *(with_budgets(f"https://slow.example/{number}", "slow", tier=number % 2) for number in range(9)),
        *(with_budgets(f"https://a.shop.example/{number}", "shop", tier=2) for number in range(9)),
        *(with_budgets(f"https://other.example/{number}", "other", tier=3) for number in range(9)),
    )
    leases = worker.lease(3)
    assert len(leases) == 3
    worker.send(Ack(leases[0].lease_id, 1, Spent(123_456, 2_000)), demand=None)
    return worker


def test_status_shows_limits_weights_marks_and_budgets(run: Run, worker: Worker) -> None:
    shown = run("status", columns=80).out

    assert ": open, flooded" in shown
    assert "3 set; waiting: 1 slot for its rate, 1 slot for leases to end" in shown
    assert "urgent 8, high 4, normal 2, low 1" in shown
    assert "past 20 pending requests; discovery continues at 5" in shown
    assert "2 keys, nearest: shop 20% of pages, slow 12% of bytes" in shown
    assert max(map(len, shown.splitlines())) <= 80
    found = run("status", "--json").json
    assert found["state"]["policy"]["is_flooded"]
    assert [budget["key"] for budget in found["budgets"]["nearest"]] == ["shop", "slow"]
    assert run("top", "--count", "1", "--json").json["waiting_for_leases"] == 1


def test_status_shows_whose_policy_is_in_force(run: Run, backend: RedisBackend) -> None:
    unset = frozenset(PARTS)
    backend.join(
        "w1", policy=Policy(slots={"a": SlotLimit(burst=2)}, weights=(2, 1), unset=unset - {"slots", "weights"})
    )
    backend.clock.advance(86_400)
    backend.join("w2", policy=Policy(pending_limit=9, unset=unset - {"marks"}))
    backend.join("w3", policy=Policy(unset=unset))

    shown = " ".join(run("status", columns=200).out.split())

    assert re.search(
        r"policy slots, weights set by w1 at 2023-11-1\d [\d:]+; marks set by w2 at 2023-11-1\d [\d:]+", shown
    )
    owners = run("status", "--json").json["state"]["policy"]["owners"]
    assert {part: owner["by"] for part, owner in owners.items()} == {"slots": "w1", "weights": "w1", "marks": "w2"}


def test_status_says_nothing_of_what_a_crawl_has_not(run: Run, backend: RedisBackend) -> None:
    backend.join("w1").commit(page("https://a.example/"))

    shown = run("status").out

    assert not [word for word in ("limits", "weights", "flood", "budgets") if word in shown]
    assert "delay" not in run("slots").out


def test_status_before_a_flood_and_with_little_memory(
    run: Run, backend: RedisBackend, redis_server: RedisServer, frontier_name: str
) -> None:
    backend.join("w1", policy=Policy(high_water=2000, low_water=1000, discovery=[1])).ask()

    assert "none: from 2,000 pending requests on, until 1,000" in run("status").out
    state = Keys(frontier_name).state
    redis_server.client().hset(state, mapping={"is_flooded": "1", "memory_high": "1"})
    assert "the server is short of memory; discovery continues when it isn't" in run("status").out


def test_a_flood_at_the_pending_limit_is_shown_as_such(run: Run, backend: RedisBackend) -> None:
    policy = Policy(slots={"*": SlotLimit(delay=3600.0)}, high_water=20, low_water=5, pending_limit=30, discovery=[1])
    worker = backend.join("w1", tiers=("high", "low"), policy=policy)
    worker.commit(*(with_budgets(f"https://a.example/{number}", "job", tier=1) for number in range(30)))
    worker.ask()

    why = "30 or more pending requests; discovery continues below that"
    assert why in run("status").out
    assert why in run("explain", "https://a.example/7").out


def test_status_looks_at_some_budgets_where_there_are_many(
    run: Run, backend: RedisBackend, monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer, frontier_name: str
) -> None:
    monkeypatch.setattr(budgets, "SCAN_LIMIT", 1000)
    backend.join("w1", policy=Policy(budgets={}))
    used: dict[Any, Any] = {f"pages:{number}": number for number in range(5000)}
    redis_server.client().hset(Keys(frontier_name).of("used"), mapping=used)

    assert "more than 1," in run("status").out


def test_slots_show_their_limits(run: Run, worker: Worker) -> None:
    shown = run("slots", columns=80).out
    found = {slot["slot"]: slot for slot in run("slots", "--json").json["slots"]}

    assert max(map(len, shown.splitlines())) <= 80
    (slow,) = [line.split() for line in shown.splitlines() if line.startswith("slow")]
    assert (slow[:3], slow[4]) == (["slow.example", "8", "0"], "urgent")
    assert slow[5:9] == ["1", "min", "40", "s"]
    assert ["2", "of", "2"] in [line.split()[2:5] for line in shown.splitlines()]
    assert found["a.shop.example"]["is_full"]
    assert found["slow.example"]["limit"] == {"delay": 100, "concurrency": 0, "burst": 1, "delay_by": "settings"}


def test_delays_come_from_whoever_wants_the_longest(
    run: Run, backend: RedisBackend, redis_server: RedisServer, frontier_name: str
) -> None:
    policy = Policy(slots={"b.example": SlotLimit(delay=9)}, throttle=Throttle(start_delay_s=5, max_delay_s=8))
    worker = backend.join("w1", policy=policy)
    worker.commit(*(page(f"https://{letter}.example/") for letter in "abcd"))
    redis_server.client().hset(Keys(frontier_name).of("delays"), mapping={"cc.example": 7000, "td.example": 60_000})

    found = {slot["slot"]: slot["limit"] for slot in run("slots", "--json").json["slots"]}

    assert {name: (limit["delay"], limit["delay_by"]) for name, limit in found.items()} == {
        "a.example": (5, "throttle"),
        "b.example": (9, "settings"),
        "c.example": (7, "robots.txt"),
        "d.example": (8, "throttle"),
    }
    assert "0 set, 2 learnt" not in run("status").out
    assert "1 set, 2 learnt; no slot is waiting" in run("status").out


def reasons(run: Run, url: str) -> dict[str, str]:
    """Return the reasons that `explain` gives for a URL, by kind."""
    return {reason["kind"]: reason["text"] for reason in run("explain", url, "--json").json["reasons"]}


def test_explain_shows_what_delays_a_request(run: Run, worker: Worker) -> None:
    assert reasons(run, "https://slow.example/2")["rate"].startswith("slot slow.example waits for its rate, 1 min 4")
    assert "a request every 1 min 40 s, from the settings" in reasons(run, "https://slow.example/2")["rate"]
    found = reasons(run, "https://a.shop.example/2")
    assert found["concurrency"] == "slot a.shop.example is at its concurrency: 2 of 2 requests leased"
    found = reasons(run, "https://other.example/2")
    assert "tier low is a discovery tier, and waits while others can be served: past 20" in found["flooded"]
    shown = run("explain", "https://other.example/2", columns=80).out
    assert max(map(len, shown.splitlines())) <= 80
    assert all(line.startswith("  ") for line in shown.splitlines()[1:])


def test_explain_shows_that_a_slot_was_closed(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1", clock=None)
    worker.commit(page("https://a.example/"))
    worker.exchange(demand=Demand(0, notes=[Closing("a.example", 90_000)]))

    found = reasons(run, "https://a.example/")
    assert re.fullmatch(
        r"slot a\.example is closed until [-0-9]+ [:0-9]+, for 1 min (30|29) s more, by Retry-After"
        r": scrapy frontier limit a\.example --open --name \S+ opens it",
        found["closed"],
    )
    assert "rate" not in found


def test_explain_shows_a_rate_that_is_slower_than_the_pause(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1", clock=None, policy=Policy(slots={"*": SlotLimit(delay=1000)}))
    worker.commit(*(page(f"https://a.example/{number}") for number in range(2)))
    assert len(worker.lease(1)) == 1
    worker.exchange(demand=Demand(0, notes=[Closing("a.example", 90_000)]))

    found = reasons(run, "https://a.example/0")

    assert "for 1 min " in found["closed"]
    assert "waits for its rate, 16 min" in found["rate"]


def test_status_and_slots_show_that_a_slot_was_closed(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1", clock=None)
    worker.commit(page("https://a.example/"), page("https://b.example/"))
    worker.exchange(demand=Demand(0, notes=[Closing("a.example", 90_000), Closing("elsewhere.example", 90_000)]))

    assert "0 set; no slot is waiting; closed by Retry-After: 2 slots" in run("status", columns=80).out
    shown = run("slots", columns=80).out
    assert max(map(len, shown.splitlines())) <= 80
    (line,) = [line for line in shown.splitlines() if line.startswith("a.example")]
    assert "closed 1 min" in line
    assert shown.splitlines()[-1] == "closed: the site asked for it (Retry-After); limit SLOT --open opens it"
    found = {slot["slot"]: slot["closed_until_ms"] for slot in run("slots", "--json").json["slots"]}
    assert found["b.example"] == 0 < found["a.example"]
    run("limit", "a.example", "--open")
    assert "closed" not in run("slots").out


def test_explain_shows_budgets(run: Run, backend: RedisBackend, frontier_name: str) -> None:
    worker = backend.join("w1", policy=Policy(budgets={"*": Budget(pages=2)}), clock=None)
    worker.commit(*(with_budgets(f"https://a.example/{number}", "a") for number in range(2)))
    assert len(worker.lease(9)) == 2
    worker.commit(with_budgets("https://a.example/late", "a"))

    assert reasons(run, "https://a.example/late")["budget"] == (
        "over budget a (pages 2 of 2), so it becomes a dead letter when its turn comes:"
        f" scrapy frontier budget a --name {frontier_name} raises it"
    )
    assert not worker.lease(9)
    found = reasons(run, "https://a.example/late")
    assert "because of budget: budget a: pages 2 of 2" in found["dead"]
    assert found["budget"].startswith("over budget a (pages 2 of 2): scrapy frontier budget a --name ")
    assert "scrapy frontier dead replay" in found["replay"]
    assert "budgets" in run("show", str(run("dead", "--json").json[0]["id"])).out
