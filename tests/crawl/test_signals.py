"""Signals of this package: when they are sent, with which arguments, and what their handlers may do."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from scrapy import Request
from scrapy.crawler import Crawler

from scrapy_prioqueue import signals
from scrapy_prioqueue.frontier.redis.link import Link as ServerLink
from scrapy_prioqueue.frontier.redis.operators.findings import HANDLERS
from scrapy_prioqueue.frontier.redis.operators.inspector import Inspector
from scrapy_prioqueue.frontier.redis.operators.operator import Operator
from tests.crawl.spiders import Mannered, pause
from tests.docs.markdown import REFERENCE, rows
from tests.support.crawls import WITHIN_S, Crawl, Crawls
from tests.support.servers import RedisServer, StartServer
from tests.support.site import Page, Site, leaves, link
from tests.support.waiting import wait_until


class Reporting(Mannered):
    """Requests a report on each request that becomes a dead letter, after a while."""

    name = "reporting"

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Reporting:
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.report, signals.request_dead_lettered)
        crawler.signals.connect(spider.hang, signals.request_dead_lettered)
        crawler.signals.connect(spider.fail, signals.request_dead_lettered)
        return spider

    async def report(self, request: Request) -> None:
        """Request a page, and another one later."""
        assert self.crawler.engine is not None
        self.crawler.engine.crawl(Request(f"{self.site}report"))
        await pause()
        self.crawler.engine.crawl(Request(f"{request.url}-again"))

    async def hang(self) -> None:
        """Wait for the file of the argument `until`, if there is one."""
        while (until := getattr(self, "until", None)) and not Path(until).exists():
            await pause()

    def fail(self) -> None:
        """Raise, which must not matter."""
        raise LookupError("a handler that fails")


ARGUMENTS: dict[str, set[str]] = {}
for _signal, _argument, *_ in rows(REFERENCE / "signals.md", "signal of this package"):
    ARGUMENTS.setdefault(_signal.strip("`"), set()).add(_argument.strip("`"))


def events(crawl: Crawl, signal: str) -> list[Any]:
    """Return the arguments of each of these signals, which are those that the reference names."""
    found = crawl.events(signal)
    assert all(set(arguments) == ARGUMENTS["all"] | ARGUMENTS[signal] for arguments in found)
    return list(found)


def test_handlers_may_add_requests_even_at_the_end_of_the_crawl(crawls: Crawls, site: Site) -> None:
    site.pages = {"/failing": ["/child"], **leaves("/child", "/report", "/failing-again")}

    result = crawls.start(link("/failing", callback="parse_and_fail"), spider=Reporting)
    ended = result.wait(troubles=True)

    assert sorted(ended.pages) == ["/child", "/failing", "/failing-again", "/report"]
    assert ended.reason == "finished"
    (letter,) = events(result, "request_dead_lettered")
    assert letter["reason"] == "callback"
    assert letter["detail"] == "ValueError: the callback of a test fails"
    assert letter["traceback"].rstrip().endswith(letter["detail"])
    assert "/failing>" in letter["request"]
    assert ended.lines("Error caught on signal handler")


def test_a_handler_that_keeps_the_crawl_open_is_reported_to_the_frontier(
    on_redis: Crawls, site: Site, redis_server: RedisServer, frontier_name: str, tmp_path: Path
) -> None:
    site.pages = {"/failing": [], **leaves("/report", "/failing-again")}
    inspector = Inspector(ServerLink(redis_server.url), frontier_name)

    def awaited() -> str:
        status = inspector.status()
        return "" if status is None or not status.waiting_workers else status.awaited

    until = tmp_path / "until"
    crawl = on_redis.start(link("/failing", callback="parse_and_fail"), spider=Reporting, until=str(until))
    wait_until(lambda: awaited() == HANDLERS, what="the handler is reported", within=WITHIN_S)
    until.touch()
    crawl.wait(troubles=True)
    inspector.link.close()


def test_requests_that_cannot_be_stored_are_signalled_one_by_one(on_redis: Crawls, site: Site) -> None:
    site.pages = {"/": [link("/1", is_unstorable=True), link("/2", is_unstorable=True)], **leaves("/1", "/2")}

    crawl = on_redis.start()
    crawl.wait()

    first, second = events(crawl, "request_not_stored")
    assert "/1>" in first["request"]
    assert "/2>" in second["request"]
    assert first["kind"] == "_io.TextIOWrapper"
    assert "meta['file']" in first["reason"]


def test_an_outage_and_a_full_server_begin_and_end(
    on_redis: Crawls, site: Site, redis_server_factory: StartServer
) -> None:
    server = redis_server_factory()
    gates = [threading.Event() for _ in range(3)]
    site.pages = {
        "/": ["/cut-off"],
        "/cut-off": Page(["/full"], gate=gates[0]),
        "/full": Page([link(f"/{number}", meta={"ballast": "x" * 10_000}) for number in range(20)], gate=gates[1]),
        **{f"/{number}": Page() for number in range(20)},
    }
    crawl = on_redis.start(settings={"PRIOQUEUE_REDIS_URL": server.url, "PRIOQUEUE_OUTAGE_GRACE": 0})

    def wait_for(kind: str, count: int) -> Any:
        wait_until(lambda: len(events(crawl, kind)) == count, what=f"{count} times {kind}", within=WITHIN_S)
        return events(crawl, kind)[-1]

    crawl.wait_for("asked", "/cut-off")
    server.freeze()
    gates[0].set()
    outage = wait_for("frontier_degraded", 1)
    server.thaw()
    back = wait_for("frontier_recovered", 1)
    crawl.wait_for("asked", "/full")
    server.client().config_set("maxmemory", 1)
    gates[1].set()
    full = wait_for("frontier_degraded", 2)
    server.client().config_set("maxmemory", 0)
    room = wait_for("frontier_recovered", 2)
    crawl.wait(troubles=True)

    assert (outage["cause"], back["cause"], full["cause"], room["cause"]) == ("outage", "outage", "full", "full")
    assert outage["detail"] == f"no answer from the frontier at {server.url} for 3 s"
    assert "reached its maxmemory" in full["detail"]
    assert back["after_s"] >= 3
    assert room["after_s"] > 0


def test_a_lease_that_an_operator_takes_is_lost(
    on_redis: Crawls, site: Site, redis_server: RedisServer, frontier_name: str
) -> None:
    gate = threading.Event()
    site.pages = {"/held": Page(gate=gate)}
    settings: dict[str, Any] = {"PRIOQUEUE_NAME": frontier_name, "PRIOQUEUE_WORKER_ID": "holder"}
    # With its only place taken, the worker doesn't ask for requests, and so doesn't get this one again.
    settings |= {"CONCURRENT_REQUESTS": 1, "PRIOQUEUE_LEASE_TTL": 2}
    crawl = on_redis.start("/held", settings=settings)
    crawl.wait_for("asked", "/held")

    server = ServerLink(redis_server.url)
    operator = Operator(server, frontier_name)
    operator.take_leases("holder", [lease.lease_id for lease in operator.requests.leased()], max_attempts=5)
    server.close()
    wait_until(lambda: events(crawl, "lease_lost"), what="the worker knows", within=WITHIN_S)
    gate.set()
    crawl.wait(troubles=True)

    (lost,) = events(crawl, "lease_lost")
    assert "/held>" in lost["request"]
    assert lost["is_started"] is True


def test_a_request_that_was_lost_too_often_is_signalled_by_the_worker_that_finds_it(
    on_redis: Crawls, site: Site
) -> None:
    site.pages = {"/held": Page(gate=threading.Event())}
    crawls = on_redis.having(PRIOQUEUE_WORKER_ID="the same", PRIOQUEUE_MAX_ATTEMPTS=1)
    lost = crawls.start("/held")
    lost.wait_for("asked", "/held")
    lost.kill()

    crawl = crawls.start("/held")
    crawl.wait(troubles=True)

    (letter,) = events(crawl, "request_dead_lettered")
    assert letter["reason"] == "lease"
    assert "/held>" in letter["request"]
    assert letter["letter_id"] > 0
