"""Requests as bytes and back: what of a request is stored under which number, and how it is built again from that."""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import copy
from typing import Any, NamedTuple

from scrapy import Request, Spider
from scrapy.http import Headers
from scrapy.http.request import NO_CALLBACK

from scrapy_prioqueue.codec.lineage import NOT_KNOWN, Found
from scrapy_prioqueue.codec.names import Callbacks, path_of, request_class
from scrapy_prioqueue.codec.values import Unstorable, ValueReader, brief, new_packer, portable
from scrapy_prioqueue.errors import DecodeError, EncodeError
from scrapy_prioqueue.frontier.labels import unlabelled

_FORMAT = b"\x01"
"""First byte of a payload: the lower four bits number the layout, the upper four a compression (none yet)."""


class _Field(NamedTuple):
    """An attribute of a request as stored under a number, unless it has its default.

    Args:
        kinds: types of the stored value.
    """

    number: int
    name: str
    kinds: type | tuple[type, ...]
    default: Any


_URL = _Field(0, "url", str, None)
_CALLBACK = _Field(1, "callback", (str, bool), None)
_META = _Field(2, "meta", dict, {})
_HEADERS = _Field(3, "headers", dict, {})
_PRIORITY = _Field(4, "priority", int, 0)
_CB_KWARGS = _Field(5, "cb_kwargs", dict, {})
_DONT_FILTER = _Field(6, "dont_filter", object, False)
_METHOD = _Field(7, "method", str, "GET")
_BODY = _Field(8, "body", bytes, b"")
_ERRBACK = _Field(9, "errback", (str, bool), None)
_COOKIES = _Field(10, "cookies", (dict, list, tuple), {})
_FLAGS = _Field(11, "flags", list, [])
_ENCODING = _Field(12, "encoding", str, "utf-8")
_CLASS = _Field(13, "class", str, None)
_EXTRAS = _Field(14, "attributes", dict, None)
_SOURCE = _Field(15, "source", (str, bool), None)
_FOUND = _Field(16, "found", int, None)

_ATTRIBUTES = (
    *(_URL, _CALLBACK, _META, _HEADERS, _PRIORITY, _CB_KWARGS, _DONT_FILTER),
    *(_METHOD, _BODY, _ERRBACK, _COOKIES, _FLAGS, _ENCODING),
)
_PLAIN = (_CB_KWARGS, _DONT_FILTER, _METHOD, _BODY, _COOKIES, _FLAGS, _ENCODING)
_NUMBERED = {field.number: field for field in (*_ATTRIBUTES, _CLASS, _EXTRAS, _SOURCE, _FOUND)}

_REFERER = b"Referer"
_HEADER_NAMES = {
    0: _REFERER,
    1: b"User-Agent",
    2: b"Accept",
    3: b"Accept-Language",
    4: b"Accept-Encoding",
    5: b"Content-Type",
    6: b"Cookie",
    7: b"Authorization",
    8: b"Origin",
    9: b"X-Requested-With",
}
_HEADER_NUMBERS = {name: number for number, name in _HEADER_NAMES.items()}

_BYTES = frozenset({bytes})

_VERBATIM = "verbatim_url"
"""Scrapy's meta key for a URL that is not to be escaped (since 2.19, older versions don't look at it)."""


