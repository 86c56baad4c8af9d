"""Workers with two versions of a spider, as in a rolling deploy: requests go to a worker that can decode them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from scrapy.http import Response
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule

from scrapy_prioqueue import FrontierClient
from scrapy_prioqueue.queues import unreadable
from tests.crawl.spiders import Follower, path_of
from tests.support.crawls import Crawls
from tests.support.servers import RedisServer
from tests.support.site import Page, Site, leaves, link


class Old(Follower):
    """Has no `parse_detail`."""

    name = "version"


class New(Follower):
    """Has it."""

    name = "version"

    def parse_detail(self, response: Response) -> Iterator[Any]:
        """Make an item that only this version makes."""
        yield {"page": path_of(response), "is_detail": True}


class Ruled(CrawlSpider):
    """Has two rules, of which only the second makes items."""

    name = "ruled"
    rules: Sequence[Rule] = (
        Rule(LinkExtractor(allow="/listing"), follow=True),
        Rule(LinkExtractor(allow="/detail"), callback="parse_detail", follow=False),
    )

    def __init__(self, site: str, starts: Any, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.start_urls = [site]

    def parse_detail(self, response: Response) -> Iterator[Any]:
        """Make an item."""
        yield {"page": path_of(response)}


class FewerRules(Ruled):
    """Has one of them; its process pauses for less than others."""

    rules = Ruled.rules[:1]

    def __init__(self, *args: Any, **arguments: Any) -> None:
        super().__init__(*args, **arguments)
        unreadable.REFUSAL_DELAYS_S = (1, 1, 1)


class ReorderedRules(Ruled):
    """Has both in the other order."""

    rules = Ruled.rules[::-1]


def links_to(*paths: str) -> Page:
    body = "".join(f'<a href="{path}">x</a>' for path in paths).encode()
    return Page(body=body, headers={"Content-Type": "text/html"})


def test_requests_that_an_old_worker_can_not_decode_are_fetched_by_a_new_one(on_redis: Crawls, site: Site) -> None:
    details = [f"/detail-{number}" for number in range(6)]
    slow = {f"/slow-{number}": Page(delay_s=2) for number in range(3)}
    site.pages = {"/": [link(path, callback="parse_detail") for path in details], **leaves(*details), **slow}

    old = on_redis.start(*slow, spider=Old, settings={"CONCURRENT_REQUESTS": 2})
    old.wait_for("asked", "/slow-0")
    new = on_redis.start("/", spider=New, settings={"CONCURRENT_REQUESTS": 1})
    results = [new.wait(), old.wait()]

    assert sorted(item["page"] for item in results[0].items if "is_detail" in item) == details
    assert [result.reason for result in results] == ["finished", "finished"]
    assert not [name for result in results for name in result.stats if name.startswith("prioqueue/dead")]


def test_a_worker_that_can_decode_nothing_closes_and_what_it_can_not_do_stays(
    on_redis: Crawls, site: Site, redis_server: RedisServer, frontier_name: str
) -> None:
    site.pages = leaves("/")
    many = 2 * unreadable.MOST_IN_A_ROW
    details = [{"url": site.url(f"/detail-{number}"), "callback": "parse_detail"} for number in range(many)]
    with FrontierClient(redis_server.url, frontier_name) as client:
        client.push_many(details)

        result = on_redis.run("/", spider=Old, troubles=True)

        depth = client.depth()
    assert result.reason == "prioqueue_undecodable"
    assert result.stats["prioqueue/lease/refused"] >= many
    # The start request that is done was stored by this version.
    assert (depth.done, depth.dead, depth.leased, depth.unfinished) == (1, 0, 0, many)
    assert "remove . --callback parse_detail" in result.lines("Closing: ")[0]


class OldInAHurry(Old):
    """Its process pauses for less than others."""

    def __init__(self, *args: Any, **arguments: Any) -> None:
        super().__init__(*args, **arguments)
        unreadable.REFUSAL_DELAYS_S = (1, 1, 1)


def test_a_worker_does_what_it_can_after_many_requests_of_another_version(
    on_redis: Crawls, site: Site, redis_server: RedisServer, frontier_name: str
) -> None:
    site.pages = leaves("/", "/good")
    many = 2 * unreadable.MOST_IN_A_ROW
    details = [{"url": site.url(f"/detail-{number}"), "callback": "parse_detail"} for number in range(many)]
    with FrontierClient(redis_server.url, frontier_name) as client:
        client.push_many([*details, site.url("/good")])

    result = on_redis.run(spider=OldInAHurry, settings={"CONCURRENT_REQUESTS": 1}, troubles=True)

    assert result.reason == "finished"
    assert site.count("/good") == 1
    assert result.stats["prioqueue/dead/decode"] == many


def test_a_worker_that_is_alone_gives_it_up_after_three_pauses_and_it_can_be_replayed(
    on_redis: Crawls, site: Site, frontier_name: str
) -> None:
    site.pages = {"/": links_to("/detail"), "/detail": links_to()}

    on_redis.run(spider=Ruled, settings={"CLOSESPIDER_PAGECOUNT": 1})
    result = on_redis.run(spider=FewerRules, troubles=True)

    assert result.stats["prioqueue/lease/refused"] == 3
    assert result.stats["prioqueue/dead/decode"] == 1
    (line,) = result.lines("is left to workers")
    assert f"<GET {site.url('/detail')}> is left to workers with another version" in line
    assert "waits 1 s (1 of 3)" in line
    (line,) = result.lines("becomes a dead letter")
    assert f"<GET {site.url('/detail')}> can't be decoded" in line
    assert "no rule of spider 'ruled' has the callbacks that rule 1 had" in line
    assert re.search(rf"scrapy frontier dead replay \d+ --name {frontier_name}$", line)
    assert result.reason == "finished"
    assert site.count("/detail") == 0


def test_a_version_with_reordered_rules_does_with_each_page_what_its_own_rule_did(on_redis: Crawls, site: Site) -> None:
    site.pages = {
        "/": links_to("/detail", "/listing"),
        "/listing": links_to("/detail-2"),
        **leaves("/detail", "/detail-2"),
    }

    on_redis.run(spider=Ruled, settings={"CLOSESPIDER_PAGECOUNT": 1, "CONCURRENT_REQUESTS": 1})
    result = on_redis.run(spider=ReorderedRules)

    assert sorted(item["page"] for item in result.items) == ["/detail", "/detail-2"]
    assert "prioqueue/lease/refused" not in result.stats
    assert result.reason == "finished"
