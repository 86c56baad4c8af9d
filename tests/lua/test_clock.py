"""The server's clock is set back or forward: the frontier's clock continues, and no time limit changes."""

from __future__ import annotations

from typing import Any

import pytest

from scrapy_prioqueue.frontier.policy import Policy, SlotLimit
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.inspector import Inspector
from scrapy_prioqueue.frontier.redis.scripts import Argument
from tests.lua.scripts import NOW_MS, PUSH, TTL_MS, Scripts, leases_of
from tests.support.servers import RedisServer

HOUR_MS = 3_600_000
LATE_PUSH = ("P", 0, "slot", 0, b"late", "", "", "5000,0")


class Clocked(Scripts):
    """Its callers measure the time themselves; `jump_ms` is how far the server's clock was set."""

    def __init__(self, server: RedisServer, name: str) -> None:
        super().__init__(server, name)
        self.jump_ms = 0
        self.heard_ms: dict[str, int] = {}

    def call(self, name: str, *arguments: Argument) -> Any:
        measured = ""
        if self.worker in self.heard_ms:
            measured = f"+{self.now_ms - self.heard_ms[self.worker] + TTL_MS // 4} {self.worker}"
        reply = self.run(self._scripts[name].source, f"{self.now_ms + self.jump_ms}{measured}", *arguments)
        if name in ("join", "lease", "renew", "commit"):
            self.heard_ms[self.worker] = self.now_ms
        return reply

    def join_as(self, worker: str) -> None:
        """Join as this worker."""
        self.be(worker)
        self.join()

    def be(self, worker: str) -> None:
        """Continue as this worker."""
        self.worker, self.nonce = worker, f"nonce of {worker}"

    def wait(self, milliseconds: int) -> None:
        """Let time pass."""
        self.now_ms += milliseconds

    def next_due_ms(self) -> int:
        """Return how soon time brings something."""
        return int(self.lease(0, horizon_ms=0)[2])

    def living(self) -> int:
        """Return how many workers live."""
        return int(self.lease(0)[3][5])


@pytest.fixture
def clocked(redis_server: RedisServer, frontier_name: str) -> Clocked:
    return Clocked(redis_server, frontier_name)


