"""The exchange loop with lingering pages, whose acks wait for requests that stay in the worker."""

from __future__ import annotations

from scrapy_prioqueue.frontier.base import ALWAYS_TAKEN, Depth, Lease, Push, Recall
from scrapy_prioqueue.frontier.kept import Kept
from scrapy_prioqueue.pump.timing import FULL_RETRY_S
from tests.unit.pumping import TTL_S, Bench, depth, leased, stored
from tests.unit.virtual_time import in_virtual_time, pass_time, until


async def leased_page(bench: Bench) -> Lease:
    """Let a worker have a page."""
    await bench.open()
    bench.offer(1)
    bench.push("page")
    await leased(bench, 1)
    return bench.take()


async def lingering(bench: Bench) -> Lease:
    """Let a worker have a page that is done, and one request found on it that is not."""
    page = await leased_page(bench)
    bench.delegate.places = 0
    bench.pump.keep(page.lease_id)
    bench.ack(page)
    assert list(bench.pump.outbox.lingering)
    return page


def let_go(bench: Bench) -> None:
    bench.pump.let_go(list(bench.pump.outbox.lingering))


@in_virtual_time
async def test_a_page_that_lingers_is_renewed_and_acked_in_the_end() -> None:
    bench = Bench()
    await lingering(bench)
    before = len(bench.remote.calls)

    await pass_time(5 * TTL_S)

    assert depth(bench) == Depth(accepted=1, leased=1, workers=1)
    # As many as without it: three renewals for each time to live, and a question every three seconds.
    assert len(bench.remote.calls) - before < 5 * (TTL_S / 3 + 4)
    let_go(bench)
    await until(lambda: depth(bench).done == 1, what="the page is acked")
    assert not bench.delegate.outcomes[-1].is_void


@in_virtual_time
async def test_kept_requests_are_reported_with_the_requests_found_with_them() -> None:
    bench = await Bench().open()
    bench.delegate.kept = Kept(1)
    bench.push("sibling")
    await stored(bench, 1)

    (sent,) = [call for call in bench.remote.sent("exchange") if call.batches]
    assert sent.demand is not None and list(sent.demand.notes) == [Kept(1)]


@in_virtual_time
async def test_a_page_that_lingers_takes_no_place() -> None:
    bench = Bench(outbox_limit=1)
    page = await lingering(bench)
    bench.push("other", "another")
    await until(lambda: depth(bench).pending == 2, what="they are stored")
    bench.remote.is_full = True
    bench.push("waiting", fingerprint=b"w")
    await until(lambda: "prioqueue/exchange/full" in bench.delegate.stats, what="the server refuses")

    # As much waits as may, so one page at a time is started: this is it.
    bench.offer(2)
    await leased(bench, 1)
    assert bench.take().lease_id != page.lease_id
    assert bench.pump.take() is None


@in_virtual_time
async def test_the_ack_waits_for_what_was_stored_meanwhile() -> None:
    bench = Bench()
    await lingering(bench)
    bench.remote.is_full = True
    bench.pump.push(Push(0, "shop.example", b"child"), "child", list(bench.pump.outbox.lingering))
    let_go(bench)
    await pass_time(3 * FULL_RETRY_S)
    assert depth(bench) == Depth(accepted=1, leased=1, workers=1)

    bench.remote.is_full = False

    await until(lambda: depth(bench).done == 1, what="the page is acked")
    assert depth(bench) == Depth(accepted=2, pending=1, done=1, workers=1)


@in_virtual_time
async def test_a_page_that_lingers_is_claimed_after_the_server_has_forgotten_its_lease() -> None:
    bench = Bench()
    page = await lingering(bench)
    bench.remote.is_away = True
    await pass_time(TTL_S / 2)
    store = bench.inner.store
    store.give_back(store.leases.end(page.lease_id), was_attempt=False)
    bench.remote.is_away, bench.remote.recall = False, Recall(resent=1)

    await until(lambda: bench.delegate.recalls, what="the worker is told of a recall")
    await until(lambda: depth(bench).leased == 1, what="the page is claimed")
    let_go(bench)

    await until(lambda: depth(bench) == Depth(accepted=1, done=1, workers=1), what="the page is acked")


@in_virtual_time
async def test_a_page_that_was_taken_away_is_left_to_others() -> None:
    bench = Bench()
    page = await lingering(bench)
    store = bench.inner.store
    store.give_back(store.leases.end(page.lease_id), was_attempt=True)
    await pass_time(TTL_S)

    let_go(bench)

    await until(lambda: bench.delegate.outcomes[-1].is_void, what="the ack is void")
    assert depth(bench) == Depth(accepted=1, pending=1, workers=1)


@in_virtual_time
async def test_closing_gives_a_page_back_that_lingers() -> None:
    bench = Bench()
    page = await lingering(bench)

    await bench.close()

    assert depth(bench).pending == 1
    taken = bench.inner.store.pending.take_one(lambda _: True)
    assert taken is not None
    assert (taken[1].lease_id, taken[1].attempts) == (page.lease_id, 0)


@in_virtual_time
async def test_request_that_is_too_large_is_kept_with_its_page_and_its_neighbours_are_stored() -> None:
    bench = Bench()
    page = await leased_page(bench)
    bench.delegate.places = 0
    bench.remote.size_limit = ALWAYS_TAKEN
    large = "x" * (2 * ALWAYS_TAKEN)
    bench.push(*"abc", large, *"def", found_on=page)
    bench.ack(page)

    await stored(bench, 7)

    assert [push.payload for push, _ in bench.delegate.too_large_pushes] == [large.encode()]
    assert bench.remote.payload_limit == 2 * ALWAYS_TAKEN - 1
    assert [hold.lease for hold in bench.pump.outbox.lingering] == [page]
    await pass_time(5 * TTL_S)
    assert depth(bench) == Depth(accepted=7, pending=6, leased=1, workers=1)
    let_go(bench)
    await until(lambda: depth(bench).done == 1, what="the page is acked")


@in_virtual_time
async def test_closing_stores_the_neighbours_of_a_request_that_is_too_large_and_gives_its_page_back() -> None:
    bench = Bench()
    page = await leased_page(bench)
    bench.remote.size_limit = ALWAYS_TAKEN
    bench.push(*"abc", "x" * (2 * ALWAYS_TAKEN), *"def", found_on=page)
    bench.ack(page)

    await bench.close()

    assert depth(bench) == Depth(accepted=7, pending=7)
