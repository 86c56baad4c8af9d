"""Downloads pages and checks the requests that their callback yields; nothing is stored."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from scrapy import Request, Spider, crawler
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.settings import Settings
from twisted.python.failure import Failure

from scrapy_prioqueue.checking.code import shown_path
from scrapy_prioqueue.checking.findings import CodeFinding, found
from scrapy_prioqueue.codec import RequestCodec
from scrapy_prioqueue.codec.reasons import brief
from scrapy_prioqueue.errors import EncodeError
from scrapy_prioqueue.printable import counted, in_a_line

MOST = 200
"""Maximum number of requests of a page that are checked."""

_ALONE: Mapping[str, Any] = {
    "SCHEDULER": "scrapy.core.scheduler.Scheduler",
    "DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter",
    "ITEM_PIPELINES": {},
    "FEEDS": {},
    "JOBDIR": None,
    "TELNETCONSOLE_ENABLED": False,
    "REMOTE_CONTROL_ENABLED": False,
}
"""Settings with which nothing is left behind."""


class NotStarted(Exception):
    """The spider can't be started."""


@dataclass(slots=True)
class Sampled:
    """The outcome.

    Args:
        pages: number of pages whose callback ran to its end.
        requests: number of requests that were checked.
        refused: responses that no callback got.
    """

    pages: int = 0
    requests: int = 0
    findings: list[CodeFinding] = field(default_factory=list)
    refused: list[Response] = field(default_factory=list)


def sample(
    cls: type[Spider], settings: Settings, urls: Sequence[str], *, callback: str, arguments: Mapping[str, str]
) -> Sampled:
    """Download pages with a spider, and judge the requests that are found on them by the codec.

    Args:
        callback: name of the method that gets the pages; empty for the default.

    Raises:
        NotStarted: the spider can't be started.
    """
    outcome = Sampled()
    asked = [_Asked(url, outcome) for url in urls]

    async def start(spider: Spider) -> AsyncIterator[Request]:
        for page in asked:
            method = getattr(spider, callback) if callback else None
            try:
                request = Request(page.url, method, errback=page, dont_filter=True)
            except ValueError as error:
                page.not_looked_at(brief(error))
            else:
                yield request

    alone = settings.copy()
    alone.setdict(_ALONE, priority="cmdline")
    alone.set("SPIDER_MIDDLEWARES", {**alone.getdict("SPIDER_MIDDLEWARES"), _Judge: -1}, priority="cmdline")
    has_reactor = alone.getbool("TWISTED_REACTOR_ENABLED", True)
    process: Any = (crawler.CrawlerProcess if has_reactor else crawler.AsyncCrawlerProcess)(alone)
    process.crawl(type(cls.__name__, (cls,), {"start": start, "__module__": cls.__module__}), **arguments)
    process.start()
    if process.bootstrap_failed:
        raise NotStarted
    for page in asked:
        page.end()
    return outcome


class _Asked:
    """A page that was asked for, and the errback of its request, which redirects and retries keep."""

    def __init__(self, url: str, sampled: Sampled) -> None:
        self.url, self._sampled = url, sampled
        self.raised: _Page | None = None
        """The page whose callback raised; a spider middleware may still replace its output."""
        self._is_reported = False

    def __call__(self, failure: Failure) -> None:
        response = getattr(failure.value, "response", None)
        if isinstance(response, Response):
            self._sampled.refused.append(response)
        self.not_looked_at(brief(failure.value))

    def not_looked_at(self, why: str) -> None:
        """Report that no callback got the page."""
        self._is_reported = True
        text = f"{in_a_line(self.url)} was not checked: {why}"
        self._sampled.findings.append(found("warning", "sample", text, "samples"))

    def report(self, page: _Page) -> None:
        """Report what the callback has yielded."""
        self._is_reported = True
        page.report(self._sampled)

    def end(self) -> None:
        """Report a page whose output no middleware has seen."""
        if self._is_reported:
            return
        if self.raised is not None:
            self.report(self.raised)
        else:
            self.not_looked_at("the crawl ended without it; the log above may show why")


class _Judge:
    """A spider middleware, the last that sees the output of callbacks; checks the requests, and drops everything."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> _Judge:
        return cls(crawler)

    def process_spider_output(self, response: Response, result: Iterable[Any], spider: Spider | None = None) -> Any:
        with self._reported(response) as page:
            for one in result:
                page.look(one)
        return []

    async def process_spider_output_async(
        self, response: Response, result: AsyncIterator[Any], spider: Spider | None = None
    ) -> AsyncIterator[Any]:
        with self._reported(response) as page:
            async for one in result:
                page.look(one)
        return
        yield  # makes this a generator

    def process_spider_exception(self, response: Response, exception: Exception, spider: Spider | None = None) -> None:
        """Note what a callback raised that isn't a generator."""
        page = _Page(self._crawler.spider, response)
        page.error = exception
        page.asked.raised = page

    @contextmanager
    def _reported(self, response: Response) -> Iterator[_Page]:
        page = _Page(self._crawler.spider, response)
        try:
            yield page
        except Exception as error:  # the callback is the user's
            page.error = error
        page.asked.report(page)


class _Page:
    """The requests of one page."""

    def __init__(self, spider: Spider | None, response: Response) -> None:
        assert spider is not None and response.request is not None
        asked = response.request.errback
        # A middleware of the project may have added or replaced requests; such a page wasn't asked for.
        self.asked = asked if isinstance(asked, _Asked) else _Asked(response.url, Sampled())
        self._codec = RequestCodec(spider)
        self._response = response
        self._callback = response.request.callback or spider.parse
        self._kept: dict[tuple[str, str], list[EncodeError]] = {}
        self._looked_at = 0
        self.error: Exception | None = None
        """What the callback has raised."""

    def look(self, one: object) -> None:
        """Judge what the callback has yielded, if it is a request."""
        if not isinstance(one, Request) or self._looked_at >= MOST:
            return
        self._looked_at += 1
        try:
            self._codec.encode(one)
        except EncodeError as error:
            self._kept.setdefault((error.where, error.kind), []).append(error)

    def report(self, sampled: Sampled) -> None:
        """Add the findings, unless this was the output of an errback."""
        if any(response is self._response for response in sampled.refused):
            return
        sampled.pages += self.error is None
        sampled.requests += self._looked_at
        code = getattr(inspect.unwrap(getattr(self._callback, "__func__", self._callback)), "__code__", None)
        place = ("", 0) if code is None else (shown_path(code.co_filename), code.co_firstlineno)
        for errors in self._kept.values():
            count = f"{len(errors):,} of {counted(self._looked_at, 'request')} of {in_a_line(self._response.url)}"
            text = f"{count} would stay in the worker: {in_a_line(errors[0])}"
            sampled.findings.append(found("wrong", "stays local", text, "callbacks-and-values", place))
        if self.error is not None:
            text = f"the callback of {in_a_line(self._response.url)} raised {brief(self.error)}"
            sampled.findings.append(found("warning", "sample", text, "samples", place))
