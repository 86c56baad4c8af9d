"""Local feeds: flushes them, so that the items of a page are in the files before the page is acked, and checks them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from scrapy import Request, Spider

from scrapy_prioqueue.engine import Engine
from scrapy_prioqueue.logs import CrawlLog

logger = logging.getLogger(__name__)


class Feeds:
    """Flushes the files of feeds, which Scrapy buffers, and warns of feeds that lose items."""

    def __init__(self, engine: Engine, spider: Spider | None) -> None:
        self._engine = engine
        self._log = CrawlLog(logger, spider)
        self._has_failed = False

    def flush_before(self, on_done: Callable[[Request], None]) -> Callable[[Request], None]:
        """Return a function that flushes when a request is done, and then calls `on_done`."""

        def flush_and_call(request: Request) -> None:
            self.flush()
            on_done(request)

        return flush_and_call

    def flush(self) -> None:
        """Flush all feeds; log the first failure."""
        for file in self._engine.feed_files():
            # Objects of a storage or a post-processing plugin may lack these methods.
            if getattr(file, "closed", False) or not hasattr(file, "flush"):
                continue
            try:
                file.flush()
            except OSError as error:
                self._report(error)

    def warn_of_overwritten(self) -> None:
        """Warn of files with items that this worker will empty at its first item, although it continues a crawl."""
        for path in self._engine.overwritten_feeds():
            if path.exists() and path.stat().st_size:
                self._log.warning(
                    'The feed %s is overwritten (-O, or "overwrite" in FEEDS), but this worker continues a crawl: items'
                    " of this crawl in that file are lost, since their pages are not fetched again. Use -o, which"
                    " appends",
                    path,
                )

    def _report(self, error: OSError) -> None:
        if self._has_failed:
            return
        self._has_failed = True
        self._log.error(
            "Unable to write to a feed: %s. Its buffered items are lost if this process is killed, although their pages"
            " are done. Check the disk; further failures are not logged.",
            error,
        )
