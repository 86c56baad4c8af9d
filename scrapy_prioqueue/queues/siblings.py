"""Warns once of requests of one page that contain the same object: in the frontier each request has its own copy."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

from scrapy import Item, Request, Spider

from scrapy_prioqueue.codec.classes import shape_of, slots_of
from scrapy_prioqueue.codec.lineage import Lineage
from scrapy_prioqueue.download_slots import OwnSlot
from scrapy_prioqueue.logs import CrawlLog
from scrapy_prioqueue.printable import in_a_line
from scrapy_prioqueue.queues.lineages import LINEAGE_META

logger = logging.getLogger(__name__)

_CONSTANT_METAS = frozenset(
    {LINEAGE_META, "handle_httpstatus_list", "playwright_page_methods", "playwright_context_kwargs"}
)
"""Keys whose values nobody changes, so it is harmless if many requests share one."""

_NATIVE = (str, int, float, bytes, type(None))
_DEPTH = 4
_MOST_OBJECTS = 100
_MOST_INHERITED = 1000


class Siblings:
    """Checks stored requests until two are found that share an object."""

    def __init__(self, spider: Spider) -> None:
        self._log = CrawlLog(logger, spider)
        self._carried: WeakKeyDictionary[Request, dict[int, Any]] = WeakKeyDictionary()
        self._inherited: WeakKeyDictionary[Request, Mapping[int, Any]] = WeakKeyDictionary()
        self._is_over = False

    def note_result(self, result: object, request: Request, now: float) -> None:
        """Note the objects in the `meta` of a page before its callback adds others.

        Args:
            result: a response or a failure.
            request: the one in progress, which may differ from the response's request.
            now: Unix time.
        """
        page = getattr(result, "request", None)
        if not self._is_over and isinstance(page, Request) and _carries_objects(page):
            # The objects are kept, so that their ids can't be reused.
            self._inherited[page] = _objects_in(page)

    def look(self, request: Request, page: Request) -> None:
        """Check a request that was found on a page; objects inherited from that page's `meta` don't count."""
        if self._is_over or not _carries_objects(request):
            return
        found = {id(value): (path, value) for path, value in _mutable(request, ("meta", "cb_kwargs"), _MOST_OBJECTS)}
        if not found:
            return
        inherited = self._inherited.get(page, {})
        carried = self._carried.setdefault(page, {})
        for key, (path, value) in found.items():
            if key in inherited:
                continue
            if key in carried:
                self._say(page, "".join(path))
                return
            carried[key] = value

    def _say(self, page: Request, where: str) -> None:
        self._is_over = True
        self._carried.clear()
        self._inherited.clear()
        self._log.info(
            "Requests found on %s carry the same object in %s. Each gets its own copy in the frontier, so changes"
            " by one callback are not seen by the others. If the callbacks rely on them, let each request yield"
            " the next one and pass the object on (documentation: What requests can hold)",
            in_a_line(page),
            where,
        )


_PLAIN = frozenset({str, int, float, bool, bytes, type(None), OwnSlot, Lineage})


def _carries_objects(request: Request) -> bool:
    """Return whether a request has values of other types, which another request may share."""
    return bool(request.cb_kwargs) or not _PLAIN.issuperset(map(type, request.meta.values()))


_Path = tuple[str, ...]


def _objects_in(page: Request) -> Mapping[int, Any]:
    return {id(value): value for _, value in _mutable(page, ("meta",), _MOST_INHERITED)}


def _mutable(request: Request, names: Iterable[str], limit: int) -> Iterator[tuple[_Path, Any]]:
    """Yield mutable values in some attributes, some levels down: dictionaries, lists and other unhashable objects."""
    ahead: deque[tuple[_Path, Any]] = deque()
    for name in names:
        for key, value in getattr(request, name).items():
            if not isinstance(value, _NATIVE) and key not in _CONSTANT_METAS:
                ahead.append(((name, f"[{key!r}]"), value))
    for _ in range(limit):
        if not ahead:
            return
        path, value = ahead.popleft()
        if type(value).__hash__ is None or isinstance(value, Item):
            yield path, value
        if len(path) <= _DEPTH:
            is_named, inside = _inside(value)
            for key, inner in islice(inside, limit):
                if not isinstance(inner, _NATIVE):
                    ahead.append(((*path, f".{key}" if is_named else f"[{key!r}]"), inner))


def _inside(value: Any) -> tuple[bool, Iterable[tuple[Any, Any]]]:
    """Return whether the parts of a value are attributes, and its parts by name or key."""
    if isinstance(value, (dict, Item)):
        return False, value.items()
    if isinstance(value, (list, tuple, deque)):
        return False, enumerate(value)
    cls: Any = type(value)
    if shape_of(cls) is None:
        return False, ()
    in_slots = [(name, getattr(value, name)) for name in slots_of(cls) if hasattr(value, name)]
    return True, [*getattr(value, "__dict__", {}).items(), *in_slots]
