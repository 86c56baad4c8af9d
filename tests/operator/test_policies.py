"""Operators' limits and budgets take effect at once, and override the workers' settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scrapy_prioqueue.errors import FrontierRefused, NotPermitted
from scrapy_prioqueue.frontier.base import Demand, Push
from scrapy_prioqueue.frontier.labels import Label, labelled
from scrapy_prioqueue.frontier.policy import Budget, Closing, CrawlDelay, Policy, SlotLimit
from scrapy_prioqueue.frontier.redis.frontier import RedisFrontier
from scrapy_prioqueue.frontier.redis.operators.limits import LimitReader
from scrapy_prioqueue.frontier.redis.operators.operator import Operator
from tests.contract.backends import RedisBackend, Worker, ack, push
from tests.support.servers import RedisServer

SLOT = "a.example"


def join(backend: RedisBackend, name: str = "w1", **policy: Any) -> Worker:
    return backend.join(name, clock=None, policy=Policy(**policy))


def opens_in_s(operator: Operator) -> float:
    """Return for how long the rate of a slot still keeps it from being served; below 0 if it doesn't."""
    (clock,) = LimitReader(operator.link, operator.keys).of([SLOT])
    seconds, micros = operator.link.ask(lambda client: client.time())
    return clock.opens_ms / 1000 - int(seconds) - int(micros) / 1_000_000


def closed_for_s(operator: Operator) -> float:
    """Return for how long a slot is still closed since its site asked for it; below 0 if it isn't."""
    (clock,) = LimitReader(operator.link, operator.keys).of([SLOT])
    seconds, micros = operator.link.ask(lambda client: client.time())
    return clock.closed_until_ms / 1000 - int(seconds) - int(micros) / 1_000_000


@pytest.mark.parametrize("pattern", [SLOT, "*.example", "*"])
def test_a_shorter_delay_counts_for_a_slot_that_waits(operator: Operator, backend: RedisBackend, pattern: str) -> None:
    worker = join(backend, slots={"*": SlotLimit(delay=100)})
    worker.commit(*(push(f"{number}") for number in range(9)))
    assert len(worker.lease(9)) == 1
    assert 90 < opens_in_s(operator) < 101

    assert operator.limit(pattern, SlotLimit(delay=10)) == SlotLimit(delay=10)

    assert 5 < opens_in_s(operator) < 10.2
    operator.limit(pattern, SlotLimit(delay=0))
    assert len(worker.lease(9)) == 8


def test_a_longer_delay_counts_for_a_slot_that_waits(operator: Operator, backend: RedisBackend) -> None:
    worker = join(backend, slots={"*": SlotLimit(delay=10, burst=3)})
    worker.commit(*(push(f"{number}") for number in range(9)))
    assert len(worker.lease(9)) == 3

    operator.limit(SLOT, SlotLimit(delay=100, burst=1))

    assert 95 < opens_in_s(operator) < 102
    operator.limit(SLOT, SlotLimit(delay=20))
    assert 15 < opens_in_s(operator) < 22


def test_a_closed_slot_stays_closed(operator: Operator, backend: RedisBackend) -> None:
    worker = join(backend, slots={"*": SlotLimit(delay=10, burst=2)})
    worker.commit(push("1"))
    worker.exchange(demand=Demand(0, notes=[Closing(SLOT, 600_000)]))

    operator.limit(SLOT, SlotLimit(delay=1, burst=5))

    assert 590 < opens_in_s(operator) < 601
    assert not worker.lease(1)


def test_a_pause_shorter_than_the_delay_stays_too(operator: Operator, backend: RedisBackend) -> None:
    worker = join(backend, slots={"*": SlotLimit(delay=1000, burst=2)})
    worker.commit(push("1"))
    worker.exchange(demand=Demand(0, notes=[Closing(SLOT, 600_000)]))

    operator.limit("*", SlotLimit(delay=1))

    assert 590 < opens_in_s(operator) < 601


