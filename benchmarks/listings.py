"""A site that gets larger the more is seen of it: listings that each show 100 new links, to listings and to pages.

Served as a program of its own: it prints its port and ends when its input ends.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

from website import VISITS, json_answer, link_page, serve

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

    def respond(self, path: bytes, host: str) -> tuple[bytes, float]:
        """Return the answer to a request, which is sent at once."""
        if path == VISITS.encode():
            return json_answer({"fetched": self._fetched, "different": len(self._different)}), 0.0
        self._fetched += 1
        self._different.add(path)
        return link_page(links_of(path.decode(), self._listings)), 0.0


def main() -> None:
    """Serve from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("listings", type=int, help="how many listings")
    options = parser.parse_args()
    asyncio.run(serve(ListingSite(options.listings)))


if __name__ == "__main__":
    main()
