"""Requests as bytes and back: which parts of a request are stored, and how it is rebuilt from them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from copy import copy
from operator import attrgetter
from typing import Any

from scrapy import Request, Spider
from scrapy.http import Headers
from scrapy.http.request import NO_CALLBACK

from scrapy_prioqueue.codec import layouts
from scrapy_prioqueue.codec.blanks import ARE_EXACT, DEFAULTS, blank, has_scheme, stored_under
from scrapy_prioqueue.codec.classes import without_injected
from scrapy_prioqueue.codec.fields import (
    ATTRIBUTES,
    CALLBACK,
    CB_KWARGS,
    CLASS,
    DONT_FILTER,
    ENCODING,
    ERRBACK,
    EXTRAS,
    FOUND,
    HEADER_NAMES,
    HEADER_NUMBERS,
    HEADERS,
    LEFT_OUT,
    META,
    NAMES,
    OTHERS,
    PLAIN,
    PRIORITY,
    REFERER,
    REFERER_NUMBER,
    RULE_DIGEST,
    SOURCE,
    STORED,
    URL,
)
from scrapy_prioqueue.codec.lineage import NOT_KNOWN, Found
from scrapy_prioqueue.codec.names import Callbacks, is_hashed_by_value, path_of, request_class
from scrapy_prioqueue.codec.others import HAS_DICT, has_others, is_free, others_of, put_back
from scrapy_prioqueue.codec.reasons import Unstorable, brief, name_of_class, name_of_type
from scrapy_prioqueue.codec.rules import RULE, Rules
from scrapy_prioqueue.codec.values import ValueReader, ValueWriter, loaded
from scrapy_prioqueue.errors import DecodeError, EncodeError, UnknownName
from scrapy_prioqueue.rank import whole_priority

_BYTES = frozenset({bytes})
_ONE = [bytes]
_READ = [field.name for field in (URL, CALLBACK, ERRBACK, META, HEADERS, PRIORITY, *PLAIN)]
_USUAL, _HEADERS_AT = _READ.index(PLAIN[0].name), _READ.index(HEADERS.name)
_VALUES = attrgetter(*_READ)
_PLAIN_VALUES = attrgetter(*(field.name for field in PLAIN))
_DEFAULTS = tuple(field.default for field in PLAIN)
# The attributes of Scrapy's own class, read without the properties, which create empty dictionaries when read.
_SCRAPYS_VALUES = attrgetter(*map(stored_under, _READ)) if ARE_EXACT else _VALUES
_SCRAPYS_DEFAULTS = tuple(DEFAULTS[stored_under(field.name)] for field in PLAIN) if ARE_EXACT else _DEFAULTS
_SCRAPYS_KINDS = list(map(type, _SCRAPYS_DEFAULTS))

_URL, _CALLBACK, _ERRBACK, _META, _HEADERS, _PRIORITY, _SOURCE, _FOUND, _CB_KWARGS, _DONT_FILTER = (
    field.number for field in (URL, CALLBACK, ERRBACK, META, HEADERS, PRIORITY, SOURCE, FOUND, CB_KWARGS, DONT_FILTER)
)
_RULE_DIGEST = RULE_DIGEST.number

_BLANK_TAKES = frozenset({_CB_KWARGS, _DONT_FILTER})
"""Fields that `blank` accepts besides those that most requests have."""

_NOT_PLAIN = frozenset(field.number for field in (CLASS, EXTRAS, OTHERS, LEFT_OUT))
_NO_ARGUMENTS = frozenset({OTHERS.number, LEFT_OUT.number, RULE_DIGEST.number})
_ATTRIBUTES = frozenset(Request.attributes)

_VERBATIM = "verbatim_url"
"""Scrapy's meta key for a URL that must not be escaped, since 2.19; older versions ignore it."""


