"""SIGKILL of one worker, of one again and again, and of all: nothing is lost, and few pages are fetched twice."""

from __future__ import annotations

import random

import pytest
from shop_chaos.view import KEPT

from tests.faults.conftest import OpenShop
from tests.support.shop import CONCURRENT_REQUESTS, WITHIN_S, let_pass
from tests.support.waiting import wait_until

WORKERS = ("worker-1", "worker-2")
KILLS = 20
SHORT_TTL = {"PRIOQUEUE_LEASE_TTL": 3}


@pytest.mark.timeout(300)
def test_invariant_1_twenty_kills_at_random_moments_lose_nothing(open_shop: OpenShop, lottery: random.Random) -> None:
    """Reports 88, 89, 94.

    A page is fetched again only if a killed worker held its lease. It holds what waits in its inbox and what is in its
    downloader, each no more than CONCURRENT_REQUESTS, and the pages whose items or acks were just being written.
    """
    shop = open_shop(products=600)
    moments = sorted(lottery.sample(range(1, len(shop.pages) * 9 // 10), KILLS))
    # Few pages are lost so often that they would be given up on, but it may happen to the slowest.
    settings = {"PRIOQUEUE_MAX_ATTEMPTS": KILLS + 1}
    workers = [shop.start(name, settings) for name in WORKERS]

    for index, moment in enumerate(moments):
        shop.wait_until_fetched(moment)
        let_pass(lottery.uniform(0, 0.2))
        victim = workers[index % 2]
        held = shop.kill(victim)
        print(f"kill of {victim.name} with {shop.fetched} pages fetched and {len(held)} leases held")
        assert len(held) <= 4 * CONCURRENT_REQUESTS
        workers[index % 2] = shop.start(victim.name, settings)
    for worker in workers:
        worker.ends()

    shop.check_complete()
    assert shop.frontier.dead_letters() == []


@pytest.mark.timeout(300)
def test_leases_of_a_worker_that_never_returns_go_to_the_other(open_shop: OpenShop) -> None:
    shop = open_shop(products=240)
    victim, other = (shop.start(name, SHORT_TTL) for name in WORKERS)

    shop.wait_until_fetched(1 / 3)
    wait_until(lambda: len(shop.frontier.leases(victim.name)) > 2, what="the victim has leases", within=WITHIN_S)
    shop.kill(victim)
    other.ends()

    shop.check_complete()
    assert other.stat("prioqueue/lease/reaped") > 0


@pytest.mark.timeout(300)
def test_workers_of_new_names_continue_where_all_others_were_killed(
    open_shop: OpenShop, lottery: random.Random
) -> None:
    """Report 97: only keys about workers, their runs and ended crawls are left."""
    shop = open_shop(products=240)
    killed = [shop.start(name, SHORT_TTL) for name in WORKERS]

    shop.wait_until_fetched(lottery.uniform(0.2, 0.7))
    for worker in killed:
        wait_until(lambda name=worker.name: shop.frontier.leases(name), what="it has leases", within=WITHIN_S)  # type: ignore[misc]
        shop.kill(worker)
    for worker in [shop.start(f"new-{number}", SHORT_TTL) for number in (1, 2)]:
        worker.ends()

    shop.check_complete()
    assert shop.frontier.has_ended()
    assert shop.frontier.nouns() <= KEPT


@pytest.mark.timeout(300)
def test_killed_while_starting_all_workers_lose_no_start_request(open_shop: OpenShop, lottery: random.Random) -> None:
    shop = open_shop(products=240)
    settings = {**SHORT_TTL, "TESTS_PAGES": shop.page_list, "PRIOQUEUE_MAX_ATTEMPTS": 20}
    for attempt in range(3):
        workers = [shop.start(f"{name}-{attempt}", settings, spider="seeded") for name in WORKERS]
        workers[0].wait_for("crawl in frontier" if attempt else "Enabled extensions")
        let_pass(lottery.uniform(0, 0.4))
        for worker in workers:
            shop.kill(worker)

    for worker in [shop.start(f"{name}-last", settings, spider="seeded") for name in WORKERS]:
        worker.ends()

    shop.check_complete()


@pytest.mark.timeout(300)
def test_invariant_9_books_balance_at_every_moment_of_a_crawl_with_kills(
    open_shop: OpenShop, lottery: random.Random
) -> None:
    shop = open_shop(products=240)
    workers = [shop.start(name) for name in WORKERS]
    samples = [0]

    def has_fetched(pages: int) -> bool:
        samples.append(shop.frontier.check_books())
        return shop.fetched >= pages

    for index, moment in enumerate(sorted(lottery.sample(range(1, len(shop.pages)), 5))):
        wait_until(lambda wanted=moment: has_fetched(wanted), what=f"{moment} pages are fetched", within=WITHIN_S)  # type: ignore[misc]
        shop.kill(workers[index % 2])
        shop.frontier.check_books()
        workers[index % 2] = shop.start(workers[index % 2].name)
    for worker in workers:
        wait_until(lambda each=worker: has_fetched(0) and not each.process.is_running, what="the end", within=WITHIN_S)  # type: ignore[misc]
        worker.ends()

    shop.check_complete()
    print(f"{len(samples)} looks at the books")
    assert max(samples) >= len(shop.pages)
