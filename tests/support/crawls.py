"""Crawls in separate processes: starts them, interferes with them, and collects their results."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis
from scrapy import Spider

from scrapy_prioqueue.frontier.redis.keys import Keys
from tests.support import crawl_process
from tests.support.forks import Fork, StartFork
from tests.support.site import Link, Site
from tests.support.waiting import wait_until

WITHIN_S = 50.0
"""Seconds that a crawl may take on a busy machine; below the deadline of a test."""

TROUBLE = re.compile(r"\] (?:ERROR|CRITICAL): |Traceback|Unhandled|\b\w*Warning: ")
"""Marks a line of a log that no crawl should have unless the test is about it."""

PLAIN_SETTINGS: Mapping[str, Any] = {
    "TELNETCONSOLE_ENABLED": False,
    "REMOTE_CONTROL_ENABLED": False,
    "LOG_VERSIONS": [],
    "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
    "DOWNLOAD_DELAY": 0,
    # Scrapy starts so many tasks for each response.
    "CONCURRENT_ITEMS": 20,
    "EXTENSIONS": {"tests.support.crawl_process.Recorder": 0},
}

_numbers = count(1)


def _path(value: Any) -> str:
    if isinstance(value, dict):
        return str(value["page"])
    parts = urlsplit(str(value))
    return parts.path + ("?" + parts.query if parts.query else "")


@dataclass(frozen=True, slots=True)
class CrawlResult:
    """A crawl that has ended.

    Args:
        exit_code: of the process.
        reason: why the spider was closed; None if it was not.
        stats: as collected; dates and the like as text.
        items: in the order scraped.
        pages: paths in the order in which the site saw them.
        scheduled: URLs of the signals of that name, in order.
        dropped: likewise.
        log: what the process has printed.
    """

    exit_code: int
    reason: str | None
    stats: Mapping[str, Any]
    items: Sequence[Any]
    pages: Sequence[str]
    scheduled: Sequence[str]
    dropped: Sequence[str]
    log: str

    @property
    def troubles(self) -> Sequence[str]:
        """Lines of the log with an error, or with a warning of Python or Scrapy."""
        return [line for line in self.log.splitlines() if TROUBLE.search(line)]

    def lines(self, text: str) -> Sequence[str]:
        """Return the lines of the log that hold a text."""
        return [line for line in self.log.splitlines() if text in line]

    def stats_under(self, prefix: str) -> Mapping[str, Any]:
        """Return the stats whose names begin so."""
        return {name: value for name, value in self.stats.items() if name.startswith(prefix)}


class Crawl:
    """A crawl that runs.

    Args:
        process: made for it.
        directory: where it writes down what happens.
        site: that it crawls.
        agent: by which the site knows it.
    """

    def __init__(self, process: Fork, directory: Path, site: Site, agent: str) -> None:
        self.process = process
        self._directory = directory
        self._site = site
        self._agent = agent

    @property
    def pages(self) -> Sequence[str]:
        """Paths it has asked for so far."""
        return [visit.path for visit in self._site.visits if visit.headers.get("user-agent") == self._agent]

    def events(self, kind: str) -> Sequence[Any]:
        """Return what the recorder has seen of a kind so far: "item", "scheduled", "dropped", "closed"."""
        path = self._directory / "events"
        text = path.read_text() if path.exists() else ""
        events = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [value for found, value in events if found == kind]

    def wait_for(self, kind: str, *paths: str, within: float = WITHIN_S) -> None:
        """Wait until an event of that kind has come for each of these pages; "asked" is that the site was asked."""

        def has_come() -> bool:
            found = self.pages if kind == "asked" else [_path(value) for value in self.events(kind)]
            return set(paths) <= set(found)

        wait_until(has_come, what=f"{kind}: {', '.join(paths)}", within=within)

    def wait_for_site(self, paths: Collection[str]) -> None:
        """Wait until these pages have been asked for, by whomever."""
        wanted = set(paths)
        wait_until(
            lambda: wanted <= {visit.path for visit in self._site.visits}, what=f"all asked: {paths}", within=WITHIN_S
        )

    def interrupt(self) -> None:
        """Do what Ctrl-C does."""
        self.process.send(signal.SIGINT)

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()

    def wait(self, *, within: float = WITHIN_S, troubles: bool = False) -> CrawlResult:
        """Wait for the end.

        Args:
            within: seconds.
            troubles: whether its log may have errors and warnings.

        Raises:
            AssertionError: it doesn't end in time, or there is trouble.
        """
        exit_code = self.process.wait(within=within)
        stats = self._directory / "stats"
        reasons = self.events("closed")
        result = CrawlResult(
            exit_code=exit_code,
            reason=reasons[0] if reasons else None,
            stats=json.loads(stats.read_text()) if stats.exists() else {},
            items=self.events("item"),
            pages=self.pages,
            scheduled=self.events("scheduled"),
            dropped=self.events("dropped"),
            log=self.process.log,
        )
        if not troubles:
            assert not result.troubles, "\n".join(result.troubles)
            assert exit_code == 0, f"exit code {exit_code}"
        return result


@dataclass(frozen=True)
class Crawls:
    """Starts crawls of a site with settings of their kind.

    Args:
        spider: crawls where a start names no other.
        settings: above `PLAIN_SETTINGS`, below those of a start.
    """

    site: Site
    start_fork: StartFork
    directory: Path
    spider: type[Spider]
    settings: Mapping[str, Any]

    def run(
        self,
        *starts: Link,
        spider: type[Spider] | None = None,
        settings: Mapping[str, Any] | None = None,
        troubles: bool = False,
        **arguments: Any,
    ) -> CrawlResult:
        """Crawl to the end; see `start` and `Crawl.wait`."""
        return self.start(*starts, spider=spider, settings=settings, **arguments).wait(troubles=troubles)

    def wait_for_done(self, pages: int, *names: str) -> None:
        """Wait until the frontier counts so many pages as done; an ack may come after what the page has led to.

        Args:
            names: of several frontiers that do together.
        """
        keys = [Keys(name).of("stats") for name in names or (self.settings["PRIOQUEUE_NAME"],)]
        with redis.Redis.from_url(self.settings["PRIOQUEUE_REDIS_URL"]) as client:
            wait_until(
                lambda: sum(int(client.hget(key, "done") or 0) for key in keys) >= pages,
                what=f"{pages} are done",
                within=WITHIN_S,
            )

    def start(
        self,
        *starts: Link,
        spider: type[Spider] | None = None,
        settings: Mapping[str, Any] | None = None,
        process: str = "CrawlerProcess",
        others: Sequence[type[Spider]] = (),
        **arguments: Any,
    ) -> Crawl:
        """Start a process that crawls.

        Args:
            starts: start requests, "/" if there are none.
            spider: class of the spider.
            settings: of this crawl, besides those of all.
            process: which of Scrapy's classes runs the crawl.
            others: spiders that crawl in the same process, with the same arguments; their stats aren't kept.
            arguments: of the spider.
        """
        agent = f"crawl-{next(_numbers)}"
        directory = self.directory / agent
        directory.mkdir()
        kind = spider or self.spider
        order = {
            "process": process,
            "spiders": [f"{each.__module__}.{each.__qualname__}" for each in (kind, *others)],
            "arguments": {"site": self.site.url(), "starts": starts or ["/"], **arguments},
            "settings": {
                **PLAIN_SETTINGS,
                "USER_AGENT": agent,
                "TESTS_EVENTS": str(directory / "events"),
                **self.settings,
                **(settings or {}),
            },
            "stats": str(directory / "stats"),
        }
        (directory / "order").write_text(json.dumps(order))
        fork = self.start_fork(crawl_process.main, directory / "order")
        return Crawl(fork, directory, self.site, agent)

    def having(self, **settings: Any) -> Crawls:
        """Return the same with further settings."""
        return replace(self, settings={**self.settings, **settings})

    @property
    def are_shared(self) -> bool:
        """Their frontier is on a server."""
        return self.settings.get("PRIOQUEUE_FALLBACK") == "error"

    @property
    def by_scrapy(self) -> Crawls:
        """Crawls of the same site by Scrapy's own scheduler."""
        return replace(self, settings={})
