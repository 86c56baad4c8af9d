"""Operators' commands that a server has lost are sent again by the workers, and the later command is valid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from scrapy_prioqueue.frontier.base import Demand, Recall
from scrapy_prioqueue.frontier.policy import Budget, SlotLimit
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.inspector import Inspector
from scrapy_prioqueue.frontier.redis.operators.operator import Operator
from scrapy_prioqueue.frontier.redis.orders import ORDERS_PER_CALL
from tests.contract.backends import Worker, push
from tests.faults.test_forgetful_server import Backend
from tests.support.servers import RedisServer


class Fleet(Backend):
    """Workers of a crawl, and its operator."""

    def __init__(self, name: str, server: RedisServer) -> None:
        super().__init__(name, server)
        self.link = Link(server.url)
        self.operator = Operator(self.link, name)
        self.inspector = Inspector(self.link, name)

    def in_force(self) -> tuple[set[str], set[str]]:
        """Return the orders, and the patterns of operators' limits and budgets."""
        state = self.inspector.state()
        assert state is not None
        fields: dict[str, Any] = {noun: self.client.hkeys(self.keys.of(noun)) for noun in ("limits", "budgets")}
        said = {f"{noun}{field.decode()}" for noun, found in fields.items() for field in found}
        return set(state.orders), said

    def close(self) -> None:
        super().close()
        self.link.close()


@pytest.fixture
def fleet(redis_server: RedisServer, frontier_name: str) -> Iterator[Fleet]:
    fleet = Fleet(frontier_name, redis_server)
    yield fleet
    fleet.close()


def at_work(fleet: Fleet, worker_id: str = "w1") -> Worker:
    worker = fleet.join(worker_id)
    worker.commit(push(f"of {worker_id}"))
    return worker


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize("is_emptied", [False, True])
def test_all_commands_are_in_force_again_before_anything_is_leased(
    fleet: Fleet, is_emptied: bool, is_told: bool
) -> None:
    worker = at_work(fleet)
    if not is_emptied:
        fleet.save()
    fleet.operator.order(paused=True, drained=True)
    fleet.operator.limit("*.example", SlotLimit(delay=9.0))
    fleet.operator.budget("shop", Budget(pages=5))
    worker.ask()
    before = fleet.in_force()
    assert before == ({"paused", "drained"}, {"limits!*.example", "budgets!shop"})

    fleet.forget()
    if is_told:
        fleet.tell_of_change()
    answer = worker.ask(5)

    assert answer.leases == ()
    assert answer.recall is not None
    assert answer.recall.orders == 4
    assert fleet.in_force() == before
    assert worker.ask(5).orders.is_paused


def test_order_that_was_taken_back_stays_so(fleet: Fleet) -> None:
    worker = at_work(fleet)
    fleet.operator.order(paused=True)
    fleet.operator.limit("a.example", SlotLimit(delay=9.0))
    worker.ask()
    fleet.save()
    fleet.operator.order(paused=False)
    fleet.operator.limit("a.example", None)
    worker.ask()

    fleet.forget()
    worker.ask()

    assert fleet.in_force() == (set(), set())


def test_later_command_overrides_one_sent_by_a_slow_worker(fleet: Fleet) -> None:
    worker, slow = at_work(fleet), at_work(fleet, "slow")
    fleet.save()
    fleet.operator.limit("a.example", SlotLimit(delay=9.0))
    fleet.operator.order(paused=True)
    worker.ask()
    slow.ask()
    fleet.forget()
    worker.ask()
    fleet.operator.order(paused=False)
    fleet.operator.limit("a.example", SlotLimit(delay=1.0))

    fleet.tell_of_change()
    slow.ask()

    assert not slow.ask().orders.is_paused
    assert fleet.client.hget(fleet.keys.of("limits"), "!a.example") == b'{"delay":1}'


def test_command_given_before_the_lost_ones_were_sent_again_is_kept_with_them(fleet: Fleet) -> None:
    worker = at_work(fleet)
    fleet.save()
    fleet.operator.limit("a.example", SlotLimit(delay=9.0))
    worker.ask()
    fleet.forget()
    fleet.operator.order(drained=True)

    worker.ask()

    assert fleet.in_force() == ({"drained"}, {"limits!a.example"})


def test_lost_stop_applies_to_workers_from_before_it_and_to_no_later_ones(fleet: Fleet) -> None:
    heard, unaware, absent = at_work(fleet, "heard"), at_work(fleet, "unaware"), at_work(fleet, "absent")
    fleet.save()
    fleet.operator.order(stop_reason="enough")
    assert heard.ask().orders.stop_reason == "enough"
    fleet.forget()
    fleet.client.hdel(fleet.keys.sessions, "absent")
    fleet.client.zrem(fleet.keys.workers, "absent")
    fleet.clock.now_ms = fleet.inspector.now_ms() + 1000
    later = at_work(fleet, "later")
    fleet.tell_of_change()

    for worker in (heard, unaware, absent):
        worker.ask()

    stops = {worker.worker_id: worker.ask().orders.stop_reason for worker in (heard, unaware, absent, later)}
    assert stops == {"heard": "enough", "unaware": "enough", "absent": "enough", "later": None}


def test_more_orders_than_go_into_a_call(fleet: Fleet) -> None:
    worker = at_work(fleet)
    fleet.save()
    patterns = {f"{number}.example" for number in range(ORDERS_PER_CALL + 7)}
    for pattern in patterns:
        fleet.operator.limit(pattern, SlotLimit(concurrency=1))
    worker.ask()
    fleet.forget()

    answer = worker.exchange(demand=Demand(0))

    assert answer.recall == Recall(orders=len(patterns))
    assert fleet.in_force()[1] == {f"limits!{pattern}" for pattern in patterns}


def test_next_crawl_knows_nothing_of_it(fleet: Fleet) -> None:
    worker = fleet.join()
    fleet.operator.order(drained=True)
    worker.ask()
    assert worker.ask(is_idle=True).has_ended
    worker.leave()

    worker.join()

    assert not worker.ask().orders.is_drained
    assert fleet.client.exists(fleet.keys.of("ordered")) == 0
