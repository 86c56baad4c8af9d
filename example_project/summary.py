"""What became of the demo's crawl, judged from outside the workers, and how it is told; nothing that runs a crawl."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from shop.settings import PRIOQUEUE_TIERS
from shop_site.catalogue import Page
from shop_site.records import HUNG_UP, Visit

from scrapy_prioqueue.printable import counted

SHOWN_AT_MOST = 10


@dataclass(frozen=True, slots=True)
class Kill:
    """One worker's death and return; times are seconds since the epoch.

    Args:
        worker: its id.
        pid: the process that was killed.
        time_s: when.
        fetched: how many pages all workers had fetched by then.
        returned_s: when a new process was started under the same id.
    """

    worker: str
    pid: int
    time_s: float
    fetched: int
    returned_s: float


NO_KILL = Kill(worker="", pid=0, time_s=0, fetched=0, returned_s=0)


@dataclass(frozen=True, slots=True)
class Crawl:
    """What is known of a crawl once it is over.

    Args:
        pages: the site's own list.
        visits: the site's access log.
        items: what the pipelines wrote.
        kill: what happened on the way; `NO_KILL` where nothing is to be told of one.
        started_s: seconds since the epoch when the first worker was started.
        ended_s: seconds since the epoch when the last worker had ended.
    """

    pages: Sequence[Page]
    visits: Sequence[Visit]
    items: Sequence[Mapping[str, str]]
    kill: Kill
    started_s: float
    ended_s: float

    @property
    def first_fetches(self) -> Mapping[str, Visit]:
        """The first final answer for each page on the list, in the order of fetching."""
        urls = {page.url for page in self.pages}
        firsts: dict[str, Visit] = {}
        for visit in self.visits:
            if visit.is_final and visit.url in urls:
                firsts.setdefault(visit.url, visit)
        return firsts


@dataclass(frozen=True, slots=True)
class Tally:
    """What is right and wrong with a crawl.

    Args:
        lost: pages on the site's list without a final answer.
        strays: addresses fetched that are not on the list, robots.txt aside.
        repeated: pages with more than one final answer, and how many more; retries after a 500 are none.
        retries: answers with a 500, each of which asks for another try.
        without_item: products of which no item was written.
        repeated_items: how many items were written more than once.
    """

    lost: Collection[str]
    strays: Collection[str]
    repeated: Mapping[str, int]
    retries: int
    without_item: Collection[str]
    repeated_items: int

    @property
    def is_good(self) -> bool:
        """Every page was fetched, nothing else was, and there is an item of every product."""
        return not (self.lost or self.strays or self.without_item)


def judge(crawl: Crawl) -> Tally:
    """Compare what the site saw and what the pipelines wrote with the site's own list."""
    urls = {page.url for page in crawl.pages}
    answers = Counter(visit.url for visit in crawl.visits if visit.is_final and visit.path != "/robots.txt")
    items = Counter(item["url"] for item in crawl.items)
    products = {page.url for page in crawl.pages if page.kind == "product"}
    return Tally(
        lost=sorted(urls - answers.keys()),
        strays=sorted(answers.keys() - urls),
        repeated={url: count - 1 for url, count in answers.items() if count > 1},
        retries=sum(visit.status >= 500 for visit in crawl.visits),
        without_item=sorted(products - items.keys()),
        repeated_items=sum(items.values()) - len(items),
    )


def tell(crawl: Crawl, tally: Tally) -> str:
    """Return the summary that the demo prints."""
    parts = [_by_worker_and_tier(crawl), _totals(crawl, tally), "\n".join(_at_the_kill(crawl, tally))]
    parts += [_list_of(what, urls) for what, urls in _complaints(tally) if urls]
    parts.append("Nothing was lost." if tally.is_good else "This is not how it should be.")
    return "\n\n".join(parts)


