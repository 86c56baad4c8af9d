"""Commands on frontiers with a lane for each tier, and with waiting slots."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from scrapy_prioqueue.errors import FrontierUnavailable
from scrapy_prioqueue.frontier.policy import Policy, SlotLimit
from scrapy_prioqueue.frontier.redis import frontier as redis_frontier
from scrapy_prioqueue.frontier.redis.frontier import RedisFrontier
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.inspector import Inspector
from scrapy_prioqueue.frontier.redis.session import Calls, Session
from tests.commands.conftest import Run
from tests.commands.requests import TIERS, page
from tests.contract.backends import RedisBackend, Worker, ack, release
from tests.support.servers import RedisServer

POLICIES = {
    "one line": Policy(),
    "weights": Policy(weights=[8, 4, 2, 1]),
    "discovery": Policy(high_water=1000, low_water=10, discovery=[3]),
    "flooded": Policy(high_water=20, low_water=1, discovery=[1]),
    "flooded, with weights": Policy(weights=[1, 5, 1, 2], high_water=20, low_water=1, discovery=[0, 3]),
    "limits": Policy(slots={"*": SlotLimit(concurrency=3)}),
    "limits and weights": Policy(slots={"*": SlotLimit(concurrency=2)}, weights=[1, 2, 3, 4]),
}

SLOW = Policy(slots={"*": SlotLimit(delay=100)}, weights=[1, 1, 1, 1])


@pytest.fixture
def inspector(redis_server: RedisServer, frontier_name: str) -> Iterator[Inspector]:
    link = Link(redis_server.url)
    yield Inspector(link, frontier_name)
    link.close()


def fill(worker: Worker, count: int, seed: int, *, slots: int = 5) -> None:
    """Push requests of random tiers, priorities and slots, and let some of them be served."""
    chance = random.Random(seed)
    for number in range(count):
        host = f"s{chance.randrange(slots)}.example"
        request = page(f"https://{host}/{number}", tier=chance.randrange(4), priority=chance.randrange(2))
        worker.commit(request)
    for lease in worker.lease(chance.randrange(1, 9)):
        worker.commit(release(lease))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_peek_shows_what_is_served_next(backend: RedisBackend, inspector: Inspector, policy: Policy, seed: int) -> None:
    worker = backend.join("w1", tiers=TIERS, policy=policy)
    fill(worker, 60, seed)
    # A look at the water mark, which is taken as requests are served.
    worker.lease(1)

    peeked = inspector.peek(100)
    served: list[int] = []
    while leases := worker.lease(1):
        served.append(leases[0].lease_id)
        worker.commit(ack(leases[0]))

    assert len(peeked) == 59
    # At the low mark the flood ends.
    assert [stored.lease_id for stored in peeked][:50] == served[:50]


@pytest.mark.parametrize("policy", [SLOW, Policy(slots={"*": SlotLimit(delay=100)})], ids=["lines", "line"])
def test_slots_that_wait_are_found_everywhere(
    run: Run, backend: RedisBackend, inspector: Inspector, policy: Policy
) -> None:
    worker = backend.join("w1", tiers=TIERS, policy=policy)
    worker.commit(*(page(f"https://s{n % 5}.example/{n}", tier=n % 4, priority=n) for n in range(40)))
    assert len(worker.lease(9)) == 5

    assert len(inspector.peek(100)) == 35
    assert len(run("find", "example", "--in", "pending", "--json").json) == 35
    slots = run("slots", "--json").json["slots"]
    assert [(slot["pending"], slot["leased"]) for slot in slots] == [(7, 1)] * 5
    status = run("status", "--json").json
    assert (status["slots"], sum(tier["pending"] for tier in status["tiers"])) == (5, 35)
    assert run("remove", "s1.example", "--yes").out == "7 removed\n"
    assert run("move", "s2.example", "--tier", "low", "--yes").code == 0
    assert run("reset", "--queue", "--yes").code == 0
    assert run("status", "--json").json["counts"]["pending"] == 0
    assert not list(inspector.lanes.names())


@pytest.mark.parametrize("name", ["weights", "discovery", "limits and weights"])
def test_as_many_go_before_as_are_served_before(backend: RedisBackend, inspector: Inspector, name: str) -> None:
    policy = POLICIES[name]
    worker = backend.join("w1", tiers=TIERS, policy=policy)
    fill(worker, 80, seed=7)

    peeked = inspector.peek(100)

    # Slots change their turns while better ranks are served, so it is not quite exact.
    for place, stored in enumerate(peeked):
        rivals = [other for other in peeked[:place] if not policy.weights or tier(other) == tier(stored)]
        ahead, is_exact = inspector.ahead_of(stored)
        assert is_exact
        assert abs(ahead - len(rivals)) < 5


def tier(stored: Any) -> int:
    return int(stored.rank + 2**44) >> 45


def test_explain_shows_the_share_of_a_tier(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1", tiers=TIERS, policy=POLICIES["weights"])
    worker.commit(*(page(f"https://a.example/{number}", tier=number % 4) for number in range(9)))

    assert "behind 1 request of its tier, which gets 4 of 15" in run("explain", "https://a.example/1").out


def test_requests_that_have_not_found_their_lines_are_found(
    run: Run, backend: RedisBackend, inspector: Inspector, client: Any
) -> None:
    worker = backend.join("w1", tiers=TIERS, policy=Policy(slots={"s0.example": SlotLimit(delay=100)}))
    # More slots than find theirs at once.
    worker.commit(*(page(f"https://s{n % 1200}.example/{n}", tier=n % 4) for n in range(1220)))
    worker.lease(1)
    killed = backend.worker("w2", tiers=TIERS, policy=SLOW)
    assert isinstance(killed.frontier, RedisFrontier)
    killed.run(killed.frontier._session.enter(last_batch=0, flush=False))  # noqa: SLF001 - no further than that

    assert sum(client.zcard(key) for key in inspector.lanes.unsorted_keys()) >= 50
    assert len(inspector.peek(2000)) == 1219
    assert len(run("find", "example", "--in", "pending", "-n", "2000", "--json").json) == 1219
    assert run("status", "--json").json["slots"] == 1200
    assert run("doctor").code == 0
    assert run("reset", "--queue", "--yes").code == 0
    assert run("status", "--json").json["counts"]["pending"] == 0
    assert run("doctor").code == 0


@pytest.mark.parametrize("failures", [1, 3])
def test_a_link_that_fails_while_slots_are_put_in_line_is_tried_again(
    run: Run, backend: RedisBackend, inspector: Inspector, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    monkeypatch.setattr(redis_frontier, "_SORTING_PAUSE_S", 0.01)
    backend.join("w1", tiers=TIERS).commit(*(page(f"https://s{n}.example/", tier=n % 4) for n in range(300)))
    joining = backend.worker("w2", tiers=TIERS, policy=SLOW)
    assert isinstance(joining.frontier, RedisFrontier)
    errors = [FrontierUnavailable("redis://here", "Timeout reading from socket")] * failures
    run_calls = Session.run

    async def failing(session: Session, calls: Calls, *, wait: bool = False) -> list[Any]:
        if calls[0][0] == "sort" and errors:
            raise errors.pop()
        return await run_calls(session, calls, wait=wait)

    monkeypatch.setattr(Session, "run", failing)
    joined = joining.join()

    assert joined.depth.pending == 300
    assert not errors
    assert list(inspector.lanes.unsorted_keys()) == []
    assert run("doctor").code == 0
