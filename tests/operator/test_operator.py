"""Operators change a frontier while workers hold leases and push."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from scrapy_prioqueue.errors import FrontierRefused, NotPermitted
from scrapy_prioqueue.frontier.base import Claim, Depth, Lease
from scrapy_prioqueue.frontier.policy import Policy
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.calls import ITEMS_PER_CALL
from scrapy_prioqueue.frontier.redis.operators.findings import Stored
from scrapy_prioqueue.frontier.redis.operators.operator import CrawlPlan, Operator
from scrapy_prioqueue.frontier.redis.operators.requests import SCAN_COUNT
from scrapy_prioqueue.rank import TIER_WIDTH
from tests.contract.backends import RedisBackend, Worker, ack, fail, push
from tests.support.servers import RedisServer

PLAN = CrawlPlan(("urgent", "normal"))


def join(backend: RedisBackend, name: str = "w1", **config: Any) -> Worker:
    """Join by the server's clock, as the operator goes by it."""
    return backend.join(name, clock=None, **config)


def payloads(requests: Sequence[Stored]) -> list[str]:
    return [stored.payload.decode() for stored in requests]


def dead_letter(worker: Worker, *names: str) -> None:
    """Push requests and give them up."""
    worker.commit(*(push(name, fingerprint=name.encode() * 20) for name in names))
    worker.commit(*(fail(lease) for lease in worker.lease(len(names))))


def dead(operator: Operator) -> list[Stored]:
    return list(operator.requests.dead())


# Orders


@pytest.mark.parametrize(("paused", "served"), [(True, []), (False, ["a"])])
def test_a_paused_fleet_gets_nothing(
    operator: Operator, backend: RedisBackend, paused: bool, served: list[str]
) -> None:
    worker = join(backend)
    worker.commit(push("a"))

    assert operator.order(paused=True) == ["w1"]
    operator.order(paused=paused)

    assert worker.ask().orders.is_paused == paused
    assert worker.lease_payloads() == served


def test_a_fleet_drains_until_it_is_resumed(operator: Operator, backend: RedisBackend) -> None:
    worker = join(backend)

    operator.order(drained=True)
    operator.order(paused=True)

    assert worker.ask().orders.is_drained
    operator.order(drained=False)
    assert not worker.ask().orders.is_drained
    assert worker.ask().orders.is_paused


def test_workers_that_are_there_stop_and_one_that_comes_later_does_not(
    operator: Operator, backend: RedisBackend
) -> None:
    workers = [join(backend, "w1"), join(backend, "w2")]

    assert operator.order(stop_reason="maintenance") == ["w1", "w2"]

    assert [worker.ask().orders.stop_reason for worker in workers] == ["maintenance"] * 2
    assert join(backend, "w3").ask().orders.stop_reason is None


def test_nothing_is_ordered_where_there_is_no_frontier(operator: Operator, redis_server: RedisServer) -> None:
    assert operator.order(paused=True, stop_reason="x") is None
    assert not redis_server.client().keys(operator.keys.pattern())


# Dead letters


def test_a_replayed_dead_letter_is_served_again_with_its_attempts_forgotten(
    operator: Operator, backend: RedisBackend
) -> None:
    worker = join(backend)
    dead_letter(worker, "a", "b")
    letters = dead(operator)

    assert operator.replay([(stored, stored.payload + b"!", b"x" * 20) for stored in letters], PLAN) == 2

    assert operator.depth() == Depth(accepted=2, pending=2, workers=1)
    assert sorted((lease.payload, lease.attempt) for lease in worker.lease(9)) == [(b"a!", 1), (b"b!", 1)]
    assert operator.replay([(letters[0], b"", None)], PLAN) == 0


