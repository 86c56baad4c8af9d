"""The exchange loop in an outage: requests found meanwhile are started, and claimed when the server is back."""

from __future__ import annotations

from itertools import pairwise

import pytest

from scrapy_prioqueue.errors import FrontierUnavailable
from scrapy_prioqueue.frontier.base import Ack, Claim, Depth, Lease, Push
from scrapy_prioqueue.frontier.policy import Policy, SlotLimit
from scrapy_prioqueue.pump.outage import MOST_LOGGED, MOST_WARNINGS, Failures
from scrapy_prioqueue.pump.timing import SLOW_S, STALE_AFTER_S
from tests.unit.pumping import TTL_S, Bench, depth, in_loop_time, leased, stored
from tests.unit.virtual_time import in_virtual_time, pass_time, until

SLOT = "shop.example"


async def cut_off(bench: Bench, rank: int = -1) -> None:
    """Let the worker notice that it can't connect, with this request in its outbox."""
    await pass_time(STALE_AFTER_S / 4)
    bench.remote.is_unreachable = True
    bench.push("first", rank=rank)
    await failed(bench)


async def failed(bench: Bench, times: int = 1) -> None:
    await until(lambda: bench.delegate.stats.get("prioqueue/exchange/failed", 0) >= times, what=f"{times} failures")


def names(*leases: Lease) -> list[str]:
    return [lease.payload.decode() for lease in leases]


def claims(bench: Bench) -> list[Claim]:
    return [operation for operation in bench.operations if isinstance(operation, Claim)]


# Going on


@in_virtual_time
async def test_requests_found_in_an_outage_are_started_in_the_order_of_the_frontier() -> None:
    bench = await Bench().open()
    await cut_off(bench)
    wakes = bench.delegate.wakes

    bench.push("low", rank=2)
    bench.push("old", "new", rank=1)
    await failed(bench, 3)

    assert bench.delegate.wakes > wakes
    assert names(*(bench.take() for _ in range(4))) == ["first", "new", "old", "low"]
    assert bench.pump.take() is None
    assert len(bench.pump.held) == 4


@in_virtual_time
async def test_leased_and_found_requests_are_started_by_rank() -> None:
    bench = await Bench().open()
    bench.offer(2)
    bench.push("leased 1", rank=1)
    bench.push("leased 3", rank=3)
    await leased(bench, 2)
    bench.delegate.places = 0
    await cut_off(bench, rank=4)
    bench.push("found 2", rank=2)

    assert names(*(bench.take() for _ in range(4))) == ["leased 1", "found 2", "leased 3", "first"]


@in_virtual_time
async def test_short_outage_is_waited_out_with_what_is_leased() -> None:
    bench = await Bench(outage_grace_s=10).open()
    bench.offer(2)
    bench.push("leased", rank=9)
    await leased(bench)
    bench.delegate.places = 0
    await cut_off(bench, rank=20)
    assert names(bench.take()) == ["leased"]
    await pass_time(9)
    assert bench.pump.take() is None
    wakes = bench.delegate.wakes
    await pass_time(2)

    assert bench.delegate.wakes > wakes
    assert names(bench.take()) == ["first"]


@in_virtual_time
async def test_of_a_slot_with_limits_each_worker_starts_its_share() -> None:
    policy = Policy({SLOT: SlotLimit(1.0)})
    first = await Bench(policy=policy).open()
    second = await Bench(store=first.inner.store, worker="w2", policy=policy).open()
    for bench in (first, second):
        bench.remote.must_ask = True
        bench.offer(20)
        let_risk(bench)
        bench.push("before", slot="other.example")
    for verb in ("limits_in_force", "workers"):
        await until(lambda verb=verb: first.remote.sent(verb) and second.remote.sent(verb), what=verb)  # type: ignore[misc]
    starts: list[float] = []
    for bench in (first, second):
        bench.remote.is_unreachable = True
        bench.push(*(f"{number}" for number in range(30)), slot=SLOT)
        await failed(bench)

    for _ in range(100):
        await pass_time(0.1)
        for bench in (first, second):
            starts += [in_loop_time() for lease in take_all(bench) if lease.slot == SLOT]

    assert len(starts) in (9, 10)
    assert min(later - earlier for earlier, later in pairwise(starts)) >= 0.8


