"""Requests of one page that carry the same object: stored, each has a copy, which is said once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

from scrapy import Item, Request, Spider

from scrapy_prioqueue.queues.lines import in_a_line

logger = logging.getLogger(__name__)

_CONSTANT_METAS = frozenset({"handle_httpstatus_list", "playwright_page_methods", "playwright_context_kwargs"})
"""Keys whose values nobody changes, so that many requests carry one."""


class Siblings:
    """Looks at the requests that are stored, until it has found what it looks for."""

    def __init__(self, spider: Spider) -> None:
        self._spider = spider
        self._carried: WeakKeyDictionary[Request, dict[int, Any]] = WeakKeyDictionary()
        self.is_over = False

    def look(self, request: Request, page: Request) -> None:
        """Look at a request that was found on a page; what it only has from that page's `meta` doesn't count."""
        found = {id(value): (where, value) for where, value in _mutable(request)}
        if not found:
            return
        inherited = set(map(id, page.meta.values()))
        # The objects themselves, so that no other one gets the id of one that is gone.
        carried = self._carried.setdefault(page, {})
        for key, (where, value) in found.items():
            if key in inherited:
                continue
            if key in carried:
                self._say(page, where)
                return
            carried[key] = value

    def _say(self, page: Request, where: str) -> None:
        self.is_over = True
        self._carried.clear()
        logger.info(
            "Requests found on %s carry the same object in %s. In the frontier each has a copy of its own, so what one"
            " callback changes the others don't see. Where they count on it, let each request yield the next one and"
            " hand the object on (docs/reference/values.md)",
            in_a_line(page),
            where,
            extra={"spider": self._spider},
        )


def _mutable(request: Request) -> Iterator[tuple[str, Any]]:
    """Yield what in `meta` and `cb_kwargs` can be changed: dictionaries, lists and the like have no hash for that."""
    for name, values in (("meta", request.meta), ("cb_kwargs", request.cb_kwargs)):
        for key, value in values.items():
            if (type(value).__hash__ is None or isinstance(value, Item)) and key not in _CONSTANT_METAS:
                yield f"{name}[{key!r}]", value