def test_a_dead_letter_of_an_earlier_crawl_counts_as_accepted_again(operator: Operator, backend: RedisBackend) -> None:
    first = join(backend)
    dead_letter(first, "a", "b")
    assert first.ask(is_idle=True).has_ended
    first.leave()
    letters = dead(operator)

    assert operator.replay([(stored, stored.payload, b"a" * 20) for stored in letters[:1]], PLAN) == 1
    assert operator.depth() == Depth(accepted=1, pending=1)
    assert operator.purge(letters) == 1
    assert operator.depth() == Depth(accepted=1, pending=1)

    second = join(backend, "w2")
    (lease,) = second.lease(9)
    assert second.commit(push("again", fingerprint=b"a" * 20)).duplicates == [0]
    second.commit(ack(lease))
    assert operator.depth() == Depth(accepted=1, done=1, workers=1)


def test_purged_dead_letters_stay_counted(operator: Operator, backend: RedisBackend, redis_server: RedisServer) -> None:
    worker = join(backend)
    dead_letter(worker, "a", "b", "c")

    assert operator.purge(dead(operator)[:2]) == 2

    assert len(dead(operator)) == 1
    assert operator.depth() == Depth(accepted=3, dead=3, workers=1)
    redis: Any = redis_server.client()
    assert redis.hget(operator.keys.of("stats"), "dead_dropped") == b"2"


# Pending requests


def pending(operator: Operator) -> list[Stored]:
    return sorted(operator.requests.each(("pending", "delayed")), key=lambda stored: stored.payload)


def lose(operator: Operator, worker: Worker) -> None:
    """Take the worker's leases from it twice, so that they become suspects."""
    for _ in range(2):
        worker.lease(9, may_take_suspect=False)
        operator.evict(worker.worker_id, max_attempts=9)
        worker.join()


@pytest.fixture
def busy(operator: Operator, backend: RedisBackend) -> Worker:
    """A worker that holds one lease of a frontier with two suspects, three pending requests and a delayed one."""
    worker = join(backend, max_attempts=9)
    worker.commit(*(push(f"suspect {number}", slot="s.example") for number in range(2)))
    lose(operator, worker)
    worker.commit(
        push("leased", -9, slot="l.example"),
        *(push(f"pending {number}", slot=f"{number}.example") for number in range(3)),
        push("delayed", delay_ms=600_000),
    )
    assert worker.lease_payloads(1, may_take_suspect=False) == ["leased"]
    assert [stored.is_suspect for stored in pending(operator)].count(True) == 2
    return worker


def test_removed_requests_are_gone_and_out_of_the_count(operator: Operator, busy: Worker) -> None:
    found = pending(operator)

    assert operator.remove(found) == 6

    assert operator.depth() == Depth(accepted=1, leased=1, workers=1)
    assert operator.remove(found) == 0
    assert busy.lease(9) == []


def test_evicted_leases_go_back_in_order_however_many_they_are(operator: Operator, backend: RedisBackend) -> None:
    worker = join(backend, order="fifo")
    names = [f"{number:03}" for number in range(600)]
    worker.commit(*(push(name, slot=f"{name}.example") for name in names))
    assert len(worker.lease(600)) == 600

    assert operator.evict("w1", max_attempts=9) == 600

    worker.join()
    assert worker.lease_payloads() == names


def test_a_request_that_was_leased_meanwhile_is_not_removed(operator: Operator, busy: Worker) -> None:
    found = pending(operator)
    leases = busy.lease(2, may_take_suspect=False)

    assert operator.remove(found) == 4

    busy.commit(*(ack(lease) for lease in leases))
    assert operator.depth() == Depth(accepted=3, leased=1, done=2, workers=1)


def test_moved_requests_are_served_by_their_new_rank(operator: Operator, busy: Worker) -> None:
    found = pending(operator)
    assert payloads(found) == ["delayed", "pending 0", "pending 1", "pending 2", "suspect 0", "suspect 1"]
    ranks = [0, 5, -5, 3, -7, 4]

    assert operator.move((stored, rank, stored.payload) for stored, rank in zip(found, ranks, strict=True)) == 6

    assert busy.lease_payloads(1) == ["suspect 0"]
    assert busy.lease_payloads(may_take_suspect=False) == ["pending 1", "pending 2", "pending 0"]
    assert operator.depth() == Depth(accepted=7, pending=1, delayed=1, leased=5, workers=1)