class RequestCodec:
    """Writes requests of one spider as bytes and reads them; not thread-safe.

    A decoded request has the same class and equal attributes; values in `meta`, `cb_kwargs` and so on have the types of
    docs/reference/values.md. If its class has its own `to_dict`, the request is what the constructor builds from that.
    A mutable object that occurs twice in one request is one object again. Objects that several requests share become
    copies: a list in the `meta` of two requests is then two lists.
    A priority of a subclass of int, such as a member of an enum, becomes a plain int; a fraction is rounded.
    """

    def __init__(self, spider: Spider) -> None:
        self._spider = spider
        self._callbacks = Callbacks(spider)
        self._rules = Rules(spider, self._callbacks.name_of)
        self._writer = ValueWriter(self._callbacks.name_of)
        self._reader = ValueReader(loaded(self._callbacks))
        self._paths: dict[type[Request], str] = {}
        self._checked: set[type[Request]] = set()

    def encode(
        self, request: Request, slot: str = "", *, without_meta: Collection[str] = (), found: Found = NOT_KNOWN
    ) -> bytes:
        """Return the request as bytes.

        Args:
            request: of any class that can be found by its module and name, and built from its `attributes` or from the
                result of its `to_dict`.
            slot: under which it is stored, if whoever decodes it knows the slot.
            without_meta: keys of `meta` that are not stored.
            found: how it was found.

        Raises:
            EncodeError: a part of the request can't be restored exactly.
        """
        fields = self.fields(request, without_meta=without_meta, found=found)
        try:
            payload = layouts.write(fields, slot, self._writer.pack)
        except Unstorable as reason:
            raise EncodeError(META.name, reason.why, reason.kind) from None
        cls = type(request)
        if cls is not Request and cls not in self._checked:
            # Decode the first request of each class: the constructor may not accept the class's own attributes.
            try:
                self.decode(payload, slot)
            except DecodeError as error:
                why = f"{cls!r} can't be built from its attributes: {_why_not_built(error)}"
                raise EncodeError(CLASS.name, why, name_of_class(cls)) from error
            self._checked.add(cls)
        return payload

    def fields(
        self, request: Request, *, without_meta: Collection[str] = (), found: Found = NOT_KNOWN
    ) -> dict[int, Any]:
        """Return the stored fields of a request, by the numbers of `codec.fields`; see `encode`."""
        return self._writer.whole(self._fields, request, without_meta, found)

    def _fields(self, request: Request, without_meta: Collection[str], found: Found) -> dict[int, Any]:
        is_scrapys = type(request) is Request
        if not is_scrapys and type(request).to_dict is not Request.to_dict:
            return self._fields_of_dict(request, without_meta, found)
        values = (_SCRAPYS_VALUES if is_scrapys else _VALUES)(request)
        fields = self._usual_fields(values, without_meta)
        plain = values[_USUAL:]
        if not is_scrapys or plain != _SCRAPYS_DEFAULTS or list(map(type, plain)) != _SCRAPYS_KINDS:
            self._store_plain(_PLAIN_VALUES(request), fields)
        _store_found(values[_HEADERS_AT], found, fields)
        if not is_scrapys:
            cls = type(request)
            self._store_class(cls, fields)
            extras = {name: self._stored_extra(request, name) for name in cls.attributes if name not in _ATTRIBUTES}
            if extras:
                fields[EXTRAS.number] = extras
            self._store_others(request, fields)
        elif HAS_DICT and has_others(request):
            self._store_others(request, fields)
        return fields

    def _usual_fields(self, values: Sequence[Any], without_meta: Collection[str]) -> dict[int, Any]:
        """Return the fields of the attributes that most requests have, which come first in `values`."""
        url, callback, errback, meta, headers, priority, *_ = values
        if type(url) is not str:
            raise EncodeError(URL.name, f"{name_of_type(url)} can't be stored here", name_of_type(url))
        fields: dict[int, Any] = {URL.number: url}
        if callback is not None:
            fields[CALLBACK.number] = self._callback_name(CALLBACK.name, callback)
        if errback is not None:
            fields[ERRBACK.number] = self._callback_name(ERRBACK.name, errback)
        if without_meta and meta:
            meta = {key: value for key, value in meta.items() if key not in without_meta}
        if meta:
            is_depth_only = len(meta) == 1 and type(meta.get("depth")) is int
            fields[META.number] = meta if is_depth_only else self._storable(META.name, meta, self._writer.field)
            if RULE in meta and (digest := self._rules.digest(callback, errback, meta)) is not None:
                fields[_RULE_DIGEST] = digest
        if headers:
            fields[HEADERS.number] = _stored_headers(headers)
        if priority:
            fields[PRIORITY.number] = int(priority) if isinstance(priority, int) else whole_priority(priority)
        return fields

    def _fields_of_dict(self, request: Request, without_meta: Collection[str], found: Found) -> dict[int, Any]:
        """Return the fields of a request whose class has its own `to_dict`: the result of that.

        As with Scrapy's disk queues, the constructor rebuilds the request from that result.
        """
        shown = self._dict_of(request)
        cls = self._class_of(request, shown)
        encoding = shown.get(ENCODING.name, ENCODING.default)
        headers = Headers(shown[HEADERS.name], encoding=encoding) if shown.get(HEADERS.name) else None
        meta, priority = shown.get(META.name) or {}, shown.get(PRIORITY.name, 0)
        named = (shown.get(CALLBACK.name), shown.get(ERRBACK.name))
        fields = self._usual_fields((shown.get(URL.name), *named, meta, headers, priority), without_meta)
        self._store_plain([shown.get(name, default) for _, name, _, default in PLAIN], fields)
        _store_found(headers, found, fields)
        if cls is not Request:
            self._store_class(cls, fields)
        extras = {name: self._storable(name, shown[name]) for name in cls.attributes if _is_extra(name, shown)}
        if extras:
            fields[EXTRAS.number] = extras
        fields[LEFT_OUT.number] = [name for name in cls.attributes if name not in shown]
        self._store_others(request, fields)
        return fields

    def _dict_of(self, request: Request) -> dict[str, Any]:
        """Return the `to_dict` of a request with callbacks as methods, unless its own code puts in names."""
        callback, errback = request.callback, request.errback
        request.callback = request.errback = None
        try:
            shown = dict(request.to_dict(spider=self._spider))
            for name, method in ((CALLBACK.name, callback), (ERRBACK.name, errback)):
                own = shown.get(name)
                shown[name] = method if own is None else self._callback(own)
        except Exception as error:  # the class is the user's
            raise EncodeError("to_dict()", brief(error), name_of_type(request)) from error
        finally:
            request.callback, request.errback = callback, errback
        return shown

    def _class_of(self, request: Request, shown: dict[str, Any]) -> type[Request]:
        """Return the class that a `to_dict` names, resolved as Scrapy does."""
        cls = type(request)
        name = shown.get("_class")
        if name is None:
            return Request
        if name == f"{cls.__module__}.{cls.__name__}":
            return cls
        try:
            return request_class(":".join(str(name).rpartition(".")[::2]))
        except DecodeError as error:
            raise EncodeError(CLASS.name, str(error), name_of_type(request)) from error

    def _store_others(self, request: Request, fields: dict[int, Any]) -> None:
        """Store the attributes that the class doesn't list, except unstorable ones that the constructor recreates."""
        others = {}
        for name, value in others_of(request).items():
            try:
                if not is_free(request, name):
                    raise EncodeError(name, "an attribute that hides a method can't be stored", name_of_type(value))
                others[name] = self._storable(name, value)
            except EncodeError:
                if not self._makes_itself(fields, name, value):
                    raise
        if others:
            fields[OTHERS.number] = others

    def decode(self, payload: bytes, slot: str = "") -> Request:
        """Return the request of these bytes; see `decode_found`."""
        return self.decode_found(payload, slot)[0]

    def decode_found(self, payload: bytes, slot: str = "") -> tuple[Request, Found]:
        """Return the request of these bytes, and how it was found.

        Nothing is imported, and only the constructors of request classes that are already loaded are called.

        Args:
            slot: the slot that was passed to `encode`.

        Raises:
            DecodeError: the bytes can't be read.
            UnknownName: they name a class, a method or a field that this process doesn't have.
        """
        try:
            return self._decode(payload, slot)
        except DecodeError:
            raise
        except Exception as error:  # Any: constructors may be the user's, and anyone may have written the bytes.
            raise DecodeError(f"the payload can't be read: {brief(error)}") from error

    def _store_class(self, cls: type[Request], fields: dict[int, Any]) -> None:
        path = self._paths.get(cls) or path_of(cls)
        if path is None:
            raise EncodeError(CLASS.name, f"{cls!r} can't be found by its module and name", name_of_class(cls))
        self._paths[cls] = fields[CLASS.number] = path

    def _makes_itself(self, fields: dict[int, Any], name: str, value: Any) -> bool:
        """Return whether a request rebuilt from these fields already has an equal attribute of that name."""
        try:
            rebuilt = others_of(self.decode(bytes((layouts.MAP_LAYOUT,)) + self._writer.pack(fields)))
            return name in rebuilt and _is_same(rebuilt[name], value)
        except Exception:  # the class can't be built, or its values can't be compared
            return False

    def _callback_name(self, where: str, callback: Callable[..., Any]) -> str | bool:
        if callback is NO_CALLBACK:
            return False
        name = self._callbacks.name_of(callback)
        if name is None:
            why = f"{brief(callback)} is not a method of spider {brief(self._spider.name)}"
            if self._callbacks.has_other(callback):
                why = f"{brief(callback)} is not found by its name: the spider has another method of that name"
            raise EncodeError(where, why, name_of_type(callback))
        return name

    def _decode(self, payload: bytes, slot: str) -> tuple[Request, Found]:
        usual = layouts.read_usual(payload, slot) if ARE_EXACT else None
        if usual is not None and has_scheme(usual[0]):
            return self._build_usual(usual)
        fields = layouts.read(payload, slot, self._read_fields)
        if URL.number not in fields:
            raise DecodeError("there is no url")
        if _NOT_PLAIN.isdisjoint(fields):
            return self._build_plain(fields)
        others, left_out = fields.pop(OTHERS.number, {}), fields.pop(LEFT_OUT.number, None)
        digest = fields.pop(_RULE_DIGEST, None)
        cls, attributes = self._attributes(fields)
        found = _read_found(attributes)
        if left_out is None:
            # The constructor may change its arguments at any depth, so it gets values of their own.
            again = layouts.read(payload, slot, self._read_fields)
            arguments = self._attributes({number: again[number] for number in again if number not in _NO_ARGUMENTS})[1]
            request = cls(**{name: value for name, value in arguments.items() if name in cls.attributes})
            request.headers = attributes.pop(HEADERS.name)
            put_back(request, others)
            _restore_changed(request, attributes)
            if self._reader.has_shared:
                _restore_objects(request, attributes)
        else:
            wanted = {*cls.attributes}.difference(left_out)
            request = cls(**{name: value for name, value in attributes.items() if name in wanted})
            put_back(request, others)
        if RULE in request.meta:
            self._rules.resolve(request.callback, request.errback, request.meta, digest)
        return request, found

    def _build_usual(self, usual: layouts.Usual) -> tuple[Request, Found]:
        url, callback_name, depth, priority, referer, is_source, found_s, dont_filter = usual
        callback = None if callback_name is None else self._callback(callback_name)
        meta = {} if depth is None else {"depth": depth}
        request = blank(url, callback, None, meta, priority, None, dont_filter=dont_filter)
        if referer is not None:
            request.headers = headers = Headers(encoding=ENCODING.default)
            dict.__setitem__(headers, REFERER, [referer.encode()])
        return request, Found(referer or None if is_source else None, found_s)

    def _build_plain(self, fields: dict[int, Any]) -> tuple[Request, Found]:
        """Build a request of Scrapy's own class, whose constructor changes few of its arguments."""
        take = fields.pop
        url, callback, errback = take(_URL), take(_CALLBACK, None), take(_ERRBACK, None)
        if callback is not None:
            callback = self._callback(callback)
        if errback is not None:
            errback = self._callback(errback)
        meta, headers, priority = take(_META, None) or {}, take(_HEADERS, None), take(_PRIORITY, 0)
        source, found_s, digest = take(_SOURCE, None), take(_FOUND, None), take(_RULE_DIGEST, None)
        if RULE in meta:
            self._rules.resolve(callback, errback, meta, digest)
        encoding = ENCODING.default
        if ARE_EXACT and fields.keys() <= _BLANK_TAKES and has_scheme(url):
            cb_kwargs, dont_filter = take(_CB_KWARGS, None), take(_DONT_FILTER, False)
            request = blank(url, callback, errback, meta, priority, cb_kwargs, dont_filter=dont_filter)
        else:
            more = {NAMES[number]: value for number, value in fields.items()}
            encoding = more.get(ENCODING.name, encoding)
            request = _constructed(url, callback, errback, meta, priority, more)
        if headers is not None:
            request.headers = headers = _read_headers(headers, encoding)
            if source is True:
                source = _referer(headers)
        return request, Found(None if source is True else source or None, found_s)

    def _attributes(self, fields: dict[int, Any]) -> tuple[type[Request], dict[str, Any]]:
        """Return the class and all attributes of the request, since a subclass may have other defaults."""
        path = fields.pop(CLASS.number, None)
        extras = fields.pop(EXTRAS.number, {})
        cls = Request if path is None else request_class(path)
        fields = {field.number: copy(field.default) for field in ATTRIBUTES} | fields
        attributes = {NAMES[number]: value for number, value in fields.items()}
        for name in (CALLBACK.name, ERRBACK.name):
            if attributes.get(name) is not None:
                attributes[name] = self._callback(attributes[name])
        if HEADERS.name in attributes:
            encoding = attributes.get(ENCODING.name, ENCODING.default)
            attributes[HEADERS.name] = _read_headers(attributes[HEADERS.name], encoding)
        for name, value in extras.items():
            if name not in cls.attributes or name in _ATTRIBUTES:
                raise UnknownName(f"{brief(name)} is not an attribute that {cls!r} adds to those of Request")
            attributes[name] = value
        return cls, attributes

    def _read_fields(self, packed: bytes) -> dict[int, Any]:
        fields = self._reader.read(packed)
        if not isinstance(fields, dict):
            raise DecodeError("the payload has no map where it should")
        for number, value in fields.items():
            field = STORED.get(number)
            if field is None:
                raise UnknownName(f"field {brief(number)} is unknown; was it written by a newer version?")
            if not isinstance(value, field.kinds):
                raise DecodeError(f"{field.name} can't be of type {type(value).__qualname__}")
        return fields

    def _callback(self, name: str | bool) -> Callable[..., Any]:
        if name is False:
            return NO_CALLBACK
        return self._callbacks.get(name)

    def _storable(self, where: str, value: Any, portable: Callable[[Any], Any] | None = None) -> Any:
        try:
            return (portable or self._writer.portable)(value)
        except Unstorable as reason:
            raise EncodeError(f"{where}{reason.path}", reason.why, reason.kind) from None

    def _stored_extra(self, request: Request, name: str) -> Any:
        try:
            value = getattr(request, name)
        except Exception as error:  # a property of the user's class may raise anything
            raise EncodeError(name, f"the attribute can't be read: {brief(error)}", name_of_type(error)) from error
        return self._storable(name, value)

    def _store_plain(self, values: Sequence[Any], fields: dict[int, Any]) -> None:
        for (number, name, kinds, default), value in zip(PLAIN, values, strict=True):
            if number == _CB_KWARGS and type(value) is dict and value:
                value = without_injected(value)
            if value == default and type(value) is type(default):
                continue
            if not isinstance(value, kinds):
                raise EncodeError(name, f"{type(value).__qualname__} can't be stored here", name_of_type(value))
            fields[number] = self._storable(name, value)


