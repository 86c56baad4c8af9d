"""A script call does a limited amount of work in a frontier of any size, and leaves the rest to later calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgpack
import pytest

from scrapy_prioqueue.frontier.labels import Label, labelled
from scrapy_prioqueue.frontier.policy import Budget, Policy, SlotLimit
from scrapy_prioqueue.frontier.redis.keys import Keys
from tests.contract.backends import RedisBackend
from tests.lua.scripts import TTL_MS, Scripts, leases_of
from tests.support.servers import RedisServer

SLOTS = 1500
MOST_COMMANDS = 1200
"""Of one call; there are more slots than that, and each needs one or more."""

LIMITED = Policy(slots={"*": SlotLimit(concurrency=5)})
POLICIES = {
    "weights": (Policy(), Policy(weights=(2,))),
    "no weights": (Policy(weights=(2,)), Policy()),
    "other limits": (Policy(slots={"*": SlotLimit(delay=1000)}), LIMITED),
}


class Frontier(Scripts):
    """A frontier of many slots, each with a request."""

    def __init__(self, server: RedisServer, name: str, policy: Policy) -> None:
        super().__init__(server, name)
        self.policy = policy
        self.join()
        for first in range(0, SLOTS, 100):
            slots = range(first, first + 100)
            self.commit(first // 100 + 1, *(("P", 0, f"slot-{n}", 0, b"", "", "", "") for n in [*slots, *slots]))

    @property
    def is_changing(self) -> bool:
        """A change has not reached all slots yet."""
        return any(self.client.hmget(self.keys.state, ["unsorted", "reopen"]))

    def commands_of(self, call: Callable[[], object]) -> int:
        """Return how many commands the server has run meanwhile, those inside of scripts included."""
        self.client.config_resetstat()
        call()
        found: Any = self.client.info("commandstats")
        return sum(each["calls"] for each in found.values())


@pytest.mark.parametrize("change", POLICIES)
def test_a_policy_that_changes_reaches_slots_step_by_step(
    redis_server: RedisServer, frontier_name: str, change: str
) -> None:
    before, after = POLICIES[change]
    frontier = Frontier(redis_server, frontier_name, before)
    for _ in range(SLOTS // 100):
        frontier.lease(100)
    frontier.policy = after

    counts = [frontier.commands_of(frontier.join)]
    while frontier.is_changing:
        counts.append(frontier.commands_of(lambda: frontier.lease(0)))

    assert len(counts) > 3
    assert max(counts) < MOST_COMMANDS


def test_places_for_what_starts_later_cost_no_look_at_what_may_start_now(
    redis_server: RedisServer, frontier_name: str
) -> None:
    frontier = Frontier(redis_server, frontier_name, LIMITED)

    assert frontier.commands_of(lambda: frontier.lease(0, later=4, horizon_ms=250)) < MOST_COMMANDS


def test_slots_whose_limits_have_become_tighter_are_skipped_step_by_step(
    redis_server: RedisServer, frontier_name: str
) -> None:
    frontier = Frontier(redis_server, frontier_name, LIMITED)
    for _ in range(SLOTS // 100):
        frontier.lease(100)
    frontier.policy = Policy(slots={"*": SlotLimit(concurrency=1)})
    frontier.join()
    frontier.commit(SLOTS // 100 + 1, ("P", 1, "free", 0, b"", "", "", ""))

    replies: list[Any] = []
    counts = []
    while not replies or replies[-1][2] == 0:
        counts.append(frontier.commands_of(lambda: replies.append(frontier.lease(1))))

    assert len(counts) > 3
    assert max(counts) < MOST_COMMANDS
    assert [len(leases_of(reply)) for reply in replies] == [*[0] * (len(replies) - 1), 1]


def test_dead_letters_that_are_too_many_go_some_at_a_time(redis_server: RedisServer, frontier_name: str) -> None:
    frontier = Scripts(redis_server, frontier_name)
    frontier.join()
    frontier.commit(1, *[("P", 0, "slot", 0, b"%d" % n, "", "", "") for n in range(60)])
    leases = leases_of(frontier.lease(60))
    fails = [("F", *lease, "", "decode", "", "") for lease in leases]
    frontier.commit(2, *fails[:58])
    frontier.client.hset(frontier.keys.state, "dead_limit", 1)

    left = []
    for number, fail in enumerate(fails[58:], 3):
        frontier.commit(number, fail)
        left.append((frontier.client.hlen(frontier.keys.dead), frontier.client.zcard(frontier.keys.died)))

    assert left == [(49, 49), (40, 40)]
    assert (frontier.stat("dead"), frontier.stat("dead_dropped")) == (60, 20)


def test_dropped_letters_of_an_earlier_crawl_are_not_counted(redis_server: RedisServer, frontier_name: str) -> None:
    frontier = Scripts(redis_server, frontier_name)
    frontier.join()
    frontier.commit(1, *[("P", 0, "slot", 0, b"%d" % n, "", "", "") for n in range(3)])
    fails = [("F", *lease, "", "decode", "", "") for lease in leases_of(frontier.lease(3))]
    frontier.commit(2, *fails[:2])
    for key, value in frontier.client.hgetall(frontier.keys.dead).items():
        fields = [*msgpack.unpackb(value, raw=True)[:10], b"an earlier one"]
        frontier.client.hset(frontier.keys.dead, key, msgpack.packb(fields, use_bin_type=False))
    frontier.client.hset(frontier.keys.state, "dead_limit", 1)

    frontier.commit(3, fails[2])

    assert frontier.client.hlen(frontier.keys.dead) == 1
    assert int(frontier.stat("dead_dropped") or 0) == 0


COUNTED = Policy(slots={"*": SlotLimit(concurrency=1000)}, budgets={"*": Budget(pages=10**6)})


class Leased(Scripts):
    """A frontier of which very many requests are leased: labelled ones of ten slots."""

    LEASES = 1500

    def __init__(self, server: RedisServer, name: str) -> None:
        super().__init__(server, name)
        self.join()
        self.leases: list[tuple[bytes, int]] = []
        for number in range(1, self.LEASES // 100 + 2):
            payloads = [labelled(b"%d" % n, Label(is_rendered=False, keys=["key"])) for n in range(100)]
            self.commit(number, *(("P", 0, f"s{n % 10}", 0, each, "", "", "") for n, each in enumerate(payloads)))
            if number <= self.LEASES // 100:
                self.leases += leases_of(self.lease(100))
        self.batch = self.LEASES // 100 + 1

    def end(self, letter: str, *leases: tuple[bytes, int]) -> None:
        """End leases with an ack ("A") or a release ("R")."""
        self.batch += 1
        more = ("",) if letter == "A" else ()
        operations: list[tuple[bytes | int | str, ...]] = [(letter, *lease, *more) for lease in leases]
        self.commit(self.batch, *operations)

    @property
    def is_counting(self) -> bool:
        return bool(self.client.hexists(self.keys.state, "counting"))

    def leased_by_slot(self) -> Mapping[bytes, int]:
        values: Any = self.client.hvals(self.keys.leased)
        return Counter(msgpack.unpackb(value, raw=True)[2] for value in values)

    def running(self) -> Mapping[bytes, int]:
        found: Any = self.client.hgetall(self.keys.of("running"))
        return {slot: int(count) for slot, count in found.items()}

    def pages(self) -> int:
        return int(self.client.hget(self.keys.of("used"), "pages:key") or 0)


def test_leases_are_counted_step_by_step_when_limits_and_budgets_are_switched_on(
    redis_server: RedisServer, frontier_name: str
) -> None:
    frontier = Leased(redis_server, frontier_name)
    frontier.policy = COUNTED
    frontier.join()
    taken, acked = [frontier.client.scard(frontier.keys.of("counted:limits"))], 0
    rest = list(frontier.leases)
    while frontier.is_counting:
        # Some end before they are counted, some afterwards.
        frontier.end("A", *rest[:20], *rest[-20:])
        frontier.end("R", *rest[20:30], *rest[-30:-20])
        rest, acked = rest[30:-30], acked + 40
        before = frontier.client.scard(frontier.keys.of("counted:limits"))
        handed_out = leases_of(frontier.lease(5))
        assert not (handed_out and frontier.is_counting)
        taken.append(frontier.client.scard(frontier.keys.of("counted:limits")) - before)

    assert len(taken) > 2
    assert 0 < max(taken) < 500
    assert frontier.running() == frontier.leased_by_slot()
    assert frontier.pages() == sum(frontier.running().values()) + acked
    assert not frontier.client.exists(frontier.keys.of("counted:limits"), frontier.keys.of("counted:budgets"))
    assert len(handed_out) == 5


def test_a_claim_while_leases_are_counted_counts_once(redis_server: RedisServer, frontier_name: str) -> None:
    frontier = Leased(redis_server, frontier_name)
    frontier.policy = COUNTED
    frontier.join()
    payload = labelled(b"claimed", Label(is_rendered=False, keys=["key"]))

    frontier.batch += 1
    frontier.commit(frontier.batch, ("C", 0, "s1", 0, payload, "", "", "", "", 1))
    while frontier.is_counting:
        frontier.lease(0)

    assert frontier.running() == frontier.leased_by_slot()
    assert frontier.pages() == frontier.LEASES + 1


def test_a_new_crawl_has_nothing_to_count(redis_server: RedisServer, frontier_name: str) -> None:
    frontier = Leased(redis_server, frontier_name)
    frontier.policy = COUNTED
    frontier.join()
    assert frontier.is_counting

    frontier.now_ms += 10 * TTL_MS
    frontier.join(flush=1)
    frontier.client.delete(frontier.keys.leased, frontier.keys.leases)
    frontier.join(has_cleared=1)

    assert not frontier.is_counting


DROPPED = {
    "none": Policy(),
    "weights": Policy(weights=(2,)),
    "limits": Policy(slots={"*": SlotLimit(delay=1000)}, weights=(2,)),
}


@pytest.mark.parametrize("policy", DROPPED)
def test_waiting_requests_are_dropped_some_slots_at_a_time(
    redis_server: RedisServer, frontier_name: str, policy: str
) -> None:
    frontier = Frontier(redis_server, frontier_name, DROPPED[policy])
    frontier.lease(100)
    frontier.commit(SLOTS // 100 + 1, ("P", 0, "slot-1", 0, b"", "", "", "90000,0"))
    counts, replies = [], []

    def drop() -> None:
        replies.append(frontier.call("drop", 100))

    while not replies or replies[-1][1]:
        counts.append(frontier.commands_of(drop))

    assert len(counts) == SLOTS // 100
    assert max(counts) < MOST_COMMANDS // 4
    assert sum(count for count, _ in replies) == 2 * SLOTS + 1 - frontier.stat("leased")
    assert frontier.stat("pending") == frontier.stat("delayed") == 0
    assert frontier.stat("accepted") == frontier.stat("leased") > 0
    left = {key.decode().removeprefix(frontier.keys.prefix).split(":")[0] for key in frontier.dump()}
    assert not left & {"queue", "ready", "turns", "waiting", "unsorted", "delayed", "suspects"}


def test_a_queue_of_any_length_is_dropped_by_one_call(redis_server: RedisServer, frontier_name: str) -> None:
    frontier = Scripts(redis_server, frontier_name)
    frontier.join()
    for number in range(1, 21):
        frontier.commit(number, *[("P", 0, "slot", 0, b"%d" % n, "", "", "") for n in range(100)])

    assert frontier.call("drop", 100) == [2000, 0]
    assert frontier.stat("pending") == 0


def test_places_of_slots_that_have_nothing_are_dropped_too(redis_server: RedisServer, frontier_name: str) -> None:
    frontier = Scripts(redis_server, frontier_name)
    frontier.join()
    frontier.commit(1, ("P", 0, "slot", 0, b"", "", "", ""))
    frontier.client.zadd(frontier.keys.ready(), {b"12345678nowhere": -1})
    frontier.client.zadd(frontier.keys.of("waiting"), {b"nobody": 0})

    assert frontier.call("drop", 100) == [1, 0]
    assert not frontier.client.exists(frontier.keys.ready(), frontier.keys.of("waiting"))


def test_a_slot_of_many_labels_costs_no_look_at_each_of_its_suffixes(
    redis_server: RedisServer, frontier_name: str
) -> None:
    frontier = Scripts(redis_server, frontier_name)
    frontier.policy = Policy(slots={"*.example": SlotLimit(concurrency=1)})
    frontier.join()

    # All of them together would be almost a gigabyte.
    frontier.commit(1, ("P", 0, 30_000 * "a.", 0, b"", "", "", ""), ("P", 0, "b.example", 0, b"", "", "", ""))

    assert len(leases_of(frontier.lease(5))) == 2


@pytest.mark.parametrize("noun", ["paced", "closed"])
def test_times_that_have_passed_are_dropped_so_many_at_a_time(
    redis_server: RedisServer, frontier_name: str, noun: str
) -> None:
    frontier = Scripts(redis_server, frontier_name)
    frontier.policy = Policy(slots={"*": SlotLimit(delay=1)})
    frontier.join()
    frontier.client.zadd(frontier.keys.of(noun), {f"s{number}": frontier.now_ms - 1000 for number in range(3500)})
    frontier.client.zadd(frontier.keys.of(noun), {"later": frontier.now_ms + 1000})

    left = []
    for _ in range(4):
        frontier.call("note", frontier.epoch, "M", "", 0)
        left.append(frontier.client.zcard(frontier.keys.of(noun)))

    assert left[0] > 1000
    assert left[-1] == 1


def test_delays_of_idle_slots_are_forgotten_where_there_are_many(redis_server: RedisServer, frontier_name: str) -> None:
    frontier = Scripts(redis_server, frontier_name)
    frontier.policy = Policy(slots={"*": SlotLimit(concurrency=1)})
    frontier.join()
    delays = frontier.keys.of("delays")
    frontier.client.hset(delays, mapping={f"cidle-{number}": 0 for number in range(20_100)})
    busy = ("waits", "runs", "done", "paced")
    frontier.client.hset(delays, mapping={f"c{slot}": 1000 for slot in busy})
    frontier.commit(1, *(("P", 0, slot, 0, b"", "", "", "") for slot in ("done", "runs", "runs")))
    done, _ = leases_of(frontier.lease(2))
    frontier.commit(2, ("A", *done, ""), ("P", 0, "waits", 0, b"", "", "", ""))
    frontier.client.zadd(frontier.keys.of("paced"), {"paced": frontier.now_ms + 60_000})

    sizes = []
    for number in range(100):
        frontier.call("note", frontier.epoch, *(part for n in range(50) for part in ("C", f"new-{number}-{n}", 0)))
        sizes.append(frontier.client.hlen(delays))

    assert max(sizes) < 20_200
    assert frontier.client.hmget(delays, [f"c{slot}" for slot in busy]) == [b"1000"] * 4


def test_a_long_policy_is_replaced_and_operators_limits_stay(redis_server: RedisServer, frontier_name: str) -> None:
    frontier = Scripts(redis_server, frontier_name)
    limits = frontier.keys.of("limits")
    frontier.policy = Policy(slots={f"s{number}.example": SlotLimit(concurrency=2) for number in range(5000)})
    frontier.join()
    frontier.client.hset(limits, "!own.example", '{"delay": 1}')
    frontier.policy = Policy(slots={"a.example": SlotLimit(concurrency=2)})

    frontier.join()

    assert set(frontier.client.hgetall(limits)) == {b"!own.example", b"a.example"}
    assert frontier.client.hget(limits, "!own.example") == b'{"delay": 1}'


def test_a_policy_that_the_server_knows_is_not_sent_again(redis_server: RedisServer, frontier_name: str) -> None:
    backend, client = RedisBackend(frontier_name, redis_server.url), redis_server.client()
    policy = Policy(slots={f"s{number}.example": SlotLimit(concurrency=2) for number in range(5000)})
    worker = backend.join("w1", policy=policy)
    before = client.info("stats")["total_net_input_bytes"]

    # The scripts are sent once for each connection of a worker.
    worker.join()
    assert client.info("stats")["total_net_input_bytes"] - before < 20_000
    assert client.hlen(Keys(frontier_name).of("limits")) == 5000

    backend.join("w2", policy=Policy(slots={"a.example": SlotLimit(concurrency=2)}))
    worker.join()
    assert client.hlen(Keys(frontier_name).of("limits")) == 5000
    backend.close()


def test_a_worker_reads_only_its_own_leases_to_reconcile(redis_server: RedisServer, frontier_name: str) -> None:
    frontier = Leased(redis_server, frontier_name)
    backend = RedisBackend(frontier_name, redis_server.url)
    backend.clock.now_ms = frontier.now_ms
    worker = backend.join("w2", tiers=("a",))
    held = worker.lease(2)
    before = frontier.client.info("stats")["total_net_output_bytes"]

    assert worker.reconcile(held[0]) == 1

    assert frontier.client.info("stats")["total_net_output_bytes"] - before < 20_000
    assert [lease_id for lease_id, _ in worker.leases()] == [held[0].lease_id]
    backend.close()


def test_ids_of_leases_that_have_ended_do_not_pile_up(redis_server: RedisServer, frontier_name: str) -> None:
    frontier = Leased(redis_server, frontier_name)
    frontier.end("A", *frontier.leases[:-3])
    frontier.end("R", frontier.leases[-1])
    sizes = []
    for _ in range(40):
        frontier.end("R", *leases_of(frontier.lease(20)))
        sizes.append(frontier.client.hstrlen(frontier.keys.of("granted"), "w1"))

    assert max(sizes[20:]) <= 4096 + 20 * 8
    granted: Any = frontier.client.hget(frontier.keys.of("granted"), "w1")
    assert {granted[at : at + 8] for at in range(0, len(granted), 8)} >= {
        lease_id for lease_id, _ in frontier.leases[-3:-1]
    }