def test_a_request_that_was_moved_since_it_was_looked_at_leaves_no_place_in_line(
    operator: Operator, backend: RedisBackend
) -> None:
    worker = join(backend, policy=Policy(weights=(2, 1)))
    worker.commit(push("moved", TIER_WIDTH, slot="a.example"))
    looked_at = pending(operator)
    operator.move([(looked_at[0], 0, b"moved")])

    assert operator.remove(looked_at) == 1

    worker.commit(push("behind it", 1, slot="b.example"))
    assert worker.lease_payloads(1) == ["behind it"]


def test_a_lease_that_was_moved_while_it_was_lost_keeps_its_new_rank(operator: Operator, backend: RedisBackend) -> None:
    worker = join(backend, policy=Policy(weights=(2, 1)))
    request = push("moved", TIER_WIDTH, slot="a.example")
    worker.commit(request)
    (lease,) = worker.lease(1)
    operator.evict("w1", max_attempts=9)
    worker.join()
    operator.move([(pending(operator)[0], 0, b"moved")])

    claimed = worker.commit(Claim(request, lease.lease_id, lease.attempt)).claimed

    assert list(claimed.values()) == [(lease.lease_id, 2)]
    assert [stored.rank for stored in operator.requests.leased()] == [0]
    worker.commit(push("behind it", 1, slot="b.example"))
    assert worker.lease_payloads(1) == ["behind it"]


def test_a_move_may_change_the_payload(operator: Operator, backend: RedisBackend) -> None:
    worker = join(backend)
    worker.commit(push("a"), push("later", delay_ms=600_000))

    operator.move((stored, -1, b"new " + stored.payload) for stored in pending(operator))

    assert sorted(payloads(pending(operator))) == ["new a", "new later"]
    assert worker.lease_payloads() == ["new a"]


def test_all_waiting_requests_can_be_dropped(operator: Operator, busy: Worker) -> None:
    heard: list[int] = []
    busy.commit(*(push(f"more {number}", slot=f"{number % 7}.example") for number in range(500)))

    assert operator.drop(heard.append) == 506

    assert heard[-1] == 506
    assert operator.depth() == Depth(accepted=1, leased=1, workers=1)
    assert operator.drop() == 0


# Fingerprints


def test_a_forgotten_fingerprint_is_new_again(operator: Operator, backend: RedisBackend) -> None:
    worker = join(backend)
    worker.commit(push("a", fingerprint=b"a" * 20), push("b", fingerprint=b"b" * 20))

    assert operator.forget([b"x" * 20, b"a" * 20]) == [1]

    again = [push("again", fingerprint=b"a" * 20), push("again", fingerprint=b"b" * 20)]
    assert worker.commit(*again).duplicates == [1]


def test_fingerprints_of_higher_levels_are_forgotten_and_the_others_are_not(
    operator: Operator, backend: RedisBackend, redis_server: RedisServer
) -> None:
    worker = join(backend)
    redis: Any = redis_server.client()
    worker.commit(push("a", fingerprint=b"a" * 20))
    redis.hset(operator.keys.state, "seen", 64 * 384)
    worker.commit(push("b", fingerprint=b"b" * 20), push("c", fingerprint=b"c" * 20))

    assert operator.forget([b"a" * 20, b"b" * 20, b"d" * 20]) == [0, 1]

    pushes = [push(name, fingerprint=name.encode() * 20) for name in "abc"]
    assert worker.commit(*pushes).duplicates == [2]