def _why_not_built(error: DecodeError) -> str:
    """Return why a class can't be built from its attributes."""
    cause = error.__cause__
    if isinstance(cause, TypeError) and re.search(r"missing \d+ required .*argument", str(cause)):
        names = " and ".join(re.findall(r"'(\w+)'", str(cause)))
        return f"its constructor requires {names}, so the class's `attributes` must name it"
    return str(error) if cause is None else brief(cause)


def _is_extra(name: str, shown: dict[str, Any]) -> bool:
    return name in shown and name not in _ATTRIBUTES


def _store_found(headers: Headers | None, found: Found, fields: dict[int, Any]) -> None:
    if found.source is not None:
        is_referer = headers is not None and dict.get(headers, REFERER) == [
            found.source.encode("utf-8", "surrogatepass")
        ]
        fields[SOURCE.number] = True if is_referer else found.source
    if found.at_s is not None:
        fields[FOUND.number] = found.at_s


def _constructed(
    url: str,
    callback: Callable[..., Any] | None,
    errback: Callable[..., Any] | None,
    meta: dict[Any, Any],
    priority: int,
    more: dict[str, Any],
) -> Request:
    """Return a request from Scrapy's constructor with exactly these attributes."""
    # Escaping the URL again takes longer than all the rest, and may change it.
    if _VERBATIM in meta:
        request = Request(url, callback, meta=meta, priority=priority, errback=errback, **more)
    else:
        meta[_VERBATIM] = True
        request = Request(url, callback, meta=meta, priority=priority, errback=errback, **more)
        del request.meta[_VERBATIM]
    if request.url != url:
        _restore(request, URL.name, url)
    _restore_changed(request, more)
    return request


