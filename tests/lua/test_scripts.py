"""Each script alone, on a real server: with full memory, lost scripts, and callers without the right to call."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
import redis

from scrapy_prioqueue.frontier.base import Ack, Batch, Demand, FrontierConfig, Push
from scrapy_prioqueue.frontier.policy import Policy, SlotLimit
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.frontier import RedisFrontier
from scrapy_prioqueue.frontier.redis.scripts import NAMES, Argument
from scrapy_prioqueue.frontier.redis.seen.fingerprints import seen_argument
from tests.lua.scripts import (
    NOW_MS,
    OK,
    OTHER_CRAWL,
    OUT_OF_STEP,
    PUSH,
    SUPERSEDED,
    TTL_MS,
    UNKNOWN_SESSION,
    Scripts,
    leases_of,
)
from tests.support.coroutines import run
from tests.support.halves import PLANTED
from tests.support.servers import RedisServer, StartServer


@pytest.fixture
def scripts(redis_server: RedisServer, frontier_name: str) -> Scripts:
    return Scripts(redis_server, frontier_name)


# Full server


SEEN = ("P", 9, "slot", 0, b"payload", seen_argument(b"seen"), "", "")
NEW = ("P", 9, "slot", 0, b"payload", seen_argument(b"new"), "", "")


class FullServer(Scripts):
    """A server that has no memory left, with leases and pending requests from before."""

    def __init__(self, server: RedisServer, name: str) -> None:
        super().__init__(server, name)
        self.join()
        self.commit(1, *[PUSH] * 10, SEEN)
        self.leases: list[tuple[bytes, int]] = leases_of(self.lease(4))
        self.client.config_set("maxmemory", 1)
        with pytest.raises(redis.exceptions.ResponseError, match="OOM|maxmemory"):
            self.client.set("is it full", 1)

    def acks(self, *indexes: int) -> list[Sequence[Argument]]:
        """Return acks of these leases."""
        return [("A", *self.leases[index], "") for index in indexes]


@pytest.fixture
def full(redis_server_factory: StartServer, frontier_name: str) -> FullServer:
    return FullServer(redis_server_factory(maxmemory="64mb"), frontier_name)


@pytest.mark.parametrize("rest", ["alone", "before-acks", "behind-acks"])
def test_full_server_refuses_a_commit_with_a_push_whole(full: FullServer, rest: str) -> None:
    before = full.dump()
    kinds: dict[str, list[Sequence[Argument]]] = {
        "alone": [PUSH],
        "before-acks": [PUSH, *full.acks(0, 1)],
        "behind-acks": [*full.acks(0, 1), PUSH],
    }

    with pytest.raises(redis.exceptions.ResponseError, match="OOM|maxmemory"):
        full.commit(2, *kinds[rest])

    assert full.dump() == before


@pytest.mark.parametrize(
    "push",
    [
        pytest.param(("P", 0, "slot", 0, b"payload", seen_argument(b"0123456789"), "", ""), id="filtered"),
        pytest.param(("P", 0, "slot", 0, b"payload", "", "mark", ""), id="marked"),
        pytest.param(("P", 0, "slot", 1, b"payload", seen_argument(b"0123456789"), "", ""), id="start"),
        pytest.param(("P", 0, "new slot", 0, b"payload", "", "", ""), id="new-slot"),
    ],
)
def test_full_server_refuses_a_push_of_every_kind_whole(full: FullServer, push: Sequence[Argument]) -> None:
    before = full.dump()

    with pytest.raises(redis.exceptions.ResponseError, match="OOM|maxmemory"):
        full.commit(2, push)

    assert full.dump() == before


def test_full_server_takes_acks_releases_and_fails(full: FullServer) -> None:
    release, fail = ("R", *full.leases[1]), ("F", *full.leases[2], "", "decode", "why", "")

    assert full.commit(2, *full.acks(0), release, fail) == [OK, [], [], [], []]

    assert [full.stat(name) for name in ("done", "pending", "leased", "dead")] == [1, 8, 1, 1]


def test_full_server_takes_requests_that_it_has_seen(full: FullServer) -> None:
    assert full.call("known", NEW[5], SEEN[5]) == [OK, [1]]

    assert full.commit(2, SEEN, *full.acks(0), SEEN) == [OK, [0, 2], [], [], []]

    assert [full.stat(name) for name in ("done", "accepted", "leased", "duplicates")] == [1, 11, 3, 2]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(("P", 0, "slot", 0, b"payload", "", "", ""), id="unfiltered"),
        pytest.param((*SEEN[:6], "mark", ""), id="marked"),
        pytest.param(("C", *SEEN[1:], "", 0), id="claim"),
        pytest.param(NEW, id="new"),
    ],
)
def test_full_server_refuses_what_it_has_seen_beside_what_it_has_not(
    full: FullServer, other: Sequence[Argument]
) -> None:
    before = full.dump()

    with pytest.raises(redis.exceptions.ResponseError, match="OOM|maxmemory"):
        full.commit(2, SEEN, other, *full.acks(0))

    assert full.dump() == before


def test_full_server_takes_a_batch_in_which_everything_is_void(full: FullServer) -> None:
    assert full.commit(2, ("A", full.leases[0][0], 9, ""), ("A", b"\0" * 8, 1, "")) == [OK, [], [], [0, 1], []]


def test_full_server_takes_an_empty_batch(full: FullServer) -> None:
    assert full.commit(2) == [OK, [], [], [], []]


def test_full_server_that_has_room_again_takes_the_refused_batch_under_the_same_number(full: FullServer) -> None:
    with pytest.raises(redis.exceptions.ResponseError):
        full.commit(2, PUSH, *full.acks(0))
    full.client.config_set("maxmemory", "64mb")

    assert full.commit(2, PUSH, *full.acks(0)) == [OK, [], [], [], []]
    assert (full.stat("accepted"), full.stat("done")) == (12, 1)


def test_full_server_leases_and_renews(full: FullServer) -> None:
    more = leases_of(full.lease(3))
    assert len(more) == 3

    assert full.call("renew", *full.session, 0, TTL_MS, *more[0], *full.leases[0]) == [OK, []]


def test_full_server_reaps(full: FullServer) -> None:
    full.now_ms += TTL_MS + 1

    assert full.reap() == (4, [])
    assert (full.stat("pending"), full.stat("leased")) == (11, 0)


def test_full_server_recovers_what_an_earlier_process_held(full: FullServer) -> None:
    full.nonce = "n2"
    code, epoch, is_new = full.join()[:3]
    assert (code, epoch, is_new) == (OK, b"1", 0)

    pairs = [part for lease in full.leases for part in (lease[0], NOW_MS + TTL_MS)]
    assert full.call("recover", *full.session, 5, *pairs) == [OK, 4, []]


def test_join_that_comes_late_does_not_set_its_session_back(scripts: Scripts) -> None:
    scripts.join()
    assert scripts.commit(1, PUSH)[0] == OK
    assert scripts.join()[0] == OK

    assert scripts.commit(2, PUSH)[0] == OK


def test_recover_that_comes_late_leaves_what_was_leased_again(scripts: Scripts) -> None:
    scripts.join()
    scripts.commit(1, PUSH)
    ((key, attempt),) = leases_of(scripts.lease(1))
    known = key, NOW_MS + TTL_MS
    assert scripts.call("recover", *scripts.session, 0, *known) == [OK, 1, []]
    scripts.now_ms += 1
    assert leases_of(scripts.lease(1)) == [(key, attempt)]

    assert scripts.call("recover", *scripts.session, 0, *known) == [OK, 0, []]


def test_full_server_lets_another_worker_join_and_leave(full: FullServer) -> None:
    full.worker, full.nonce = "w2", "n2"

    assert full.join()[0] == OK
    assert full.call("leave", *full.session, TTL_MS) == [OK, b""]


def test_full_server_can_be_drained_to_the_end(full: FullServer) -> None:
    number, leases = 1, full.leases
    while leases:
        number += 1
        assert full.commit(number, *[("A", *lease, "") for lease in leases]) == [OK, [], [], [], []]
        leases = leases_of(full.lease(4))

    _, has_ended, next_due_ms, depth, *_ = full.lease(1, is_idle=1)
    assert (has_ended, next_due_ms, depth) == (1, -1, [11, 0, 0, 0, 11, 1, 0])
    assert full.call("leave", *full.session, TTL_MS) == [OK, b"restart"]
    assert full.call("clear", full.worker, 100, "restart 1", full.keys.prefix + "stats") == [1, 0]
    assert full.call("clear", full.worker, 0, "") == [1, 0]


# Hashes that are looked up field by field


@pytest.mark.parametrize("policy", [Policy(), Policy(slots={"*": SlotLimit(concurrency=5)}), Policy(weights=(2,))])
def test_turns_of_many_slots_are_a_table_and_nothing_but_turns(scripts: Scripts, policy: Policy) -> None:
    scripts.policy = policy
    scripts.join()
    slots = [f"slot-{number}" for number in range(100)]

    scripts.commit(1, *[("P", 0, slot, 0, b"payload", "", "", "") for slot in slots])

    turns = scripts.keys.prefix + "turns"
    lane = "0:" if policy.weights else ""
    assert scripts.client.object("ENCODING", turns) == b"hashtable"
    assert set(scripts.client.hkeys(turns)) == {(lane + slot).encode() for slot in slots}


def test_requests_served_by_slot_are_counted_in_a_table_that_expires(scripts: Scripts) -> None:
    scripts.join()
    scripts.commit(1, *[("P", 0, f"slot-{number % 2}", 0, b"%d" % number, "", "", "") for number in range(6)])
    leases = leases_of(scripts.lease(6))

    for number, (key, attempts) in enumerate(leases, 2):
        scripts.commit(number, ("A", key, attempts, ""))

    (served,) = scripts.client.keys(scripts.keys.prefix + "served:*")
    assert scripts.client.object("ENCODING", served) == b"hashtable"
    assert scripts.client.hgetall(served) == {b"slot-0": b"3", b"slot-1": b"3"}
    assert 0 < scripts.client.ttl(served) <= 75


# Scripts that the server forgets


def frontier(server: RedisServer, name: str) -> RedisFrontier:
    return RedisFrontier(FrontierConfig(name, ("a",), "w1"), Connection(server.url))


def test_frontier_survives_that_the_server_forgets_all_scripts(redis_server: RedisServer, frontier_name: str) -> None:
    found, client = frontier(redis_server, frontier_name), redis_server.client()
    run(found.join())

    client.script_flush()
    first = run(found.exchange([Batch(1, [Push(0, "slot", b"a")])], Demand(1)))
    client.script_flush()
    (lease,) = first.leases
    lost = run(found.renew([(lease.lease_id, lease.attempt)]))
    client.script_flush()
    batches = [Batch(2, [Push(0, "slot", b"b")]), Batch(3, [Ack(lease.lease_id, lease.attempt)])]
    second = run(found.exchange(batches, Demand(0)))
    client.script_flush()
    run(found.leave())
    run(found.close())

    assert lost == []
    assert [answer.number for answer in (*first.committed, *second.committed)] == [1, 2, 3]
    assert (second.depth.accepted, second.depth.done, second.depth.pending) == (2, 1, 1)


# Callers without a right to call


def calls_of(scripts: Scripts) -> dict[str, Any]:
    """Return what each script with a session answers, at most with its code."""
    replies = {
        "commit": scripts.commit(1, PUSH),
        "lease": scripts.lease(1),
        "renew": scripts.call("renew", *scripts.session, 0, TTL_MS),
        "recover": scripts.call("recover", *scripts.session, 5, b"\0" * 8, NOW_MS),
        "leave": scripts.call("leave", *scripts.session, TTL_MS),
        "sort": scripts.call("sort", *scripts.session),
        "slow": scripts.call("slow", *scripts.session, "", 0),
    }
    return {name: reply[0] for name, reply in replies.items()}


WITH_SESSION = ("commit", "lease", "renew", "recover", "leave", "sort", "slow")


def test_caller_of_another_epoch_is_rejected_and_changes_nothing(scripts: Scripts) -> None:
    scripts.join()
    scripts.epoch = "0"
    before = scripts.dump()

    assert calls_of(scripts) == dict.fromkeys(WITH_SESSION, OTHER_CRAWL)
    assert scripts.dump() == before


def test_caller_on_an_empty_server_is_told_to_join_again_and_leaves_no_key(scripts: Scripts) -> None:
    assert calls_of(scripts) == dict.fromkeys(WITH_SESSION, UNKNOWN_SESSION)
    assert scripts.dump() == {}


def test_worker_that_never_joined_is_rejected_and_changes_nothing(scripts: Scripts) -> None:
    scripts.join()
    scripts.worker = "stranger"
    before = scripts.dump()

    assert calls_of(scripts) == dict.fromkeys(WITH_SESSION, UNKNOWN_SESSION)
    assert scripts.dump() == before


def test_process_that_was_replaced_is_rejected_and_changes_nothing(scripts: Scripts) -> None:
    scripts.join()
    scripts.nonce = "n2"
    scripts.join()
    scripts.nonce = "n1"
    before = scripts.dump()

    assert calls_of(scripts) == dict.fromkeys(WITH_SESSION, SUPERSEDED)
    assert scripts.dump() == before


def test_batch_that_comes_too_early_is_not_applied(scripts: Scripts) -> None:
    scripts.join()
    before = scripts.dump()

    assert scripts.commit(2, PUSH) == [OUT_OF_STEP]
    assert scripts.dump() == before


def test_batch_that_was_applied_is_not_applied_again(scripts: Scripts) -> None:
    scripts.join()
    scripts.commit(1, PUSH)
    before = scripts.dump()

    assert scripts.commit(1, PUSH) == [OK, [], [], [], []]
    assert scripts.dump() == before


def test_worker_that_returns_continues_from_the_batch_it_knows_to_be_applied(scripts: Scripts) -> None:
    scripts.join(last_batch=41)

    assert scripts.commit(41, PUSH) == [OK, [], [], [], []]
    assert scripts.stat("accepted") == 0
    assert scripts.commit(42, PUSH) == [OK, [], [], [], []]
    assert scripts.stat("accepted") == 1


def test_only_the_worker_that_clears_drops_keys(scripts: Scripts) -> None:
    scripts.join()
    victim = scripts.keys.prefix + "marks"
    scripts.client.sadd(victim, "mark")

    assert scripts.call("clear", "w1", 0, "all 1", victim) == [0, 0]
    assert scripts.join(flush=1) == [10, b"all"]
    assert scripts.call("clear", "w2", 0, "all 1", victim) == [0, 0]
    assert scripts.client.exists(victim)
    assert scripts.call("clear", "w1", 0, "all 1", victim) == [1, 0]
    assert not scripts.client.exists(victim)


def test_no_worker_commits_to_or_joins_a_frontier_that_is_being_cleared(scripts: Scripts) -> None:
    scripts.join()
    scripts.join(flush=1)

    assert calls_of(scripts) == dict.fromkeys(WITH_SESSION, OTHER_CRAWL)
    scripts.worker = "w2"
    assert scripts.join() == [11]
    scripts.now_ms += 30_000
    assert scripts.join() == [10, b"all"]


def test_every_script_that_needs_a_session_is_in_these_tests() -> None:
    assert set(NAMES) - set(WITH_SESSION) == {"join", "known", "note", "clear", "evict", "record", "remind", "waits"}


# After an outage


def test_an_error_while_others_are_awaited_gives_their_requests_to_no_worker(scripts: Scripts) -> None:
    for worker in ("silent", "w1"):
        scripts.worker = worker
        scripts.join()
    scripts.commit(1, PUSH)
    scripts.now_ms += TTL_MS // 2

    for scripts.fails_at in count(1):
        try:
            reply = scripts.lease(5, away_ms=TTL_MS // 2)
        except redis.exceptions.ResponseError as error:
            assert PLANTED in str(error)
            continue
        break

    scripts.fails_at = 0
    assert leases_of(reply) == []
    assert leases_of(scripts.lease(5)) == []
    scripts.worker = "silent"
    assert len(leases_of(scripts.lease(5))) == 1