class RequestCodec:
    """Writes requests of one spider as bytes and reads them; for one thread.

    A request comes back as the same class and equal in every attribute that its class lists in `attributes`, values in
    `meta`, `cb_kwargs` and so on with their exact types. What was shared comes back as copies: a list that two
    requests had in their `meta` is then two lists, and an object that occurs twice in one request is two objects.
    A priority that is a kind of int, such as a member of an enum, comes back as that int.
    """

    def __init__(self, spider: Spider) -> None:
        self._spider = spider
        self._callbacks = Callbacks(spider)
        self._packer = new_packer()
        self._reader = ValueReader()
        self._paths: dict[type[Request], str] = {}

    def encode(self, request: Request, *, without_meta: Collection[str] = (), found: Found = NOT_KNOWN) -> bytes:
        """Return the request as bytes.

        Args:
            request: of any class that can be found by its module and name and that can be built from its `attributes`.
            without_meta: keys of `meta` that are not stored.
            found: how it was found.

        Raises:
            EncodeError: something in the request would not come back as it is.
        """
        fields: dict[int, Any] = {_URL.number: _storable(_URL.name, request.url)}
        if request.callback is not None:
            fields[_CALLBACK.number] = self._callback_name(_CALLBACK.name, request.callback)
        if request.errback is not None:
            fields[_ERRBACK.number] = self._callback_name(_ERRBACK.name, request.errback)
        meta = request.meta
        if without_meta:
            meta = {key: value for key, value in meta.items() if key not in without_meta}
        if meta:
            fields[_META.number] = _storable(_META.name, meta)
        if request.headers:
            fields[_HEADERS.number] = _stored_headers(request.headers)
        if request.priority:
            fields[_PRIORITY.number] = int(request.priority)
        _store_plain(request, fields)
        _store_found(request, found, fields)
        if type(request) is Request:
            return _FORMAT + self._pack(fields)
        return self._encode_subclass(request, fields)

    def decode(self, payload: bytes) -> Request:
        """Return the request that these bytes stand for; see `decode_found`."""
        return self.decode_found(payload)[0]

    def decode_found(self, payload: bytes) -> tuple[Request, Found]:
        """Return the request that these bytes stand for, and how it was found.

        Nothing is imported, and nothing called but the constructor of a class of requests that is already loaded.

        Raises:
            DecodeError: the bytes can't be read, or name a class or a method that may not be named.
        """
        try:
            return self._decode(payload)
        except DecodeError:
            raise
        except Exception as error:  # Any: constructors of subclasses are the user's, and the bytes are anybody's.
            raise DecodeError(f"the payload can't be read: {brief(error)}") from error

    def _encode_subclass(self, request: Request, fields: dict[int, Any]) -> bytes:
        cls = type(request)
        path = self._paths.get(cls) or path_of(cls)
        if path is None:
            raise EncodeError("class", f"{cls!r} can't be found by its module and name")
        fields[_CLASS.number] = path
        extras = {name: _stored_extra(request, name) for name in cls.attributes if name not in Request.attributes}
        if extras:
            fields[_EXTRAS.number] = extras
        payload = _FORMAT + self._pack(fields)
        if cls not in self._paths:
            # A constructor that doesn't take the class's attributes is found out before the first request is lost.
            try:
                self.decode(payload)
            except DecodeError as error:
                raise EncodeError("class", f"{cls!r} can't be built from its attributes: {error}") from error
            self._paths[cls] = path
        return payload

    def _pack(self, fields: dict[int, Any]) -> bytes:
        packed: bytes = self._packer.pack(fields)
        return packed

    def _callback_name(self, where: str, callback: Callable[..., Any]) -> str | bool:
        if callback is NO_CALLBACK:
            return False
        name = self._callbacks.name_of(callback)
        if name is None:
            raise EncodeError(where, f"{brief(callback)} is not a method of {self._spider!r}")
        return name

    def _decode(self, payload: bytes) -> tuple[Request, Found]:
        cls, attributes = self._read(payload)
        found = _read_found(attributes)
        if cls is Request:
            request = _build_plain(attributes)
        else:
            # The constructor may change what it is given, down to the innermost list: it gets a reading of its own.
            _, arguments = self._read(payload)
            request = cls(**{name: value for name, value in arguments.items() if name in cls.attributes})
            request.headers = attributes.pop(_HEADERS.name)
        for name, value in attributes.items():
            if not _is_same(getattr(request, name), value):
                _restore(request, name, value)
        return request, found

    def _read(self, payload: bytes) -> tuple[type[Request], dict[str, Any]]:
        """Return a request's class and attributes; for a subclass, whose constructor may have other defaults, all."""
        fields = self._reader.read(fields_of(payload))
        _check(fields)
        path = fields.pop(_CLASS.number, None)
        extras = fields.pop(_EXTRAS.number, {})
        cls = Request if path is None else request_class(path)
        if path is not None:
            fields = {field.number: copy(field.default) for field in _ATTRIBUTES} | fields
        attributes = {_NUMBERED[number].name: value for number, value in fields.items()}
        for name in (_CALLBACK.name, _ERRBACK.name):
            if attributes.get(name) is not None:
                attributes[name] = self._callback(attributes[name])
        if _HEADERS.name in attributes:
            encoding = attributes.get(_ENCODING.name, _ENCODING.default)
            attributes[_HEADERS.name] = _read_headers(attributes[_HEADERS.name], encoding)
        for name, value in extras.items():
            if name not in cls.attributes or name in Request.attributes:
                raise DecodeError(f"{brief(name)} is not an attribute that {cls!r} adds to those of Request")
            attributes[name] = value
        return cls, attributes

    def _callback(self, name: str | bool) -> Callable[..., Any]:
        if name is False:
            return NO_CALLBACK
        method = self._callbacks.find(name) if isinstance(name, str) else None
        if method is None:
            raise DecodeError(f"{brief(name)} is not a method of {self._spider!r} that may be a callback")
        return method