def _read_found(attributes: dict[str, Any]) -> Found:
    """Remove from the attributes how the request was found, and return it."""
    source, found_s = attributes.pop(SOURCE.name, None), attributes.pop(FOUND.name, None)
    if source is True:
        source = _referer(attributes.get(HEADERS.name, {}))
    return Found(source or None, found_s)


def _referer(headers: dict[Any, Any]) -> str | None:
    values = dict.get(headers, REFERER)
    return values[0].decode("utf-8", "replace") if values else None


def _stored_headers(headers: Headers) -> dict[int | bytes, Any]:
    if type(headers) is not Headers:
        raise EncodeError(
            HEADERS.name, f"{type(headers).__qualname__} can't be stored, only Headers", name_of_type(headers)
        )
    if len(headers) == 1 and type(values := dict.get(headers, REFERER)) is list and list(map(type, values)) == _ONE:
        return {REFERER_NUMBER: values[0]}
    stored: dict[int | bytes, Any] = {}
    # dict's own items, since those of Headers normalise names and values again.
    for name, values in dict.items(headers):
        if not _is_header(name, values):
            raise EncodeError(
                f"{HEADERS.name}[{brief(name)}]", f"{brief(values)} is not a list of bytes", name_of_type(values)
            )
        stored[HEADER_NUMBERS.get(name, name)] = values[0] if len(values) == 1 else values
    return stored


