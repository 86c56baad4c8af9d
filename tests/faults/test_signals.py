"""Signals that stop a worker: its unfinished requests are in the frontier at once, and a later run fetches them."""

from __future__ import annotations

import signal

import pytest

from tests.faults.conftest import OpenShop
from tests.support.shop import WITHIN_S

WORKERS = ("worker-1", "worker-2")

# What a worker takes with it would keep the next ones from the end for longer than the tests wait.
LONG_TTL = {"PRIOQUEUE_LEASE_TTL": 1000}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_in_good_order_leaves_nothing_leased_and_nothing_to_be_done_again(
    open_shop: OpenShop, number: signal.Signals
) -> None:
    """Reports 91 and 96."""
    shop = open_shop(products=240)
    workers = [shop.start(name, LONG_TTL) for name in WORKERS]

    shop.wait_until_fetched(1 / 3)
    for worker in workers:
        worker.send(number)
    for worker in workers:
        worker.ends("shutdown")

    counts = shop.frontier.counts()
    shop.frontier.check_books()
    assert counts["leased"] == 0
    assert counts["done"] == len(shop.visits)
    assert counts["pending"] == counts["accepted"] - len(shop.visits) > 0

    for worker in [shop.start(f"{name}-again", LONG_TTL) for name in WORKERS]:
        worker.ends()
    shop.check_complete(repeated_at_most=0)


@pytest.mark.timeout(300)
def test_a_stop_at_once_loses_nothing(open_shop: OpenShop) -> None:
    """Report 92: the second Ctrl-C does not wait for the pages in progress."""
    shop = open_shop(products=120, latency=1)
    workers = [shop.start(name, LONG_TTL) for name in WORKERS]

    shop.wait_until_fetched(1 / 3)
    for worker in workers:
        worker.send(signal.SIGINT)
        worker.wait_for("Send again to force")
        worker.send(signal.SIGINT)
    for worker in workers:
        worker.process.wait(within=WITHIN_S)
        assert worker.has_logged("forcing unclean shutdown")
        shop.kill(worker)  # it has ended; this notes what it held

    for worker in [shop.start(name, LONG_TTL) for name in WORKERS]:
        worker.ends()
    shop.check_complete()
