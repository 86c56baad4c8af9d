"""A pump that holds a suspect asks for no second one."""

from __future__ import annotations

from scrapy_prioqueue.frontier.base import Batch, Demand, Push
from scrapy_prioqueue.frontier.memory import MemoryFrontier, MemoryStore
from tests.unit.pumping import Bench, frontier_config, leased
from tests.unit.virtual_time import in_virtual_time, pass_time


async def store_with(*names: str, losses: int) -> MemoryStore:
    """Return a store with requests that a worker has taken to its grave so often."""
    frontier = MemoryFrontier(frontier_config("dying"))
    await frontier.join()
    batches = [Batch(1, [Push(0, "shop.example", name.encode()) for name in names])]
    for _ in range(losses):
        await frontier.exchange(batches, Demand(len(names)))
        await frontier.join()
        batches = []
    await frontier.leave()
    return frontier.store


@in_virtual_time
async def test_second_suspect_comes_when_the_first_is_acked() -> None:
    bench = await Bench(store=await store_with("a", "b", losses=2)).open()

    bench.offer(8)
    await leased(bench)
    first = bench.take()
    await pass_time(3)
    number_held = len(bench.pump.inbox)
    bench.ack(first)
    await leased(bench)
    second = bench.take()

    assert number_held == 0
    assert [(lease.payload, lease.attempt) for lease in (first, second)] == [(b"b", 3), (b"a", 3)]


@in_virtual_time
async def test_suspect_that_waits_in_the_inbox_keeps_others_away_too() -> None:
    bench = await Bench(store=await store_with("a", "b", losses=2)).open()

    bench.offer(8)
    await leased(bench)
    bench.push("c", "d")
    await leased(bench, 3)

    asked = [
        call.demand.suspect_room > 0 for call in bench.remote.sent("exchange") if call.demand and call.demand.limit
    ]
    assert asked[0]
    assert not any(asked[1:])
    assert [lease.payload for lease in bench.pump.inbox] == [b"b", b"d", b"c"]


@in_virtual_time
async def test_requests_lost_once_come_together() -> None:
    bench = await Bench(store=await store_with("a", "b", "c", losses=1)).open()

    bench.offer(8)
    await leased(bench, 3)

    assert [lease.attempt for lease in bench.pump.inbox] == [2, 2, 2]
    assert all(call.demand.suspect_room > 0 for call in bench.remote.sent("exchange") if call.demand)