def test_a_closed_slot_is_opened(operator: Operator, backend: RedisBackend, redis_server: RedisServer) -> None:
    worker = join(backend, slots={"*": SlotLimit(delay=1000, concurrency=2)})
    worker.commit(*(push(f"{number}") for number in range(4)))
    (first,) = worker.lease(9)
    worker.commit(ack(first))
    worker.exchange(demand=Demand(0, notes=[Closing(SLOT, 6_000_000)]))
    worker.exchange(demand=Demand(0, notes=[Closing(SLOT, 60_000)]))
    assert 5990 < closed_for_s(operator) < 6001
    client: Any = redis_server.client()
    listener = client.pubsub()
    listener.subscribe(operator.keys.bell)
    assert listener.get_message(timeout=5)

    operator.open_slot(SLOT)

    assert listener.get_message(timeout=5)
    listener.close()
    assert closed_for_s(operator) < 0
    assert not operator.link.ask(lambda client: client.exists(operator.keys.of("closed")))
    (lease,) = worker.lease(9)
    # A limit that changes finds no pause to keep.
    operator.limit(SLOT, SlotLimit(delay=500))
    assert 490 < opens_in_s(operator) < 510
    operator.open_slot(SLOT)
    (another,) = worker.lease(9)
    operator.open_slot(SLOT)
    assert not worker.lease(9)
    worker.commit(ack(lease), ack(another))
    operator.open_slot(SLOT)
    assert len(worker.lease(9)) == 1


def test_a_slot_that_is_not_closed_may_be_opened(operator: Operator, backend: RedisBackend) -> None:
    worker = join(backend)
    worker.commit(push("1"))

    operator.open_slot(SLOT)
    operator.open_slot("b.example")

    assert not operator.link.ask(lambda client: client.exists(operator.keys.of("waiting")))
    assert len(worker.lease(1)) == 1


def test_pauses_that_are_over_are_not_kept(operator: Operator, backend: RedisBackend) -> None:
    worker = join(backend)
    worker.exchange(demand=Demand(0, notes=[Closing(SLOT, 0), Closing("b.example", 1)]))
    assert closed_for_s(operator) <= 0

    worker.exchange(demand=Demand(0, notes=[Closing("c.example", 60_000)]))

    found: Any = operator.link.ask(lambda client: client.zrange(operator.keys.of("closed"), 0, -1))
    assert found[-1] == b"c.example" and SLOT.encode() not in found


def test_existing_leases_count_when_limits_are_switched_on(operator: Operator, backend: RedisBackend) -> None:
    worker = join(backend)
    worker.commit(*(push(f"{number}") for number in range(9)))
    leases = worker.lease(2)

    operator.limit(SLOT, SlotLimit(concurrency=2))

    assert not worker.lease(9)
    worker.commit(ack(leases[0]))
    assert len(worker.lease(9)) == 1
    operator.limit("*.example", SlotLimit(concurrency=3))
    assert not worker.lease(9)
    operator.limit(SLOT, SlotLimit(concurrency=3))
    assert len(worker.lease(9)) == 1
    operator.limit(SLOT, SlotLimit(concurrency=0))
    assert len(worker.lease(9)) == 5


def test_values_that_are_not_given_again_stay_and_override_the_settings(
    operator: Operator, backend: RedisBackend
) -> None:
    join(backend, slots={SLOT: SlotLimit(delay=5, burst=9)})
    operator.limit(SLOT, SlotLimit(delay=0.1))

    assert operator.limit(SLOT, SlotLimit(concurrency=4)) == SlotLimit(delay=0.1, concurrency=4)
    join(backend, "w2", slots={SLOT: SlotLimit(delay=6, concurrency=1)})

    limits = LimitReader(operator.link, operator.keys)
    in_force = limits.of([SLOT])[0].limit
    assert (in_force.delay, in_force.concurrency, in_force.burst) == (0.1, 4, 1)
    assert operator.limit(SLOT, None) is None
    in_force = limits.of([SLOT])[0].limit
    assert (in_force.delay, in_force.concurrency, in_force.delay_by) == (6, 1, "settings")


@pytest.mark.parametrize("noun", ["limits", "delays", "paced", "closed", "running", "waiting", "leased"])
def test_a_limit_that_is_refused_changes_nothing(
    operator: Operator, backend: RedisBackend, redis_server: RedisServer, noun: str
) -> None:
    worker = join(backend)
    worker.commit(push("a"), push("b"))
    worker.lease(1)
    redis: Any = redis_server.client()
    key = operator.keys.of(noun)
    kept = redis.dump(key)
    redis.set(key, "something else")
    before = redis.hgetall(operator.keys.state)

    with pytest.raises(FrontierRefused, match="another program has written"):
        operator.limit(SLOT, SlotLimit(delay=1))

    assert redis.hgetall(operator.keys.state) == before
    redis.delete(key)
    assert not redis.exists(operator.keys.of("limits"))
    if kept:
        redis.restore(key, 0, kept)


