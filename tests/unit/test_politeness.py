"""Notes about pauses and delays that sites ask for."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from scrapy import Request, Spider, signals
from scrapy.http import Response
from scrapy.utils.test import get_crawler

from scrapy_prioqueue.frontier.policy import Closing, CrawlDelay, HeldUp, Latency
from scrapy_prioqueue.queues.politeness import AGAIN_S, HELD_UP_S, Politeness, crawl_delay_ms
from scrapy_prioqueue.settings import Config
from tests.support.clocks import Clock
from tests.unit.virtual_time import pass_time, run_in_virtual_time

ROBOTS = b"User-agent: *\nCrawl-delay: 2.5\n\nUser-agent: shopper\nCrawl-delay: 10\nDisallow: /cart\n"


class Bench:
    """A worker that downloads what a test says."""

    def __init__(self, **settings: Any) -> None:
        self.notes: list[object] = []
        self.crawler = get_crawler(Spider, {"ROBOTSTXT_OBEY": True, **settings})
        self.crawler.spider = Spider("politeness")
        config = Config.from_settings(self.crawler.settings, "politeness")
        slots = SimpleNamespace(slot_of=_slot_of)
        self.clock = Clock()
        self.politeness = Politeness(self.crawler, config, cast("Any", slots), self.notes.append, self.clock)
        self.politeness.watch()

    def download(
        self,
        url: str = "https://shop.example/1",
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        **meta: Any,
    ) -> None:
        request = Request(url, meta=meta)
        response = Response(url, status=status, headers=headers, body=body)
        for signal in (signals.response_downloaded, signals.response_received):
            self.send(signal, response=response, request=request)

    def send(self, signal: object, **arguments: Any) -> None:
        self.crawler.signals.send_catch_log(signal, spider=self.crawler.spider, **arguments)


def _slot_of(request: Request) -> str:
    return str(request.meta.get("download_slot") or request.url.split("/")[2])


def test_a_slot_waits_while_its_robots_txt_is_fetched() -> None:
    bench = Bench()
    robots, page = Request("https://shop.example/robots.txt"), Request("https://shop.example/1")
    for request in (page, robots):
        bench.send(signals.request_reached_downloader, request=request)
    bench.send(signals.request_left_downloader, request=page)
    assert bench.politeness.held_up == {"shop.example"}
    bench.send(signals.request_left_downloader, request=robots)
    assert bench.politeness.held_up == set()


@pytest.mark.parametrize("status", [429, 503])
def test_a_site_that_asks_to_be_left_alone_closes_its_slot(status: int) -> None:
    bench = Bench()
    bench.download(status=status, headers={"Retry-After": "3"})
    bench.download(status=status, headers={"Retry-After": "4"}, download_slot="own")

    assert bench.notes == [Closing("shop.example", 3_000), Closing("own", 4_000)]


def test_a_site_is_not_left_alone_for_longer_than_retries_wait_at_most() -> None:
    bench = Bench(PRIOQUEUE_RETRY_BACKOFF={"retry_after_cap": 60})
    bench.download(status=429, headers={"Retry-After": "86400"})

    assert bench.notes == [Closing("shop.example", 60_000)]


@pytest.mark.parametrize(
    ("status", "headers"),
    [(200, {"Retry-After": "3"}), (429, {}), (503, {"Retry-After": "soon"}), (503, {"Retry-After": "0"})],
)
def test_other_responses_close_nothing(status: int, headers: dict[str, str]) -> None:
    bench = Bench()
    bench.download(status=status, headers=headers)

    assert bench.notes == []


def test_retry_after_may_be_ignored() -> None:
    bench = Bench(PRIOQUEUE_OBEY_RETRY_AFTER=False)
    bench.download(status=429, headers={"Retry-After": "3"})

    assert bench.notes == []


def test_latency_is_reported_where_delays_follow_it() -> None:
    bench = Bench(PRIOQUEUE_AUTOTHROTTLE=True)
    bench.download(download_latency=0.25)
    bench.download(download_latency=0.25, status=404)
    bench.download(download_latency=0.25, autothrottle_dont_adjust_delay=True)
    bench.download()

    assert bench.notes == [
        Latency("shop.example", 250, is_success=True),
        Latency("shop.example", 250, is_success=False),
    ]


def test_without_autothrottle_no_latency_is_reported() -> None:
    bench = Bench()
    bench.download(download_latency=0.25)

    assert bench.notes == []


def test_crawl_delay_is_reported_with_each_robots_txt() -> None:
    bench = Bench(PRIOQUEUE_ROBOTSTXT_CRAWL_DELAY=True)
    url = "https://shop.example/robots.txt"
    for body in (b"", ROBOTS, ROBOTS, b"User-agent: *\nDisallow:\n", b""):
        bench.download(url, body=body)

    assert bench.notes == [
        CrawlDelay("shop.example", delay_ms, starts_now=True) for delay_ms in (0, 2_500, 2_500, 0, 0)
    ]


def test_a_page_that_waits_for_a_slow_robots_txt_is_reported_until_it_starts() -> None:
    run_in_virtual_time(_page_that_waits_for_robots_txt())


async def _page_that_waits_for_robots_txt() -> None:
    bench = Bench(PRIOQUEUE_ROBOTSTXT_CRAWL_DELAY=True)
    robots = Request("https://shop.example/robots.txt")
    bench.send(signals.request_reached_downloader, request=robots)
    await pass_time(3.5 * HELD_UP_S)
    assert bench.notes == [HeldUp("shop.example")] * 3

    bench.send(signals.request_left_downloader, request=robots)
    await pass_time(2 * HELD_UP_S)
    assert len(bench.notes) == 3

    bench.send(signals.request_reached_downloader, request=robots)
    bench.send(signals.spider_closed, reason="shutdown")
    await pass_time(2 * HELD_UP_S)
    assert len(bench.notes) == 3


def test_a_slot_without_a_crawl_delay_gets_no_delay() -> None:
    bench = Bench(PRIOQUEUE_ROBOTSTXT_CRAWL_DELAY=True)
    bench.download("https://shop.example/robots.txt", body=ROBOTS)
    for url in ("https://shop.example/1", "https://other.example/1", "https://other.example/2"):
        bench.send(signals.request_left_downloader, request=Request(url))

    assert bench.notes == [CrawlDelay("shop.example", 2_500, starts_now=True), CrawlDelay("other.example", 0)]


def test_a_slot_of_several_hosts_has_the_longest_delay_of_theirs() -> None:
    bench = Bench(PRIOQUEUE_ROBOTSTXT_CRAWL_DELAY=True)
    bench.download("https://shop.example/robots.txt", body=ROBOTS)
    bench.notes.clear()
    for host in ("quick", "shop", "quick"):
        page = Request(f"https://{host}.example/1", meta={"download_slot": "all"})
        bench.send(signals.request_left_downloader, request=page)

    assert bench.notes == [CrawlDelay("all", 0), CrawlDelay("all", 2_500)]


def test_crawl_delay_of_a_robots_txt_that_has_moved_is_that_of_both_hosts() -> None:
    bench = Bench(PRIOQUEUE_ROBOTSTXT_CRAWL_DELAY=True)
    bench.download(
        "https://www.shop.example/robots.txt", body=ROBOTS, redirect_urls=["https://shop.example/robots.txt"]
    )

    assert set(bench.notes) == {CrawlDelay(f"{name}shop.example", 2_500, starts_now=True) for name in ("", "www.")}


def test_only_a_robots_txt_is_read_as_one() -> None:
    bench = Bench(PRIOQUEUE_ROBOTSTXT_CRAWL_DELAY=True)
    bench.download("https://shop.example/blog/robots.txt", body=ROBOTS)
    bench.download("https://shop.example/robots.txt", body=ROBOTS, status=404)

    assert bench.notes == []


def test_crawl_delay_is_ignored_where_nothing_else_is_set() -> None:
    bench = Bench()
    bench.download("https://shop.example/robots.txt", body=ROBOTS)

    assert bench.notes == []


def test_crawl_delay_is_that_of_the_agent() -> None:
    for name in ("ROBOTSTXT_USER_AGENT", "USER_AGENT"):
        bench = Bench(PRIOQUEUE_ROBOTSTXT_CRAWL_DELAY=True, **{name: "shopper/1.0 (+https://crawler.example)"})
        bench.download("https://shop.example/robots.txt", body=ROBOTS)
        assert bench.notes == [CrawlDelay("shop.example", 10_000, starts_now=True)]


@pytest.mark.parametrize(
    ("value", "delay_ms"),
    [("1", 1_000), ("0.0001", 1), ("0", 0), ("-1", 0), ("soon", 0), ("nan", 0), ("inf", 0), ("1e99", 3_600_000)],
)
def test_crawl_delay_is_a_valid_time_for_any_robots_txt(value: str, delay_ms: int) -> None:
    assert crawl_delay_ms(f"User-agent: *\nCrawl-delay: {value}\n".encode(), "agent", 3600) == delay_ms


def test_a_robots_txt_that_is_no_text_asks_for_nothing() -> None:
    assert crawl_delay_ms(bytes(range(256)), "agent", 3600) == 0


def test_a_crawl_delay_is_reported_again_after_a_while() -> None:
    bench = Bench(PRIOQUEUE_ROBOTSTXT_CRAWL_DELAY=True)
    bench.download("https://shop.example/robots.txt", body=ROBOTS)
    page = Request("https://shop.example/1")
    bench.clock.advance(AGAIN_S - 1)
    bench.send(signals.request_left_downloader, request=page)
    assert bench.notes == [CrawlDelay("shop.example", 2_500, starts_now=True)]

    bench.clock.advance(1)
    bench.send(signals.request_left_downloader, request=page)
    bench.send(signals.request_left_downloader, request=page)

    assert bench.notes[1:] == [CrawlDelay("shop.example", 2_500)]
