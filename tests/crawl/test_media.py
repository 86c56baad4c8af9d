"""Media pipelines: the page of an item is done only when its files are stored, also with kills."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scrapy.http import Response

from tests.crawl.spiders import Follower, path_of
from tests.support.crawls import WITHIN_S, Crawls
from tests.support.site import Page, Site, in_turn, moved
from tests.support.waiting import wait_until

ITEMS = range(1, 7)
HELD = "/file/2/b"
"""A file that the site holds back."""

LIMIT = 2
"""As many pages of the site are in progress at a time, in all workers, but more files."""


class Gallery(Follower):
    """Makes an item with three files of each page."""

    name = "gallery"
    field = "file_urls"
    files: Sequence[str] = ("/file/{}/a", "/file/{}/b", "/moved/{}")

    def parse(self, response: Response) -> Iterator[Any]:
        if path_of(response) == "/":
            yield from self.requests(response)
        else:
            number = path_of(response).rpartition("/")[2]
            yield {
                "page": path_of(response),
                self.field: [response.urljoin(path.format(number)) for path in self.files],
            }


def grow(site: Site, gate: threading.Event | None = None) -> None:
    pages = [f"/item/{number}" for number in ITEMS]
    site.pages = {"/": pages, **{path: Page(body=b"") for path in pages}}
    for number in ITEMS:
        site.pages |= {f"/file/{number}/{name}": Page(body=f"{number} {name}".encode()) for name in "ac"}
        site.pages[f"/moved/{number}"] = moved(f"/file/{number}/c")
        # A retry and a redirect of a file don't pass the scheduler either.
        site.pages[f"/file/{number}/b"] = in_turn(Page(status=503), Page(body=f"{number} b".encode()))
    if gate is not None:
        site.pages[HELD] = Page(body=b"2 b", gate=gate)


def with_files(crawls: Crawls, folder: Path) -> Crawls:
    """Return crawls whose items' files are stored in a common folder.

    It is made here, as docs/integrations.md advises: two workers of Scrapy can't make it at the same time.
    """
    (folder / "files" / "full").mkdir(parents=True)
    return crawls.having(
        ADDONS={"scrapy_prioqueue.Addon": 500},
        ITEM_PIPELINES={"scrapy.pipelines.files.FilesPipeline": 1},
        FILES_STORE=str(folder / "files"),
        MEDIA_ALLOW_REDIRECTS=True,
        PRIOQUEUE_LEASE_TTL=10,
        PRIOQUEUE_SLOTS={"127.0.0.1": {"concurrency": LIMIT}},
    )


def check(items: Sequence[Any], folder: Path) -> None:
    """Check that all items are there once with all their files."""
    assert sorted(item["page"] for item in items) == [f"/item/{number}" for number in ITEMS]
    for item in items:
        number = item["page"].rpartition("/")[2]
        stored = [(folder / "files" / file["path"]).read_text() for file in item["files"]]
        assert stored == [f"{number} {name}" for name in "abc"]


def test_each_item_has_its_files_and_each_file_is_downloaded_once(crawls: Crawls, site: Site, tmp_path: Path) -> None:
    grow(site)

    result = with_files(crawls, tmp_path).run(spider=Gallery)

    check(result.items, tmp_path)
    assert Counter(result.pages) == {path: 2 if path.endswith("/b") else 1 for path in site.pages}
    assert result.reason == "finished"
    assert not result.stats_under("prioqueue/dead")


def test_a_page_whose_files_were_not_all_stored_is_fetched_again_after_a_kill(
    on_redis: Crawls, site: Site, tmp_path: Path
) -> None:
    gate = threading.Event()
    grow(site, gate)
    crawls = with_files(on_redis, tmp_path)
    workers = [crawls.start(spider=Gallery) for _ in range(2)]
    workers[0].wait_for_site([HELD])
    crawls.wait_for_done(len(ITEMS))
    stored = tmp_path / "files" / "full"
    wait_until(lambda: len([*stored.iterdir()]) == 3 * len(ITEMS) - 1, what="all others are stored", within=WITHIN_S)

    killed, other = sorted(workers, key=lambda worker: HELD not in worker.pages)
    killed.kill()
    gate.set()
    results = [crawls.run(spider=Gallery), other.wait()]

    items = [item for result in results for item in result.items]
    check([*killed.events("item"), *items], tmp_path)
    assert Counter(visit.path for visit in site.visits) == {
        path: 2 if path.endswith("/b") or path == "/item/2" else 1 for path in site.pages
    }
    assert [result.reason for result in results] == ["finished", "finished"]
