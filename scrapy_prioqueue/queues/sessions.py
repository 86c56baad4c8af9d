"""Sessions: requests that need cookies which only this worker has, so that it keeps them to itself."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from scrapy import Request
from scrapy.crawler import Crawler

from scrapy_prioqueue.settings import Config

logger = logging.getLogger(__name__)

COOKIEJAR = "cookiejar"
"""Scrapy's key in `meta` that names the jar of a session."""

_KEPT_STAT = "prioqueue/cookiejar/kept"


class Sessions:
    """Tells a request that goes on with a session of this worker from the first request of one, which any may have.

    Args:
        is_shared: other workers take requests from the same frontier.
    """

    def __init__(self, crawler: Crawler, config: Config, *, is_shared: bool) -> None:
        assert crawler.stats is not None
        self._stats = crawler.stats
        self._spider = crawler.spider
        self.are_kept = is_shared and config.cookiejars == "local" and crawler.settings.getbool("COOKIES_ENABLED")
        self._common: list[Any] = []
        self._is_said = False

    def note_common(self, request: Request) -> None:
        """Take note that each worker makes a request of its own: each has the cookies of its jar."""
        jar = request.meta.get(COOKIEJAR)
        if jar is not None and jar not in self._common:
            self._common.append(jar)

    def has(self, request: Request, pages: Iterable[Request]) -> bool:
        """Tell whether a request goes on with a session.

        Args:
            pages: on one of which it was found.
        """
        jar = request.meta.get(COOKIEJAR)
        if jar is None or jar in self._common:
            return False
        return any(page.meta.get(COOKIEJAR) == jar for page in pages)

    def note_kept(self) -> None:
        """A request of a session stays in this process; it is said once."""
        self._stats.inc_value(_KEPT_STAT)
        if self._is_said:
            return
        self._is_said = True
        logger.info(
            "Requests that continue a session (meta['cookiejar']) stay in the worker that has its cookies. If"
            ' they need no cookies, set PRIOQUEUE_COOKIEJARS = "shared" to let any worker fetch them',
            extra={"spider": self._spider},
        )
