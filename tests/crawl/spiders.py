"""Spiders of the crawl tests; the pages of each test say what the spiders request."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from hashlib import sha1
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from scrapy import FormRequest, Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.dupefilters import RFPDupeFilter
from scrapy.exceptions import CloseSpider, DontCloseSpider
from scrapy.http import JsonRequest, Response, TextResponse
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from scrapy.utils.request import RequestFingerprinter
from twisted.internet.defer import inlineCallbacks
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from scrapy_prioqueue import DupeFilter, Scheduler

if TYPE_CHECKING:
    from tests.support.site import Link

DEATH = 3
"""Exit code of `Mannered.parse_and_die`."""


class Follower(Spider):
    """Requests its `starts`, makes an item of each page, and requests what the page's links say.

    A link is a URL or a dictionary of a request's arguments: its callback and errback are names of methods,
    and "copies_meta" lets it begin with the meta of the page's own request.
    """

    name = "follower"

    def __init__(self, site: str, starts: Sequence[Link], **arguments: Any) -> None:
        super().__init__(**arguments)
        self.site = site
        self.starts = starts

    async def start(self) -> AsyncIterator[Any]:
        for link in self.starts:
            yield self.request(link, Response(self.site))

    def parse(self, response: Response) -> Iterator[Any]:
        yield {"page": path_of(response)}
        yield from self.requests(response)

    def parse_listing(self, response: Response) -> Iterator[Any]:
        return self.parse(response)

    def requests(self, response: Response) -> Iterator[Request]:
        """Yield what a page links to."""
        assert isinstance(response, TextResponse)
        for link in response.json():
            yield self.request(link, response)

    def request(self, link: Link, page: Response) -> Request:
        """Return the request that a link stands for; one that can't be stored if it says so."""
        arguments: dict[str, Any] = {"url": link} if isinstance(link, str) else dict(link)
        if arguments.pop("is_unstorable", False):
            arguments["meta"] = {**arguments.get("meta", {}), "file": sys.stderr}
        meta = dict(page.meta) if arguments.pop("copies_meta", False) else {}
        meta.update(arguments.pop("meta", {}))
        methods = {name: getattr(self, arguments.pop(name)) for name in ("callback", "errback") if name in arguments}
        return Request(page.urljoin(arguments.pop("url")), meta=meta, **methods, **arguments)


def path_of(response: Response) -> str:
    """Return the path of a page."""
    return "/" + response.url.split("/", 3)[3]


class Mannered(Follower):
    """Has a callback of every kind that Scrapy knows, and an errback."""

    name = "mannered"

    async def parse_in_turn(self, response: Response) -> AsyncIterator[Any]:
        """Yield children and an item, with pauses."""
        for request in self.requests(response):
            await pause()
            yield request
        yield {"page": path_of(response)}

    async def parse_to_list(self, response: Response) -> list[Any]:
        """Return everything at once, after a pause."""
        await pause()
        return list(self.parse(response))

    def parse_and_fail(self, response: Response) -> Iterator[Any]:
        """Yield children, then raise."""
        yield from self.requests(response)
        raise ValueError("the callback of a test fails")

    def parse_and_close(self, response: Response) -> Iterator[Any]:
        """Yield children, then close the spider, the first time."""
        yield from self.requests(response)
        if "prioqueue_requeue_times" not in response.meta:
            raise CloseSpider("enough")

    def parse_and_die(self, response: Response) -> None:
        """End the process as a crash in C code would."""
        os._exit(DEATH)

    def parse_with(self, response: Response, **arguments: Any) -> Iterator[Any]:
        """Make an item of the callback's arguments."""
        yield {"page": path_of(response), **arguments}

    def parse_kind(self, response: Response) -> Iterator[Any]:
        """Make an item of the kind of the request."""
        assert response.request is not None
        kind = type(response.request)
        yield {"page": path_of(response), "kind": f"{kind.__module__}.{kind.__qualname__}"}
        yield from self.requests(response)

    def parse_forms(self, response: Response) -> Iterator[Request]:
        """Request three pages with requests of other classes."""
        yield FormRequest(response.urljoin("/form"), formdata={"a": "1"}, callback=self.parse_kind)
        yield JsonRequest(response.urljoin("/json"), data={"b": [2]}, callback=self.parse_kind)
        yield LabelledRequest(response.urljoin("/own"), label="L", callback=self.parse_label)

    def parse_label(self, response: Response) -> Iterator[Any]:
        """Make an item of what only `LabelledRequest` has."""
        assert isinstance(response.request, LabelledRequest)
        yield {"page": path_of(response), "label": response.request.label}

    def parse_and_store_nothing(self, response: Response) -> Iterator[Any]:
        """Yield requests that can't be stored, and one that can."""
        assert isinstance(response, TextResponse)
        yield Request(response.urljoin("/lambda"), callback=lambda found: self.parse(found))  # type: ignore[misc]
        yield Request(response.urljoin("/selector"), meta={"found": response.selector})
        yield Request(response.urljoin("/file"), cb_kwargs={"file": sys.stderr}, callback=self.parse_file)
        yield Request(response.urljoin("/plain"))

    def parse_file(self, response: Response, file: Any) -> Iterator[Any]:
        """Make an item if the very file came through."""
        yield {"page": path_of(response), "is_same": file is sys.stderr}
        yield from self.requests(response)

    def on_error(self, failure: Failure) -> Iterator[Any]:
        """Make an item of what went wrong."""
        request: Request = failure.request  # type: ignore[attr-defined]
        yield {"page": "/" + request.url.split("/", 3)[3], "error": type(failure.value).__name__}


