"""A worker is frozen for longer than its leases last: its late reports are void."""

from __future__ import annotations

import signal

import pytest

from tests.faults.conftest import OpenShop
from tests.support.shop import CONCURRENT_REQUESTS, WITHIN_S
from tests.support.waiting import wait_until

SHORT_TTL = {"PRIOQUEUE_LEASE_TTL": 3}

UNDER_WAY = CONCURRENT_REQUESTS
"""Leases that may be granted to a worker while it is being frozen."""


@pytest.mark.timeout(300)
def test_late_acks_of_a_thawed_worker_are_void_and_the_crawl_ends_once(open_shop: OpenShop) -> None:
    shop = open_shop(products=240)
    frozen = shop.start("frozen", SHORT_TTL)
    # It waits for more work, so that the crawl is not over before the other is back.
    other = shop.start("other", {**SHORT_TTL, "PRIOQUEUE_MAX_IDLE": 6})
    shop.wait_until_fetched(1 / 3)
    wait_until(lambda: len(shop.frontier.leases("frozen")) > 2, what="it holds leases", within=WITHIN_S)

    frozen.send(signal.SIGSTOP)
    held = shop.frontier.leases("frozen")
    ids = {lease_id for lease_id, _ in held}
    wait_until(lambda: not ids & shop.frontier.unfinished(), what="the other has done its work", within=WITHIN_S)
    frozen.send(signal.SIGCONT)
    for worker in (frozen, other):
        worker.ends()

    shop.check_complete(repeated_at_most=len(held) + UNDER_WAY)
    assert frozen.stat("prioqueue/lease/void") > 0
    assert shop.frontier.has_ended()


@pytest.mark.timeout(300)
def test_a_worker_thawed_after_the_end_of_its_crawl_ends_too(open_shop: OpenShop) -> None:
    shop = open_shop(products=240)
    frozen, other = (shop.start(name, SHORT_TTL) for name in ("frozen", "other"))
    shop.wait_until_fetched(1 / 3)

    frozen.send(signal.SIGSTOP)
    held = shop.frontier.leases("frozen")
    other.ends()
    frozen.send(signal.SIGCONT)
    frozen.ends(expects="Did not store")

    shop.check_complete(repeated_at_most=len(held) + UNDER_WAY)
    assert shop.frontier.has_ended()