def test_workers_that_wait_are_woken(operator: Operator, backend: RedisBackend, redis_server: RedisServer) -> None:
    join(backend)
    client: Any = redis_server.client()
    listener = client.pubsub()
    listener.subscribe(operator.keys.bell)
    assert listener.get_message(timeout=5)

    operator.limit(SLOT, SlotLimit(delay=1))

    assert listener.get_message(timeout=5)
    listener.close()


def kept(payload: str, *keys: str, is_rendered: bool = False, **fields: Any) -> Push:
    """Return a push of a payload with budget keys."""
    made = push(payload, **fields)
    return replace(made, payload=labelled(made.payload, Label(is_rendered, keys)))


def test_a_budget_is_raised_and_lowered(operator: Operator, backend: RedisBackend) -> None:
    worker = join(backend, budgets={"*": Budget(pages=2)})
    worker.commit(*(kept(f"{number}", "narrow", "wide") for number in range(9)))
    operator.budget("wide", Budget(pages=4))

    # Still over the narrow one.
    assert len(worker.lease(1)) == 1
    assert operator.budget("narrow", Budget(pages=5, bytes=10**15)) == Budget(pages=5, bytes=10**15)
    assert len(worker.lease(2)) == 2
    assert operator.budget("narrow", Budget(seconds=0.5)) == Budget(5, None, 10**15, 0.5)
    answer = worker.ask(9)
    assert (len(answer.leases), answer.over_budget) == (1, {"wide": 5})
    assert operator.budget("narrow", None) is None


def test_a_budget_of_all_keys(operator: Operator, backend: RedisBackend) -> None:
    worker = join(backend, budgets={})
    operator.budget("*", Budget(pages=100, renders=1))
    worker.commit(*(kept(f"{number}", "key", is_rendered=number < 3) for number in range(6)))

    answer = worker.ask(9)

    assert (len(answer.leases), answer.over_budget) == (4, {"key": 2})


@pytest.mark.parametrize("is_forgotten", [True, False])
def test_a_worker_that_comes_back_takes_nothing_from_those_that_joined_after_it(
    operator: Operator, backend: RedisBackend, redis_server: RedisServer, is_forgotten: bool
) -> None:
    client: Any = redis_server.client()
    first = backend.join("w1", policy=Policy({SLOT: SlotLimit(delay=100)}))
    before, limits = client.hgetall(operator.keys.state), client.hgetall(operator.keys.of("limits"))
    backend.clock.advance(1)
    second = backend.join("w2", policy=Policy({SLOT: SlotLimit(delay=200)}))
    if is_forgotten:
        # The server has come back as it was before the second one joined.
        client.hset(operator.keys.state, mapping=before)
        client.hset(operator.keys.of("limits"), mapping=limits)

    for worker in (second, first):
        assert isinstance(worker.frontier, RedisFrontier)
        worker.run(worker.frontier._session.fence(0))  # noqa: SLF001 - as after an answer that was lost

    (clock,) = LimitReader(operator.link, operator.keys).of([SLOT])
    assert clock.limit.delay == 200


def test_operators_change_nothing_of_a_crawl_that_has_ended(operator: Operator, backend: RedisBackend) -> None:
    with pytest.raises(NotPermitted, match="under way"):
        operator.limit("*", SlotLimit(delay=1))
    with pytest.raises(NotPermitted, match="under way"):
        operator.open_slot(SLOT)
    worker = join(backend)
    operator.limit("*", SlotLimit(delay=1))
    operator.budget("*", Budget(pages=1))
    worker.exchange(demand=Demand(0, notes=[Closing(SLOT, 60_000)]))
    assert worker.ask(0, is_idle=True).has_ended
    with pytest.raises(NotPermitted, match="under way"):
        operator.budget("*", Budget(pages=1))
    worker.leave()

    join(backend, "w2")

    assert not operator.link.ask(lambda client: client.exists(*map(operator.keys.of, ("limits", "budgets", "closed"))))


def test_a_slot_is_shown_one_at_a_time_until_its_crawl_delay_is_known(
    operator: Operator, backend: RedisBackend
) -> None:
    worker, limits = join(backend, awaits_crawl_delay=True), LimitReader(operator.link, operator.keys)
    assert limits.of([SLOT])[0].limit.concurrency == 1

    worker.ask(notes=[CrawlDelay(SLOT, 0)])

    assert limits.of([SLOT])[0].limit.concurrency == 0