def fields_of(payload: bytes) -> bytes:
    """Return the fields of a payload, without what stands in front of them.

    Raises:
        DecodeError: its format is unknown.
    """
    payload = unlabelled(payload)
    if payload[:1] != _FORMAT:
        raise DecodeError(f"the payload's format {payload[:1]!r} is unknown")
    return payload[1:]


def _storable(where: str, value: Any) -> Any:
    try:
        return portable(value)
    except Unstorable as reason:
        raise EncodeError(f"{where}{reason.path}", reason.why) from None


def _stored_extra(request: Request, name: str) -> Any:
    try:
        value = getattr(request, name)
    except Exception as error:  # a property of the user's may raise anything
        raise EncodeError(name, f"the attribute can't be read: {brief(error)}") from error
    return _storable(name, value)


def _store_plain(request: Request, fields: dict[int, Any]) -> None:
    for number, name, kinds, default in _PLAIN:
        value = getattr(request, name)
        if value == default and type(value) is type(default):
            continue
        if not isinstance(value, kinds):
            raise EncodeError(name, f"{type(value).__qualname__} can't be stored here")
        fields[number] = _storable(name, value)


def _store_found(request: Request, found: Found, fields: dict[int, Any]) -> None:
    if found.source is not None:
        is_referer = dict.get(request.headers, _REFERER) == [found.source.encode()]
        fields[_SOURCE.number] = True if is_referer else found.source
    if found.at_s is not None:
        fields[_FOUND.number] = found.at_s


def _read_found(attributes: dict[str, Any]) -> Found:
    """Return how a request was found, and take that from its attributes."""
    source, found_s = attributes.pop(_SOURCE.name, None), attributes.pop(_FOUND.name, None)
    if source is True:
        values = dict.get(attributes.get(_HEADERS.name, {}), _REFERER)
        source = values[0].decode("utf-8", "replace") if values else None
    return Found(source or None, found_s)


def _stored_headers(headers: Headers) -> dict[int | bytes, Any]:
    if type(headers) is not Headers:
        raise EncodeError(_HEADERS.name, f"{type(headers).__qualname__} can't be stored, only Headers")
    stored: dict[int | bytes, Any] = {}
    # dict's own items: those of Headers normalise names and values once more.
    for name, values in dict.items(headers):
        if not _is_header(name, values):
            raise EncodeError(f"{_HEADERS.name}[{brief(name)}]", f"{brief(values)} is not a list of bytes")
        stored[_HEADER_NUMBERS.get(name, name)] = values[0] if len(values) == 1 else values
    return stored


def _read_headers(stored: dict[Any, Any], encoding: str) -> Headers:
    headers = Headers(encoding=encoding)
    for name, values in stored.items():
        name = _HEADER_NAMES.get(name, name)
        if isinstance(values, bytes):
            values = [values]
        if not _is_header(name, values):
            raise DecodeError(f"{brief(name)}: {brief(values)} is no header")
        dict.__setitem__(headers, name, values)
    return headers


def _is_header(name: object, values: object) -> bool:
    return type(name) is bytes and type(values) is list and _BYTES.issuperset(map(type, values))


def _check(fields: Any) -> None:
    if not isinstance(fields, dict):
        raise DecodeError("the payload is not a map")
    for number, value in fields.items():
        field = _NUMBERED.get(number)
        if field is None:
            raise DecodeError(f"field {brief(number)} is unknown; was it written by a newer version?")
        if not isinstance(value, field.kinds):
            raise DecodeError(f"{field.name} can't be of type {type(value).__qualname__}")
    if _URL.number not in fields:
        raise DecodeError("there is no url")


def _build_plain(attributes: dict[str, Any]) -> Request:
    """Build a request from attributes, taking from them those that need not be looked at again."""
    meta = attributes.pop(_META.name, {})
    headers = attributes.pop(_HEADERS.name, None)
    # The URL is escaped already; to do it again takes longer than all the rest and isn't always without effect.
    request = Request(**attributes, meta=meta if _VERBATIM in meta else {**meta, _VERBATIM: True})
    if _VERBATIM not in meta:
        del request.meta[_VERBATIM]
    if headers is not None:
        request.headers = headers
    return request


def _is_same(current: Any, wanted: Any) -> bool:
    try:
        return current is wanted or (type(current) is type(wanted) and bool(current == wanted))
    except ArithmeticError:  # a signalling NaN
        return False


def _restore(request: Request, name: str, value: Any) -> None:
    """Set an attribute that the constructor has made something else of."""
    try:
        setattr(request, name, value)
    except AttributeError:
        # A property without a setter; like all of Scrapy's it shows the attribute with an underscore in front.
        setattr(request, f"_{name}", value)
    if not _is_same(getattr(request, name), value):
        raise DecodeError(f"{name} of {type(request)!r} can't be set")