@in_virtual_time
async def test_with_another_policy_or_budgets_only_leased_requests_are_started() -> None:
    for policy, other in ((Policy({SLOT: SlotLimit(1.0)}), Policy({SLOT: SlotLimit(2.0)})), (Policy(budgets={}), None)):
        bench = await Bench(policy=policy).open()
        bench.remote.must_ask = True
        if other is not None:
            bench.inner.store.policy = other
        await pass_time(4)
        await cut_off(bench)

        await pass_time(4)

        assert bench.pump.take() is None


@in_virtual_time
async def test_workers_start_each_request_that_both_find_once_and_none_before_the_server_knows_what_all_did() -> None:
    first = await Bench().open()
    second = await Bench(store=first.inner.store, worker="w2").open()
    benches = [first, second]
    for bench in benches:
        bench.delegate.fingerprints = {b"%d" % number: b"fingerprint %d" % number for number in range(20)}
        bench.offer(1)
        let_risk(bench)
    await until(lambda: all(bench.remote.sent("workers") for bench in benches), what="the living are listed")
    for bench in benches:
        bench.remote.is_unreachable = True
        find_all(bench)
        await failed(bench)
    started = [take_all(bench) for bench in benches]
    assert sorted(names(*started[0], *started[1])) == sorted(str(number) for number in range(20))
    assert started[0] and started[1]

    # Whoever comes back first gets nothing until the other has told what it did.
    first.remote.is_unreachable = False
    first.offer(20)
    await pass_time(3)
    assert not first.pump.inbox
    for bench, leases in zip(benches, started, strict=True):
        for lease in leases:
            bench.ack(lease)
    second.remote.is_unreachable = False
    await until(lambda: depth(first).done == 20, what="all are done")

    assert depth(first) == Depth(accepted=20, done=20, workers=2)
    assert not any(lease.lease_id > 0 for bench in benches for lease in take_all(bench))


def let_risk(bench: Bench) -> None:
    """Let a worker have fetched so many pages that some may be fetched twice."""
    for _ in range(1000):
        bench.pump._outage.repeats.note_page()  # noqa: SLF001


def find_all(bench: Bench) -> None:
    for payload, fingerprint in bench.delegate.fingerprints.items():
        bench.push(payload.decode(), fingerprint=fingerprint)


def take_all(bench: Bench) -> list[Lease]:
    return list(iter(bench.pump.take, None))


@in_virtual_time
async def test_request_that_was_pending_and_is_fetched_meanwhile_is_not_fetched_again() -> None:
    bench = await Bench().open()
    other = await Bench(store=bench.inner.store, worker="w2").open()
    bench.delegate.fingerprints = other.delegate.fingerprints = {
        name: name.ljust(10, b".") for name in (b"done", b"waits", b"other")
    }
    other.push("done", rank=-1, fingerprint=b"done......")
    other.offer(1)
    await leased(other)
    other.delegate.places = 0
    other.ack(other.take())
    other.push("other", fingerprint=b"other.....")
    other.push("waits", fingerprint=b"waits.....")
    await until(lambda: depth(bench).pending == 2 and depth(bench).done == 1, what="two wait")
    let_risk(bench)
    await cut_off(bench, rank=9)
    bench.push("waits", fingerprint=b"waits.....")
    bench.push("done", fingerprint=b"done......")
    for page in take_all(bench):
        bench.ack(page)

    bench.remote.is_unreachable = False
    await until(lambda: depth(bench).done == 3, what="both are done")

    assert depth(bench).accepted == 4
    other.offer(5)
    await leased(other)
    assert names(*take_all(other)) == ["other"]
    assert sum(outcome.is_void for outcome in bench.delegate.outcomes) == 2  # claim and ack of what was done before


@in_virtual_time
async def test_slot_that_is_full_keeps_what_was_found_for_it_waiting() -> None:
    bench = await Bench().open()
    bench.delegate.full_slots = {"full.example"}
    await cut_off(bench)
    bench.push("a", rank=-9, slot="full.example")

    assert names(bench.take()) == ["first"]
    assert bench.pump.take() is None
    bench.delegate.full_slots = set()
    assert names(bench.take()) == ["a"]


@in_virtual_time
async def test_worker_that_pauses_starts_neither_what_was_leased_nor_what_is_found() -> None:
    bench = await Bench(goes_on=False).open()
    bench.offer(1)
    bench.push("leased")
    await leased(bench)
    bench.delegate.places = 0
    await cut_off(bench)
    assert bench.pump.take() is None
    await pass_time(30)
    assert bench.pump.take() is None

    bench.remote.is_unreachable = False
    bench.offer(2)
    await stored(bench, 2)
    await leased(bench, 2)

    assert names(bench.take(), bench.take()) == ["first", "leased"]
    assert claims(bench) == []