@pytest.mark.parametrize("jump_ms", [-HOUR_MS, -3000, HOUR_MS])
def test_lease_and_life_of_a_dead_worker_last_as_long_as_ever(clocked: Clocked, jump_ms: int) -> None:
    clocked.join_as("dead")
    clocked.commit(1, PUSH)
    clocked.lease(1)
    clocked.join_as("living")
    clocked.jump_ms += jump_ms

    assert clocked.living() == 2
    clocked.wait(TTL_MS // 2)
    assert (clocked.reap()[0], clocked.living()) == (0, 2)
    clocked.wait(TTL_MS // 2 + 1)
    assert (clocked.reap()[0], clocked.living()) == (1, 1)


@pytest.mark.parametrize("jump_ms", [-HOUR_MS, HOUR_MS])
def test_delayed_request_is_due_after_its_delay(clocked: Clocked, jump_ms: int) -> None:
    clocked.join_as("w1")
    clocked.commit(1, LATE_PUSH)
    clocked.jump_ms += jump_ms

    assert 2000 <= clocked.next_due_ms() <= 5000
    clocked.wait(5001)
    assert len(leases_of(clocked.lease(1))) == 1


def test_moment_is_one_of_the_server_s_clock_as_it_is_now(clocked: Clocked) -> None:
    clocked.join_as("w1")
    clocked.jump_ms -= HOUR_MS
    moment_ms = clocked.now_ms + clocked.jump_ms + 7000
    clocked.commit(1, (*LATE_PUSH[:-1], f"0,{moment_ms}"))

    assert clocked.next_due_ms() == 7000


@pytest.mark.parametrize("jump_ms", [-HOUR_MS, HOUR_MS])
def test_slot_with_a_delay_opens_after_its_delay(clocked: Clocked, jump_ms: int) -> None:
    clocked.policy = Policy(slots={"slot": SlotLimit(delay=5.0)})
    clocked.join_as("w1")
    clocked.commit(1, PUSH, PUSH)
    assert len(leases_of(clocked.lease(2))) == 1
    clocked.jump_ms += jump_ms

    assert clocked.next_due_ms() <= 5050
    clocked.wait(5051)
    assert len(leases_of(clocked.lease(2))) == 1


def test_note_of_a_site_counts_from_now(clocked: Clocked) -> None:
    clocked.join_as("w1")
    clocked.jump_ms += HOUR_MS

    clocked.call("note", "1", "W", "slot", 4000)
    clocked.commit(1, PUSH)
    clocked.lease(1)

    assert clocked.next_due_ms() <= 4000


def test_time_passes_while_the_server_is_down(clocked: Clocked) -> None:
    clocked.join_as("w1")
    clocked.commit(1, LATE_PUSH)
    clocked.wait(HOUR_MS)

    assert len(leases_of(clocked.lease(1))) == 1
    assert clocked.client.hget(clocked.keys.state, "clock_ahead_ms") is None


def test_worker_that_stood_still_does_not_set_the_clock_back(clocked: Clocked) -> None:
    clocked.join_as("suspended")
    clocked.join_as("living")
    clocked.wait(HOUR_MS)
    clocked.lease(0)
    # Its machine was suspended, and its clock with it.
    clocked.heard_ms["suspended"] = clocked.now_ms

    clocked.be("suspended")
    clocked.lease(0)

    assert clocked.client.hget(clocked.keys.state, "clock_ahead_ms") is None


def test_joining_first_after_a_jump_takes_nothing_from_those_who_listen(clocked: Clocked) -> None:
    clocked.join_as("living")
    clocked.commit(1, PUSH)
    clocked.lease(1)
    listener: Any = clocked.client.pubsub()  # type: ignore[no-untyped-call]
    listener.subscribe(clocked.keys.bell)
    listener.get_message(timeout=5)
    clocked.jump_ms += HOUR_MS

    clocked.join_as("new")

    assert (clocked.reap()[0], clocked.living()) == (0, 2)
    listener.close()


def test_joining_without_listeners_takes_leases_of_dead_workers(clocked: Clocked) -> None:
    clocked.join_as("dead")
    clocked.commit(1, PUSH)
    clocked.lease(1)
    clocked.wait(HOUR_MS)

    clocked.join_as("new")

    assert clocked.reap()[0] == 1


def test_clock_continues_when_the_last_worker_has_left(clocked: Clocked) -> None:
    clocked.join_as("w1")
    clocked.commit(1, LATE_PUSH)
    clocked.call("leave", *clocked.session, TTL_MS)
    clocked.jump_ms -= HOUR_MS

    clocked.join_as("w2")

    assert clocked.next_due_ms() <= 5000


def test_clearing_that_was_cut_short_is_taken_over_after_the_clock_was_set_back(clocked: Clocked) -> None:
    clocked.join_as("w1")
    clocked.client.delete(clocked.keys.workers)
    assert clocked.join(flush=1)[0] == 10
    clocked.client.hdel(clocked.keys.state, "clock_ms")
    clocked.jump_ms -= HOUR_MS

    clocked.worker = "w2"

    assert clocked.join(flush=1)[0] == 10


def test_operators_are_shown_the_frontier_s_time(clocked: Clocked, redis_server: RedisServer) -> None:
    inspector = Inspector(Link(redis_server.url), clocked.keys.prefix[1:-2].partition(":")[2])
    clocked.now_ms = inspector.now_ms() + HOUR_MS
    clocked.join_as("w1")

    (worker,) = inspector.workers()

    assert inspector.now_ms() == clocked.now_ms
    assert worker.heard_s == 0
    assert clocked.now_ms > NOW_MS
