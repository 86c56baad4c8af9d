"""Requests in programs without a spider: callbacks by name, and changes to the `meta` of a payload."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

from scrapy import Spider
from scrapy.http.request import NO_CALLBACK

from scrapy_prioqueue.codec import layouts
from scrapy_prioqueue.codec.fields import HEADERS, META
from scrapy_prioqueue.codec.reasons import brief, name_of_type
from scrapy_prioqueue.codec.requests import RequestCodec
from scrapy_prioqueue.codec.values import ValueReader, ValueWriter
from scrapy_prioqueue.errors import DecodeError, EncodeError
from scrapy_prioqueue.frontier.labels import unlabelled

RETRY_METAS = ("retry_times", "prioqueue_requeue_times")
"""Keys of `meta` that count retries."""


_MAPS = (META.number, HEADERS.number)
"""Fields that are always written as maps, never as references to shared ones, since they have a short form."""


class NamedCallback:
    """Stands for a method of the spider that will fetch the request."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raise an error, since only the spider has the method."""
        raise NotImplementedError(f"{self.__name__} is a method of the spider that fetches the request")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NamedCallback) and other.__name__ == self.__name__

    def __hash__(self) -> int:
        return hash(self.__name__)


def named_callback(name: str | None) -> NamedCallback | None:
    """Return what stands for a method of the spider, None for no name."""
    return None if name is None else NamedCallback(name)


class DetachedCodec(RequestCodec):
    """Writes requests for a spider in another process, and reads requests of any spider."""

    def __init__(self) -> None:
        super().__init__(Spider("detached"))
        self._writer = ValueWriter(_name_of)
        self._reader = ValueReader()

    def _callback_name(self, where: str, callback: Callable[..., Any]) -> str | bool:
        if callback is NO_CALLBACK:
            return False
        name = callback.__name__ if isinstance(callback, NamedCallback) else _name_of(callback)
        if name is None:
            why = f"{brief(callback)} is neither the name nor the method of a spider's callback"
            raise EncodeError(where, why, name_of_type(callback))
        return name

    def _callback(self, name: str | bool) -> Callable[..., Any]:
        return NO_CALLBACK if name is False else NamedCallback(str(name))


def _name_of(callback: Callable[..., Any]) -> str | None:
    if isinstance(callback, MethodType) and isinstance(callback.__self__, Spider):
        return str(callback.__name__)
    return None


def with_meta(payload: bytes, slot: str, changes: dict[str, Any]) -> bytes:
    """Return a payload with changes to its `meta`; a key whose value is None is removed. A label is kept.

    Args:
        slot: under which the request is stored.

    Raises:
        DecodeError: the payload can't be read.
    """
    try:
        fields = layouts.read(payload, slot, ValueReader().read)
        meta = dict(fields.get(META.number, {}))
    except DecodeError:
        raise
    except Exception as error:  # anyone may have written the bytes
        raise DecodeError(f"the payload can't be read: {brief(error)}") from error
    for key, value in changes.items():
        if value is None:
            meta.pop(key, None)
        else:
            meta[key] = value
    fields[META.number] = meta
    if not meta:
        del fields[META.number]
    writer = ValueWriter()
    stored = writer.whole(
        lambda: {
            number: writer.field(value) if number in _MAPS else writer.portable(value)
            for number, value in fields.items()
        }
    )
    label = payload[: len(payload) - len(unlabelled(payload))]
    return label + layouts.write(stored, slot, writer.pack)


def without_counts(payload: bytes, slot: str) -> bytes:
    """Return a payload with its retry counts removed; one that can't be read is returned unchanged."""
    try:
        return with_meta(payload, slot, dict.fromkeys(RETRY_METAS))
    except DecodeError:
        return payload
