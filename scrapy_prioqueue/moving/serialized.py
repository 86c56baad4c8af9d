"""Requests as other schedulers serialize them: bytes as a dictionary of `Request.to_dict()`, and that as a request."""

from __future__ import annotations

import json
import marshal
import pickle
import re
from collections.abc import Callable, Mapping, Set
from functools import partial
from io import BytesIO
from typing import Any

import msgpack
from scrapy import Request, Spider

from scrapy_prioqueue.codec.classes import class_at, is_data_class
from scrapy_prioqueue.codec.detached import NamedCallback
from scrapy_prioqueue.codec.names import inherits, loaded_class, request_class
from scrapy_prioqueue.codec.reasons import brief
from scrapy_prioqueue.codec.standard import MAX_PATTERNS, cost_of
from scrapy_prioqueue.errors import PrioQueueError

PICKLE, JSON, MSGPACK, MARSHAL = ("pickle", "json", "msgpack", "marshal")

OF_SCRAPY_REDIS, OF_SCRAPY = frozenset({PICKLE, JSON, MSGPACK}), frozenset({PICKLE, MARSHAL})


class UnreadableRequest(PrioQueueError):
    """A stored request can't be read, or can't be stored here."""


class PickleRefused(PrioQueueError):
    """The source has pickles, and they may not be read."""


def _format_of(data: bytes, expected: Set[str]) -> str:
    """Return the format of a serialized dictionary, by its first byte.

    Raises:
        UnreadableRequest: it is none of those expected.
    """
    first = data[:1]
    # Of MessagePack's small maps 0x80 is the empty one, which no request is. Protocols before 2 begin with "(" or "}".
    if first in (b"\x80", b"(", b"}"):
        found = PICKLE
    elif first == b"{" and JSON in expected:
        found = JSON
    elif first in (b"{", b"\xfb"):
        found = MARSHAL
    else:
        found = MSGPACK
    if not first or found not in expected:
        raise UnreadableRequest(f"{brief(data)} is not in any of these formats: {', '.join(sorted(expected))}")
    return found


def read_dict(data: bytes, expected: Set[str], *, may_unpickle: bool) -> Mapping[str, Any]:
    """Return a serialized request as a dictionary.

    Raises:
        UnreadableRequest: the bytes are no such dictionary.
        PickleRefused: they are a pickle.
    """
    name = _format_of(data, expected)
    if name == PICKLE and not may_unpickle:
        raise PickleRefused("the requests are pickled")
    try:
        found = _LOADERS[name](data)
    except Exception as error:  # anyone may have written the bytes
        raise UnreadableRequest(f"it can't be read as {name}: {brief(error)}") from error
    if not isinstance(found, Mapping) or not isinstance(found.get("url"), str):
        raise UnreadableRequest(f"{brief(found)} is no request: it has no url")
    return found


class _Unpickler(pickle.Unpickler):
    """Finds types of the standard library that hold values, and classes of data of modules that are loaded."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _FINDABLE:
            return super().find_class(module, name)
        if (module, name) in _REPLACED:
            return _REPLACED[module, name]
        cls = loaded_class(f"{module}:{name}")
        extended = None if is_data_class(cls) else next((each for each in _EXTENSIBLE if inherits(cls, each)), None)
        return class_at(f"{module}:{name}") if extended is None else _EXTENSIBLE[extended]


def _without_state(base: type) -> type:
    """Return a type for objects of any subclass, whose attributes are ignored; the codec stores the plain value."""
    return type(base.__name__, (base,), {"__setstate__": lambda self, state: None})


_EXTENSIBLE = {base: _without_state(base) for base in (str, bytes, int, float)}
"""Plain types, and what is built for objects of their subclasses, such as the `link_text` of a `CrawlSpider`."""


def _pattern(pattern: Any, flags: Any) -> re.Pattern[Any]:
    if type(pattern) not in (str, bytes) or cost_of(pattern) > MAX_PATTERNS:
        raise ValueError(f"it has a regular expression of more than {MAX_PATTERNS:,} characters, or of another type")
    return re.compile(pattern, int(flags))


_REPLACED = {
    ("lxml.etree", "_ElementStringResult"): _EXTENSIBLE[bytes],  # lxml before 6
    ("re", "_compile"): _pattern,
}


_FINDABLE = {
    *(("builtins", name) for name in ("set", "frozenset", "bytearray", "complex", "range", "slice", "list", "dict")),
    *(("builtins", name) for name in ("tuple", "int", "float", "str", "bytes", "bool", "object")),
    *(("__builtin__", name) for name in ("set", "frozenset", "bytearray", "complex", "object", "unicode", "long")),
    *(("collections", name) for name in ("OrderedDict", "defaultdict", "deque", "Counter", "ChainMap")),
    ("types", "SimpleNamespace"),
    ("time", "struct_time"),
    *(("datetime", name) for name in ("datetime", "date", "time", "timedelta", "timezone")),
    ("decimal", "Decimal"),
    ("fractions", "Fraction"),
    ("uuid", "UUID"),
    ("uuid", "SafeUUID"),
    *(("ipaddress", name) for name in ("IPv4Address", "IPv6Address")),
    *(("pathlib", name) for name in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")),
    ("copyreg", "_reconstructor"),
    ("copy_reg", "_reconstructor"),
    ("_codecs", "encode"),
    ("scrapy.http.headers", "Headers"),
}
"""What pickles of requests name besides classes of data. None of these calls anything that it is given."""


_LOADERS: Mapping[str, Callable[[bytes], Any]] = {
    PICKLE: lambda data: _Unpickler(BytesIO(data)).load(),
    JSON: json.loads,
    MSGPACK: partial(msgpack.unpackb, strict_map_key=False),
    MARSHAL: marshal.loads,
}


def request_from(found: Mapping[str, Any], spider_class: type[Spider] | None) -> Request:
    """Return the request of a dictionary, with callbacks by name.

    Args:
        spider_class: whose methods the callbacks are, None if that isn't known.

    Raises:
        UnreadableRequest: it can't be built.
    """
    try:
        cls = Request if "_class" not in found else request_class(":".join(found["_class"].rpartition(".")[::2]))
        parts = {name: value for name, value in found.items() if name in cls.attributes}
        if "_encoding" in found:  # as Scrapy before 2.6 wrote it
            parts["encoding"] = found["_encoding"]
        for part in ("callback", "errback"):
            name = parts.get(part)
            if name is not None:
                if spider_class is not None and not callable(getattr(spider_class, name, None)):
                    raise UnreadableRequest(f"spider {spider_class.name!r} has no method {name!r}")
                parts[part] = NamedCallback(name)
        return cls(**parts)
    except PrioQueueError as error:
        raise UnreadableRequest(str(error)) from error
    except Exception as error:  # constructors may be the user's, and anyone may have written the parts
        raise UnreadableRequest(f"no request can be built of {brief(dict(found))}: {brief(error)}") from error