class LabelledRequest(Request):
    """A request class of a user's own."""

    attributes: tuple[str, ...] = (*Request.attributes, "label")

    def __init__(self, *arguments: Any, label: str = "", **named: Any) -> None:
        self.label = label
        super().__init__(*arguments, **named)


class Staller(Follower):
    """Has a callback that blocks the loop for `stall_s` seconds."""

    name = "staller"

    def parse_and_stall(self, response: Response) -> Iterator[Any]:
        """Do what `parse` does, late."""
        threading.Event().wait(self.stall_s)
        yield from self.parse(response)

    stall_s: float


class SlowStarter(Follower):
    """Yields its start requests with pauses in which all work runs out, and items between them."""

    name = "slow-starter"
    pause_s = 0.3

    async def start(self) -> AsyncIterator[Any]:
        async for request in super().start():
            yield {"page": f"before {request.url.split('/', 3)[3]}"}
            yield request
            await pause(self.pause_s)


class Consumer(Follower):
    """Yields its start requests, unfiltered, and then waits for further ones for ever."""

    name = "consumer"

    async def start(self) -> AsyncIterator[Any]:
        async for request in super().start():
            yield request.replace(dont_filter=True)
        while True:
            await pause(3600)


class FailingStarter(Follower):
    """Raises after its last start request, or after a given number of them."""

    name = "failing-starter"
    requests_before: int | None = None

    async def start(self) -> AsyncIterator[Any]:
        for link in self.starts[: self.requests_before]:
            yield self.request(link, Response(self.site))
        raise ValueError("start() of a test fails")


class BrokenPipeline:
    """Fails to open."""

    def open_spider(self, *_: Any) -> Any:
        raise ValueError("the opening of a test fails")

    def process_item(self, item: Any, *_: Any) -> Any:
        return item


class LateBrokenPipeline(BrokenPipeline):
    """Fails to open after a time in which a worker can do much."""

    def open_spider(self, *_: Any) -> Any:
        return deferred_from_coro(self._open_late())

    async def _open_late(self) -> None:
        await pause(0.5)
        super().open_spider()


class BrokenDupeFilter(RFPDupeFilter):
    """A user's filter that fails to open."""

    def open(self) -> None:
        raise ValueError("the opening of a test fails")


class BrokenScheduler(Scheduler):
    """Fails when it has opened."""

    @inlineCallbacks
    def open(self, spider: Spider) -> Any:
        yield super().open(spider)
        raise ValueError("the opening of a test fails")


class IdleFiller(Follower):
    """Has more to request when it has become idle, twice."""

    name = "idle-filler"

    @classmethod
    def from_crawler(cls, crawler: Crawler, *arguments: Any, **named: Any) -> IdleFiller:
        spider = super().from_crawler(crawler, *arguments, **named)
        spider.more = ["/more-2", "/more-1"]
        crawler.signals.connect(spider.fill, signals.spider_idle)
        return spider

    more: list[str]

    def fill(self) -> None:
        """Ask the engine for one more page, and to stay."""
        if self.more:
            assert self.crawler.engine is not None
            self.crawler.engine.crawl(self.request(self.more.pop(), Response(self.site)))
            raise DontCloseSpider


class GatePipeline:
    """Holds every item back until a file is there."""

    def __init__(self, gate: Path) -> None:
        self._gate = gate

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> GatePipeline:
        return cls(Path(crawler.settings["TESTS_GATE"]))

    async def process_item(self, item: Any, *_: Any) -> Any:
        while not self._gate.exists():
            await pause()
        return item


class LengthDupeFilter(RFPDupeFilter):
    """A user's filter that decides by itself: URLs of equal length are the same."""

    lengths: set[int]

    def open(self) -> None:
        self.lengths = set()

    def request_seen(self, request: Request) -> bool:
        is_seen = len(request.url) in self.lengths
        self.lengths.add(len(request.url))
        return is_seen


class SometimesBrokenDupeFilter(RFPDupeFilter):
    """A user's filter that fails for some URLs."""

    def request_seen(self, request: Request) -> bool:
        if "broken" in request.url:
            raise ValueError("the filter of a test fails")
        return False


class SometimesBrokenFingerprinter(RequestFingerprinter):
    """A user's fingerprinter that fails for some URLs."""

    def fingerprint(self, request: Request) -> bytes:
        if "broken" in request.url:
            raise ValueError("the fingerprinter of a test fails")
        return super().fingerprint(request)


class PathDupeFilter(DupeFilter):
    """Ours with an identity of its own: the path without the query."""

    def fingerprint(self, request: Request) -> bytes | None:
        return sha1(request.url.partition("?")[0].encode()).digest()


async def pause(seconds: float = 0.02) -> None:
    """Let the reactor work for that long."""
    from twisted.internet import reactor

    await maybe_deferred_to_future(deferLater(reactor, seconds))


async def download(spider: Spider, request: Request) -> Response:
    """Fetch something past the scheduler, as inline requests and media pipelines do."""
    engine: Any = spider.crawler.engine
    if hasattr(engine, "download_async"):
        return cast("Response", await engine.download_async(request))
    return cast("Response", await maybe_deferred_to_future(engine.download(request)))
