"""Workers, server and site in network namespaces: links are cut, slow or lossy in mid-crawl, and nothing is lost.

`PRIOQUEUE_TEST_NETWORKS=all` adds further kinds of cuts.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.forks import StartFork
from tests.support.networks import Network, PlacedServer, network, why_no_bad_line, why_no_networks
from tests.support.processes import StartProcess
from tests.support.scrapy_command import main
from tests.support.shop import CONCURRENT_REQUESTS, WITHIN_S, Shop, Worker, let_pass
from tests.support.waiting import wait_until

WORKERS = FIRST, SECOND = "worker-1", "worker-2"

# A lease that nobody knows of would keep the crawl from its end for longer than the tests wait.
LONG_TTL = {"PRIOQUEUE_LEASE_TTL": 1000, "PRIOQUEUE_REDIS_TIMEOUT": 1}

TTL_S = 3
SHORT_TTL = {"PRIOQUEUE_LEASE_TTL": TTL_S, "PRIOQUEUE_REDIS_TIMEOUT": 1}

UNDER_WAY = CONCURRENT_REQUESTS
"""Leases that may be granted to a worker while it is being cut off."""


class Lab:
    """A shop, a server and two workers, each in a place of its own.

    Args:
        network: between them.
        directory: of all files.
        start_process: starts the site.
        start_fork: starts workers.
        frontier_name: of this test.
    """

    def __init__(
        self,
        network: Network,
        directory: Path,
        start_process: StartProcess,
        start_fork: StartFork,
        frontier_name: str,
    ) -> None:
        self.network = network
        self.workers: list[Worker] = []
        self._server_place = network.add("server")
        self._site_place = network.add("site", addresses=3)
        self._places = {worker: network.add(worker) for worker in WORKERS}
        self.server = PlacedServer(self._server_place, directory / "redis", appendonly=True)
        self.server.start()
        self.shop = Shop(
            directory,
            self._site_place.start_with(start_process),
            start_fork,
            self.server,
            frontier_name,
            addresses=",".join(self._site_place.addresses),
            products=300,
            latency=0.2,
        )

    def start_both(self, settings: dict[str, Any]) -> None:
        """Start both workers, and let them crawl for a while."""
        self.workers = [self.start(name, settings) for name in WORKERS]
        self.shop.wait_until_fetched(0.25)
        for worker in self.workers:
            wait_until(partial(self._has_leases, worker), what=f"{worker.name} holds leases", within=WITHIN_S)

    def start(self, name: str, settings: dict[str, Any]) -> Worker:
        """Start a worker in its place."""
        return self.shop.start(name, settings, program=self._places[name].inside(main))

    def _has_leases(self, worker: Worker) -> bool:
        return len(self.shop.frontier.leases(worker.name)) > 2

    def cut_one(self) -> None:
        """Cut the link between the first worker and the server without a word; it can go on fetching pages."""
        self.network.cut(self._places[FIRST], self._server_place)

    def cut_both(self) -> None:
        """Do the same to both workers."""
        for place in self._places.values():
            self.network.cut(place, self._server_place)

    def cut_answers(self) -> None:
        """Let nothing through from the server to the workers, so that their commands arrive."""
        for place in self._places.values():
            self.network.cut(self._server_place, place, one_way=True)

    def refuse_one(self) -> None:
        """Let a firewall between the first worker and the server refuse packets."""
        self.network.refuse(self._places[FIRST], self._server_place)

    def unplug_one(self) -> None:
        """Pull the cable of the first worker, which then can't reach the site either."""
        self.network.unplug(self._places[FIRST])

    def unplug_server(self) -> None:
        """Pull the cable of the server."""
        self.network.unplug(self._server_place)

    def forget_connections(self) -> None:
        """Drop what belongs to the connections that there are, as a NAT that was restarted."""
        for client in self.server.client().client_list():
            address, _, port = client["addr"].partition(":")
            if client["flags"] != "U":
                self.network.forget(address, int(port))

    def disturb(self) -> None:
        """Delay packets between workers and server, and lose some."""
        self.network.disturb(list(self._places.values()), self._server_place, delay_s=0.03, jitter_s=0.02, loss=0.02)

    def are_cut_off(self, workers: int) -> None:
        """Wait until the first so many workers know it."""
        for worker in self.workers[:workers]:
            worker.wait_for("; this worker keeps trying to reconnect")

    def end(self) -> None:
        """Wait for the end of both workers."""
        for worker in self.workers:
            worker.ends()


@pytest.fixture
def lab(tmp_path: Path, start_process: StartProcess, start_fork: StartFork, frontier_name: str) -> Iterator[Lab]:
    """The shop is open, and no worker has been started."""
    if reason := why_no_networks():
        pytest.skip(reason)
    with network(start_process) as own:
        lab = Lab(own, tmp_path, start_process, start_fork, frontier_name)
        yield lab
        lab.server.kill()


Cut = Callable[[Lab], None]

CUTS: dict[Cut, int] = {
    Lab.cut_one: 1,
    Lab.cut_both: 2,
    Lab.cut_answers: 2,
    Lab.refuse_one: 1,
    Lab.unplug_one: 1,
    Lab.unplug_server: 2,
}
"""With the number of workers that notice each of them."""

