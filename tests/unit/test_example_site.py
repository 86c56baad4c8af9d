"""The example shop: a plain Scrapy crawl finds all pages of its list, and the demo's checks detect faults."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from shop_site.catalogue import Catalogue, Page
from shop_site.records import HUNG_UP, Visit, read_pages, read_visits
from summary import Crawl, Kill, judge

from tests.support.processes import child_processes
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "example_project"
ORIGINS = ("http://127.0.0.1:1", "http://127.0.0.2:1")


@dataclass(frozen=True, slots=True)
class PlainCrawl:
    pages: Sequence[Page]
    visits: Sequence[Visit]
    items: Sequence[Mapping[str, str]]

    @property
    def answers(self) -> Counter[str]:
        return Counter(visit.url for visit in self.visits if visit.path != "/robots.txt")


@pytest.fixture(scope="module")
def plain_crawl(tmp_path_factory: pytest.TempPathFactory) -> PlainCrawl:
    """A crawl of a small shop with Scrapy's own scheduler in memory."""
    directory = tmp_path_factory.mktemp("shop")
    pages, log = directory / "pages.jsonl", directory / "access.jsonl"
    with child_processes(directory) as (start, _):
        size = ["--products", "100", "--latency", "0"]
        start([sys.executable, "-m", "shop_site", "--port", "0", *size, "--pages", pages, "--log", log], cwd=EXAMPLE)
        wait_until(pages.exists, what="the shop is open", within=20)
        shop_url = read_pages(pages)[0].url
        settings = {"SCHEDULER": "scrapy.core.scheduler.Scheduler", "SHOP_URL": shop_url, "SHOP_ITEMS": directory}
        arguments = [word for name, value in settings.items() for word in ("-s", f"{name}={value}")]
        crawl = start([sys.executable, "-m", "scrapy", "crawl", "shop", *arguments], cwd=EXAMPLE)
        assert crawl.wait(within=50) == 0, crawl.log
    (items,) = directory.glob("worker-*.jsonl")
    lines = items.read_text().splitlines()
    return PlainCrawl(read_pages(pages), read_visits(log), [json.loads(line) for line in lines])


def test_plain_crawl_fetches_exactly_the_pages_on_the_sites_list(plain_crawl: PlainCrawl) -> None:
    assert set(plain_crawl.answers) == {page.url for page in plain_crawl.pages}


def test_each_page_fails_as_often_as_listed_and_is_then_answered_once(plain_crawl: PlainCrawl) -> None:
    assert plain_crawl.answers == {page.url: page.failures + 1 for page in plain_crawl.pages}
    assert any(page.failures for page in plain_crawl.pages)


def test_each_product_becomes_one_item_with_its_name_and_price(plain_crawl: PlainCrawl) -> None:
    found = sorted((item["url"], item["name"], item["price"]) for item in plain_crawl.items)

    assert found == sorted((page.url, page.title, page.price) for page in plain_crawl.pages if page.kind == "product")


def test_shop_has_pages_of_every_kind_and_slow_ones(plain_crawl: PlainCrawl) -> None:
    kinds = {page.kind for page in plain_crawl.pages}

    assert kinds == {"index", "category", "offers", "product", "sitemap", "info", "moved", "gone"}
    assert any(page.delay_s >= 0.3 for page in plain_crawl.pages)


def test_same_seed_makes_the_same_shop_and_another_seed_another_one() -> None:
    shops = [Catalogue(ORIGINS, products=50, seed=seed).pages for seed in (1, 1, 2)]

    assert shops[0] == shops[1]
    assert shops[0] != shops[2]


def test_address_is_found_however_its_query_is_ordered() -> None:
    catalogue = Catalogue(ORIGINS, products=50)

    page = catalogue.find(f"{ORIGINS[0]}/category/0?sort=name&page=2")

    assert page is not None
    assert page == catalogue.find(f"{ORIGINS[0]}/category/0?page=2&sort=name")


PRODUCT = Page(f"{ORIGINS[0]}/product/1", "product", "amber jug", price="1.00")
INFO = Page(f"{ORIGINS[0]}/info/1", "info", "Good to know")
ITEM = {"url": PRODUCT.url}


def visit(page: Page, status: int = 200) -> Visit:
    host, path = page.url.removeprefix("http://").split("/", 1)
    return Visit(0.0, host, f"/{path}", status, "worker-1", "high")


def crawl_of(*visits: Visit, items: Sequence[Mapping[str, str]] = (ITEM,)) -> Crawl:
    return Crawl([PRODUCT, INFO], visits, items, Kill("worker-1", 1, 0.0, 0, 0.0), 0.0, 0.0)


def test_judge_finds_nothing_wrong_with_a_crawl_that_only_retried() -> None:
    tally = judge(crawl_of(visit(PRODUCT, 500), visit(PRODUCT), visit(INFO)))

    assert tally.is_good
    assert tally.retries == 1
    assert not tally.repeated


@pytest.mark.parametrize("status", [500, HUNG_UP])
def test_judge_calls_a_page_lost_that_was_never_answered_to_the_end(status: int) -> None:
    tally = judge(crawl_of(visit(PRODUCT), visit(INFO, status)))

    assert tally.lost == [INFO.url]
    assert not tally.is_good


def test_judge_counts_second_answers_and_second_items_without_calling_the_crawl_bad() -> None:
    tally = judge(crawl_of(visit(PRODUCT), visit(INFO), visit(PRODUCT), items=[ITEM, ITEM]))

    assert tally.repeated == {PRODUCT.url: 1}
    assert tally.repeated_items == 1
    assert tally.is_good


def test_judge_misses_the_item_of_a_product() -> None:
    tally = judge(crawl_of(visit(PRODUCT), visit(INFO), items=[]))

    assert tally.without_item == [PRODUCT.url]
    assert not tally.is_good


def test_judge_sees_pages_fetched_that_are_on_no_list() -> None:
    basket = Page(f"{ORIGINS[0]}/basket", "info", "Basket")

    tally = judge(crawl_of(visit(PRODUCT), visit(INFO), visit(basket, 404)))

    assert tally.strays == [basket.url]
    assert not tally.is_good
