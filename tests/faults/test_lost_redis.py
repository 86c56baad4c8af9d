"""The server is killed, restarted or frozen during a crawl: workers continue, and nothing is lost or repeated."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from time import monotonic

import pytest

from tests.faults.conftest import OpenShop
from tests.support.servers import RedisServer
from tests.support.shop import WITHIN_S, Worker, let_pass
from tests.support.waiting import wait_until

WORKERS = ("worker-1", "worker-2")

# A lease that nobody knows of would keep the crawl from its end for longer than the tests wait.
LONG_TTL = {"PRIOQUEUE_LEASE_TTL": 1000}

# What is found without the server is started nearly at once.
GO_ON = {**LONG_TTL, "PRIOQUEUE_OUTAGE_GRACE": 0.5}
PAUSE = {**LONG_TTL, "PRIOQUEUE_ON_OUTAGE": "pause"}


def kill(server: RedisServer) -> None:
    server.kill()


def shut_down(server: RedisServer) -> None:
    server.client().shutdown()
    wait_until(lambda: not server.is_running, what="the server has shut down", within=WITHIN_S)


def append_only_file(server: RedisServer) -> Path:
    """Return the file that grows with each write; it is never rewritten in these tests."""
    return max(server.directory.rglob("*.aof"), key=lambda path: path.stat().st_mtime)


def written_bytes(server: RedisServer) -> int:
    """Return how much the server has written to its append-only file."""
    return append_only_file(server).stat().st_size


def keep_bytes(server: RedisServer, size: int) -> None:
    """Cut the append-only file of a server that is not running, behind the last whole transaction.

    Redis 7.0 that finds half of one keeps its beginning, and then can't read what it writes behind it.
    """
    path = append_only_file(server)
    end = b"\r\nEXEC\r\n"
    os.truncate(path, path.read_bytes().rindex(end, 0, size) + len(end))


def notice(workers: Sequence[Worker]) -> None:
    """Wait until all of them know that the server is away."""
    for worker in workers:
        worker.wait_for("; this worker keeps trying to reconnect")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("end", [kill, shut_down])
def test_workers_survive_a_restart_of_a_server_that_keeps_its_writes(
    open_shop: OpenShop, end: Callable[[RedisServer], None]
) -> None:
    """Reports 76 and 80."""
    shop = open_shop(products=300, appendfsync="always")
    workers = [shop.start(name, PAUSE) for name in WORKERS]

    for share in (0.25, 0.5, 0.7):
        shop.wait_until_fetched(share)
        end(shop.server)
        let_pass(0.5)
        shop.server.start()
    for worker in workers:
        worker.ends()

    shop.check_complete(repeated_at_most=0)


@pytest.mark.timeout(300)
def test_worker_that_is_alone_crawls_on_without_the_server_and_repeats_nothing(open_shop: OpenShop) -> None:
    shop = open_shop(products=300, appendfsync="always")
    places = 4
    worker = shop.start(WORKERS[0], {**GO_ON, "CONCURRENT_REQUESTS": places})

    shop.wait_until_fetched(0.1)
    shop.server.kill()
    notice([worker])
    at_first = shop.fetched
    # More than ran and were held in advance.
    shop.wait_until_fetched(at_first + 3 * places)
    shop.server.start()
    worker.ends()

    shop.check_complete(repeated_at_most=0)
    assert shop.frontier.check_books() == shop.frontier.counts()["done"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("outage_s", [3, 12])
def test_outage_of_two_workers_costs_few_repeats_and_loses_nothing(open_shop: OpenShop, outage_s: float) -> None:
    # In the longer one all leases expire.
    shop = open_shop(products=300, appendfsync="always")
    workers = [shop.start(name, {"PRIOQUEUE_LEASE_TTL": 9, "PRIOQUEUE_OUTAGE_GRACE": 1}) for name in WORKERS]

    shop.wait_until_fetched(0.3)
    shop.server.kill()
    notice(workers)
    let_pass(outage_s)
    shop.server.start()
    for worker in workers:
        worker.ends()

    shop.check_complete(repeated_at_most=len(shop.pages) // 20)
    assert shop.frontier.check_books() == shop.frontier.counts()["done"]


@pytest.mark.timeout(300)
def test_ten_crashes_of_a_server_that_loses_its_last_second_lose_nothing(
    open_shop: OpenShop, lottery: random.Random
) -> None:
    shop = open_shop(products=600, latency=0.2, appendfsync="everysec")
    workers = [shop.start(name, LONG_TTL) for name in WORKERS]

    for crash in range(10):
        shop.wait_until_fetched(0.05 + 0.08 * crash)
        synced = written_bytes(shop.server)
        let_pass(lottery.uniform(0, 1))
        shop.server.kill()
        # The kernel keeps what a killed process has written; a crash of the machine loses what was not synced.
        keep_bytes(shop.server, lottery.randint(synced, written_bytes(shop.server)))
        shop.server.start()
    for worker in workers:
        worker.ends()

    shop.check_complete(repeated_at_most=len(shop.pages))
    assert shop.frontier.check_books() == shop.frontier.counts()["done"]
    assert sum(worker.stat("prioqueue/recall/resent") for worker in workers) > 0


@pytest.mark.timeout(300)
def test_pages_that_a_server_has_forgotten_for_good_are_found_and_fetched_again(open_shop: OpenShop) -> None:
    shop = open_shop(products=200, latency=0.05, appendfsync="always")
    worker = shop.start(WORKERS[0], {**PAUSE, "PRIOQUEUE_JOURNAL_TIME": 0.1})

    shop.wait_until_fetched(0.02)
    written = written_bytes(shop.server)
    shop.wait_until_fetched(0.6)
    shop.server.kill()
    keep_bytes(shop.server, written)
    shop.server.start()
    worker.ends(expects="has no copy any more")

    shop.check_complete(repeated_at_most=len(shop.pages))


@pytest.mark.timeout(300)
def test_worker_that_pauses_starts_nothing_without_the_server(open_shop: OpenShop) -> None:
    shop = open_shop(products=100, appendfsync="always")
    worker = shop.start(WORKERS[0], PAUSE)

    shop.wait_until_fetched(0.3)
    shop.server.kill()
    notice([worker])
    let_pass(2)
    at_first = shop.fetched
    let_pass(2)
    assert shop.fetched == at_first
    shop.server.start()
    worker.ends()

    shop.check_complete(repeated_at_most=0)


def test_leases_are_renewed_again_after_an_outage(open_shop: OpenShop) -> None:
    """Report 80."""
    shop = open_shop(products=60, latency=60, appendfsync="always")
    worker = shop.start(WORKERS[0], {"PRIOQUEUE_LEASE_TTL": 9})
    wait_until(lambda: len(shop.frontier.leases(worker.name)) == 3, what="the start requests run", within=WITHIN_S)

    shop.server.kill()
    notice([worker])
    shop.server.start()
    latest = max(shop.frontier.expiries())

    wait_until(lambda: min(shop.frontier.expiries()) > latest, what="all leases are renewed", within=WITHIN_S)
    assert len(shop.frontier.leases(worker.name)) == 3


@pytest.mark.timeout(300)
def test_answers_that_come_too_late_leave_no_lease_behind(open_shop: OpenShop) -> None:
    shop = open_shop(products=300)
    workers = [shop.start(name, {**PAUSE, "PRIOQUEUE_REDIS_TIMEOUT": 0.5}) for name in WORKERS]

    for share in (0.2, 0.4, 0.6):
        shop.wait_until_fetched(share)
        shop.server.freeze()
        notice(workers)
        let_pass(2)
        shop.server.thaw()
    for worker in workers:
        worker.ends()

    shop.check_complete(repeated_at_most=0)


@pytest.mark.timeout(300)
def test_invariant_4_timers_fire_while_the_server_is_frozen(open_shop: OpenShop, tmp_path: Path) -> None:
    shop = open_shop(products=300)
    # A loop that waited for the server would wait for at least 5 s; one on a busy machine may be late.
    frozen_s, unblocked_s = 6, 4
    settings = {
        "EXTENSIONS": json.dumps({"tests.faults.components.Ticks": 0}),
        "PRIOQUEUE_REDIS_TIMEOUT": frozen_s - 1,
    }
    paths = [tmp_path / f"{name}.ticks" for name in WORKERS]
    workers = [shop.start(name, {**settings, "TESTS_TICKS": path}) for name, path in zip(WORKERS, paths, strict=True)]

    shop.wait_until_fetched(1 / 3)
    frozen_at = monotonic()
    shop.server.freeze()
    let_pass(frozen_s)
    shop.server.thaw()
    for worker in workers:
        worker.ends()

    shop.check_complete(repeated_at_most=len(shop.pages))
    for path in paths:
        ticks = [time - frozen_at for time in json.loads(path.read_text())]
        longest = max(later - earlier for earlier, later in pairwise(ticks) if later > 0 and earlier < frozen_s)
        print(f"a timer of 10 ms fired after {longest:.3f} s at most while the server was frozen")
        assert longest < unblocked_s
