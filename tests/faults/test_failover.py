"""Sentinels replace the primary during a crawl: nothing is lost, and little is repeated.

`make failovers` replaces it ten times in each way and prints how long that took.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from shop_chaos.view import FrontierView

from tests.faults.failovers import FAULTS, WORKERS, Failovers
from tests.support.forks import StartFork
from tests.support.processes import StartProcess
from tests.support.sentinels import StartSentinels
from tests.support.shop import Shop

COUNT = int(os.environ.get("PRIOQUEUE_TEST_FAILOVERS", "1"))

PAGES_EACH, LATENCY_S = (300, 0.3) if COUNT == 1 else (700, 1.2)
"""In `make failovers` a failover with the time until all is whole again takes some twenty seconds."""


# The loss of a machine includes that its primary freezes.
MADE = FAULTS if COUNT > 1 else [fault for fault in FAULTS if fault != "freeze"]


@pytest.mark.timeout(300 + 120 * COUNT)
@pytest.mark.parametrize("fault", MADE)
def test_invariant_1_failover_loses_nothing_and_repeats_little(
    fault: str,
    tmp_path: Path,
    start_process: StartProcess,
    start_fork: StartFork,
    start_sentinels: StartSentinels,
    frontier_name: str,
) -> None:
    watched = start_sentinels()
    options = {"products": PAGES_EACH * COUNT, "latency": LATENCY_S}
    shop = Shop(tmp_path, start_process, start_fork, watched.primary, frontier_name, **options)
    shop.frontier = FrontierView(watched.client(), frontier_name)
    workers = [shop.start(name, {"PRIOQUEUE_REDIS_URL": watched.url}) for name in WORKERS]
    failovers = Failovers(watched, frontier_name, FAULTS[fault])

    for number in range(COUNT):
        shop.wait_until_fetched(50 * (number + 1))
        if number:
            watched.wait_until_whole(within=60)
        failovers.make()
    for worker in workers:
        worker.process.wait(within=60 + 60 * COUNT)
        worker.ends()

    print(f"{fault}: {failovers}")
    shop.check_complete(repeated_at_most=len(shop.pages) // 50)
    assert shop.frontier.check_books() == shop.frontier.counts()["done"]
