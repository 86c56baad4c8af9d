"""A site on several addresses of loopback that logs when requests arrive.

A program of its own, with one clock. It prints its port and ends when its input ends.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterable, Sequence

from processes import serve_until_input_ends
from website import Conversation, json_answer, link_page

ARRIVALS = "/arrivals"
"""Answers with the times of all requests by host, but for the front page and itself."""

ROOTS = 50
"""Pages of each host that the front page links to."""

CHILDREN = 4
"""Pages that each other page links to."""


def hosts(count: int) -> Sequence[str]:
    """Return that many addresses of this machine; to a crawler each is a domain of its own."""
    return [f"127.0.0.{number}" for number in range(1, count + 1)]


class LoggingSite:
    """All pages, and a log.

    Args:
        pages: how many of each host.
        latency_s: seconds until a page is answered.
    """

    def __init__(self, addresses: Sequence[str], pages: int, latency_s: float) -> None:
        self.port = 0
        self.latency_s = latency_s
        self._addresses = addresses
        self._pages = pages
        self._arrivals: dict[str, list[float]] = {}

    def respond(self, path: bytes, host: str) -> tuple[bytes, float]:
        """Return the answer to a request that has arrived now, and how long it takes."""
        if path == b"/":
            return self._links((host, page) for page in range(min(ROOTS, self._pages)) for host in self._addresses), 0.0
        if path == ARRIVALS.encode():
            return json_answer(self._arrivals), 0.0
        self._arrivals.setdefault(host, []).append(time.monotonic())
        return self._page(host, int(path.strip(b"/"))), self.latency_s

    def _page(self, host: str, number: int) -> bytes:
        first = ROOTS + CHILDREN * number
        return self._links((host, child) for child in range(first, min(first + CHILDREN, self._pages)))

    def _links(self, pages: Iterable[tuple[str, int]]) -> bytes:
        return link_page(f"http://{host}:{self.port}/{page}" for host, page in pages)


async def run(count: int, pages: int, latency_s: float) -> None:
    """Serve the site until the input ends."""
    first, *others = hosts(count)
    site = LoggingSite([first, *others], pages, latency_s)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Conversation(site), first, 0)
    site.port = server.sockets[0].getsockname()[1]
    further = [await loop.create_server(lambda: Conversation(site), host, site.port) for host in others]
    await serve_until_input_ends(server)
    for other in further:
        other.close()


def main() -> None:
    """Serve from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("hosts", type=int, help="how many addresses")
    parser.add_argument("pages", type=int, help="how many pages each")
    parser.add_argument("--latency-ms", type=float, default=50.0, help="until a page is answered")
    options = parser.parse_args()
    asyncio.run(run(options.hosts, options.pages, options.latency_ms / 1000))


if __name__ == "__main__":
    main()
