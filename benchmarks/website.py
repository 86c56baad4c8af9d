"""The site that the benchmarks crawl: pages with some links each, ready in memory, and a count of who was fetched.

A program of its own, so that serving costs the crawler nothing. It prints its port and ends when its input ends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from processes import HOST, serve_until_input_ends

LINKS = 20
"""On each page, where nothing else is said."""
CHILDREN = 4
SECTIONS = 5
PARAGRAPHS = 6
VISITS = "/visits"
"""Answers how many pages were fetched, how many different ones, and the site's processor time in seconds."""

SYLLABLES = ("ba", "de", "fi", "go", "lu", "ma", "ne", "ri", "so", "tu")
WORDS = [first + second + third for first in SYLLABLES for second in SYLLABLES for third in SYLLABLES]

_END_OF_HEAD = b"\r\n\r\n"


def path_of(page: int) -> str:
    """Return where a page is found; page 0 is the front page."""
    return f"/section-{page % SECTIONS}/an-ordinary-page-of-the-site-{page:06d}.html" if page else "/"


def links_of(page: int, pages: int, chance: random.Random, links: int = LINKS) -> Sequence[int]:
    """Return the pages that a page links to, so many of them.

    They are the front page and the sections, its place in a tree (parent, children, neighbours), which alone leads to
    every page, and for the rest pages from anywhere. So over the site all links but one of a page lead to pages known
    already.
    """
    first_child = page * CHILDREN + 1
    tree = [(page - 1) // CHILDREN, *range(first_child, first_child + CHILDREN), page - 1, page + 1]
    sections = range(min(SECTIONS + 1, links - len(tree)))
    found = dict.fromkeys(other for other in [*sections, *tree] if 0 <= other < pages)
    found.pop(page, None)
    while len(found) < links:
        other = chance.randrange(pages)
        if other != page:
            found[other] = None
    return list(found)


def render(page: int, links: Sequence[int], chance: random.Random) -> bytes:
    """Return a page of about 4 kB as the whole answer to a request for it."""
    items = "".join(f'<li><a href="{path_of(other)}">Page {other} of the site</a></li>\n' for other in links)
    text = "".join(f"<p>{' '.join(chance.choices(WORDS, k=55))}.</p>\n" for _ in range(PARAGRAPHS))
    body = f"<!doctype html>\n<title>Page {page}</title>\n<h1>Page {page}</h1>\n{text}<ul>\n{items}</ul>\n"
    return answer("200 OK", "text/html; charset=utf-8", body.encode())


def link_page(urls: Iterable[str]) -> bytes:
    """Return the answer that is a page with these links and nothing else."""
    links = (f'<a href="{url}">A page</a>\n' for url in urls)
    return answer("200 OK", "text/html; charset=utf-8", "".join(["<!doctype html>\n", *links]).encode())


def json_answer(content: object) -> bytes:
    """Return the answer that is a JSON document."""
    return answer("200 OK", "application/json", json.dumps(content).encode())


def answer(status: str, kind: str, body: bytes) -> bytes:
    """Return an answer of HTTP/1.1."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}"
    return head.encode() + _END_OF_HEAD + body


class Website:
    """All answers, and how often each was given.

    Args:
        pages: how many there are; the same number gives the same site.
        links: on each page.
        delay_s: seconds until each answer.
    """

    def __init__(self, pages: int, links: int, delay_s: float) -> None:
        self._delay_s = delay_s
        chance = random.Random(pages)
        self._answers = {
            path_of(page).encode(): render(page, links_of(page, pages, chance, links), chance) for page in range(pages)
        }
        self._visits: Counter[bytes] = Counter()

    def respond(self, path: bytes, host: str) -> tuple[bytes, float]:
        """Return the answer to a request, and the seconds until it is sent."""
        return self._answer(path), self._delay_s

    def _answer(self, path: bytes) -> bytes:
        found = self._answers.get(path)
        if found is not None:
            self._visits[path] += 1
            return found
        if path == VISITS.encode():
            counts = {
                "fetched": self._visits.total(),
                "different": len(self._visits),
                "cpu_s": time.process_time(),
            }
            return json_answer(counts)
        return answer("404 Not Found", "text/plain", b"no such page\n")


class Site(Protocol):
    """Answers requests."""

    def respond(self, path: bytes, host: str) -> tuple[bytes, float]:
        """Return the answer to a request, and the seconds until it is sent.

        Args:
            host: the address that was asked.
        """


class Conversation(asyncio.Protocol):
    """One connection: as much of HTTP as a crawler needs, requests without body."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._received = b""
        self._host = ""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._host = transport.get_extra_info("sockname")[0]

    def data_received(self, data: bytes) -> None:
        *heads, self._received = (self._received + data).split(_END_OF_HEAD)
        for head in heads:
            answer, delay_s = self._site.respond(head.split(b" ", 2)[1], self._host)
            if delay_s:
                asyncio.get_running_loop().call_later(delay_s, self._transport.write, answer)
            else:
                self._transport.write(answer)


async def serve(site: Site) -> None:
    """Serve a site on a port of its own until the input ends."""
    server = await asyncio.get_running_loop().create_server(lambda: Conversation(site), HOST, 0)
    await serve_until_input_ends(server)


def main() -> None:
    """Serve from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", type=int, help="how many pages; more than each has links")
    parser.add_argument("--links", type=int, default=LINKS, help="on each page; more than 8")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="until each answer")
    options = parser.parse_args()
    if options.pages <= options.links:
        parser.error(f"a site needs more than {options.links} pages, so that each can link to {options.links} others")
    asyncio.run(serve(Website(options.pages, options.links, options.delay_ms / 1000)))


if __name__ == "__main__":
    main()