def test_all_fingerprints_and_start_marks_can_be_forgotten(operator: Operator, backend: RedisBackend) -> None:
    worker = join(backend)
    requests = [push("a", fingerprint=b"a" * 20), push("start", start_mark=b"m" * 20)]
    worker.commit(*requests)

    operator.forget_all()

    committed = worker.commit(*requests)
    assert (committed.duplicates, committed.repeated_starts) == ([], [])
    assert worker.commit(*requests).duplicates == [0]


# Workers


def test_the_leases_of_an_evicted_worker_go_to_others(operator: Operator, backend: RedisBackend) -> None:
    gone, other = join(backend, "gone"), join(backend, "other")
    other.commit(*(push(f"{number:03}") for number in range(450)))
    lease = gone.lease(420)[0]
    other.lease(30)

    assert operator.evict("gone", max_attempts=5) == 420

    assert operator.depth() == Depth(accepted=450, pending=420, leased=30, workers=1)
    assert len(other.lease(500)) == 420
    assert gone.renew(lease) == []
    assert gone.ask().leases == []


def test_an_evicted_worker_that_lives_stores_nothing_twice(
    operator: Operator, backend: RedisBackend, redis_server: RedisServer
) -> None:
    gone = join(backend, "gone")
    gone.commit(push("a", fingerprint=None), push("b", fingerprint=None))

    operator.evict("gone", max_attempts=5)
    gone.commit(push("c", fingerprint=None))

    assert operator.depth() == Depth(accepted=3, pending=3, workers=1)
    assert not any(b"evicted" in field for field in redis_server.client().hkeys(operator.keys.state))


def test_a_lease_taken_too_often_becomes_a_dead_letter(operator: Operator, backend: RedisBackend) -> None:
    worker = join(backend)
    worker.commit(push("a"))
    worker.lease()

    operator.evict("w1", max_attempts=1)

    (letter,) = dead(operator)
    assert (letter.reason, letter.lost_by) == ("lease", "w1")


# All of it


def test_nothing_is_reset_under_living_workers(operator: Operator, backend: RedisBackend) -> None:
    join(backend).commit(push("a"))

    with pytest.raises(NotPermitted, match=r"living workers \(w1\)"):
        operator.reset()

    assert operator.depth().pending == 1


def test_a_reset_frontier_is_as_new(operator: Operator, backend: RedisBackend, redis_server: RedisServer) -> None:
    worker = join(backend)
    dead_letter(worker, "a")
    worker.commit(push("b", fingerprint=b"b" * 20, start_mark=b"m" * 20))
    worker.leave()

    operator.reset()

    redis: Any = redis_server.client()
    assert redis.keys(operator.keys.pattern()) == [operator.keys.state.encode()]
    assert operator.depth() == Depth()
    joined = join(backend, "w2")
    committed = joined.commit(push("b", fingerprint=b"b" * 20, start_mark=b"m" * 20))
    assert (committed.duplicates, committed.repeated_starts) == ([], [])