@in_virtual_time
async def test_nothing_is_taken_for_found_while_the_server_answers() -> None:
    bench = await Bench().open()
    bench.push("a")

    assert bench.pump.take() is None
    await stored(bench, 1)
    assert bench.pump.take() is None


# What may be known to the server


@in_virtual_time
async def test_requests_that_may_have_been_sent_are_not_started_and_later_ones_are() -> None:
    bench = await Bench().open()
    await pass_time(1)
    bench.remote.is_away = True
    bench.push("may have been sent")
    await failed(bench)

    bench.push("found later")
    assert names(bench.take()) == ["found later"]
    await failed(bench, 4)
    assert bench.pump.take() is None

    bench.remote.is_away = False
    bench.offer(1)
    await leased(bench)
    assert names(bench.take()) == ["may have been sent"]
    await stored(bench, 2)
    assert depth(bench) == Depth(accepted=2, leased=2, workers=1)


@in_virtual_time
async def test_answer_that_takes_long_lets_the_crawl_continue_with_what_is_in_no_batch() -> None:
    bench = await Bench().open()
    await pass_time(1)
    bench.remote.is_answering.clear()
    bench.push("under way")
    await until(lambda: bench.remote.running, what="an exchange is under way")
    bench.push("behind it")
    await pass_time(SLOW_S / 2)
    assert bench.pump.take() is None
    wakes = bench.delegate.wakes

    await pass_time(SLOW_S)
    assert bench.delegate.wakes == wakes + 1
    assert names(bench.take()) == ["behind it"]
    assert bench.pump.take() is None

    bench.remote.is_answering.set()
    await until(lambda: depth(bench).accepted == 2, what="both are stored")
    assert depth(bench) == Depth(accepted=2, pending=1, leased=1, workers=1)
    assert "prioqueue/exchange/failed" not in bench.delegate.stats
    begun, ended = bench.delegate.troubles
    assert begun == ("outage", f"no answer from the frontier at {bench.remote.address} for 3 s")
    assert ended[0] == "outage"


@in_virtual_time
async def test_answer_that_takes_long_keeps_a_worker_that_pauses_waiting() -> None:
    bench = await Bench(goes_on=False).open()
    await pass_time(1)
    bench.remote.is_answering.clear()
    bench.push("under way")
    await until(lambda: bench.remote.running, what="an exchange is under way")
    bench.push("behind it")
    await pass_time(2 * SLOW_S)

    assert bench.pump.take() is None
    bench.remote.is_answering.set()
    await stored(bench, 2)
    assert claims(bench) == []


@in_virtual_time
async def test_when_the_server_answers_again_what_was_not_started_is_pushed_and_left_to_it() -> None:
    bench = await Bench().open()
    await cut_off(bench)
    bench.push("second", rank=5)
    bench.take()

    bench.remote.is_unreachable = False
    await stored(bench, 2)

    assert bench.pump.take() is None
    assert [type(operation) for operation in bench.operations] == [Claim, Push]
    assert depth(bench) == Depth(accepted=2, pending=1, leased=1, workers=1)


# Claims


@in_virtual_time
async def test_pages_that_were_begun_and_finished_without_the_server_are_claimed_and_acked() -> None:
    bench = await Bench().open()
    await cut_off(bench)
    bench.push("second")
    finished_page, running_page = bench.take(), bench.take()
    bench.push("child", rank=9, found_on=finished_page)
    bench.ack(finished_page)
    await pass_time(2 * TTL_S)
    assert finished_page.lease_id < 0

    bench.remote.is_unreachable = False
    await stored(bench, 4)
    assert depth(bench) == Depth(accepted=3, pending=1, leased=1, done=1, workers=1)
    bench.ack(running_page)
    await stored(bench, 5)

    assert depth(bench) == Depth(accepted=3, pending=1, done=2, workers=1)
    assert not any(outcome.is_void for outcome in bench.delegate.outcomes)
    assert bench.pump.held == {}


