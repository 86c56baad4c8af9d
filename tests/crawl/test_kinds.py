"""Spiders of all kinds that come with Scrapy, several in one process, share crawls with another process."""

from __future__ import annotations

import gzip
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from scrapy import Spider

from tests.crawl.kinds import KINDS, Alone, Sitemap
from tests.support.crawls import Crawl, Crawls
from tests.support.site import Page, Site

NUMBERS = range(1, 5)
ITEMS: Sequence[Mapping[str, str]] = (
    *({"page": f"/product/{number}", "kind": "product"} for number in NUMBERS),
    *({"page": f"/shop/{name}", "kind": "shop"} for name in ("1", "by-hand")),
    *({"page": f"/entry/{number}", "title": f"Entry {number}"} for number in NUMBERS),
    *({"page": f"/row/{number}", "price": f"{number}.00"} for number in NUMBERS),
    *({"page": f"/crawl/book/{number}", "found_on": "/crawl/list"} for number in NUMBERS),
    *({"page": f"/author/{number}", "name": f"Author {number}"} for number in (1, 2)),
    *({"page": path, "text": f"Quote of {path}"} for path in ("/tag/humor", "/tag/humor/2")),
    *({"page": path} for path in ("/alone/1", "/alone/2")),
)
HELD = ("/product/4", "/entry/4", "/row/4", "/crawl/book/4", "/author/2", "/tag/humor/2")
"""One page of each shared crawl."""


def html(body: str, kind: str = "text/html") -> Page:
    return Page(body=body.encode(), headers={"Content-Type": kind})


def xml(body: str) -> Page:
    return html(body, "text/xml")


def each(numbers: Sequence[int], text: str) -> str:
    return "".join(text.format(number) for number in numbers)


def sitemap(site: Site, root: str, entry: str, *paths: str) -> str:
    entries = "".join(f"<{entry}><loc>{site.url(path)}</loc></{entry}>" for path in paths)
    return f'<{root} xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{entries}</{root}>'


def quotes(path: str, author: int, following: str) -> Page:
    return html(
        f'<div class="quote"><span class="text">Quote of {path}</span> by <small class="author">…</small>'
        f'<a href="/author/{author}">(about)</a></div><ul><li class="next"><a href="{following}">Next</a></ul>'
    )


def grow(site: Site, gate: threading.Event | None = None) -> None:
    """Make the pages of all spiders; those of `HELD` wait for the gate."""
    products = [f"/product/{number}" for number in NUMBERS]
    second_map = sitemap(site, "urlset", "url", "/shop/1", "/product/1").encode()
    pages = {
        **{item["page"]: html("<p>") for item in ITEMS},
        "/robots.txt": html(f"Sitemap: {site.url('/index.xml')}\n", "text/plain"),
        "/index.xml": xml(sitemap(site, "sitemapindex", "sitemap", "/maps/1.xml", "/maps/2.xml.gz", "/other.xml")),
        "/maps/1.xml": xml(sitemap(site, "urlset", "url", *products)),
        "/maps/2.xml.gz": Page(body=gzip.compress(second_map), headers={"Content-Type": "application/gzip"}),
        "/feed.xml": xml(
            '<feed xmlns="http://shop.example/news">'
            + each(NUMBERS, "<entry><title>Entry {0}</title><link>/entry/{0}</link></entry>")
            + "</feed>"
        ),
        "/table.csv": html("url;price\n" + each(NUMBERS, "/row/{0};{0}.00\n"), "text/csv"),
        "/crawl/": html('<a href="/crawl/list?from=1">1</a><a href="/crawl/list?from=2">2</a>'),
        "/crawl/list": html(each(NUMBERS, '<a href="/crawl/book/{0}">{0}</a>')),
        "/quotes/1": quotes("/quotes/1", 1, "/quotes/2"),
        "/quotes/2": quotes("/quotes/2", 2, "/quotes/2"),
        "/tag/humor": quotes("/tag/humor", 1, "/tag/humor/2"),
        "/tag/humor/2": html('<div class="quote"><span class="text">Quote of /tag/humor/2</span></div>'),
        **{f"/author/{number}": html(f'<h3 class="author-title"> Author {number} </h3>') for number in (1, 2)},
    }
    site.pages = {path: replace(page, gate=gate) if path in HELD else page for path, page in pages.items()}


def start(crawls: Crawls, name: str, *others: type[Spider]) -> Crawl:
    """Start a process with all spiders, each on a frontier of its own."""
    settings = {"PRIOQUEUE_NAME": f"{name}-%(spider)s", "PRIOQUEUE_LEASE_TTL": 10}
    return crawls.start(spider=KINDS[0], others=(*KINDS[1:], *others), settings=settings)


def in_order(items: Sequence[Any]) -> Sequence[Any]:
    return sorted(items, key=lambda item: str(item["page"]))


def test_spiders_of_all_kinds_crawl_in_one_process(crawls: Crawls, site: Site, frontier_name: str) -> None:
    grow(site)
    # Two of one kind share their crawl if there is a server.
    again = [Sitemap] if crawls.are_shared else []

    crawl = start(crawls, frontier_name, *again)
    result = crawl.wait()

    assert in_order(result.items) == in_order(ITEMS)
    assert Counter(crawl.pages) == dict.fromkeys(site.pages, 1)
    assert crawl.events("closed") == ["finished"] * (len(KINDS) + len(again))


def test_a_kill_of_all_spiders_of_a_process_loses_nothing(on_redis: Crawls, site: Site, frontier_name: str) -> None:
    gate = threading.Event()
    grow(site, gate)
    alone = {path for path in site.pages if "/alone/" in path}
    first = start(on_redis, frontier_name)
    first.wait_for("asked", *HELD)
    shared = [f"{frontier_name}-{kind.name}" for kind in KINDS if kind is not Alone]
    on_redis.wait_for_done(len(site.pages) - len(alone) - len(HELD), *shared)

    first.kill()
    gate.set()
    second = start(on_redis, frontier_name)
    result = second.wait()

    assert in_order([*first.events("item"), *result.items]) == in_order([*ITEMS, *ITEMS[-len(alone) :]])
    assert Counter(visit.path for visit in site.visits) == {
        path: 2 if path in alone or path in HELD else 1 for path in site.pages
    }
    assert second.events("closed") == ["finished"] * len(KINDS)
