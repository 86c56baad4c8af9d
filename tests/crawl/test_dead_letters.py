"""Requests whose callbacks raise, close the spider, or call `requeue()`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider, IgnoreRequest
from scrapy.http import Response
from shop_chaos.view import FrontierView
from twisted.python.failure import Failure

from scrapy_prioqueue import requeue
from scrapy_prioqueue.frontier.base import DeadLetter
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.tiers import TierPolicy
from tests.crawl.spiders import Follower, path_of
from tests.support.coroutines import run
from tests.support.crawls import WITHIN_S, CrawlResult, Crawls
from tests.support.letters import stored_letters
from tests.support.servers import RedisServer
from tests.support.site import Page, Site, in_turn, leaves, link
from tests.support.waiting import wait_until


class Failing(Follower):
    """Has callbacks that end badly."""

    name = "failing"

    def parse_and_fail(self, response: Response) -> Iterator[Any]:
        """Yield children, then raise."""
        yield from self.requests(response)
        raise ValueError("no price\non this page")

    def parse_and_ignore(self, response: Response) -> None:
        """Raise what is no failure."""
        raise IgnoreRequest

    def on_error(self, failure: Failure) -> None:
        """Raise in an errback."""
        raise KeyError("errback")

    def parse_and_close_once(self, response: Response) -> Iterator[Any]:
        """Close the spider before all is yielded, unless the page was seen before."""
        requests = list(self.requests(response))
        yield requests[0]
        if not response.meta.get("prioqueue_requeue_times"):
            raise CloseSpider("enough")
        yield from requests[1:]
        yield {"page": path_of(response)}

    def parse_twice(self, response: Response) -> Iterator[Any]:
        """Put the request back once, by whichever way the page wants."""
        if "prioqueue_requeue_times" not in response.meta:
            yield requeue(response, delay=0.3, reason="not yet")
        else:
            yield {"page": path_of(response), "times": response.meta["prioqueue_requeue_times"]}

    def parse_for_ever(self, response: Response) -> Any:
        """Put the request of a changed response back, each time."""
        return requeue(response.replace(body=b"other"), reason="captcha")


def letters(redis_server: RedisServer, name: str) -> list[DeadLetter]:
    """Return what the frontier has kept."""

    async def read() -> list[DeadLetter]:
        connection = Connection(redis_server.url)
        found = await stored_letters(connection, name)
        await connection.close()
        return list(found)

    return run(read())


def balanced(result: CrawlResult, redis_server: RedisServer, name: str) -> bool:
    """Return whether the counters balance after a finished crawl."""
    view = FrontierView(redis_server.client(), name)
    counts = view.counts()
    return view.check_books() == counts.get("done", 0) + counts.get("dead", 0)


def test_a_page_whose_callback_raises_is_a_dead_letter_and_its_children_are_fetched(
    on_redis: Crawls, site: Site, redis_server: RedisServer, frontier_name: str
) -> None:
    site.pages = {
        "/": [link("/fails", callback="parse_and_fail"), link("/ignored", callback="parse_and_ignore")],
        "/fails": ["/child"],
        **leaves("/child", "/ignored"),
    }
    result = on_redis.run(spider=Failing, troubles=True)

    assert sorted(result.pages) == ["/", "/child", "/fails", "/ignored"]
    (letter,) = letters(redis_server, frontier_name)
    assert (letter.reason, letter.detail) == ("callback", "ValueError: no price on this page")
    assert letter.traceback.rstrip().endswith("no price\non this page")
    assert "parse_and_fail" in letter.traceback
    assert len(letter.traceback) <= 2000
    assert result.stats_under("prioqueue/dead/") == {"prioqueue/dead/callback": 1}
    assert result.reason == "finished"
    assert balanced(result, redis_server, frontier_name)


def test_dead_letters_of_earlier_crawls_are_logged_at_the_end_of_a_crawl(on_redis: Crawls, site: Site) -> None:
    site.pages = {"/": [link("/fails", callback="parse_and_fail")], "/fails": [], **leaves("/fine")}

    results = [on_redis.run(start, spider=Failing, troubles=True) for start in ("/", "/", "/fine")]

    told = [result.lines("dead letters kept, of this crawl and earlier ones: ")[0] for result in results]
    assert [line.partition(" done, ")[2] for line in told] == [
        f"{dead} dead; dead letters kept, of this crawl and earlier ones: {kept}"
        for dead, kept in ((1, 1), (1, 2), (0, 2))
    ]
    assert all("WARNING" in line for line in told)
    assert results[2].stats_under("prioqueue/letters/") == {"prioqueue/letters/crawl": 0, "prioqueue/letters/kept": 2}


def test_an_errback_that_raises_makes_a_dead_letter_and_a_failed_download_alone_does_not(
    on_redis: Crawls, site: Site, redis_server: RedisServer, frontier_name: str
) -> None:
    site.pages = {"/": [link("/missing", errback="on_error"), "/missing-2"]}

    result = on_redis.run(spider=Failing, troubles=True)

    assert [letter.detail for letter in letters(redis_server, frontier_name)] == ["KeyError: 'errback'"]
    assert result.stats_under("prioqueue/dead/") == {"prioqueue/dead/callback": 1}


def test_no_dead_letter_for_a_reason_that_the_setting_does_not_name(
    on_redis: Crawls, site: Site, redis_server: RedisServer, frontier_name: str
) -> None:
    site.pages = {"/": [link("/fails", callback="parse_and_fail")], "/fails": []}
    result = on_redis.run(spider=Failing, settings={"PRIOQUEUE_DEAD_LETTER_ON": ["lease"]}, troubles=True)

    assert letters(redis_server, frontier_name) == []
    assert result.stats_under("prioqueue/dead/") == {}
    assert balanced(result, redis_server, frontier_name)


@pytest.mark.parametrize("concurrency", [1, 8])
def test_links_not_yielded_when_a_page_closed_the_spider_are_found_by_the_next_run(
    on_redis: Crawls, site: Site, redis_server: RedisServer, frontier_name: str, concurrency: int
) -> None:
    site.pages = {
        "/": [link("/close", callback="parse_and_close_once")],
        "/close": ["/a", "/b", "/c"],
        **leaves("/a", "/b", "/c"),
    }
    crawls = on_redis.having(CONCURRENT_REQUESTS=concurrency)

    first = crawls.run(spider=Failing)
    second = crawls.run(spider=Failing)

    assert (first.reason, second.reason) == ("enough", "finished")
    fetched = Counter([*first.pages, *second.pages])
    assert fetched == {"/": 1, "/close": 2, "/a": 1, "/b": 1, "/c": 1}
    assert balanced(second, redis_server, frontier_name)


def test_a_request_is_put_back_and_fetched_again_after_a_delay(crawls: Crawls, site: Site) -> None:
    site.pages = {"/": [link("/twice", callback="parse_twice"), "/other"], **leaves("/twice", "/other")}

    result = crawls.run(spider=Failing)

    assert Counter(result.pages) == {"/": 1, "/twice": 2, "/other": 1}
    times = [visit.time_s for visit in site.visits if visit.path == "/twice"]
    assert times[1] - times[0] >= 0.3
    assert result.lines("is put back and fetched again in 0.3 s: not yet")
    assert {"page": "/twice", "times": 1} in result.items
    assert result.stats["prioqueue/requeued"] == 1
    assert result.reason == "finished"


def test_a_request_is_put_back_on_scrapys_disk_queue_too(in_memory: Crawls, site: Site, tmp_path: Path) -> None:
    site.pages = {"/": [link("/twice", callback="parse_twice")], **leaves("/twice")}

    result = in_memory.run(spider=Failing, settings={"JOBDIR": str(tmp_path / "job")})

    assert result.items == [{"page": "/"}, {"page": "/twice", "times": 1}]
    assert result.reason == "finished"
    (line,) = result.lines("is put back and fetched again")
    assert "without the delay of 0.3 s, since Scrapy's own queue has no delays: not yet" in line


def test_a_request_that_can_not_be_stored_is_put_back_in_the_process(crawls: Crawls, site: Site) -> None:
    site.pages = {"/": [], "/kept": []}

    result = crawls.run(spider=Keeping)

    assert result.items == [{"page": "/kept", "times": 1}]
    assert result.pages == ["/", "/kept", "/kept"]


class Keeping(Failing):
    """Finds a page that can't be stored."""

    name = "keeping"

    def parse(self, response: Response) -> Iterator[Any]:
        yield response.follow("/kept", callback=partial(Failing.parse_twice, self))