@in_virtual_time
async def test_no_other_call_speaks_of_leases_that_the_server_has_not_granted() -> None:
    bench = await Bench().open()
    await cut_off(bench)
    page = bench.take()
    await pass_time(TTL_S)
    bench.remote.is_unreachable = False
    await stored(bench, 1)
    await pass_time(TTL_S)
    bench.ack(page)
    await stored(bench, 2)

    calls = [*bench.remote.sent("renew"), *bench.remote.sent("reconcile")]
    assert any(call.held for call in calls)
    assert all(lease_id > 0 for call in calls for lease_id, _ in call.held)
    assert [operation.lease_id > 0 for operation in bench.operations if isinstance(operation, Ack)] == [True]


@in_virtual_time
async def test_page_that_another_worker_has_found_meanwhile_is_left_to_it() -> None:
    bench = await Bench().open()
    other = await Bench(store=bench.inner.store, worker="w2").open()
    await pass_time(1)
    bench.remote.is_unreachable = True
    bench.push("both", fingerprint=b"0123456789")
    await failed(bench)
    page = bench.take()
    other.offer(1)
    other.push("both", fingerprint=b"0123456789")
    await leased(other)

    bench.remote.is_unreachable = False
    await stored(bench, 1)
    bench.ack(page)
    await stored(bench, 2)

    assert [outcome.is_void for outcome in bench.delegate.outcomes] == [True, True]
    assert not any(isinstance(operation, Ack) for operation in bench.operations)
    assert depth(bench) == Depth(accepted=1, leased=1, workers=2)
    assert len(bench.pump.outbox) == 0


@in_virtual_time
async def test_lost_answer_to_claims_is_asked_for_again_and_brings_the_same_leases() -> None:
    bench = await Bench().open()
    await cut_off(bench)
    page = bench.take()
    bench.ack(page)

    # The first call ends the outage, the second one carries the claim.
    bench.remote.is_unreachable = False
    await until(lambda: claims(bench), what="the claim is sent")
    bench.remote.lost_answers = 1
    await stored(bench, 2)

    carrying = [call.batches for call in bench.remote.sent("exchange") if call.batches]
    assert carrying[-3:-1] == [carrying[-2]] * 2
    assert bench.delegate.stats["prioqueue/exchange/failed"] >= 2
    assert not any(outcome.is_void for outcome in bench.delegate.outcomes)
    assert depth(bench) == Depth(accepted=1, done=1, workers=1)


# Limits


@in_virtual_time
async def test_worker_above_its_outbox_limit_starts_nothing_until_it_has_sent() -> None:
    bench = await Bench(outbox_limit=3).open()
    bench.offer(1)
    bench.push("leased", rank=9)
    await leased(bench)
    bench.delegate.places = 0
    await cut_off(bench, rank=10)
    bench.push("second")
    assert names(bench.take()) == ["second"]

    bench.push("third", rank=10)
    assert bench.pump.outbox.pushes == 3
    assert bench.pump.take() is None
    waiting = bench.pump.gate.wait()
    assert waiting is not None
    await pass_time(60)
    assert bench.pump.take() is None

    bench.remote.is_unreachable = False
    await stored(bench, 4)
    assert waiting.called
    bench.offer(1)
    await leased(bench)
    assert names(bench.take()) == ["leased"]


@in_virtual_time
async def test_requests_done_in_an_outage_are_reported_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    bench = await Bench().open()
    await cut_off(bench)
    bench.push("second", "third")
    bench.take()
    await pass_time(60)
    bench.remote.is_unreachable = False
    await stored(bench, 3)

    warning, info = [record for record in caplog.records if "pump" in record.name]
    assert (warning.levelname, info.levelname) == ("WARNING", "INFO")
    assert "continues with leased requests" in warning.getMessage()
    assert "this worker started 1 request and found 2 requests" in info.getMessage()
    begun, ended = bench.delegate.troubles
    assert begun[0] == ended[0] == "outage"
    assert begun[1] in warning.getMessage()
    assert (vars(warning)["prioqueue_event"], vars(info)["prioqueue_event"]) == (
        *("frontier_degraded", "frontier_recovered"),
    )
    assert ended[1].removeprefix("over ") in info.getMessage()


def test_errors_of_another_kind_than_the_first_are_reported_once_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    outage = Failures(lambda: 0.0, goes_on=True)
    for text in ("refused", "refused", "no such command", "refused", "no such command", *map(str, range(200))):
        outage.begin(FrontierUnavailable("redis://here", text))

    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "keeps trying to reconnect" in told[0]
    assert told[1] == "The frontier is still unavailable: the frontier at redis://here can't be used: no such command"
    assert len(told) == MOST_WARNINGS
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == len(set(texts)) == MOST_LOGGED
