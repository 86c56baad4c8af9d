"""A page that never ends is named by its worker and by the commands, and other workers get it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.commands.conftest import Run
from tests.crawl.test_slow_pages import Hanging
from tests.support.crawls import WITHIN_S, Crawls
from tests.support.site import Site, leaves, link
from tests.support.waiting import wait_until


@pytest.fixture
def crawls(on_redis: Crawls) -> Crawls:
    return replace(on_redis, spider=Hanging).having(PRIOQUEUE_SLOW_PAGE=1.0, PRIOQUEUE_LEASE_TTL=3.0)


def test_a_page_that_never_ends_is_shown_and_given_to_others(
    run: Run, crawls: Crawls, site: Site, tmp_path: Path
) -> None:
    site.pages = {"/hung": ["/last"], **leaves("/last")}
    start, mark = link("/hung", callback="parse_hanging"), str(tmp_path / "mark")

    first = crawls.start(start, mark=mark)
    first.wait_for("asked", "/hung")
    second = crawls.start(start, mark=mark)
    wait_until(lambda: "it may never end" in first.process.log, what="it is named in the log", within=WITHIN_S)
    (page,) = wait_until(lambda: run("workers", "--json").json[0]["slow"], what="it is reported", within=WITHIN_S)
    command = f"scrapy frontier release {page['id']}"
    told = [run(*verb).out for verb in (["status"], ["workers"], ["doctor"], ["explain", site.url("/hung")])]
    wait_until(lambda: "waiting for 1 request" in second.process.log, what="a line says why", within=WITHIN_S)
    released = run("release", str(page["id"]), "--yes")
    results = [first.wait(troubles=True), second.wait()]

    assert page["url"] == site.url("/hung")
    assert all(command in " ".join(out.split()) for out in told)
    (line,) = results[1].lines("Nothing to do for")
    assert command in line
    assert released.out == "1 page given to others\n"
    assert run("release", str(page["id"]), "--yes").code == 1
    assert site.count("/hung") == 2
    assert site.count("/last") == 1
    assert [result.reason for result in results] == ["finished", "finished"]
    assert results[0].stats["prioqueue/slow"] >= 1
    assert not results[0].lines("Traceback")


def test_a_worker_whose_loop_is_blocked_is_shown_and_the_crawl_ends_without_it(
    run: Run, crawls: Crawls, site: Site, tmp_path: Path
) -> None:
    pages = [f"/{number}" for number in range(6)]
    site.pages = {"/hung": ["/last"], **leaves("/last", *pages)}
    starts, mark = [link("/hung", callback="parse_blocking"), *pages], str(tmp_path / "mark")

    first = crawls.start(*starts, mark=mark, settings={"CONCURRENT_REQUESTS": 1})
    first.wait_for("asked", "/hung")
    second = crawls.start(*starts, mark=mark)
    (blocked,) = wait_until(
        lambda: [each for each in run("workers", "--json").json if each["blocked"]], what="it is noted", within=WITHIN_S
    )
    told = {verb: " ".join(run(verb).out.split()) for verb in ("status", "workers", "doctor")}
    explained = run("explain", site.url("/hung"))
    released = run("release", *(str(page["id"]) for page in blocked["slow"]), "--yes")
    result = second.wait()
    log = first.process.log
    first.kill()

    assert [page["url"] for page in blocked["slow"]] == [site.url("/hung")]
    where = "in parse_blocking of crawl/test_slow_pages.py, line"
    evict = f"scrapy frontier workers --evict {blocked['worker']}"
    assert all(where in text and evict in text for text in (*told.values(), " ".join(log.split())))
    assert where in explained.out
    assert f"scrapy frontier release {blocked['slow'][0]['id']}" in explained.out
    assert f"{site.url('/hung')} (callback parse_blocking, id " in log
    assert released.out == "1 page given to others\n"
    assert result.reason == "finished"
    assert (site.count("/hung"), site.count("/last")) == (2, 1)