def _read_headers(stored: dict[Any, Any], encoding: str) -> Headers:
    headers = Headers(encoding=encoding)
    for name, values in stored.items():
        name = HEADER_NAMES.get(name, name)
        if type(values) is bytes:
            values = [values]
        if not _is_header(name, values):
            raise DecodeError(f"{brief(name)}: {brief(values)} is not a header")
        dict.__setitem__(headers, name, values)
    return headers


def _is_header(name: object, values: object) -> bool:
    return type(name) is bytes and type(values) is list and _BYTES.issuperset(map(type, values))


def _restore_changed(request: Request, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        if not _is_same(getattr(request, name), value):
            _restore(request, name, value)


def _restore_objects(request: Request, attributes: dict[str, Any]) -> None:
    """Replace equal copies that the constructor got by the original objects, which other values refer to."""
    for name, value in attributes.items():
        if not is_hashed_by_value(type(value)) and name != HEADERS.name and getattr(request, name) is not value:
            with suppress(AttributeError):  # of a property without a setter
                _restore(request, name, value)


def _is_same(current: Any, wanted: Any) -> bool:
    try:
        return current is wanted or (type(current) is type(wanted) and bool(current == wanted))
    except ArithmeticError:  # a signalling NaN
        return False


def _restore(request: Request, name: str, value: Any) -> None:
    """Set an attribute that the constructor has changed."""
    try:
        setattr(request, name, value)
    except AttributeError:
        # A property without a setter; like Scrapy's own it exposes an attribute with a leading underscore.
        setattr(request, f"_{name}", value)
    if not _is_same(getattr(request, name), value):
        raise DecodeError(f"{name} of {type(request)!r} can't be set")
