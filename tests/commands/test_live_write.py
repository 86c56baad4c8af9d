"""Operators' changes while two real workers crawl: they take effect, and the counters balance."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrapy_prioqueue import FrontierClient
from tests.commands.conftest import Run
from tests.contract.backends import is_balanced
from tests.support.crawls import WITHIN_S, Crawl, Crawls
from tests.support.servers import RedisServer
from tests.support.site import Page, Site, Visit
from tests.support.waiting import wait_until

QUIET_S = 0.6


@pytest.fixture
def crawls(on_redis: Crawls) -> Crawls:
    return on_redis.having(PRIOQUEUE_MAX_IDLE=600, CONCURRENT_REQUESTS=4)


@pytest.fixture
def client(redis_server: RedisServer, frontier_name: str) -> Iterator[FrontierClient]:
    """Looks at the frontier, whose books must balance in the end."""
    with FrontierClient(redis_server.url, frontier_name) as client:
        yield client
        assert is_balanced(client.depth()), client.depth()


def two_workers(crawls: Crawls) -> list[Crawl]:
    workers = [crawls.start(), crawls.start()]
    for worker in workers:
        worker.wait_for("scheduled", "/")
    return workers


def wait_until_done(client: FrontierClient, count: int) -> None:
    wait_until(lambda: client.depth().done >= count, what=f"{count} pages are done", within=WITHIN_S)


def is_quiet(site: Site) -> bool:
    """Return whether the site gets no request for a while."""
    before, until = len(site.visits), time.monotonic() + QUIET_S
    wait_until(lambda: time.monotonic() > until, what="a while is over", within=5)
    return len(site.visits) == before


def test_a_fleet_is_fed_paused_sorted_out_and_stopped(
    run: Run, crawls: Crawls, site: Site, client: FrontierClient, tmp_path: Path
) -> None:
    paths = [f"/page/{number}" for number in range(400)]
    site.pages = {"/": [], **dict.fromkeys(paths, Page(delay_s=0.02)), "/urgent": [], "/bad/1": [], "/bad/2": []}
    workers = two_workers(crawls)
    file = tmp_path / "urls.txt"
    file.write_text("".join(f"{site.url(path)}\n" for path in [*paths, "/bad/1", "/bad/2"]))

    assert run("push", "--file", str(file), "--tier", "low").out.startswith("402 pushed, into the crawl of 2 workers")
    wait_until_done(client, 40)
    run("pause")
    wait_until(lambda: client.depth().leased == 0 and is_quiet(site), what="the fleet rests", within=WITHIN_S)
    assert len(run("workers", "--json").json) == 2
    assert run("remove", "/bad/", "--yes").out == "2 removed\n"
    assert run("move", "/page/399$", "--tier", "urgent", "--yes").out == "1 moved to tier 'urgent'\n"
    # Two workers ask for four pages each at the same time, and for no more before one is answered.
    gate = threading.Event()
    site.pages |= dict.fromkeys(paths, Page(gate=gate))
    run("resume")
    workers[0].wait_for_site(["/page/399"])
    gate.set()
    wait_until_done(client, 401)

    run("push", site.url("/urgent"))
    wait_until_done(client, 402)
    assert run("stop", "--reason", "maintenance", "--yes").code == 0
    results = [worker.wait() for worker in workers]

    assert [result.reason for result in results] == ["maintenance"] * 2
    assert sorted(page for result in results for page in result.pages) == sorted(["/", *paths, "/urgent"])
    assert client.depth().unfinished == 0


def test_the_leases_of_a_killed_worker_are_given_to_the_other_at_once(
    run: Run, crawls: Crawls, site: Site, client: FrontierClient
) -> None:
    paths = [f"/page/{number}" for number in range(60)]
    site.pages = {"/": [], **dict.fromkeys(paths, Page(delay_s=0.1))}
    workers = two_workers(crawls.having(PRIOQUEUE_LEASE_TTL=600))
    client.push_many([site.url(path) for path in paths])
    wait_until_done(client, 10)

    workers[0].kill()
    wait_until(lambda: not workers[0].process.is_running, what="it is dead", within=WITHIN_S)
    gone = [row["worker"] for row in run("workers", "--json").json if row["pid"] == str(workers[0].process.pid)]
    run("workers", "--evict", *gone, "--yes")
    wait_until_done(client, 61)
    run("stop", "--yes")

    assert workers[1].wait().reason == "stopped"
    assert {visit.path for visit in site.visits} == {"/", *paths}


def test_nothing_new_is_taken_in_by_a_drained_fleet(
    run: Run, crawls: Crawls, site: Site, client: FrontierClient
) -> None:
    site.pages = {"/": [], **{f"/{number}": Page(delay_s=0.05, links=[f"/{number + 1}"]) for number in range(2000)}}
    workers = two_workers(crawls)
    client.push(site.url("/0"))
    wait_until_done(client, 10)

    assert run("drain", "--yes").code == 0
    wait_until(lambda: client.depth().unfinished == 0, what="nothing is left", within=WITHIN_S)
    run("resume")
    run("push", site.url("/1000"))
    wait_until(lambda: "/1003" in {visit.path for visit in site.visits}, what="it goes on", within=WITHIN_S)
    run("stop", "--yes")

    assert [worker.wait().reason for worker in workers] == ["stopped"] * 2
    assert "/1000" in {visit.path for visit in site.visits}
    assert "/999" not in {visit.path for visit in site.visits}


def test_a_fleet_moves_to_another_frontier_and_continues(
    run: Run, crawls: Crawls, site: Site, client: FrontierClient, tmp_path: Path, frontier_name: str
) -> None:
    paths = [f"/page/{number}" for number in range(200)]
    site.pages = {"/": [], **dict.fromkeys(paths, Page(delay_s=0.02))}
    workers = two_workers(crawls)
    client.push_many([site.url(path) for path in paths])
    wait_until_done(client, 50)
    run("stop", "--yes")
    for worker in workers:
        worker.wait()
    left = client.depth().pending
    assert 0 < left <= 151

    file, name = str(tmp_path / "frontier.jsonl"), f"{frontier_name}-moved"
    assert run("export", file).err == ""
    assert run("import", file, "--name", name).code == 0
    assert run("reset", "--all", "--yes").code == 0
    result = crawls.having(PRIOQUEUE_NAME=name, PRIOQUEUE_MAX_IDLE=0).run()

    assert len(result.pages) == left
    visits = [visit.path for visit in site.visits]
    assert sorted(visits) == sorted(["/", *paths])


def test_limits_and_budgets_are_changed_while_a_fleet_crawls(
    run: Run, crawls: Crawls, site: Site, client: FrontierClient
) -> None:
    host, paths = "127.0.0.1", [f"/{number}" for number in range(40)]
    site.pages = {"/": paths, **dict.fromkeys(paths, Page())}
    settings = {"PRIOQUEUE_SLOT_DELAY": 300, "PRIOQUEUE_BUDGETS": {"*": {"pages": 10}}}
    workers = [crawls.start(settings=settings) for _ in range(2)]
    wait_until_done(client, 1)
    assert is_quiet(site)
    assert "waits for its rate, " in run("explain", site.url("/0")).out
    assert "1 slot for its rate" in run("status").out

    assert run("limit", host, "--delay", "0.01").code == 0
    wait_until_done(client, 10)
    wait_until(lambda: client.depth().dead == 31, what="the others are given up", within=WITHIN_S)
    assert run("budget", "--json").json[0]["over"] == 31
    assert run("doctor").code == 0
    assert "31 dead letters with the reason budget" in run("budget", host, "--pages", "100").out
    assert run("dead", "replay", "--reason", "budget", "--yes").out.startswith("31 put back")
    wait_until_done(client, 41)

    run("stop", "--yes")
    assert [worker.wait().reason for worker in workers] == ["stopped"] * 2
    assert sorted(visit.path for visit in site.visits) == sorted(["/", *paths])


def test_a_site_that_asks_for_a_pause_is_opened_by_hand(
    run: Run, crawls: Crawls, site: Site, client: FrontierClient
) -> None:
    paths = [f"/page/{number}" for number in range(40)]
    asked: list[float] = []

    def busy(visit: Visit) -> Page:
        asked.append(visit.time_s)
        return Page(status=503, headers={"Retry-After": "900"}) if len(asked) == 1 else Page()

    site.pages = {"/": paths, **dict.fromkeys(paths, Page(delay_s=0.02)), paths[20]: busy}
    workers = two_workers(crawls)
    wait_until(lambda: "all waiting: the slot opens in 1" in run("status").out, what="all waits", within=WITHIN_S)

    slot = run("slots", "--json").json["slots"][0]["slot"]
    assert "is        closed until" in run("limit", slot).out
    assert run("limit", slot, "--open").code == 0

    wait_until(lambda: client.depth().unfinished == 0, what="all is fetched", within=WITHIN_S)
    assert len(asked) == 2
    assert {visit.path for visit in site.visits} >= set(paths)
    assert run("stop", "--yes").code == 0
    for worker in workers:
        worker.wait()