def test_a_request_that_is_put_back_again_and_again_becomes_a_dead_letter(
    on_redis: Crawls, site: Site, redis_server: RedisServer, frontier_name: str
) -> None:
    site.pages = {"/": [link("/ever", callback="parse_for_ever")], **leaves("/ever")}

    result = on_redis.run(spider=Failing, settings={"PRIOQUEUE_REQUEUE_LIMIT": 2}, troubles=True)

    assert Counter(result.pages) == {"/": 1, "/ever": 3}
    (letter,) = letters(redis_server, frontier_name)
    assert (letter.reason, letter.detail) == ("callback", "put back 2 times already: captcha")
    assert result.stats["prioqueue/dead/callback"] == 1
    assert balanced(result, redis_server, frontier_name)


def test_how_often_a_request_was_put_back_is_known_after_a_kill(on_redis: Crawls, site: Site) -> None:
    held = Page(delay_s=100)
    site.pages = {"/": [link("/twice", callback="parse_twice")], "/twice": in_turn(Page(), held, Page())}
    named = on_redis.having(PRIOQUEUE_WORKER_ID="me")

    crawl = named.start(spider=Failing)
    wait_until(lambda: site.count("/twice") == 2, what="the page is asked for again", within=WITHIN_S)
    crawl.kill()
    second = named.run(spider=Failing)

    assert second.reason == "finished"
    assert second.items == [{"page": "/twice", "times": 1}]


class Unmarkable(Follower):
    """Fails when one of its requests is decoded."""

    name = "unmarkable"

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Unmarkable:
        mark = TierPolicy.mark

        def mark_some(policy: TierPolicy, request: Request, rank: int) -> None:
            if request.url.endswith("/bad"):
                raise IndexError("no such tier")
            mark(policy, request, rank)

        TierPolicy.mark = mark_some  # type: ignore[method-assign, assignment]
        return super().from_crawler(crawler, *args, **kwargs)


def test_a_request_that_can_not_be_decoded_is_kept_with_the_reason(
    on_redis: Crawls, site: Site, redis_server: RedisServer, frontier_name: str
) -> None:
    site.pages = {"/": ["/bad", "/good"], **leaves("/bad", "/good")}

    result = on_redis.run(spider=Unmarkable, troubles=True)

    (letter,) = letters(redis_server, frontier_name)
    assert (letter.reason, letter.detail) == ("decode", "IndexError: no such tier")
    assert result.pages == ["/", "/good"]
    assert result.reason == "finished"
