"""A crawl that uses all of the package's connections: workers, one of them killed, seeds, items, verbs, a client."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from scrapy.settings import Settings

from scrapy_prioqueue import FrontierClient
from scrapy_prioqueue.commands.verbs import exporter
from tests.commands.conftest import run_command
from tests.crawl.redis_spiders import PIPELINE, MyCrawler
from tests.support.crawls import WITHIN_S, Crawls
from tests.support.metrics import metrics_at
from tests.support.site import Page, Site, leaves
from tests.support.waiting import wait_until

LISTINGS = [f"/{number}" for number in range(6)]
DETAILS = [f"/detail/{number}" for number in range(20)]
PUSHED = "/pushed"
KILLED = "killed"
OTHER_HOST = "127.0.0.2"
OVER_BUDGET = ["/over/1", "/over/2"]
"""Pages of that host, which has no budget, so that there are dead letters."""

READING: Sequence[tuple[str, ...]] = (
    ("list",),
    ("status", "--stats"),
    ("top", "--count", "1"),
    ("slots",),
    ("peek",),
    ("find", "detail"),
    ("explain", "/detail/1"),
    ("workers",),
    ("runs",),
    ("scale",),
    ("doctor",),
    ("limit",),
    ("budget",),
    ("dead",),
    ("report", "--output", "report.html"),
    ("export", "export.jsonl"),
)
"""Verbs that only read; an argument that begins with / is a path of the site, one with a dot a file."""

WRITING: Sequence[tuple[str, ...]] = (
    ("limit", "127.0.0.9", "--delay", "1"),
    ("budget", "example.com", "--pages", "5"),
    ("push", "/unwanted", "--delay", "1h"),
    ("move", "unwanted", "--tier", "low", "--yes"),
    ("remove", "unwanted", "--yes"),
    ("forget", "/unwanted", "--yes"),
    ("dead", "replay", "--match", "over/1", "--yes"),
    ("dead", "purge", "--match", "over/2", "--yes"),
    ("pause",),
    ("resume",),
    ("workers", "--evict", KILLED, "--yes"),
    ("import", "export.jsonl", "--name", "copy"),
    ("reset", "--all", "--yes", "--name", "copy"),
)
"""Verbs that change the frontier, or another one."""


def linking(*paths: str) -> Page:
    """Return a page with links that a `LinkExtractor` finds."""
    body = "".join(f'<a href="{path}">{path}</a>' for path in paths)
    return Page(body=body.encode(), headers={"Content-Type": "text/html"})


@dataclass(frozen=True)
class WholeCrawl:
    """Crawls a site of 27 pages and asserts that everything that was asked for has happened.

    Args:
        crawls: with the address of the server in their settings.
        options: `PRIOQUEUE_REDIS_OPTIONS`.
        admin: a client that may do everything.
        folder: for files that verbs write.
    """

    crawls: Crawls
    site: Site
    admin: Any
    folder: Path
    capsys: pytest.CaptureFixture[str]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the frontier."""
        return str(self.crawls.settings["PRIOQUEUE_NAME"])

    @property
    def url(self) -> str:
        """Address of the server."""
        return str(self.crawls.settings["PRIOQUEUE_REDIS_URL"])

    def keys(self) -> Sequence[str]:
        """Return the keys of seeds and of items."""
        return [f"{self.name}:start_urls", f"{self.name}:items"]

    def verb(self, words: Sequence[str], *, url: str = "", code: int = 0) -> str:
        """Run a verb as `scrapy frontier` does, assert its exit code and return what it prints.

        Args:
            url: of the server, for another user.
        """
        words = tuple(self.site.url(word) if word.startswith("/") else word for word in words)
        words = tuple(str(self.folder / word) if word.endswith((".html", ".jsonl")) else word for word in words)
        named = {"PRIOQUEUE_NAME": self.name, "PRIOQUEUE_REDIS_URL": url or self.url}
        found = run_command(words, Settings({**named, "PRIOQUEUE_REDIS_OPTIONS": self.options}))
        out, err = self.capsys.readouterr()
        assert found == code, f"scrapy frontier {' '.join(words)}: exit code {found}\n{out}{err}"
        return out + err

    def run(self, meanwhile: Callable[[], None] = lambda: None, *, troubles: bool = False) -> None:
        """Crawl.

        Args:
            meanwhile: called in mid-crawl, when one worker has been killed.
            troubles: whether the log of the other worker may have errors.
        """
        gate = threading.Event()
        self.site.pages = {path: linking(*DETAILS[number * 3 :][:5]) for number, path in enumerate(LISTINGS)}
        self.site.pages.update({path: Page(gate=gate) for path in DETAILS})
        self.site.pages.update(leaves(PUSHED))
        seeds, items = self.keys()
        with FrontierClient(self.url, self.name, options=self.options) as client:
            assert client.push(self.site.url(PUSHED), callback="parse_page")
            urls = [*map(self.site.url, LISTINGS), *(self.site.url(path, host=OTHER_HOST) for path in OVER_BUDGET)]
            # Read together and served first: details, which wait at the gate, leave no place for other pages.
            first = {"prioqueue_tier": "high"}
            self.admin.rpush(seeds, *(json.dumps({"url": url, "meta": first}) for url in urls))
            settings = {
                "ITEM_PIPELINES": {PIPELINE: 300},
                "REDIS_START_URLS_KEY": seeds,
                "REDIS_ITEMS_KEY": items,
                "REDIS_START_URLS_BATCH_SIZE": len(urls),
                "MAX_IDLE_TIME_BEFORE_CLOSE": 1,
                # So few that some pages are pending.
                "CONCURRENT_REQUESTS": 3,
                "PRIOQUEUE_BUDGETS": {OTHER_HOST: {"pages": 0}},
                "PRIOQUEUE_REDIS_OPTIONS": self.options,
            }
            killed, other = (
                self.crawls.start(spider=MyCrawler, settings={**settings, "PRIOQUEUE_WORKER_ID": worker})
                for worker in (KILLED, "other")
            )
            other.wait_for_site(LISTINGS)
            wait_until(lambda: {*killed.pages} & {*DETAILS}, what="a page is in progress", within=WITHIN_S)
            wait_until(lambda: client.depth().dead == len(OVER_BUDGET), what="the budget is used up", within=WITHIN_S)
            # Verbs name details, which may have been found by the worker that is killed.
            stored = len(urls) + len(DETAILS) + 1
            wait_until(lambda: client.depth().accepted == stored, what="all requests are stored", within=WITHIN_S)
            # Seeds whose requests a worker has not confirmed would be read again.
            # In a cluster redis-py sends KEYS to one node only, SCAN to all.
            wait_until(lambda: not [*self.admin.scan_iter("*:take*")], what="the seeds are settled", within=WITHIN_S)
            killed.kill()
            meanwhile()
            for words in (*READING, *WRITING):
                self.verb(words)
            self.scrape()
            gate.set()
            result = other.wait(troubles=troubles)
            depth = client.depth()
        assert (depth.done, depth.pending, depth.leased) == (len(LISTINGS) + len(DETAILS) + 1, 0, 0)
        assert result.reason == "finished"
        assert sorted(set(self.site_pages())) == sorted([*LISTINGS, *DETAILS, PUSHED])
        found = [json.loads(item)["page"] for item in self.admin.lrange(items, 0, -1)]
        assert sorted(set(found)) == sorted([*DETAILS, PUSHED])

    def site_pages(self) -> Sequence[str]:
        """Return the paths that were asked for."""
        return [visit.path for visit in self.site.visits]

    def scrape(self, *, url: str = "") -> None:
        """Read the exporter once, as Prometheus does.

        Args:
            url: of the server, for another user.
        """
        found: dict[tuple[str, ...], float] = {}
        capsys = self.capsys

        class Interrupted:
            def wait(self) -> None:
                found.update(metrics_at(json.loads(capsys.readouterr().out)["url"]))
                raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(exporter, "Event", Interrupted)
            self.verb(("exporter", "--port", "0", "--json"), url=url)
        assert found["prioqueue_requests", self.name, "leased"] > 0