def test_a_reset_takes_few_round_trips_and_reports_its_progress(
    operator: Operator, backend: RedisBackend, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = join(backend)
    worker.commit(*(push("a", slot=f"{number}.example") for number in range(700)))
    worker.leave()
    told, trips, ask = list[int](), list[object](), operator.link.ask

    def counting_ask(command: Any) -> Any:
        trips.append(command)
        return ask(command)

    monkeypatch.setattr(operator.link, "ask", counting_ask)
    keys = redis_server.client().keys(operator.keys.pattern())

    operator.reset(told.append)

    assert told[-1] >= len(keys) - 10
    assert told == sorted(told)
    # Two for what SCAN finds at a time, and a few for the scripts.
    assert len(trips) <= 2 * len(told) + 4


def test_a_worker_that_was_taken_for_lost_finds_its_crawl_over(operator: Operator, backend: RedisBackend) -> None:
    worker = join(backend)
    worker.commit(push("a"))
    operator.evict("w1", max_attempts=5)

    operator.reset()

    assert worker.ask(1).has_ended


# Over a slow link


@pytest.fixture
def trips(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the operator has asked a server far away, a round trip each, once the scripts are loaded."""
    found, ask = list[object](), operator.link.ask
    monkeypatch.setattr(Link, "round_trip_s", 1.0)
    operator.order()

    def counting_ask(command: Any) -> Any:
        found.append(command)
        return ask(command)

    monkeypatch.setattr(operator.link, "ask", counting_ask)
    return found


MANY = 1050
"""Items: of more than ten calls."""


def fill(worker: Worker) -> None:
    for first in range(0, MANY, 150):
        worker.commit(*(push(f"{n}", fingerprint=b"%020d" % n) for n in range(first, first + 150)))


def fail_all(worker: Worker, leases: Sequence[Lease]) -> None:
    for first in range(0, len(leases), 150):
        worker.commit(*map(fail, leases[first : first + 150]))


def bury_many(worker: Worker) -> None:
    fill(worker)
    fail_all(worker, worker.lease(MANY))


def test_many_requests_are_moved_and_removed_in_few_round_trips(
    operator: Operator, backend: RedisBackend, trips: list[object]
) -> None:
    fill(join(backend))
    found = pending(operator)
    trips.clear()

    assert operator.move((stored, stored.rank + 1, stored.payload) for stored in found) == MANY
    assert operator.remove(found) == MANY
    assert len(trips) == 4


def test_workers_have_a_near_server_between_calls(
    operator: Operator, backend: RedisBackend, trips: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Link, "round_trip_s", 0.01)
    join(backend)

    operator.push([push(f"{n}") for n in range(MANY)], PLAN)
    assert len(trips) == MANY / ITEMS_PER_CALL
    found = pending(operator)
    trips.clear()
    assert operator.move((stored, 1, stored.payload) for stored in found) == MANY
    assert len(trips) == MANY / ITEMS_PER_CALL


def test_many_fingerprints_are_forgotten_in_few_round_trips(
    operator: Operator, backend: RedisBackend, trips: list[object]
) -> None:
    fill(join(backend))

    assert operator.forget([b"%020d" % n for n in range(0, 2 * MANY, 2)]) == list(range(MANY // 2))
    # Two for how they are kept.
    assert len(trips) == 4


def test_many_dead_letters_are_replayed_and_purged_in_few_round_trips(
    operator: Operator, backend: RedisBackend, trips: list[object]
) -> None:
    bury_many(join(backend))
    letters = dead(operator)
    trips.clear()

    assert operator.replay([(stored, stored.payload, None) for stored in letters[:1010]], PLAN) == 1010
    assert operator.purge(letters) == MANY - 1010
    # One of them for the types of the keys.
    assert len(trips) == 6


def test_many_unreadable_seeds_are_put_back_in_few_round_trips(
    operator: Operator, backend: RedisBackend, redis_server: RedisServer, trips: list[object]
) -> None:
    bury_many(join(backend))
    key = operator.keys.of("some-seeds")
    letters = [(key, letter) for letter in dead(operator)]
    trips.clear()

    assert operator.give_back_seeds(letters) == MANY

    assert len(trips) == 4
    redis: Any = redis_server.client()
    assert redis.lrange(key, 0, -1) == [letter.payload for _, letter in reversed(letters)]
    assert dead(operator) == []
    redis.delete(key)


def test_seeds_that_cannot_be_put_back_stay_dead_letters(
    operator: Operator, backend: RedisBackend, redis_server: RedisServer
) -> None:
    dead_letter(join(backend), "a", "b", "c")
    keys = [operator.keys.of(noun) for noun in ("seeds", "no-seeds", "seeds")]
    redis: Any = redis_server.client()
    redis.set(keys[1], "something else")
    letters = dead(operator)

    with pytest.raises(FrontierRefused, match="another program has written"):
        operator.give_back_seeds(list(zip(keys, letters, strict=True)))

    assert redis.lrange(keys[0], 0, -1) == [letters[2].payload, letters[0].payload]
    assert dead(operator) == [letters[1]]
    redis.delete(*keys)


def test_many_leases_are_taken_from_a_worker_in_few_round_trips(
    operator: Operator, backend: RedisBackend, trips: list[object]
) -> None:
    worker = join(backend)
    fill(worker)
    worker.lease(MANY)
    list(operator.requests.leased())
    reading = len(trips)
    trips.clear()

    assert operator.evict("w1", max_attempts=9) == MANY
    assert len(trips) == reading + 3


def test_leases_and_dead_letters_are_read_in_a_round_trip_for_each_piece(
    operator: Operator, backend: RedisBackend, trips: list[object]
) -> None:
    worker = join(backend)
    fill(worker)
    leases = worker.lease(MANY)
    trips.clear()

    assert len(list(operator.requests.leased())) == MANY
    # And one more, as for those of the last piece there is none with the next.
    assert len(trips) <= -(-MANY // SCAN_COUNT) + 1

    fail_all(worker, leases)
    trips.clear()

    assert len({stored.lease_id for stored in operator.requests.dead()}) == MANY
    assert len(trips) == -(-MANY // SCAN_COUNT) + 1


def test_large_requests_are_moved_in_more_round_trips_as_the_server_has_to_hold_what_comes(
    operator: Operator, backend: RedisBackend, trips: list[object]
) -> None:
    worker = join(backend)
    worker.commit(*(push(f"{n}" * 6000) for n in range(100, 300)))
    found = pending(operator)
    trips.clear()

    assert operator.move((stored, stored.rank + 1, stored.payload) for stored in found) == 200
    assert len(trips) == 4


def test_requests_before_and_after_a_refused_call_are_moved(
    operator: Operator, backend: RedisBackend, redis_server: RedisServer, trips: list[object]
) -> None:
    worker = join(backend)
    worker.commit(*(push(f"{n}", slot=f"{n // 100}.example") for n in range(300)))
    redis: Any = redis_server.client()
    found = sorted(pending(operator), key=lambda stored: int(stored.payload))
    queue = operator.keys.queue(b"1.example")
    kept = redis.dump(queue)
    redis.set(queue, "something else")

    with pytest.raises(FrontierRefused, match="another program has written"):
        operator.move((stored, 7, stored.payload) for stored in found)

    redis.restore(queue, 0, kept, replace=True)
    assert [stored.rank for stored in sorted(pending(operator), key=lambda stored: int(stored.payload))] == [
        *[7] * 100,
        *[0] * 100,
        *[7] * 100,
    ]
    assert operator.move((stored, 7, stored.payload) for stored in found) == 300


# A server that refuses


@pytest.mark.parametrize("noun", ["queue:new.example", "stats", "turns", "ready", "hungry", "dead", "died", "leases"])
def test_a_push_that_is_refused_changes_nothing(
    operator: Operator, backend: RedisBackend, redis_server: RedisServer, noun: str
) -> None:
    worker = join(backend)
    dead_letter(worker, "a")
    worker.commit(push("b"), push("c"))
    worker.lease()
    redis: Any = redis_server.client()
    key = operator.keys.of(noun)
    kept = redis.dump(key)
    redis.set(key, "something else")

    def all_there_is() -> dict[bytes, bytes]:
        return {name: redis.dump(name) for name in redis.scan_iter(operator.keys.pattern(), count=1000)}

    before = all_there_is()
    with pytest.raises(FrontierRefused, match="another program has written"):
        operator.push([push("d", slot="new.example", fingerprint=b"d" * 20)], PLAN)
    assert all_there_is() == before

    redis.delete(key)
    if kept:
        redis.restore(key, 0, kept)
    assert operator.push([push("d", slot="new.example", fingerprint=b"d" * 20)], PLAN) == []
