"""A request that kills every worker is given up, and no other request with it."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any
from urllib.parse import urldefrag

import pytest

from tests.faults.conftest import OpenShop
from tests.support.shop import WITHIN_S, Shop
from tests.support.waiting import wait_until


def possible_poisons(shop: Shop) -> Sequence[str]:
    """Return the addresses of products whose pages need one try and no redirect, the quickest first."""
    targets = {page.moved_to for page in shop.pages}
    products = [page for page in shop.pages if page.kind == "product" and page.url not in targets and not page.failures]
    return [page.url for page in sorted(products, key=lambda page: page.delay_s)]


def deaths_until_the_end(shop: Shop, settings: Mapping[str, Any]) -> int:
    """Start a worker again and again, as a supervisor does, and return how many have died."""
    for deaths in range(10):
        worker = shop.start("worker", settings, spider="poisoned")
        if worker.process.wait(within=WITHIN_S) == 0:
            worker.ends(expects="becomes a dead letter")
            return deaths
        shop.kill(worker)  # it has ended; this notes what it held
    raise AssertionError("the poison kills worker after worker")


def check_only_poison_is_dead(shop: Shop, poison: str, deaths: int, *, most: int) -> None:
    letters = shop.frontier.dead_letters()
    print([(letter[0], letter[2], letter[7]) for letter in letters])
    assert [(letter[0], letter[2]) for letter in letters] == [(b"lease", deaths)]
    assert deaths <= most
    # Which of the links to it was found first, one with a fragment or one without, is chance.
    assert [urldefrag(url).url for url in shop.frontier.dead_urls()] == [poison]
    tally = shop.judge()
    assert (tally.lost, tally.strays, tally.without_item) == ([], [], [poison])


@pytest.mark.timeout(300)
def test_a_request_that_kills_its_worker_is_a_dead_letter_after_few_kills(open_shop: OpenShop) -> None:
    """Report 119."""
    shop = open_shop(products=60, latency=0.02)
    poison = possible_poisons(shop)[-1]  # all that came before it is acked long before its answer

    deaths = deaths_until_the_end(shop, {"TESTS_POISON": poison, "CONCURRENT_REQUESTS": 1, "PRIOQUEUE_MAX_ATTEMPTS": 2})

    # The next page is held, too, as it is downloaded while the callback of this one runs.
    check_only_poison_is_dead(shop, poison, deaths, most=5)


@pytest.mark.timeout(300)
def test_requests_in_progress_beside_the_one_that_kills_are_not_given_up_with_it(open_shop: OpenShop) -> None:
    shop = open_shop(products=120)
    poison = possible_poisons(shop)[0]

    deaths = deaths_until_the_end(shop, {"TESTS_POISON": poison})

    check_only_poison_is_dead(shop, poison, deaths, most=9)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_dead_letter_names_the_workers_it_has_killed_while_the_fleet_continues(
    open_shop: OpenShop, number: signal.Signals
) -> None:
    shop = open_shop(products=60)
    poison = possible_poisons(shop)[0]
    settings = {
        "TESTS_POISON": poison,
        "TESTS_POISON_SIGNAL": int(number),
        "PRIOQUEUE_LEASE_TTL": 2,
        "PRIOQUEUE_MAX_ATTEMPTS": 3,
    }

    killed = []
    names = (f"worker-{index}" for index in count(1))
    fleet = [shop.start(name, settings, spider="poisoned") for name in (next(names), next(names))]
    while fleet:
        wait_until(lambda: any(not one.process.is_running for one in fleet), what="a worker ends", within=WITHIN_S)
        (ended, *_) = [one for one in fleet if not one.process.is_running]
        fleet.remove(ended)
        if ended.process.wait(within=WITHIN_S) != 0:
            killed.append(ended.name)
            shop.kill(ended)  # it has ended; this notes what it held
            fleet.append(shop.start(next(names), settings, spider="poisoned"))

    check_only_poison_is_dead(shop, poison, len(killed), most=7)
    (letter,) = shop.frontier.dead_letters()
    assert letter[1].decode() == f"leased {len(killed)} times and never acked; lost by {', '.join(killed)}"
