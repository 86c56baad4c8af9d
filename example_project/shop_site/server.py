"""The shop on HTTP, on several loopback addresses at once; what a page holds comes from the catalogue.

As much of HTTP/1.1 as a crawler needs: GET and HEAD, connections kept open, no bodies in requests.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

from shop_site.catalogue import Catalogue, Page
from shop_site.records import HUNG_UP, AccessLog, Visit
from shop_site.render import ROBOTS_TXT, content_type, render


def loopback_hosts(count: int) -> Sequence[str]:
    """Return 127.0.0.1, 127.0.0.2, … as far as this machine has them; Linux has them all, others only the first."""
    return [host for host in (f"127.0.0.{number}" for number in range(1, count + 1)) if _is_mine(host)]


def _is_mine(host: str) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                return False
            raise
    return True


def listen(hosts: Sequence[str], port: int) -> Sequence[socket.socket]:
    """Return a listening socket per host, all on the same port.

    Args:
        hosts: addresses of this machine.
        port: 0 for one that is free.
    """
    sockets: list[socket.socket] = []
    for host in hosts:
        sockets.append(socket.create_server((host, port)))
        port = sockets[0].getsockname()[1]
    return sockets


@dataclass(frozen=True, slots=True)
class Request:
    """A request's first line and its headers, their names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]

    @classmethod
    def parse(cls, head: bytes) -> Request:
        """Read what comes before the empty line.

        Raises:
            ValueError: it isn't HTTP.
        """
        first, *lines = head.decode("latin-1").rstrip().split("\r\n")
        method, path, _ = first.split(" ")
        headers = (line.partition(":") for line in lines)
        return cls(method, path, {name.lower(): value.strip() for name, _, value in headers})

    @property
    def url(self) -> str:
        """The address asked for."""
        return f"http://{self.headers.get('host', '')}{self.path}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] | None = None

    def encode(self, *, has_body: bool) -> bytes:
        """Return the bytes to send; a HEAD wants them without the body."""
        headers = {**(self.headers or {}), "Content-Length": str(len(self.body))}
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode() + (self.body if has_body else b"")


class Shop:
    """Answers every request from the catalogue, with the page's whims.

    Args:
        catalogue: the pages.
        log: where visits go.
    """

    def __init__(self, catalogue: Catalogue, log: AccessLog) -> None:
        self._catalogue = catalogue
        self._log = log
        self._failures_left = {page.url: page.failures for page in catalogue.pages.values()}

    async def serve(self, sockets: Sequence[socket.socket]) -> None:
        """Serve until cancelled."""
        servers = [await asyncio.start_server(self._converse, sock=each) for each in sockets]
        try:
            await asyncio.Event().wait()
        finally:
            for server in servers:
                server.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request after the other on a connection, until the client closes it."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                request = Request.parse(await reader.readuntil(b"\r\n\r\n"))
                status = await self._respond(request, reader, writer)
                self._log.write(_visit(request, status))
                if status == HUNG_UP or request.headers.get("connection") == "close":
                    break
        writer.close()

    async def _respond(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        """Send the answer and return its status."""
        page = self._catalogue.find(request.url)
        await asyncio.sleep(page.delay_s if page else 0)
        if reader.at_eof():
            return HUNG_UP
        answer = self._answer(request, page)
        writer.write(answer.encode(has_body=request.method != "HEAD"))
        try:
            await writer.drain()
        except ConnectionError:
            return HUNG_UP
        return answer.status

    def _answer(self, request: Request, page: Page | None) -> Answer:
        if request.method not in ("GET", "HEAD"):
            return Answer(405)
        if request.path == "/robots.txt":
            return Answer(200, ROBOTS_TXT, {"Content-Type": "text/plain"})
        if page is None:
            return Answer(404)
        if self._failures_left[page.url]:
            self._failures_left[page.url] -= 1
            return Answer(500)
        headers = {"Content-Type": content_type(page)}
        if page.moved_to:
            headers["Location"] = page.moved_to
        return Answer(page.status, render(page), headers)


def _visit(request: Request, status: int) -> Visit:
    headers = request.headers
    return Visit(
        time_s=time.time(),
        host=headers.get("host", ""),
        path=request.path,
        status=status,
        worker=headers.get("x-worker") or headers.get("user-agent", ""),
        tier=headers.get("x-tier", ""),
    )
