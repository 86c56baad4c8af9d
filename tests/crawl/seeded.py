"""Spiders that read seeds."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from scrapy import Request
from scrapy.http import Response

from scrapy_prioqueue import SeedsMixin
from tests.crawl.spiders import Follower, path_of, pause

NOTHING: Sequence[Request] = ()


class Seeded(SeedsMixin, Follower):
    """Requests nothing by itself."""

    name = "seeded"

    async def start(self) -> AsyncIterator[Any]:
        for request in NOTHING:
            yield request

    def parse_details(self, response: Response, **arguments: Any) -> Iterator[Any]:
        """Make an item of what came with the request."""
        assert response.request is not None
        yield {
            "page": path_of(response),
            "method": response.request.method,
            "label": (response.request.headers.get("X-Label") or b"").decode(),
            "body": response.request.body.decode(),
            "meta": response.meta.get("label"),
            **arguments,
        }


class Stamps:
    """A spider middleware that counts how often it has seen a request of `start()`, and in which order."""

    def __init__(self) -> None:
        self._count = 0

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for request in start:
            self._count += 1
            request.meta["stamps"] = [*request.meta.get("stamps", ()), self._count]
            yield request


class Choice:
    """A spider middleware that drops, replaces, adds and fails, by the path of a request."""

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for request in start:
            await pause()
            if request.url.endswith("/fail"):
                raise ValueError("the middleware of a test fails")
            if request.url.endswith("/replaced"):
                yield request.replace(url=request.url.replace("/replaced", "/other"))
            elif request.url.endswith("/added"):
                yield Request(request.url + "-before")
                yield request
            elif not request.url.endswith("/dropped"):
                yield request


class StampedMixin(Follower):
    """Shows the stamps in its items."""

    def parse(self, response: Response) -> Iterator[Any]:
        yield {"page": path_of(response), "stamps": response.meta["stamps"]}


class Stamped(StampedMixin, Seeded):
    """Has one start request of its own."""

    name = "stamped"

    async def start(self) -> AsyncIterator[Any]:
        yield Request(self.site + "own")


class StampedPlain(StampedMixin):
    """The same without `SeedsMixin`."""

    name = "stamped-plain"

    async def start(self) -> AsyncIterator[Any]:
        yield Request(self.site + "own")


class Fenced(Seeded):
    """Stays on one host."""

    allowed_domains: Sequence[str] = ("127.0.0.1",)


class Plain(Follower):
    """Knows nothing of seeds."""

    name = "plain"

    async def start(self) -> AsyncIterator[Any]:
        for request in NOTHING:
            yield request


class Own(Plain):
    """Reads entries in a way of its own, without the mixin."""

    name = "own"

    def make_request_from_seed(self, data: bytes) -> Any:
        """Return what the entry names."""
        word = data.decode()
        if word == "two":
            return (Request(self.site + path) for path in ("one", "two"))
        if word == "nothing":
            return None
        if word == "lambda":
            return Request(self.site + word, callback=lambda response: self.parse(response))  # type: ignore[misc]
        if word == "number":
            return 7
        raise KeyError(word)


class Dying(Seeded):
    """Is killed in the middle of a batch of seeds."""

    name = "seeded"
    seeds_left = 3

    def make_request_from_seed(self, data: bytes) -> Any:
        """Return the request, or don't."""
        if not self.seeds_left:
            os.kill(os.getpid(), signal.SIGKILL)
        self.seeds_left -= 1
        return super().make_request_from_seed(data)