def _by_worker_and_tier(crawl: Crawl) -> str:
    firsts = list(crawl.first_fetches.values())
    counts = Counter((visit.worker, visit.tier) for visit in firsts)
    workers = sorted({visit.worker for visit in firsts})
    places = {
        tier: [place for place, visit in enumerate(firsts, start=1) if visit.tier == tier] for tier in PRIOQUEUE_TIERS
    }
    rows: list[Sequence[object]] = [("pages fetched", *PRIOQUEUE_TIERS, "all tiers")]
    for worker in workers:
        row = [counts[worker, tier] for tier in PRIOQUEUE_TIERS]
        rows.append((worker, *row, sum(row)))
    rows.append(("all workers", *(len(places[tier]) for tier in PRIOQUEUE_TIERS), len(firsts)))
    middles = [round(statistics.median(places[tier])) if places[tier] else "-" for tier in PRIOQUEUE_TIERS]
    rows.append(("median place in the order", *middles, ""))
    return table(rows, "<" + ">" * (len(PRIOQUEUE_TIERS) + 1))


def _totals(crawl: Crawl, tally: Tally) -> str:
    rows: list[Sequence[object]] = [
        ("pages on the site's list", len(crawl.pages), ""),
        ("lost", len(tally.lost), "on the list, but never answered to the end"),
        ("fetched twice", sum(tally.repeated.values()), "answered to the end once more than needed"),
        ("retries", tally.retries, "asked for by the site with a 500; not counted as fetched twice"),
        ("products", sum(page.kind == "product" for page in crawl.pages), ""),
        ("without an item", len(tally.without_item), ""),
        ("items written twice", tally.repeated_items, ""),
        ("seconds", f"{crawl.ended_s - crawl.started_s:.1f}", "from the start of the workers to the end of the last"),
    ]
    return table(rows, "<><")


def _at_the_kill(crawl: Crawl, tally: Tally) -> Iterator[str]:
    kill = crawl.kill
    own = [visit for visit in crawl.first_fetches.values() if visit.worker == kill.worker]
    before = [visit for visit in own if visit.time_s < kill.time_s]
    after = [visit for visit in own if visit.time_s > kill.returned_s]
    unanswered = sum(visit.status == HUNG_UP and visit.worker == kill.worker for visit in crawl.visits)
    unreported = sum(visit.url in tally.repeated for visit in before)
    yield (
        f"{kill.worker} (process {kill.pid}) was killed after {kill.time_s - crawl.started_s:.1f} s, "
        f"when {counted(kill.fetched, 'page was', 'pages were')} fetched, {len(before)} of them by it."
    )
    yield (
        f"It left {counted(unanswered, 'request')} open at the site,"
        f" and {counted(unreported, 'page')} answered but not yet reported done."
    )
    yield f"These were fetched again; fetched twice for other reasons: {len(tally.repeated) - unreported}."
    if after:
        wait_s = after[0].time_s - kill.returned_s
        pages = counted(len(after), "more page")
        yield f"Started again under its name, it fetched {pages}, the first after {wait_s:.1f} s."
    else:
        yield "Started again under its name, it found nothing left to fetch."


def _complaints(tally: Tally) -> Iterator[tuple[str, Collection[str]]]:
    yield "Lost", tally.lost
    yield "Not on the site's list", tally.strays
    yield "Products without an item", tally.without_item


def _list_of(what: str, urls: Collection[str]) -> str:
    shown = [f"  {url}" for url in list(urls)[:SHOWN_AT_MOST]]
    more = [f"  and {len(urls) - SHOWN_AT_MOST} more"] if len(urls) > SHOWN_AT_MOST else []
    return "\n".join([f"{what}:", *shown, *more])


def table(rows: Sequence[Sequence[object]], alignment: str) -> str:
    """Return rows as lines of text.

    Args:
        rows: cells, as many per row as there are columns.
        alignment: one of ``<`` and ``>`` per column.
    """
    widths = [max(len(str(cell)) for cell in column) for column in zip(*rows, strict=True)]
    formats = [f"{{!s:{side}{width}}}" for side, width in zip(alignment, widths, strict=True)]
    return "\n".join("  ".join(formats).format(*row).rstrip() for row in rows)
