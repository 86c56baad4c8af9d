"""An exported and imported frontier is complete and continues in the same order."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from scrapy_prioqueue.errors import FrontierFull, FrontierUnavailable, NotPermitted, PrioQueueError
from scrapy_prioqueue.frontier.base import Ack, Demand, Depth, Operation, Push, Spent
from scrapy_prioqueue.frontier.labels import Label, labelled
from scrapy_prioqueue.frontier.policy import Budget, Closing, CrawlDelay, Policy, SlotLimit
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.audit import Audit
from scrapy_prioqueue.frontier.redis.operators.exporter import Exporter
from scrapy_prioqueue.frontier.redis.operators.importer import Importer
from scrapy_prioqueue.frontier.redis.operators.inspector import Inspector
from scrapy_prioqueue.frontier.redis.operators.operator import CrawlPlan, Operator
from scrapy_prioqueue.frontier.redis.operators.records import Record
from scrapy_prioqueue.frontier.redis.scripts import Argument
from scrapy_prioqueue.frontier.seen import SeenPolicy
from tests.contract.backends import RedisBackend, Worker, ack, fail, push, release
from tests.operator.conftest import assert_in_order, assert_is_bloom
from tests.support.servers import RedisServer, StartServer

MANY = 20_000


class Target:
    """Where a frontier is imported to."""

    def __init__(self, server: RedisServer, name: str) -> None:
        self.link = Link(server.url)
        self.name = name
        self.operator = Operator(self.link, name, lease_ttl_s=10)
        self.backend = RedisBackend(name, server.url)

    def take(self, records: Sequence[Record]) -> None:
        """Import what was exported."""
        Importer(self.link, self.name).run(records)
        assert_in_order(self.operator)

    def close(self) -> None:
        """Close the connections."""
        self.backend.close()
        self.link.close()


@pytest.fixture
def target(redis_server_factory: StartServer, frontier_name: str, request: pytest.FixtureRequest) -> Target:
    """Another server."""
    target = Target(redis_server_factory(), f"{frontier_name}-moved")
    request.addfinalizer(target.close)
    return target


def join(backend: RedisBackend, name: str = "w1", **config: Any) -> Worker:
    return backend.join(name, clock=None, max_attempts=9, **config)


def exported(operator: Operator) -> list[Record]:
    """Export, through text as the command does."""
    return [json.loads(json.dumps(record)) for record in Exporter(operator.link, operator.name).records()]


def served(worker: Worker) -> list[tuple[bytes, int, int, str]]:
    """Lease all there is, in pieces, and ack it; return it in the order in which it came."""
    found: list[tuple[bytes, int, int, str]] = []
    while leases := worker.lease(500):
        found += [(lease.payload, lease.attempt, lease.rank, lease.slot) for lease in leases]
        worker.send(*(ack(lease) for lease in leases), demand=None)
    return found


def fill(worker: Worker, count: int, seed: int) -> None:
    """Push requests of random rank and slot, some with fingerprints, start marks or delays."""
    chance = random.Random(seed)
    for first in range(0, count, 500):
        worker.commit(
            *(
                push(
                    f"{number}",
                    chance.randrange(3),
                    f"{chance.randrange(20)}.example",
                    fingerprint=number.to_bytes(20, "big"),
                    is_start=chance.random() < 0.1,
                )
                for number in range(first, min(first + 500, count))
            )
        )


def test_twenty_thousand_requests_continue_in_the_same_order(
    operator: Operator, backend: RedisBackend, target: Target
) -> None:
    worker = join(backend)
    fill(worker, MANY, seed=1)
    worker.send(*(ack(lease) for lease in worker.lease(700)), demand=None)
    held = worker.lease(30)

    target.take(exported(operator))
    worker.commit(*(release(lease) for lease in held))
    there = join(target.backend)

    assert there.depth() == Depth(accepted=MANY, pending=MANY - 700, done=700, workers=1)
    found = served(there)
    assert len(found) == MANY - 700
    assert found == served(worker)
    again = [push("again", fingerprint=number.to_bytes(20, "big")) for number in range(0, MANY, 100)]
    assert there.commit(*again).duplicates == list(range(len(again)))


@pytest.mark.parametrize("order", ["lifo", "fifo"])
def test_everything_is_there(operator: Operator, backend: RedisBackend, target: Target, order: str) -> None:
    worker = join(backend, order=order, crawl_id="monday")
    worker.commit(push("suspect"), push("start", start_mark=b"m" * 20))
    for _ in range(2):
        worker.lease(9)
        operator.evict("w1", max_attempts=9)
        worker.join()
    worker.commit(push("later", 3, delay_ms=600_000), push("done", -9, fingerprint=b"d" * 20), push("bad", -8))
    done, bad = worker.lease(2, may_take_suspect=False)
    worker.commit(ack(done), fail(bad))
    operator.order(drained=True)

    target.take(exported(operator))

    there = join(target.backend, order=order, crawl_id="monday")
    assert there.depth() == Depth(accepted=5, pending=2, delayed=1, dead=1, done=1, workers=1)
    assert there.ask().orders.is_drained
    (here, there_) = ([*each.requests.each()] for each in (operator, target.operator))
    assert {stored.lease_id: stored.payload for stored in here} == {s.lease_id: s.payload for s in there_}
    assert [
        (s.at_ms, s.is_suspect, s.attempts, s.lost_by, s.reason) for s in sorted(here, key=lambda s: s.lease_id)
    ] == [(s.at_ms, s.is_suspect, s.attempts, s.lost_by, s.reason) for s in sorted(there_, key=lambda s: s.lease_id)]
    again = there.commit(push("done", fingerprint=b"d" * 20), push("start", start_mark=b"m" * 20), push("new"))
    assert (again.duplicates, again.repeated_starts) == ([0], [1])
    ids = {stored.lease_id for stored in target.operator.requests.each()}
    assert len(ids) == 5


def test_dead_letters_of_this_crawl_and_of_earlier_ones_are_distinguished(
    operator: Operator, backend: RedisBackend, target: Target
) -> None:
    first = join(backend)
    first.commit(push("old"))
    first.commit(fail(first.lease()[0]))
    assert first.ask(is_idle=True).has_ended
    first.leave()
    second = join(backend)
    second.commit(push("new"))
    second.commit(fail(second.lease()[0]))

    target.take(exported(operator))

    assert target.operator.depth() == Depth(accepted=1, dead=1)
    assert target.operator.purge(list(target.operator.requests.dead())) == 2
    redis: Any = target.link.client
    assert redis.hget(target.operator.keys.of("stats"), "dead_dropped") == b"1"


def test_there_must_be_no_such_frontier_or_it_must_have_been_reset(
    operator: Operator, backend: RedisBackend, target: Target
) -> None:
    worker = join(backend)
    worker.commit(push("a"))
    records = exported(operator)
    target.take(records)

    with pytest.raises(NotPermitted, match="exists already"):
        target.take(records)
    target.operator.reset()
    target.take(records)

    assert target.operator.depth() == Depth(accepted=1, pending=1)


@pytest.mark.parametrize("broken", ["no end", "a record is missing", "unknown kind", "other version", "empty"])
def test_an_incomplete_import_leaves_nothing(
    operator: Operator, backend: RedisBackend, target: Target, broken: str
) -> None:
    worker = join(backend)
    worker.commit(*(push(f"{number}", fingerprint=bytes([number]) * 20) for number in range(9)))
    records = exported(operator)
    if broken == "no end":
        del records[-1]
    elif broken == "a record is missing":
        del records[4]
    elif broken == "unknown kind":
        records[4]["kind"] = "new"
    elif broken == "other version":
        records[0]["version"] = 99
    else:
        records = []

    with pytest.raises(PrioQueueError, match="missing|truncated|unknown kind|not an export|were read"):
        target.take(records)

    there = join(target.backend)
    assert there.depth() == Depth(workers=1)
    assert there.commit(push("0", fingerprint=bytes(20))).duplicates == []


def items_of(importer: Importer, records: Sequence[Record]) -> list[Sequence[Argument]]:
    return [item for record in records for item in importer._items(record)]  # noqa: SLF001


@pytest.fixture
def cut_short(operator: Operator, backend: RedisBackend, target: Target) -> list[Record]:
    """What was exported, of which an import has brought a part before its program was killed."""
    worker = join(backend, policy=Policy(weights=(4, 2, 1)))
    worker.commit(*(push(f"{number}", fingerprint=bytes([number]) * 20) for number in range(9)))
    records = exported(operator)
    importer = Importer(target.link, target.name)
    importer._begin(records[0])  # noqa: SLF001
    importer._restore(items_of(importer, records[1:-3]))  # noqa: SLF001
    return records


def let_time_pass(target: Target) -> None:
    redis: Any = target.link.client
    redis.hset(target.operator.keys.state, "cleaning_ms", 1)


def test_no_worker_may_join_the_rest_of_a_killed_import(cut_short: list[Record], target: Target) -> None:
    let_time_pass(target)

    with pytest.raises(NotPermitted, match="interrupted"):
        join(target.backend)
    with pytest.raises(NotPermitted, match="interrupted"):
        target.operator.push([push("new")], CrawlPlan(("urgent", "normal")))

    there = join(target.backend, flush=True)
    assert there.depth() == Depth(workers=1)


def test_an_import_that_was_killed_can_be_repeated_after_a_while(cut_short: list[Record], target: Target) -> None:
    with pytest.raises(NotPermitted, match="another import"):
        target.take(cut_short)
    let_time_pass(target)
    # Another one, without policies and with other requests: nothing of the first may be left.
    without = [record for record in cut_short[1:-1] if record["kind"] == "pending"][5:]
    state = {field: value for field, value in cut_short[0]["state"].items() if field != "lanes"}
    target.take([{**cut_short[0], "state": state}, *without, {"kind": "end", "records": len(without)}])

    assert target.operator.depth() == Depth(accepted=4, pending=4)
    assert len(served(join(target.backend))) == 4


def test_an_import_that_was_killed_can_be_dropped_at_once(cut_short: list[Record], target: Target) -> None:
    target.operator.reset()
    target.take(cut_short)

    assert target.operator.depth() == Depth(accepted=9, pending=9)


def test_an_unfinished_import_over_an_ended_frontier_is_not_a_frontier(cut_short: list[Record], target: Target) -> None:
    target.operator.reset()
    target.take(cut_short)
    target.operator.reset()
    Importer(target.link, target.name)._begin(cut_short[0])  # noqa: SLF001

    inspector = Inspector(target.link, target.name)
    assert inspector.state() is None
    assert inspector.import_age_s() is not None


def test_an_import_that_another_one_has_replaced_changes_nothing(cut_short: list[Record], target: Target) -> None:
    late = Importer(target.link, target.name)
    let_time_pass(target)
    late._begin(cut_short[0])  # noqa: SLF001
    let_time_pass(target)
    target.take(cut_short)

    with pytest.raises(FrontierUnavailable, match="run it again"):
        late._restore(items_of(late, cut_short[1:-1]))  # noqa: SLF001
    late._drop()  # noqa: SLF001

    assert target.operator.depth() == Depth(accepted=9, pending=9)


def test_a_full_server_takes_nothing_in(operator: Operator, backend: RedisBackend, target: Target) -> None:
    join(backend).commit(push("a"))
    redis: Any = target.link.client
    redis.config_set("maxmemory", 1)

    with pytest.raises(FrontierFull):
        target.take(exported(operator))


def test_a_frontier_is_exported_while_workers_are_at_work(
    operator: Operator, backend: RedisBackend, target: Target
) -> None:
    worker = join(backend)
    fill(worker, 3000, seed=2)
    records: list[Record] = []
    for number, record in enumerate(Exporter(operator.link, operator.name).records()):
        records.append(json.loads(json.dumps(record)))
        if number % 50 == 0:
            leases = worker.lease(3)
            ends: list[Operation] = [*(ack(lease) for lease in leases[:1]), *(release(lease) for lease in leases[1:])]
            worker.send(*ends, demand=None)
    assert worker.depth().done > 20

    target.take(records)

    left = {stored.payload for stored in operator.requests.each()}
    assert left <= {stored.payload for stored in target.operator.requests.each()}


def test_nothing_is_exported_of_nothing(operator: Operator) -> None:
    with pytest.raises(PrioQueueError, match="isn't there"):
        exported(operator)


POLICY = Policy(
    slots={"0.example": SlotLimit(delay=100), "*": SlotLimit(concurrency=50)},
    weights=[3, 1],
    budgets={"*": Budget(pages=500, renders=100)},
    high_water=5000,
    low_water=2000,
    pending_limit=50_000,
    discovery=[1],
)


def test_state_of_limits_and_budgets_is_imported(operator: Operator, backend: RedisBackend, target: Target) -> None:
    worker = join(backend, policy=POLICY)
    for number in range(0, 2000, 500):
        worker.commit(*(kept(each) for each in range(number, number + 500)))
    worker.send(*(Ack(lease.lease_id, 1, Spent(7, 9)) for lease in worker.lease(300)), demand=None)
    held = worker.lease(30)
    operator.limit("1.example", SlotLimit(delay=50, burst=3))
    operator.budget("wide", Budget(bytes=10**12, seconds=100.5))
    worker.exchange(demand=Demand(0, notes=[CrawlDelay("2.example", 200_000), Closing("3.example", 500_000)]))
    assert len(worker.lease(5)) == 5

    target.take(exported(operator))
    worker.commit(*(release(lease) for lease in held))

    (here, there) = (Inspector(each.link, each.name) for each in (operator, target.operator))
    assert list(here.limits.entries()) == list(there.limits.entries())
    assert list(here.limits.learnt()) == list(there.limits.learnt())
    names = [f"{number}.example" for number in range(20)]
    assert [c.opens_ms for c in here.limits.of(names)] == [c.opens_ms for c in there.limits.of(names)]
    assert {clock.running for clock in there.limits.of(names)} == {0}
    closed = [clock.closed_until_ms for clock in there.limits.of(names)]
    assert [number for number, until_ms in enumerate(closed) if until_ms] == [3]
    assert closed == [clock.closed_until_ms for clock in here.limits.of(names)]
    (budget,) = there.budgets.of(["wide"])
    assert (budget.used["pages"], budget.used["bytes"], budget.used["seconds"]) == (300, 2100, 2.7)
    assert budget.caps["seconds"].source == "operator"
    policies = [state.policy for each in (here, there) if (state := each.state())]
    # Workers bring their policy with them, as to any frontier.
    assert replace(policies[0], owners={}) == policies[1]
    assert [stored.lease_id for stored in there.peek(1000)][:200]
    moved = join(target.backend, policy=POLICY)
    assert moved.lease(300)
    audit = Audit(target.link, target.operator.keys)
    assert not audit.books().differences()
    assert not audit.misplaced([])
    assert not audit.miscounted_slots()
    assert not audit.miscounted_budgets()


def kept(number: int) -> Push:
    """Return a push with budget keys."""
    made = push(f"{number}", number % 2 * 2**45, f"{number % 20}.example")
    return replace(made, payload=labelled(made.payload, Label(number % 10 == 0, (f"key {number % 7}", "wide"))))


def test_a_frontier_with_lines_continues_in_the_same_order(
    operator: Operator, backend: RedisBackend, target: Target
) -> None:
    worker = join(backend, policy=Policy(weights=[3, 1]))
    for number in range(0, 2000, 500):
        worker.commit(*(kept(each) for each in range(number, number + 500)))
    worker.send(*(ack(lease) for lease in worker.lease(700)), demand=None)

    target.take(exported(operator))

    there = join(target.backend, policy=Policy(weights=[3, 1]))
    found = served(there)
    assert len(found) == 1300
    assert found == served(worker)


def test_an_export_of_a_frontier_with_lines_is_taken_by_one_without(
    operator: Operator, backend: RedisBackend, target: Target
) -> None:
    worker = join(backend, policy=Policy(weights=[3, 1]))
    worker.commit(*(kept(number) for number in range(200)))

    target.take(exported(operator))

    there = join(target.backend)
    assert len(served(there)) == 200


def test_a_bloom_filter_is_taken_along_bit_by_bit(operator: Operator, backend: RedisBackend, target: Target) -> None:
    seen = SeenPolicy("bloom", 500, 0.01)
    first = join(backend, seen=seen)
    urls = [b"%020d" % number for number in range(1_000)]
    stored = first.commit(*(Push(0, "shop.example", b"page", fingerprint=url) for url in urls))
    lost = len(stored.duplicates)

    records = exported(operator)
    target.take(records)

    (end,) = [record for record in records if record["kind"] == "end"]
    assert end["records"] == len(records) - 2
    second = join(target.backend, seen=seen)
    again = second.commit(*(Push(0, "shop.example", b"page", fingerprint=url) for url in urls))
    assert len(again.duplicates) == len(urls)
    inspector = Inspector(target.link, target.name)
    assert_is_bloom(inspector, urls, lost)
    with pytest.raises(NotPermitted, match="Bloom filter"):
        target.operator.forget(urls[:1])
    target.operator.forget_all()
    assert inspector.seen_until(urls[0]) is None


@pytest.mark.parametrize("count", [40, 55, 70])
def test_fingerprints_that_are_moving_into_sets_are_taken_along(
    operator: Operator, backend: RedisBackend, target: Target, count: int
) -> None:
    worker = join(backend)
    operator.link.pipe(("HSET", operator.keys.state, "seen_shape", "exact 0 2 64 p3:8 s1:40 s2:40"))
    urls = [b"%020d" % number for number in range(count)]
    for url in urls:
        worker.commit(push("page", fingerprint=url))
    moved = operator.link.pipe(("HGET", operator.keys.state, "seen_moved"))

    target.take(exported(operator))

    assert target.link.pipe(("HGET", target.operator.keys.state, "seen_moved")) == moved
    inspector = Inspector(target.link, target.name)
    assert all(inspector.seen_until(url) == inf for url in urls)
    there = join(target.backend)
    assert len(there.commit(*(push("page", fingerprint=url) for url in urls)).duplicates) == count
    state = inspector.state()
    assert state is not None
    assert state.seen == count
    assert target.operator.forget(urls) == list(range(count))
    for url in urls:
        assert there.commit(push("page", fingerprint=url)).duplicates == []
    target.operator.forget_all()
    assert target.link.pipe(("HGET", target.operator.keys.state, "seen_moved")) == [None]
    assert there.commit(*(push("page", fingerprint=url) for url in urls)).duplicates == []


@pytest.mark.parametrize("policy", [Policy(), Policy(weights=[1, 1]), Policy(slots={"*": SlotLimit(concurrency=9)})])
def test_a_slot_whose_name_is_empty_is_like_any_other(
    operator: Operator, backend: RedisBackend, target: Target, policy: Policy
) -> None:
    worker = join(backend, policy=policy)
    # One after the other: each call tries what it will write.
    for number, slot in enumerate(("", "other", "third")):
        worker.commit(Push(0, slot, slot.encode(), fingerprint=b"%020d" % number))

    assert sorted(stored.slot for stored in operator.requests.each()) == ["", "other", "third"]
    target.take(exported(operator))
    there = join(target.backend, policy=policy)
    assert sorted(payload for payload, *_ in served(there)) == [b"", b"other", b"third"]


def test_fingerprints_are_exported_in_few_round_trips(
    operator: Operator, backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = join(backend)
    for first in range(0, 3_000, 300):
        worker.commit(*(Push(0, "s", b"", fingerprint=b"%020d" % number) for number in range(first, first + 300)))
    keys = len(list(operator.link.client.scan_iter(operator.keys.of("seen:*"))))
    trips, pipe = 0, Link.pipe

    def counted(link: Link, *commands: Any, **options: Any) -> list[Any]:
        nonlocal trips
        # How often the server is scanned depends on what other tests have left there.
        trips += commands[0][0] in ("TYPE", "HGETALL")
        return pipe(link, *commands, **options)

    monkeypatch.setattr(Link, "pipe", counted)
    records = [record for record in exported(operator) if record["kind"] == "packed"]

    assert len(records) == keys > 1_000
    # Two for each hundred keys, and one for the state.
    assert trips <= 2 * (keys // 100 + 1) + 1
