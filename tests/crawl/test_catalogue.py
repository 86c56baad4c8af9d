"""Forms, inline requests, item loaders, batched feeds, the HTTP cache and a filter, with and without Redis."""

from __future__ import annotations

import csv
import json
import threading
from collections import Counter
from pathlib import Path
from urllib.parse import parse_qs
from xmlrpc.client import dumps, loads

from tests.crawl.catalogue import Catalogue
from tests.support.crawls import Crawl, Crawls
from tests.support.site import Page, Site, Visit

PRODUCTS = [f"/product/{number}" for number in range(1, 8)]
BATCH = 3
HELD = "/stock/product/4"
"""What the site holds back, of one inline request."""

SEARCH = '<form action="/list" method="post"><input type="hidden" name="token" value="t"><input name="q"></form>'
ITEMS = [{"page": path, "title": path, "price": 5.5, "stock": 3, "review": f"Best of {path}"} for path in PRODUCTS]


def html(body: str) -> Page:
    return Page(body=body.encode(), headers={"Content-Type": "text/html"})


def results(visit: Visit) -> Page:
    assert parse_qs(visit.body.decode()) == {"token": ["t"], "q": ["all"]}
    return html("".join(f'<a class="product" href="{path}">…</a>' for path in PRODUCTS))


def review(visit: Visit) -> Page:
    ((path,), name) = loads(visit.body)
    return Page(
        body=dumps((f"{str(name).title()} of {path!s}",), methodresponse=True).encode(),
        headers={"Content-Type": "text/xml"},
    )


def grow(site: Site, gate: threading.Event | None = None) -> None:
    stock = Page(body=json.dumps({"stock": 3}).encode(), headers={"Content-Type": "application/json"})
    site.pages = {
        "/status": html("up"),
        "/search": html(SEARCH),
        "/list": results,
        "/reviews": review,
        **{path: html(f'<h1>{path}</h1><p class="prices">Only <b>£5.50</b></p>') for path in PRODUCTS},
        **{f"/stock{path}": stock for path in PRODUCTS},
    }
    if gate is not None:
        site.pages[HELD] = Page(body=stock.body, headers=stock.headers, gate=gate)


def start(crawls: Crawls, folder: Path, *, worker: str = "w1", crawl: str = "first") -> Crawl:
    """Start a worker that writes its items to two feeds, and shares a cache with all others."""
    (folder / "fetched").mkdir(exist_ok=True)
    settings = {
        "PRIOQUEUE_CRAWL_ID": crawl,
        "PRIOQUEUE_LEASE_TTL": 10,
        "FEEDS": {f"{folder}/{worker}-%(batch_id)d.{kind}": {"format": kind} for kind in ("jsonlines", "csv")},
        "FEED_EXPORT_BATCH_ITEM_COUNT": BATCH,
        "AUTOTHROTTLE_ENABLED": True,
        "AUTOTHROTTLE_START_DELAY": 0.02,
        "HTTPCACHE_DIR": str(folder / "cache"),
        "TESTS_FETCHED": str(folder / "fetched"),
    }
    return crawls.start(spider=Catalogue, settings=settings)


def check_feeds(folder: Path) -> None:
    """Check that all items are in the feeds, once, and that each file holds at most a batch."""
    lines = [path.read_text().splitlines() for path in folder.glob("*.jsonlines")]
    tables = [path.read_text().splitlines() for path in folder.glob("*.csv")]
    assert max(map(len, lines)) == BATCH
    items = [json.loads(line) for batch in lines for line in batch]
    assert sorted(items, key=lambda item: str(item["page"])) == ITEMS
    rows = [row for table in tables for row in csv.DictReader(table)]
    assert sorted(row["page"] for row in rows) == PRODUCTS


def test_a_second_crawl_asks_the_site_for_nothing_that_is_cached_or_was_fetched(
    crawls: Crawls, site: Site, tmp_path: Path
) -> None:
    grow(site)

    first = start(crawls, tmp_path).wait()
    visits = Counter(visit.path for visit in site.visits)
    second = start(crawls, tmp_path, crawl="second").wait()

    check_feeds(tmp_path)
    assert visits == {**dict.fromkeys(site.pages, 1), "/reviews": len(PRODUCTS)}
    assert not (second.items or second.pages)
    assert second.stats["httpcache/hit"] == 3
    assert [first.reason, second.reason] == ["finished", "finished"]


def test_a_kill_during_an_inline_request_loses_no_item_of_the_feeds(
    on_redis: Crawls, site: Site, tmp_path: Path
) -> None:
    gate = threading.Event()
    grow(site, gate)
    workers = [start(on_redis, tmp_path, worker="w1")]
    workers[0].wait_for_site(["/search"])
    workers.append(start(on_redis, tmp_path, worker="w2"))
    workers[0].wait_for_site([HELD])
    on_redis.wait_for_done(2 * len(PRODUCTS))

    killed, other = sorted(workers, key=lambda worker: HELD not in worker.pages)
    killed.kill()
    gate.set()
    results = [start(on_redis, tmp_path, worker="w3").wait(), other.wait()]

    check_feeds(tmp_path)
    expected = {**dict.fromkeys(site.pages, 1), HELD: 2, "/reviews": len(PRODUCTS)}
    assert Counter(visit.path for visit in site.visits) == expected
    assert [result.reason for result in results] == ["finished", "finished"]
