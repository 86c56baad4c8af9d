"""`scrapy frontier` while real workers crawl, and after the crawl."""

from __future__ import annotations

import threading

import pytest

from tests.commands.conftest import Run
from tests.support.crawls import WITHIN_S, Crawls
from tests.support.site import Page, Site, leaves
from tests.support.waiting import wait_until


@pytest.fixture
def crawls(on_redis: Crawls) -> Crawls:
    return on_redis.having(CONCURRENT_REQUESTS=1)


def test_a_crawl_is_looked_into_while_it_continues(run: Run, crawls: Crawls, site: Site) -> None:
    gate = threading.Event()
    site.pages = {"/": ["/held", "/waiting"], "/held": Page(gate=gate), "/waiting": Page(gate=gate)}

    crawl = crawls.start()
    crawl.wait_for("asked", "/")
    wait_until(lambda: crawl.pages[1:], what="a page is held", within=WITHIN_S)
    wait_until(lambda: run("status", "--json").json["counts"]["done"] == 1, what="the first is done", within=WITHIN_S)
    held, waiting = (site.url(path) for path in sorted(["/held", "/waiting"], key=lambda path: path != crawl.pages[1]))
    status = run("status", "--json").json
    explained = {url: run("explain", url, "--json").json["reasons"] for url in (held, waiting)}
    peeked = [stored["request"]["url"] for stored in run("peek", "--json").json]
    found = run("doctor", "--json").json
    (worker,) = run("workers", "--json").json
    gate.set()
    crawl.wait()

    assert (status["left"], status["counts"]["leased"], status["counts"]["pending"]) == (2, 1, 1)
    assert [explained[url][0]["kind"] for url in (held, waiting)] == ["leased", "pending"]
    assert peeked == [waiting]
    assert [finding for finding in found["findings"] if finding["level"] == "wrong"] == []
    assert (worker["is_alive"], worker["leased"], worker["pid"]) == (True, 1, str(crawl.process.pid))
    assert (worker["done"], worker["rate_per_s"] > 0) == (1, True)
    assert (sum(status["pace"]["history"]), status["pace"]["done_per_s"] is None) == (1, False)


def test_a_crawl_that_has_finished_is_looked_into(run: Run, crawls: Crawls, site: Site) -> None:
    site.pages = {"/": ["/1", "/2"], **leaves("/1", "/2")}

    crawls.run(settings={"PRIOQUEUE_ON_FINISH": "keep"})
    status = run("status", "--json").json

    assert (status["state"]["phase"], status["counts"]["done"], status["left"]) == ("ended", 3, 0)
    assert "ended" in run("status").out
    assert "no longer in the frontier: it is done" in run("explain", site.url("/1")).out
    assert run("peek").code == 1
    assert run("doctor").code == 0
