"""A web site whose pages, answers and delays a test defines, with a log of requests."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from shop_site.server import Answer, Request, listen, loopback_hosts

from tests.support.coroutines import run

GATE_PAUSE_S = 0.01

Link = str | Mapping[str, Any]
"""A URL, or the arguments of a request, its callback by name; see `tests.crawl.spiders.Follower`."""


@dataclass(frozen=True, slots=True)
class Page:
    """What the site answers.

    Args:
        links: the requests that it leads to, sent as JSON.
        body: what is sent instead.
        status: of HTTP.
        headers: besides Content-Length and Content-Type.
        delay_s: seconds until the answer.
        gate: held closed by the test; the answer waits until it is set.
    """

    links: Sequence[Link] = ()
    body: bytes | None = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    gate: threading.Event | None = None

    def answer(self) -> Answer:
        """Return the bytes to send and their headers."""
        if self.body is not None:
            return Answer(self.status, self.body, {"Content-Type": "text/plain", **self.headers})
        return Answer(
            self.status, json.dumps(self.links).encode(), {"Content-Type": "application/json", **self.headers}
        )


@dataclass(frozen=True, slots=True)
class Visit:
    """One request, as the site saw it when it came.

    Args:
        time_s: seconds by the monotonic clock.
        method: GET, POST, …
        host: address that was asked, without the port.
        path: with the query.
        headers: names in lower case.
        body: what was sent along.
    """

    time_s: float
    method: str
    host: str
    path: str
    headers: Mapping[str, str]
    body: bytes


PageSource = Page | Sequence[Link] | Callable[[Visit], Page]


def link(url: str, **arguments: Any) -> Link:
    """Return a link to be requested with these arguments."""
    return {"url": url, **arguments}


def leaves(*paths: str) -> dict[str, PageSource]:
    """Return pages without links."""
    return {path: Page() for path in paths}


def moved(location: str, **headers: str) -> Page:
    """Return a page that redirects."""
    return Page(status=302, headers={"Location": location, **headers})


def in_turn(*pages: Page) -> Callable[[Visit], Page]:
    """Return a page that is each of these once, and from then on the last."""
    left = list(pages)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


class Site:
    """Serves `pages`, by path, on several hosts; anything else is not found. A list of links makes a page, too.

    Args:
        hosts: addresses of this machine.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self.hosts = hosts
        self.pages: dict[str, PageSource] = {}
        self._visits: list[Visit] = []
        self._sockets = listen(hosts, 0)
        self._port = self._sockets[0].getsockname()[1]
        self._servers: list[asyncio.Server] = []
        self._conversations: set[asyncio.Task[None]] = set()

    def url(self, path: str = "/", *, host: str = "127.0.0.1") -> str:
        """Return the address of a page."""
        return f"http://{host}:{self._port}{path}"

    @property
    def visits(self) -> Sequence[Visit]:
        """All requests so far, in the order in which they came."""
        return tuple(self._visits)

    def count(self, path: str) -> int:
        """Return how often a page was asked for."""
        return sum(visit.path == path for visit in self.visits)

    async def open(self) -> None:
        """Begin to serve, in the running loop."""
        self._servers = [await asyncio.start_server(self._converse, sock=each) for each in self._sockets]

    async def close(self) -> None:
        """End all conversations."""
        for server in self._servers:
            server.close()
        for conversation in self._conversations:
            conversation.cancel()
        await asyncio.gather(*self._conversations, return_exceptions=True)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conversation = asyncio.current_task()
        assert conversation is not None
        self._conversations.add(conversation)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                while True:
                    await self._respond(reader, writer)
        finally:
            self._conversations.discard(conversation)
            writer.close()

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = Request.parse(await reader.readuntil(b"\r\n\r\n"))
        body = await reader.readexactly(int(request.headers.get("content-length", 0)))
        host = request.headers["host"].partition(":")[0]
        visit = Visit(time.monotonic(), request.method, host, request.path, request.headers, body)
        self._visits.append(visit)
        page = self._page(visit)
        await asyncio.sleep(page.delay_s)
        while page.gate is not None and not page.gate.is_set():
            await asyncio.sleep(GATE_PAUSE_S)
        writer.write(page.answer().encode(has_body=request.method != "HEAD"))
        await writer.drain()

    def _page(self, visit: Visit) -> Page:
        source = self.pages.get(visit.path, Page(status=404))
        if isinstance(source, Page):
            return source
        return source(visit) if callable(source) else Page(source)


@contextmanager
def site_on_loopback() -> Iterator[Site]:
    """Serve an empty site on three hosts of this machine; it lives in the thread of `tests.support.coroutines`."""
    site = Site(loopback_hosts(3))
    run(site.open())
    try:
        yield site
    finally:
        run(site.close())
