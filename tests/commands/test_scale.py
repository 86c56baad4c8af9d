"""`scrapy frontier scale`: what is read of a frontier, and what is stored for autoscalers."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis
from scrapy.settings import Settings

from scrapy_prioqueue.frontier.kept import Kept
from scrapy_prioqueue.frontier.policy import Budget, Closing, Policy, SlotLimit
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.inspector import Inspector
from scrapy_prioqueue.monitoring import work
from scrapy_prioqueue.monitoring.adviser import Adviser
from scrapy_prioqueue.monitoring.reading import FrontierReading
from scrapy_prioqueue.rank import rank_of
from scrapy_prioqueue.settings import Config
from tests.commands.conftest import Run
from tests.contract.backends import RedisBackend, ack, labelled_push, push
from tests.support.clocks import Clock
from tests.support.servers import RedisServer, StartServer

MINUTE = {"PRIOQUEUE_SCALE_DRAIN_TIME": 60}


def advice(run: Run, **settings: Any) -> Any:
    return run("scale", "--json", settings={**MINUTE, **settings}).json


def test_seeds_need_a_worker_before_and_after_a_crawl(run: Run, redis_server: RedisServer, keys: Keys) -> None:
    seeds = keys.of("seeds-of-this-test")
    with Redis.from_url(redis_server.url) as client:
        assert run("scale", "--json").code == 1
        client.rpush(seeds, "https://a.example/")

        found = advice(run, PRIOQUEUE_SEEDS_KEY=seeds)

        assert (found["workers"], found["why"]) == (1, "seeds wait for a worker")
        client.delete(seeds)


def test_one_worker_is_useful_while_anything_is_left_and_none_after_the_end(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1", clock=None)
    assert advice(run)["bound_by"] == "waiting"

    worker.commit(push("1"))
    (lease,) = worker.lease()
    found = advice(run)
    assert (found["workers"], found["left"], found["runnable"], found["running"]) == (1, 1, 1, 1)

    worker.commit(ack(lease))
    worker.ask(is_idle=True)
    found = advice(run)
    assert (found["workers"], found["bound_by"]) == (0, "ended")


def test_a_worker_whose_handlers_may_add_requests_is_useful(
    run: Run, backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "STARTING_S", 0)
    worker = backend.join("w1", clock=None)
    assert advice(run)["bound_by"] == "nothing"

    worker.ask(notes=[Kept(has_handlers=True)])

    assert (advice(run)["workers"], advice(run)["bound_by"]) == (1, "waiting")


def test_limits_budgets_and_pauses_hold_requests_back(run: Run, backend: RedisBackend) -> None:
    policy = Policy(slots={"slow": SlotLimit(delay=10)}, budgets={"shop": Budget(pages=5)})
    worker = backend.join("w1", clock=None, policy=policy)
    worker.commit(*(push(f"a{number}", slot="slow") for number in range(100)))
    worker.commit(*(labelled_push(f"b{number}", "shop", slot="dear") for number in range(20)))
    worker.commit(*(push(f"c{number}", slot="closed") for number in range(10)))
    worker.ask(notes=[Closing("closed", 3600_000)])

    found = advice(run)

    # Within a minute the slow slot starts one request now, and one every 10.1 s.
    assert (found["left"], found["runnable"]) == (130, 6 + 5)
    assert (found["held_by_limits"], found["held_by_budgets"], found["held_by_flood"]) == (94 + 10, 15, 0)


def test_a_flood_holds_discovery_back(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1", clock=None, policy=Policy(high_water=10, low_water=5, discovery=[3]))
    worker.commit(*(push(f"{number}", rank_of(3 * (number % 2), 0)) for number in range(40)))
    worker.ask()

    found = advice(run)

    assert (found["left"], found["held_by_flood"], found["runnable"]) == (40, 20, 20)


def test_with_very_many_slots_a_sample_is_read(
    run: Run, backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "SLOT_SAMPLE", 30)
    policy = Policy(slots={"*": SlotLimit(delay=1), "fast.example": SlotLimit(delay=0)})
    worker = backend.join("w1", clock=None, policy=policy)
    worker.commit(*(push(f"{number}", slot=f"s{number % 300}") for number in range(900)))
    worker.commit(*(push(f"f{number}", slot="fast.example") for number in range(1000)))

    found = advice(run)

    assert found["is_sampled"]
    assert found["runnable"] == 1900
    assert "≈1,900 in 1 min" in run("scale", settings=MINUTE).out


def test_watch_stores_the_number_as_the_length_of_a_list_that_expires(
    run: Run, backend: RedisBackend, redis_server: RedisServer, keys: Keys
) -> None:
    key = keys.of("scale")
    with Redis.from_url(redis_server.url) as client:
        worker = backend.join("w1", clock=None)
        worker.commit(push("1"))
        ran = run("scale", "--watch", "0.01", "--count", "2", settings={"PRIOQUEUE_SCALE_MIN": 3})
        line = "3 workers useful, 1 running: the minimum: it is not known yet how fast a worker is"
        assert ran.out.splitlines() == [line, line]
        assert client.llen(key) == 3
        assert 290 < client.ttl(key) <= 300

        worker.leave()
        run("reset", "--all", "--yes")
        run("scale", "--watch", "--count", "1")
        assert not client.exists(key)


def test_neither_an_outage_nor_an_emptied_server_sends_workers_away(
    redis_server_factory: StartServer, frontier_name: str
) -> None:
    server, clock = redis_server_factory(), Clock()
    config = Config.from_settings(Settings({"PRIOQUEUE_REDIS_URL": server.url, "PRIOQUEUE_LEASE_TTL": 90}), "x")
    inspector = Inspector(Link(server.url), frontier_name)
    adviser, reading = Adviser(config, clock=clock), FrontierReading(inspector, clock=clock)

    def answer_after(seconds: float) -> tuple[int, Any]:
        clock.advance(seconds)
        status, document = adviser.answer(reading)
        return status, document.get("workers", document.get("error"))

    assert answer_after(0)[0] == 503
    backend = RedisBackend(frontier_name, server.url)
    for worker in "abc":
        backend.join(worker, clock=None).commit(*(push(f"{worker}{number}") for number in range(20)))
    assert answer_after(15) == (200, 3)
    server.kill()
    status, error = answer_after(2)
    assert status == 503
    assert "can't be used" in error
    server.start()
    server.client().flushall()
    assert [answer_after(seconds) for seconds in (15, 60, 29)] == [(200, 3)] * 3
    assert answer_after(15) == (200, 0)
    backend.close()


def test_a_full_server_keeps_the_number(
    run: Run, redis_server_factory: StartServer, frontier_name: str, keys: Keys
) -> None:
    server = redis_server_factory()
    settings = {"PRIOQUEUE_REDIS_URL": server.url, "PRIOQUEUE_SCALE_MIN": 2}
    client: Any = server.client()
    backend = RedisBackend(frontier_name, server.url)
    backend.join("w1", clock=None)
    backend.close()
    run("scale", "--watch", "--count", "1", settings=settings)
    client.expire(keys.of("scale"), 10)
    client.config_set("maxmemory", 1)

    ran = run("scale", "--watch", "--count", "1", settings=settings)

    assert "has reached its maxmemory" in ran.out
    assert client.llen(keys.of("scale")) == 2
    assert client.ttl(keys.of("scale")) > 290