IS_COMPLETE = os.environ.get("PRIOQUEUE_TEST_NETWORKS") == "all"


def usually(names: str, usual: Any, *others: Any) -> pytest.MarkDecorator:
    """Return the parameters to test, of which only the usual ones are always tested."""
    return pytest.mark.parametrize(names, [usual, *(others if IS_COMPLETE else ())], ids=_id)


def _id(value: object) -> str | None:
    return getattr(value, "__name__", None)


def cuts(usual: Cut, *others: Cut) -> pytest.MarkDecorator:
    """Return the cuts to test, likewise."""
    return usually("cut", usual, *(cut for cut in [*CUTS, *others] if cut is not usual))


@pytest.mark.timeout(300)
@cuts(Lab.cut_both, Lab.forget_connections)
def test_a_cut_that_is_shorter_than_leases_repeats_nothing(lab: Lab, cut: Cut) -> None:
    lab.start_both(LONG_TTL)

    cut(lab)
    lab.are_cut_off(CUTS.get(cut, 2))
    let_pass(0.5)
    lab.network.heal()
    lab.end()

    lab.shop.check_complete(repeated_at_most=0)
    assert lab.shop.frontier.check_books() == lab.shop.frontier.counts()["done"]


@pytest.mark.timeout(300)
@cuts(Lab.cut_one)
def test_a_cut_that_is_longer_than_leases_repeats_what_the_worker_held(lab: Lab, cut: Cut) -> None:
    number = CUTS[cut]
    lab.start_both({**SHORT_TTL, "PRIOQUEUE_MAX_IDLE": TTL_S})

    cut(lab)
    held = [lease for worker in lab.workers[:number] for lease in lab.shop.frontier.leases(worker.name)]
    lab.are_cut_off(number)
    let_pass(1.5 * TTL_S)
    lab.network.heal()
    lab.end()

    lab.shop.check_complete(repeated_at_most=len(held) + number * UNDER_WAY)
    assert lab.shop.frontier.check_books() == lab.shop.frontier.counts()["done"]
    assert lab.shop.frontier.has_ended()


@pytest.mark.timeout(300)
@usually("grace_s", 1000, 0.5)
def test_a_network_that_comes_and_goes_loses_nothing(lab: Lab, lottery: random.Random, grace_s: float) -> None:
    # After it workers start what they find in an outage, as far as their share and limit of repeats go.
    lab.start_both({**LONG_TTL, "PRIOQUEUE_OUTAGE_GRACE": grace_s})

    while any(worker.process.is_running for worker in lab.workers):
        cut = lottery.choice([*CUTS, Lab.forget_connections])
        print(cut.__name__)
        cut(lab)
        let_pass(lottery.uniform(0, 4))
        lab.network.heal()
        let_pass(lottery.uniform(0, 1))
    lab.end()

    lab.shop.check_complete(repeated_at_most=0 if grace_s > 1 else len(lab.shop.pages) // 20)
    assert lab.shop.frontier.check_books() == lab.shop.frontier.counts()["done"]


@pytest.mark.timeout(300)
def test_a_slow_and_lossy_line_repeats_nothing(lab: Lab) -> None:
    if reason := why_no_bad_line():
        pytest.skip(reason)
    lab.start_both({**LONG_TTL, "PRIOQUEUE_REDIS_TIMEOUT": 5})

    lab.disturb()
    lab.end()

    lab.shop.check_complete(repeated_at_most=0)


@pytest.mark.timeout(300)
@usually("number", signal.SIGTERM, signal.SIGINT)
def test_a_worker_that_is_stopped_while_it_is_cut_off_ends_and_says_what_it_could_not_report(
    lab: Lab, number: signal.Signals
) -> None:
    lab.start_both({**SHORT_TTL, "PRIOQUEUE_CLOSE_TIMEOUT": 1})
    cut_off, other = lab.workers

    lab.cut_one()
    held = lab.shop.frontier.leases(cut_off.name)
    lab.are_cut_off(1)
    cut_off.send(number)
    cut_off.ends("shutdown")
    lab.network.heal()
    other.ends()

    assert cut_off.has_logged("Closed before the frontier at")
    lab.shop.check_complete(repeated_at_most=len(held) + UNDER_WAY)
    assert other.stat("prioqueue/lease/reaped") > 0


@pytest.mark.timeout(300)
@usually(
    "cut, said",
    (Lab.refuse_one, "there is no way to that address: check it, the network and firewalls"),
    (Lab.cut_one, "TimeoutError: no answer within 1 s"),
    (Lab.unplug_one, "no answer within 1 s"),
)
def test_a_worker_that_can_not_reach_the_server_at_its_start_says_so_at_once(lab: Lab, cut: Cut, said: str) -> None:
    cut(lab)
    worker = lab.start(FIRST, LONG_TTL)

    assert worker.process.wait(within=WITHIN_S) == 1
    assert worker.reason == "prioqueue_unavailable"
    assert worker.has_logged(said)
