"""A callback blocks the loop for longer than leases last: the worker keeps its pages."""

from __future__ import annotations

import signal

import pytest

from tests.faults.conftest import OpenShop
from tests.faults.test_poison import possible_poisons
from tests.support.shop import WITHIN_S
from tests.support.waiting import wait_until

TTL_S = 3
WARNING = "The spider's code has blocked the event loop"


@pytest.mark.timeout(300)
def test_page_whose_callback_stalls_its_worker_for_three_leases_is_fetched_once(open_shop: OpenShop) -> None:
    shop = open_shop(products=120)
    page = possible_poisons(shop)[0]
    settings = {"PRIOQUEUE_LEASE_TTL": TTL_S, "TESTS_STALL_AT": page, "TESTS_STALL_S": 3 * TTL_S}

    workers = [shop.start(name, settings, spider="stalling") for name in ("worker-1", "worker-2")]
    for worker in workers:
        worker.ends()

    shop.check_complete(repeated_at_most=0)
    (stalled,) = (worker for worker in workers if worker.has_logged("The stall begins"))
    assert stalled.has_logged(WARNING)
    assert stalled.stat("prioqueue/heartbeat/renewed") > 0
    for worker in workers:
        assert [worker.stat(f"prioqueue/lease/{what}") for what in ("lost", "void", "reaped")] == [0, 0, 0]
    assert shop.frontier.has_ended()


@pytest.mark.timeout(300)
def test_stalled_worker_that_is_frozen_loses_its_leases_and_takes_none_back(open_shop: OpenShop) -> None:
    shop = open_shop(products=60)
    ttl = {"PRIOQUEUE_LEASE_TTL": TTL_S}
    # The stall outlasts what the other has to do.
    stall = {"TESTS_STALL_AT": possible_poisons(shop)[0], "TESTS_STALL_S": 6 * TTL_S}
    stalled = shop.start("stalled", {**ttl, **stall}, spider="stalling")
    stalled.wait_for(WARNING)

    stalled.send(signal.SIGSTOP)
    held = shop.frontier.leases("stalled")
    ids = {lease_id for lease_id, _ in held}
    # It waits for more work, so that the crawl is not over before the first is back.
    other = shop.start("other", {**ttl, "PRIOQUEUE_MAX_IDLE": 3 * TTL_S})
    wait_until(lambda: not ids & shop.frontier.unfinished(), what="the other has done its work", within=WITHIN_S)
    stalled.send(signal.SIGCONT)
    for worker in (other, stalled):
        worker.ends()

    shop.check_complete(repeated_at_most=len(held))
    assert stalled.stat("prioqueue/lease/void") > 0
    assert shop.frontier.has_ended()
