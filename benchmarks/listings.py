"""A site that gets larger the more is seen of it: listings that each show 100 new links, to listings and to pages.

Served as a program of its own: it prints its port and ends when its input ends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence

from served import HOST, serve_until_input_ends
from website import VISITS, Conversation, answer

LINKS = 100
CHILDREN = 10
"""Links of a listing that lead to further listings, as long as there are any."""

FRONT_PAGE = "/list/0"
IS_LISTING = r"/list/"
"""What the URLs of listings, and of nothing else, have in them."""


def urls_of(listings: int) -> int:
    """Return how many pages there are in all, if so many are listings."""
    return 1 + LINKS * listings


def links_of(path: str, listings: int) -> Sequence[str]:
    """Return where a page leads to; no two pages share a link.

    Args:
        listings: how many there are on the site.
    """
    _, kind, number, *_ = path.split("/")
    if kind != "list":
        return ()
    first = int(number) * CHILDREN + 1
    children = [f"/list/{child}" for child in range(first, min(first + CHILDREN, listings))]
    return [*children, *(f"/page/{number}/{leaf}" for leaf in range(LINKS - len(children)))]


class ListingSite:
    """Makes pages as they are asked for, and counts them.

    Args:
        listings: how many there are.
    """

    def __init__(self, listings: int) -> None:
        self._listings = listings
        self._fetched = 0
        self._different: set[bytes] = set()

    def respond(self, path: bytes) -> bytes:
        """Return the answer to a request."""
        if path == VISITS.encode():
            counts = {"fetched": self._fetched, "different": len(self._different)}
            return answer("200 OK", "application/json", json.dumps(counts).encode())
        self._fetched += 1
        self._different.add(path)
        links = (f'<a href="{link}">A page</a>\n' for link in links_of(path.decode(), self._listings))
        return answer("200 OK", "text/html; charset=utf-8", "".join(["<!doctype html>\n", *links]).encode())


async def run(listings: int) -> None:
    """Serve the site until the input ends."""
    site = ListingSite(listings)
    server = await asyncio.get_running_loop().create_server(lambda: Conversation(site), HOST, 0)
    await serve_until_input_ends(server)


def main() -> None:
    """Serve from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("listings", type=int, help="how many listings")
    options = parser.parse_args()
    asyncio.run(run(options.listings))


if __name__ == "__main__":
    main()
