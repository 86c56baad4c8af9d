"""The shop as data: its pages, their links and their whims, made from a seed; nothing that renders or serves."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from w3lib.url import canonicalize_url

Kind = Literal["index", "category", "offers", "product", "sitemap", "info", "moved", "gone"]

PRODUCTS_PER_CATEGORY = 40
PRODUCTS_PER_LISTING = 10
OFFERS_PER_LISTING = 20
INFO_PAGES_PER_HOST = 12
RELATED_PRODUCTS = 4

FORBIDDEN_PATH = "/basket"
"""What robots.txt forbids: linked from the index, on nobody's list."""

QUALITIES = ("amber", "brisk", "copper", "dapper", "elder", "frosty", "gentle", "hollow", "ivory", "jolly")
THINGS = ("anvil", "basin", "candle", "drawer", "easel", "funnel", "goblet", "hammer", "inkwell", "jug", "kettle")


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the shop.

    Args:
        url: its address in canonical form.
        kind: what it is.
        title: its heading; a product's name.
        links: addresses as the page prints them, by the name of the list they stand in.
        price: what a product costs.
        moved_to: where a page that moved is now.
        delay_s: seconds until it answers.
        failures: how many tries are answered with 500 before it works.
    """

    url: str
    kind: Kind
    title: str
    links: Mapping[str, Sequence[str]] = field(default_factory=dict)
    price: str | None = None
    moved_to: str | None = None
    delay_s: float = 0.0
    failures: int = 0

    @property
    def status(self) -> int:
        """The status of its answer once it works."""
        return {"moved": 301, "gone": 404}.get(self.kind, 200)


@dataclass(frozen=True, slots=True)
class Parts:
    """Which products are special; numbers of products.

    Args:
        hidden: linked from nowhere but the sitemap.
        moved: listed under an address that redirects to the right one.
        reduced: on the offers' pages.
        mapped: in the sitemap, the hidden ones among them.
    """

    hidden: frozenset[int]
    moved: frozenset[int]
    reduced: frozenset[int]
    mapped: frozenset[int]

    @classmethod
    def draw(cls, products: int, rng: random.Random) -> Parts:
        """Draw the special products."""
        numbers = range(products)
        hidden = frozenset(rng.sample(numbers, products // 12))
        listed = sorted(set(numbers) - hidden)
        return cls(
            hidden=hidden,
            moved=frozenset(rng.sample(listed, products // 60)),
            reduced=frozenset(rng.sample(listed, products // 10)),
            mapped=hidden | frozenset(rng.sample(listed, products // 2)),
        )


class Catalogue:
    """All pages of a shop; the same arguments make the same shop, in every process.

    Args:
        origins: the hosts it is spread over, as ``http://host:port``; the first has index, offers and sitemap.
        products: how many products it sells.
        seed: what else is drawn by lot.
        latency_s: usual seconds until a page answers.
    """

    def __init__(self, origins: Sequence[str], *, products: int = 600, seed: int = 7, latency_s: float = 0.1) -> None:
        self._origins = list(origins)
        self._rng = random.Random(seed)
        self._latency_s = latency_s
        self._names = [f"{self._rng.choice(QUALITIES)} {self._rng.choice(THINGS)}" for _ in range(products)]
        self._categories = [
            range(first, min(first + PRODUCTS_PER_CATEGORY, products))
            for first in range(0, products, PRODUCTS_PER_CATEGORY)
        ]
        self._parts = Parts.draw(products, self._rng)
        self.pages: Mapping[str, Page] = {page.url: self._with_whims(page) for page in self._all_pages()}

    @property
    def start_urls(self) -> Sequence[str]:
        """The pages that no other page needs to lead to."""
        return [f"{self._origins[0]}{path}" for path in ("/", "/offers", "/sitemap.xml")]

    def find(self, url: str) -> Page | None:
        """Return the page at an address, however its query is ordered."""
        return self.pages.get(canonicalize_url(url))

    def _all_pages(self) -> Iterator[Page]:
        yield self._index()
        for number in range(len(self._categories)):
            yield from self._category(number)
        yield from self._offers()
        for number in range(len(self._names)):
            yield self._product(number)
            if number in self._parts.moved:
                yield Page(self._listed_url(number), "moved", self._names[number], moved_to=self._product_url(number))
        yield from self._sitemaps()
        for origin in self._origins:
            yield from (Page(url, "info", "Good to know") for url in self._info_urls(origin))

    def _index(self) -> Page:
        links = {
            "categories": [self._category_url(number) for number in range(len(self._categories))],
            "service": [f"{origin}{FORBIDDEN_PATH}" for origin in self._origins],
        }
        return Page(f"{self._origins[0]}/", "index", "The shop", links)

    def _category(self, number: int) -> Iterator[Page]:
        url = self._category_url(number)
        listed = [self._listed_url(each) for each in self._categories[number] if each not in self._parts.hidden]
        if number % 3 == 0:
            gone_url = f"{self._origin(number)}/product/discontinued-{number}"
            listed.insert(PRODUCTS_PER_LISTING // 2, gone_url)
            yield Page(gone_url, "gone", "No longer sold")
        yield from self._listing(url, "category", f"Category {number}", listed, PRODUCTS_PER_LISTING)

    def _offers(self) -> Iterator[Page]:
        reduced = [self._listed_url(number) for number in sorted(self._parts.reduced)]
        yield from self._listing(f"{self._origins[0]}/offers", "offers", "Offers", reduced, OFFERS_PER_LISTING)

    def _listing(self, url: str, kind: Kind, title: str, products: Sequence[str], size: int) -> Iterator[Page]:
        """Cut a list of products into pages; the first is at the bare address."""
        last = max(1, -(-len(products) // size))
        addresses = [url] + [f"{url}?page={page}&sort=name" for page in range(2, last + 1)]
        for index, address in enumerate(addresses):
            links = {
                "products": products[index * size : (index + 1) * size],
                "pager": addresses[max(0, index - 1) : index + 2] + [self._reordered(addresses[-1])],
            }
            yield Page(address, kind, f"{title}, page {index + 1}", links)

    def _product(self, number: int) -> Page:
        listed = sorted(set(range(len(self._names))) - self._parts.hidden)
        related = self._rng.sample(listed, min(RELATED_PRODUCTS, len(listed)))
        links = {
            "category": [self._category_url(number // PRODUCTS_PER_CATEGORY)],
            "related": [f"{self._listed_url(other)}#reviews" for other in related],
        }
        price = f"{self._rng.randint(100, 99_999) / 100:.2f}"
        return Page(self._product_url(number), "product", self._names[number], links, price=price)

    def _sitemaps(self) -> Iterator[Page]:
        parts = [f"{origin}/sitemap-{part}.xml" for origin in self._origins for part in ("products", "info")]
        yield Page(f"{self._origins[0]}/sitemap.xml", "sitemap", "Sitemap", {"sitemap": parts})
        mapped = [self._product_url(number) for number in sorted(self._parts.mapped)]
        for origin in self._origins:
            own = [url for url in mapped if url.startswith(f"{origin}/")]
            yield Page(f"{origin}/sitemap-products.xml", "sitemap", "Products", {"url": own})
            yield Page(f"{origin}/sitemap-info.xml", "sitemap", "Info", {"url": self._info_urls(origin)})

    def _with_whims(self, page: Page) -> Page:
        delay_s = self._latency_s * self._rng.uniform(0.5, 1.5)
        failures = 0
        if page.kind in ("product", "category"):
            if self._rng.random() < 0.03:
                delay_s = self._rng.uniform(0.3, 1.0)
            if self._rng.random() < 0.03:
                failures = self._rng.randint(1, 2)
        return replace(page, delay_s=delay_s, failures=failures)

    def _origin(self, category: int) -> str:
        return self._origins[category % len(self._origins)]

    def _category_url(self, category: int) -> str:
        return f"{self._origin(category)}/category/{category}"

    def _product_url(self, number: int) -> str:
        slug = self._names[number].replace(" ", "-")
        return f"{self._origin(number // PRODUCTS_PER_CATEGORY)}/product/{number}-{slug}"

    def _listed_url(self, number: int) -> str:
        """The address under which the shop's own pages link to a product."""
        if number in self._parts.moved:
            return f"{self._origin(number // PRODUCTS_PER_CATEGORY)}/product/{number}"
        return self._product_url(number)

    @staticmethod
    def _info_urls(origin: str) -> Sequence[str]:
        return [f"{origin}/info/{number}" for number in range(INFO_PAGES_PER_HOST)]

    @staticmethod
    def _reordered(url: str) -> str:
        """The same address with its query in another order, as careless templates print it."""
        path, _, query = url.partition("?")
        return f"{path}?{'&'.join(reversed(query.split('&')))}" if query else path
