"""The pages that simulated workers fetch: a small random graph with duplicates, several slots and ranks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from scrapy_prioqueue.frontier.base import Push

SLOTS = ("a.example", "b.example", "")
QUICK_S = (0.0, 0.01, 0.2, 1.0, 3.0)
SLOW_S = (8.0, 25.0)
"""Longer than a lease's time to live, or nearly so."""

DELAYS_S = (0.05, 2.0, 15.0)

Kind = Literal["fine", "poison", "garbled"]


@dataclass(frozen=True)
class Page:
    """A page of the site, and the request for it.

    Args:
        name: the payload of its request.
        fetch_s: seconds until its callback runs.
        link_s: seconds between two links that the callback yields.
        kind: one that is poison kills its worker, one that is garbled can't be decoded.
        is_filtered: whether a second request for it is a duplicate.
        delay_s: for which it is kept back.
    """

    name: str
    rank: int
    slot: str
    fetch_s: float
    link_s: float
    kind: Kind = "fine"
    is_filtered: bool = True
    delay_s: float = 0.0
    links: list[str] = field(default_factory=list)

    def push(self, start_number: int | None = None) -> Push:
        """Return the request for this page, the n-th of `start()` if a number is given."""
        fingerprint = self.name.encode().ljust(10, b".") if self.is_filtered else None
        mark = None if start_number is None else b"mark %d" % start_number
        delay_ms = round(self.delay_s * 1000)
        return Push(self.rank, self.slot, self.name.encode(), fingerprint, start_number is not None, mark, delay_ms)


class Site:
    """All pages.

    Args:
        chance: what decides on everything.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._slots = SLOTS[: chance.randint(1, len(SLOTS))]
        count = chance.randint(4, 16)
        self.pages = {page.name: page for page in (self._page(f"p{number}") for number in range(count))}
        names = list(self.pages)
        for index, name in enumerate(names):
            self._link(self.pages[name], names, index)
        self.starts: Sequence[str] = [*names[:1], *chance.sample(names[1:], chance.randint(0, 2))]
        self._spoil("poison", names, 0.2)
        self._spoil("garbled", names, 0.15)
        for name in chance.sample(names, chance.randint(0, 2)):
            again = self._page(f"{name} again", is_filtered=False)
            self.pages[again.name] = again
            self.pages[name].links.append(again.name)

    def _page(self, name: str, *, is_filtered: bool = True) -> Page:
        chance = self._chance
        fetch_s = chance.choice(QUICK_S if chance.random() < 0.9 else SLOW_S)
        link_s = chance.choice([0.0, 0.0, 0.0, 0.03, 1.0])
        delay_s = chance.choice(DELAYS_S) if chance.random() < 0.1 else 0.0
        return Page(
            name, chance.randrange(3), chance.choice(self._slots), fetch_s, link_s, "fine", is_filtered, delay_s
        )

    def _link(self, page: Page, names: Sequence[str], index: int) -> None:
        ahead = names[index + 1 : index + 5]
        page.links.extend(self._chance.sample(ahead, min(len(ahead), self._chance.randint(1, 3))))
        if self._chance.random() < 0.3:
            page.links.append(self._chance.choice(names))

    def _spoil(self, kind: Kind, names: Sequence[str], probability: float) -> None:
        if self._chance.random() < probability:
            name = self._chance.choice(names)
            old = self.pages[name]
            self.pages[name] = Page(old.name, old.rank, old.slot, old.fetch_s, old.link_s, kind, links=old.links)
