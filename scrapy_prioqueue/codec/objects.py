"""Requests of a frontier in process; those that a payload can't represent exactly stay the same objects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import count
from operator import attrgetter
from struct import Struct
from types import NoneType
from typing import Any
from weakref import WeakSet

from scrapy import Request, Spider

from scrapy_prioqueue.codec.blanks import DEFAULTS, stored_under, twin_of
from scrapy_prioqueue.codec.lineage import NOT_KNOWN, Found
from scrapy_prioqueue.codec.others import HAS_DICT
from scrapy_prioqueue.codec.requests import RequestCodec
from scrapy_prioqueue.errors import DecodeError, EncodeError
from scrapy_prioqueue.frontier.labels import unlabelled

_NUMBERED = 0x0F
"""First byte of a payload that refers to an object. No layout has this number, and it never leaves the process."""

_HEAD = Struct(">BQ")

_IMMUTABLE = frozenset({NoneType, bool, int, float, str, bytes})
_LOOKED_AT = attrgetter(*map(stored_under, ("meta", "cb_kwargs", "cookies", "flags", "priority", "url")))


@dataclass(slots=True)
class _Kept:
    """A request that is kept as an object.

    Args:
        scheduled: copy made when it was handed out, since middlewares then change the object for that download.
    """

    request: Request
    found: Found
    scheduled: Request | None = None


class ObjectCodec(RequestCodec):
    """Encodes requests that decoding restores exactly, and keeps all others as objects, under a number.

    So the same requests come back as the same objects as from Scrapy's memory queue: those of a subclass, with a
    dictionary that several requests share, or with a callback that is not a method. A plain link takes only the memory
    of its payload.

    Args:
        was_handed_out: returns whether the engine has, or had, this object. Such a request is copied, since one object
            can't be in progress twice.
    """

    def __init__(self, spider: Spider, was_handed_out: Callable[[Request], bool]) -> None:
        super().__init__(spider)
        self._was_handed_out = was_handed_out
        self._numbers = count(1)
        self.objects: dict[bytes, _Kept] = {}
        """By payload. Usually empty, since most crawls have only plain links; then look-ups are skipped."""
        self._encode, self._decode_found = super().encode, super().decode_found
        self._known: WeakSet[Request] = WeakSet()

    def encode(
        self,
        request: Request,
        slot: str = "",
        *,
        without_meta: Collection[str] = (),
        found: Found = NOT_KNOWN,
    ) -> bytes:
        """Return a payload that only this codec can decode."""
        if is_plain(request, without_meta):
            try:
                return self._encode(request, slot, without_meta=without_meta, found=found)
            except EncodeError:
                pass
        return self._keep(request, without_meta, found)

    def _keep(self, request: Request, without_meta: Iterable[str], found: Found) -> bytes:
        if request in self._known or self._was_handed_out(request):
            request = twin_of(request)
        self._known.add(request)
        for key in without_meta:
            request.meta.pop(key, None)
        payload = _HEAD.pack(_NUMBERED, next(self._numbers))
        self.objects[payload] = _Kept(request, found)
        return payload

    def take_found(self, payload: bytes, slot: str = "") -> tuple[Request, Found]:
        """Return the request to hand out, the original object if one is kept, and how it was found."""
        kept = self._kept(payload) if self.objects else None
        if kept is None:
            return self._decode_found(payload, slot)
        if kept.scheduled is not None:
            return self.decode_found(payload, slot)
        kept.scheduled = twin_of(kept.request)
        return kept.request, kept.found

    def decode_found(self, payload: bytes, slot: str = "") -> tuple[Request, Found]:
        """Return a request as it was scheduled, as a copy, and how it was found."""
        kept = self._kept(payload)
        if kept is None:
            return self._decode_found(payload, slot)
        return twin_of(kept.scheduled or kept.request), kept.found

    def _kept(self, payload: bytes) -> _Kept | None:
        kept = self.objects.get(payload) or self.objects.get(payload := unlabelled(payload))
        if kept is None and len(payload) == _HEAD.size and payload[0] == _NUMBERED:
            raise DecodeError(f"there is no object {_HEAD.unpack(payload)[1]} any more")
        return kept

    def forget(self, payload: bytes) -> None:
        """Drop the object of a payload, if it has one; the payload must not be decoded again."""
        self.objects.pop(unlabelled(payload), None)


def is_plain(request: Request, without_meta: Collection[str] = ()) -> bool:
    """Return whether encoding and decoding a request loses nothing: all of its values are immutable."""
    if type(request) is not Request:
        return False
    meta, arguments, cookies, flags, priority, url = _LOOKED_AT(request)
    if cookies or flags or type(priority) is not int or type(url) is not str:
        return False
    if arguments and not _are_immutable(arguments.values()):
        return False
    if meta and not _are_immutable(meta.values()):
        stored = (value for key, value in meta.items() if key not in without_meta)
        if not _are_immutable(stored):
            return False
    return not HAS_DICT or vars(request).keys() <= DEFAULTS.keys()


def _are_immutable(values: Iterable[Any]) -> bool:
    return _IMMUTABLE.issuperset(map(type, values))
