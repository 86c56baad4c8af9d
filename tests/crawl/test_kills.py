"""A worker that is killed repeatedly still works on several of the requests that were lost with it."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path

from tests.support.crawls import WITHIN_S, Crawl, Crawls
from tests.support.site import Page, Site
from tests.support.waiting import wait_until

PAGES = ("/1", "/2", "/3")


def start_and_ask(crawls: Crawls, settings: Mapping[str, str]) -> Crawl:
    """Start a worker, and wait until it has asked for several pages."""
    crawl = crawls.start(*PAGES, settings=settings)
    wait_until(lambda: len(crawl.pages) > 1, what="several pages are asked for", within=WITHIN_S)
    return crawl


def test_pages_that_outlast_six_kills_are_fetched_several_at_a_time(on_redis: Crawls, site: Site) -> None:
    gate = threading.Event()
    site.pages = {path: Page(gate=gate) for path in PAGES}
    settings = {"PRIOQUEUE_WORKER_ID": "fixed"}

    for _ in range(6):
        start_and_ask(on_redis, settings).kill()
    last = start_and_ask(on_redis, settings)
    gate.set()
    result = last.wait()

    assert sorted(item["page"] for item in result.items) == list(PAGES)
    assert result.reason == "finished"


def test_items_of_a_page_that_is_done_are_in_the_feed_and_a_worker_warns_if_it_empties_that(
    on_redis: Crawls, site: Site, tmp_path: Path
) -> None:
    gate, feed = threading.Event(), tmp_path / "items.jl"
    site.pages = {"/1": Page(), "/2": Page(gate=gate)}

    crawl = on_redis.start(*site.pages, settings={"FEEDS": {str(feed): {"format": "jsonlines"}}})
    crawl.wait_for("item", "/1")
    wait_until(lambda: feed.exists() and feed.read_text(), what="the item is in the feed", within=WITHIN_S)
    on_redis.wait_for_done(1)
    crawl.kill()

    assert [json.loads(line)["page"] for line in feed.read_text().splitlines()] == ["/1"]
    gate.set()
    overwriting = {str(feed): {"format": "jsonlines", "overwrite": True}}
    again = on_redis.run(*site.pages, settings={"FEEDS": overwriting})
    assert [item["page"] for item in again.items] == ["/2"]
    assert again.lines(f"WARNING: The feed {feed} is overwritten")
