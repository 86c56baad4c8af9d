"""Log records of a crawl: each has its spider, frontier and worker as fields, and the fields of its event, if any."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from scrapy_prioqueue.errors import SettingError

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler

    Adapter = logging.LoggerAdapter[logging.Logger]
else:
    Adapter = logging.LoggerAdapter

PREFIX = "prioqueue_"
"""Prefix of all fields but Scrapy's `spider`, so that they differ from those of `LogRecord` and of other packages."""

_crawls: WeakKeyDictionary[Spider, Mapping[str, str]] = WeakKeyDictionary()


def name_crawl(spider: Spider, frontier: str, worker: str) -> None:
    """Add the names of the frontier and the worker to the records of a spider from now on."""
    _crawls[spider] = {f"{PREFIX}frontier": frontier, f"{PREFIX}worker": worker}


def event(name: str, **fields: Any) -> dict[str, Any]:
    """Return the fields of a record about an event, for the argument `extra` of a call."""
    return {f"{PREFIX}event": name, **{f"{PREFIX}{field}": value for field, value in fields.items()}}


def is_power_of_ten(count: int) -> bool:
    """Return whether to log an event that has happened so often; between these counts it isn't logged."""
    return str(count).rstrip("0") == "1"


def dead_letter(request: Request | None, reason: str, letter_id: int | None) -> dict[str, Any]:
    """Return the fields of a record about a dead letter; without a request if it can't be decoded."""
    url = None if request is None else request.url
    return event("request_dead_lettered", url=url, reason=reason, letter_id=letter_id)


@contextmanager
def wrong_settings_named(logger: logging.Logger, crawler: Crawler) -> Iterator[None]:
    """Log a wrong setting in a line of its own, since Scrapy shows the exception only amid tracebacks."""
    try:
        yield
    except SettingError as error:
        logger.error("Closing: %s", error, extra={"spider": crawler.spider})
        raise


class CrawlLog(Adapter):
    """A logger for records about the crawl of a spider."""

    def __init__(self, logger: logging.Logger, spider: Spider | None) -> None:
        super().__init__(logger, {"spider": spider})
        self._spider = spider
        self._failed: set[str] = set()

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the fields to those of this call."""
        names = _crawls.get(self._spider, {}) if self._spider is not None else {}
        kwargs["extra"] = {"spider": self._spider, **names, **kwargs.get("extra", {})}
        return msg, kwargs

    @contextmanager
    def guard(self, what: str) -> Iterator[None]:
        """Suppress exceptions of code that only reports on a crawl, so that the crawl continues; log the first one.

        Args:
            what: this code's work, as the subject of a sentence.
        """
        try:
            yield
        except Exception:
            if what not in self._failed:
                self._failed.add(what)
                self.exception("Unexpected error, so %s may be missing or wrong", what)
