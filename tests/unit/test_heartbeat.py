"""The heartbeat renews leases on a real server from its thread while the loop is blocked."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from scrapy_prioqueue.frontier.base import Ack, Batch, Demand, FrontierConfig, Lease, Push
from scrapy_prioqueue.frontier.memory import MemoryFrontier
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.frontier import RedisFrontier
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.operator import Operator
from scrapy_prioqueue.frontier.waits import SlowPage
from scrapy_prioqueue.pump.delegate import PumpConfig
from scrapy_prioqueue.pump.heartbeat import Beat, Heartbeat, location_of
from scrapy_prioqueue.pump.pump import Pump
from scrapy_prioqueue.runtime import AsyncioRunner
from tests.support.servers import RedisServer, StartServer
from tests.support.shop import let_pass
from tests.support.waiting import wait_until, wait_until_async
from tests.unit.pumping import FakeDelegate, finished

pytestmark = pytest.mark.slow

TTL_S = 1.0
WITHIN_S = 20.0
WARNING = "has blocked the event loop"


def in_real_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an asyncio loop of its own, whose thread the test may hold up."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, test(*arguments, **named)).result(2 * WITHIN_S)

    marked: Callable[..., None] = pytest.mark.real_time(run)
    return marked


class Watched(RedisFrontier):
    """A frontier that counts its twins."""

    twins = 0

    def twin(self) -> RedisFrontier:
        self.twins += 1
        return super().twin()


class Stall:
    """A worker with a heartbeat; waiting for something here blocks its loop.

    Args:
        server: holds the frontier.
        name: of the frontier.
        slow_s: seconds after which the loop counts as blocked.
    """

    def __init__(self, server: RedisServer, name: str, slow_s: float = 0.0) -> None:
        self._server = server
        self._name = name
        self.frontier = self.worker("w1")
        self.known: list[tuple[int, int]] = []
        self.started: list[tuple[int, int]] = []
        self.has_own_work = False
        self.heartbeat = Heartbeat(
            *(self.frontier, lambda: self.known, TTL_S, slow_s, lambda: self.started, lambda: self.has_own_work)
        )
        self.beats: list[Beat] = []

    def worker(self, worker_id: str, clock: Callable[[], int] | None = None) -> Watched:
        """Return another worker, or another process of this one."""
        config = FrontierConfig(self._name, ("a",), worker_id, lease_ttl_s=TTL_S, clock=clock)
        return Watched(config, Connection(self._server.url))

    async def open(self, requests: int) -> Sequence[Lease]:
        """Join, lease that many requests and start the heartbeat."""
        await self.frontier.join()
        pushes = [Push(number, "slot", b"") for number in range(requests)]
        leases = (await self.frontier.exchange([Batch(1, pushes)], Demand(requests))).leases
        assert len(leases) == requests
        self.known = [(lease.lease_id, lease.attempt) for lease in leases]
        self.heartbeat.start(lambda _: [SlowPage(*self.known[0][:1], "http://a.example/", "parse", "its callback", 9)])
        return leases

    async def close(self) -> None:
        """End the heartbeat and close the connections."""
        self.heartbeat.close()
        await self.frontier.close()

    def collected(self) -> Sequence[Beat]:
        """Return all that the thread has done."""
        self.beats += self.heartbeat.beats
        self.heartbeat.beats.clear()
        return self.beats

    def hold_until_beats(self, count: int) -> None:
        """Hold up the loop until the thread has renewed so often in all."""

        wait_until(lambda: len(self.collected()) >= count, what=f"{count} beats", within=WITHIN_S)


@in_real_time
async def test_leases_are_renewed_repeatedly_while_the_loop_is_blocked(
    redis_server: RedisServer, frontier_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    stall = Stall(redis_server, frontier_name)
    leases = await stall.open(3)

    stall.hold_until_beats(4)  # each at least half a lease after the one before
    other = stall.worker("w2")
    await other.join()
    answer = await other.exchange([], Demand(9))

    assert (answer.reaped, answer.leases, answer.depth.leased) == (0, [], 3)
    assert [(beat.renewed, beat.lost) for beat in stall.beats] == [(len(leases), [])] * 4
    assert len([record for record in caplog.records if WARNING in record.message]) == 1
    await other.close()
    await stall.close()


@in_real_time
async def test_leases_that_only_the_frontier_knows_of_are_renewed_too(
    redis_server: RedisServer, frontier_name: str
) -> None:
    stall = Stall(redis_server, frontier_name)
    await stall.open(3)
    stall.known = stall.known[:1]

    stall.hold_until_beats(1)

    assert (stall.beats[0].renewed, stall.beats[0].lost) == (3, [])
    await stall.close()


@in_real_time
async def test_nothing_is_done_while_the_loop_turns(
    redis_server: RedisServer, frontier_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    stall = Stall(redis_server, frontier_name)
    await stall.open(1)
    stall.heartbeat.note_renewal(0)

    end = asyncio.get_running_loop().time() + 2 * TTL_S
    await wait_until_async(lambda: _is_over(end), what="two leases have passed", within=WITHIN_S)

    assert stall.frontier.twins == 0
    assert WARNING not in caplog.text
    await stall.close()


async def _is_over(end: float) -> bool:
    return asyncio.get_running_loop().time() >= end


@in_real_time
async def test_each_silence_is_warned_of_once(
    redis_server: RedisServer, frontier_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    stall = Stall(redis_server, frontier_name)
    await stall.open(1)

    stall.hold_until_beats(2)
    await asyncio.sleep(TTL_S / 4)  # a pulse
    stall.hold_until_beats(4)

    assert len([record for record in caplog.records if WARNING in record.message]) == 2
    await stall.close()


async def taken_by_another(stall: Stall, *, after_s: float) -> tuple[RedisFrontier, Lease]:
    """Let a worker whose clock is ahead find the lease expired and take it."""
    other = stall.worker("w2", clock=lambda: round(1000 * (time.time() + after_s)))
    await other.join()
    (taken,) = (await other.exchange([], Demand(1))).leases
    return other, taken


@in_real_time
async def test_lease_of_another_worker_is_not_renewed_but_reported(
    redis_server: RedisServer, frontier_name: str
) -> None:
    stall = Stall(redis_server, frontier_name)
    leases = await stall.open(1)
    other, taken = await taken_by_another(stall, after_s=2 * TTL_S)

    stall.hold_until_beats(1)

    assert [lease.lease_id for lease in leases] == [taken.lease_id]
    assert (stall.beats[0].renewed, list(stall.beats[0].lost)) == (0, [taken.lease_id])
    assert await other.leases() == [(taken.lease_id, taken.attempt)]
    await other.close()
    await stall.close()


@in_real_time
async def test_session_that_the_server_has_lost_is_not_reported_as_renewed(
    redis_server: RedisServer, frontier_name: str
) -> None:
    stall = Stall(redis_server, frontier_name)
    await stall.open(1)
    other, _ = await taken_by_another(stall, after_s=3600)

    wait_until(lambda: stall.frontier.twins >= 2, what="two tries", within=WITHIN_S)

    assert list(stall.heartbeat.beats) == []
    await other.close()
    await stall.close()


@in_real_time
async def test_session_that_was_replaced_renews_nothing(redis_server: RedisServer, frontier_name: str) -> None:
    stall = Stall(redis_server, frontier_name)
    await stall.open(2)
    follower = stall.worker("w1")
    assert (await follower.join()).recovered == 2
    again = (await follower.exchange([], Demand(1))).leases
    expiry = redis_server.client().zscore(f"{{prioqueue:{frontier_name}}}:leases", again[0].lease_id.to_bytes(8, "big"))

    stall.hold_until_beats(1)

    assert stall.beats[0].renewed == 0
    assert expiry == redis_server.client().zscore(
        f"{{prioqueue:{frontier_name}}}:leases", again[0].lease_id.to_bytes(8, "big")
    )
    await follower.close()
    await stall.close()


@in_real_time
async def test_server_that_is_away_is_tried_again_and_complained_of_once(
    redis_server_factory: StartServer, frontier_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = redis_server_factory(appendonly=True, appendfsync="always")
    stall = Stall(server, frontier_name)
    await stall.open(1)

    server.kill()
    wait_until(lambda: stall.frontier.twins >= 3, what="three tries", within=WITHIN_S)
    server.start()
    stall.hold_until_beats(1)

    assert [record.levelno for record in caplog.records if "could not renew" in record.message] == [logging.WARNING]
    await stall.close()


@in_real_time
async def test_unexpected_error_is_logged_once_and_the_thread_lives_on(
    redis_server: RedisServer, frontier_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    stall = Stall(redis_server, frontier_name)
    await stall.open(1)
    known, stall.known = stall.known, [("no id", 1)]  # type: ignore[list-item]

    wait_until(lambda: stall.frontier.twins >= 3, what="three tries", within=WITHIN_S)
    stall.known = known
    stall.hold_until_beats(1)

    (record,) = (record for record in caplog.records if record.levelno == logging.ERROR)
    assert record.exc_info is not None
    await stall.close()


@in_real_time
async def test_after_close_the_thread_ends_and_nothing_is_renewed(
    redis_server: RedisServer, frontier_name: str
) -> None:
    before = set(threading.enumerate())
    stall = Stall(redis_server, frontier_name)
    await stall.open(1)
    (thread,) = set(threading.enumerate()) - before

    stall.heartbeat.close()
    wait_until(lambda: not thread.is_alive(), what="the thread has ended", within=WITHIN_S)
    let_pass(TTL_S)

    assert thread.daemon
    assert stall.frontier.twins == 0
    await stall.close()


@in_real_time
async def test_thread_ends_with_the_thread_of_the_loop(redis_server: RedisServer, frontier_name: str) -> None:
    before = set(threading.enumerate())

    async def work() -> None:
        stall = Stall(redis_server, frontier_name)
        await stall.open(1)
        await stall.frontier.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work()).result(WITHIN_S)

    watchers = [each for each in set(threading.enumerate()) - before if each.name == "prioqueue heartbeat"]
    wait_until(lambda: not any(each.is_alive() for each in watchers), what="it has ended", within=WITHIN_S)


@in_real_time
async def test_frontier_in_process_needs_no_thread() -> None:
    before = set(threading.enumerate())
    frontier = MemoryFrontier(FrontierConfig("test", ("a",), "w1"))
    heartbeat = Heartbeat(frontier, list, TTL_S)

    heartbeat.start()

    assert set(threading.enumerate()) <= before
    heartbeat.close()


# A loop that is blocked for long


@in_real_time
async def test_loop_that_is_blocked_is_logged_again_and_noted_with_its_place(
    redis_server: RedisServer, frontier_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    stall = Stall(redis_server, frontier_name, slow_s=0.1)
    (lease,) = await stall.open(1)
    stall.started = stall.known
    other = stall.worker("w2")
    await other.join()

    wait_until(
        lambda: sum(beat.is_warning for beat in stall.collected()) >= 2,
        what="two warnings",
        within=WITHIN_S,
    )

    (holder,) = (await other.waits()).holders
    assert holder.blocked is not None
    assert "waiting.py, line" in holder.blocked.where
    assert [page.lease_id for page in holder.slow] == [lease.lease_id]
    warnings = [record.getMessage() for record in caplog.records if "has been blocked" in record.message]
    assert all(f"http://a.example/ (callback parse, id {lease.lease_id})" in each for each in warnings)
    assert all("scrapy frontier workers --evict w1" in each for each in warnings)
    assert stall.heartbeat.has_noted
    await other.close()
    await stall.close()


@in_real_time
async def test_blocked_worker_releases_what_it_has_not_started(redis_server: RedisServer, frontier_name: str) -> None:
    stall = Stall(redis_server, frontier_name, slow_s=0.1)
    started, unread, *waiting = await stall.open(4)
    stall.known = [(lease.lease_id, lease.attempt) for lease in (started, *waiting)]
    stall.started = stall.known[:1]
    other = stall.worker("w2")
    await other.join()

    stall.hold_until_beats(3)
    taken = [lease for _ in range(4) for lease in (await other.exchange([], Demand(1))).leases]

    assert stall.beats[1].gives_back
    assert {lease.lease_id for lease in taken} == {lease.lease_id for lease in (unread, *waiting)}
    assert {lease.attempt for lease in taken} == {1}
    assert not any(beat.lost for beat in stall.beats)
    assert {lease_id for lease_id, _ in await stall.frontier.leases()} == {started.lease_id}
    await other.close()
    await stall.close()


@pytest.mark.parametrize("has_own_work", [False, True])
@in_real_time
async def test_crawl_ends_without_a_blocked_worker_from_which_all_was_taken(
    redis_server: RedisServer, frontier_name: str, *, has_own_work: bool
) -> None:
    stall = Stall(redis_server, frontier_name, slow_s=0.1)
    stall.has_own_work = has_own_work
    (lease,) = await stall.open(1)
    stall.started = stall.known
    other = stall.worker("w2")
    await other.join()
    Operator(Link(redis_server.url), frontier_name).take_leases("w1", [lease.lease_id], max_attempts=5)
    (taken,) = (await other.exchange([], Demand(1))).leases
    await other.exchange([Batch(1, [Ack(taken.lease_id, taken.attempt)])], Demand(1))

    wait_until(lambda: any(beat.lost for beat in stall.collected()), what="it has noticed", within=WITHIN_S)
    answer = await other.exchange([], Demand(1, is_idle=True))

    assert answer.has_ended is not has_own_work
    waits = await other.waits()
    assert list(waits.blocked) == (["w1"] if has_own_work else [])
    await other.close()
    await stall.close()


def test_place_is_the_innermost_code_of_no_library() -> None:
    entered, is_over = threading.Event(), threading.Event()

    def parse() -> None:
        entered.set()
        is_over.wait(WITHIN_S)

    thread = threading.Thread(target=parse)
    thread.start()
    entered.wait(WITHIN_S)
    location = location_of(thread.ident or 0)
    is_over.set()
    thread.join()

    assert location.text.startswith("in parse of unit/test_heartbeat.py, line ")
    assert parse.__code__ in location.codes
    assert location_of(-1).text == "in code that is not known"


# With the pump


async def _with_two_requests(
    server: RedisServer, name: str, *, slow_page_s: float = 0.0
) -> tuple[Pump[str], FakeDelegate]:
    """Return a pump that has leased two requests and started neither, and its delegate."""
    config = FrontierConfig(name, ("a",), "w1", lease_ttl_s=TTL_S)
    delegate = FakeDelegate()
    pump: Pump[str] = Pump(
        RedisFrontier(config, Connection(server.url)),
        AsyncioRunner(),
        delegate,
        PumpConfig(TTL_S, 0.0, 100, slow_page_s=slow_page_s),
    )
    await finished(pump.open())
    pump.start()
    delegate.places = 2
    for number in range(2):
        pump.push(Push(number, "slot", b""), "tag")
    await wait_until_async(lambda: _has(pump, delegate, inbox=2, outcomes=2), what="both are here", within=WITHIN_S)
    return pump, delegate


@in_real_time
async def test_stall_costs_requests_that_run_or_wait_no_attempt(redis_server: RedisServer, frontier_name: str) -> None:
    pump, delegate = await _with_two_requests(redis_server, frontier_name)

    first = pump.take()
    let_pass(2.5 * TTL_S)  # holds up the loop
    assert first is not None
    pump.finish(Ack(first.lease_id, first.attempt))
    await wait_until_async(lambda: _has(pump, delegate, inbox=1, outcomes=3), what="the ack is told", within=WITHIN_S)
    second = pump.take()
    if second is None:  # it has waited for too long, and is exchanged
        await wait_until_async(lambda: _has(pump, delegate, inbox=1, outcomes=4), what="it is back", within=WITHIN_S)
        second = pump.take()

    assert second is not None
    assert (first.attempt, second.attempt) == (1, 1)
    assert delegate.stats["prioqueue/heartbeat/renewed"] >= 2
    assert delegate.stats["prioqueue/lease/lost"] == delegate.stats["prioqueue/lease/reaped"] == 0
    assert not any(outcome.is_void for outcome in delegate.outcomes)
    await finished(pump.close(WITHIN_S))


@in_real_time
async def test_loop_that_turns_again_starts_nothing_that_was_released(
    redis_server: RedisServer, frontier_name: str
) -> None:
    pump, delegate = await _with_two_requests(redis_server, frontier_name, slow_page_s=0.1)

    first = pump.take()
    let_pass(1.5 * TTL_S)  # holds up the loop
    held = Link(redis_server.url).ask(lambda client: client.hkeys(f"{{prioqueue:{frontier_name}}}:leased"))
    second = pump.take()

    assert first is not None
    assert (second, held) == (None, [first.lease_id.to_bytes(8, "big")])
    assert (pump.take_blocked(), pump.take_blocked()) == (True, False)
    assert delegate.stats["prioqueue/lease/released"] == 1
    assert delegate.stats["prioqueue/slow"] >= 1
    await finished(pump.close(WITHIN_S))


async def _has(pump: Pump[str], delegate: FakeDelegate, *, inbox: int, outcomes: int) -> bool:
    pump.consider()
    return len(pump.inbox) == inbox and len(delegate.outcomes) >= outcomes
