"""Commands on frontiers with more slots, or longer queues, than can all be looked at."""

from __future__ import annotations

from typing import Any

import pytest

from scrapy_prioqueue.frontier.policy import Policy, SlotLimit
from scrapy_prioqueue.frontier.redis import slots
from tests.commands.conftest import Run
from tests.commands.requests import page
from tests.contract.backends import RedisBackend
from tests.support.servers import RedisServer

POLICIES = {
    "one line": Policy(),
    "lines": Policy(weights=[1, 2, 3, 4]),
    "waiting": Policy(slots={"*": SlotLimit(delay_s=100)}, weights=[1, 1, 1, 1]),
}


@pytest.fixture
def client(redis_server: RedisServer) -> Any:
    return redis_server.client()


def calls_of(client: Any) -> int:
    """Return how many commands the server has run."""
    return sum(int(each["calls"]) for each in client.info("commandstats").values())


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_first_slots_are_those_of_all(
    run: Run, backend: RedisBackend, monkeypatch: pytest.MonkeyPatch, policy: Policy
) -> None:
    worker = backend.join("w1", tiers=("a", "b", "c", "d"), policy=policy)
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
    assert "in the order to be served" in run("slots").out


def test_first_slots_cost_the_same_whatever_their_number(
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
