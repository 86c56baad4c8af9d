"""Python values as MessagePack and back, each with its exact type; nothing of requests.

MessagePack has no tuple, set, date and so on.
A value that is one text or one run of bytes is written as an *extension* that holds it.
A value made of other values is written as an array whose first item is an empty extension, its *mark*.
Nothing is nested inside extensions, so no payload, however hostile, makes the reader call itself.

docs/reference/payload.md has the format, docs/reference/values.md what users need to know.
"""

from __future__ import annotations

import enum
import re
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, Protocol
from uuid import UUID

from msgpack import ExtType, Packer, unpackb

from scrapy_prioqueue.codec import classes
from scrapy_prioqueue.codec.lineage import Lineage
from scrapy_prioqueue.codec.names import Callbacks, bases_of, inherits, path_of
from scrapy_prioqueue.codec.reasons import Unstorable, brief, name_of_type
from scrapy_prioqueue.codec.standard import BY_NAME, MAX_PATTERNS, STANDARD, cost_of
from scrapy_prioqueue.codec.standins import CLASS, MEMBER, METHOD, NAMED_TUPLE, OBJECT, StandIn
from scrapy_prioqueue.codec.zones import in_zone, zone_of

MAX_DEPTH = 100
"""A value nested deeper can't be stored; so one that holds itself can't either."""

MAX_COLLISIONS = 100
"""Keys of a map, or items of a set, that may have the same hash: more of them make it slow to build."""

SMALL = 4096
"""Bytes of a payload that is read without looking for collisions."""

# Codes of MessagePack extensions, part of the format. First the marks ...
_TUPLE = 1
_SET = 2
_FROZENSET = 3
_COMPLEX = 4
_TIMEDELTA = 5
_TIME = 6
_DATETIME = 7
_STANDARD = 8
# ... then those that hold something; codes that stand for names are in `standins`.
_INT = 16
_BYTEARRAY = 17
_DECIMAL = 18
_UUID = 19
_DATE = 20

_NATIVE = frozenset({type(None), bool, int, float, str, bytes})
_MARKS = {code: ExtType(code, b"") for code in range(1, 12)}
_MAX_WRITERS = 1000

_CONTAINERS = (list, tuple, set, frozenset, dict, OrderedDict, Counter, defaultdict, deque)
_ACCESS = (
    *("__getattr__", "__getattribute__", "__getitem__", "__missing__", "__iter__", "__len__", "__contains__"),
    *("get", "keys", "values", "items"),
)
"""Methods that make a container another one than its plain type, if a subclass has its own."""


class ValueWriter:
    """Writes values as MessagePack; not to be shared between threads.

    Args:
        name_of: returns the name of a method of the spider, None for any other function.
    """

    def __init__(self, name_of: Callable[[Callable[..., Any]], str | None] = lambda _: None) -> None:
        self.name_of = name_of
        self.patterns = 0
        """What the regular expressions of this payload count as; set to zero for each."""
        self._writers = dict(_WRITERS)
        self._tried: set[type] = set()
        # Python's strings may hold lone surrogates, which strict UTF-8 can't write.
        packer = Packer(default=self._write_rare, strict_types=True, unicode_errors="surrogatepass")
        self.pack: Callable[[Any], bytes] = packer.pack
        """Return what `portable` has returned as bytes."""

    def portable(self, value: Any, room: int = MAX_DEPTH) -> Any:
        """Return a value in the form that `pack` takes: itself, or a copy with its rarer types replaced.

        Args:
            value: of the types in docs/reference/values.md, at any depth.
            room: how many levels deep the value may be.

        Raises:
            Unstorable: there is another type in it, or it is nested too deep.
        """
        kind = type(value)
        if kind in _NATIVE:
            return value
        write = self._writers.get(kind) or self._find_writer(kind)
        if room == 0:
            raise Unstorable(
                f"what is nested deeper than {MAX_DEPTH} levels, or holds itself, can't be stored", name_of_type(value)
            )
        return write(self, value, room - 1)

    def item(self, key: Any, item: Any, room: int) -> Any:
        """Return the portable form of what a value holds under a key."""
        try:
            return self.portable(item, room)
        except Unstorable as reason:
            reason.add_step(key)
            raise

    def by_key(self, items: dict[Any, Any], room: int) -> dict[Any, Any]:
        """Return the portable form of what a map holds."""
        return {key: item if type(item) in _NATIVE else self.item(key, item, room) for key, item in items.items()}

    def in_turn(self, items: Iterable[Any], room: int) -> list[Any]:
        """Return the portable form of items that have an order."""
        return [item if type(item) in _NATIVE else self.item(at, item, room) for at, item in enumerate(items)]

    def is_first(self, cls: type) -> bool:
        """Tell whether no object of a class was written yet."""
        if cls in self._tried:
            return False
        if len(self._tried) < _MAX_WRITERS:
            self._tried.add(cls)
        return True

    def _write_rare(self, value: Any) -> Any:
        """Write what MessagePack has no form for and `portable` has left alone: big integers and keys of dicts."""
        if type(value) is int:
            return ExtType(_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
        self.patterns = 0  # those of keys were counted before
        return self.portable(value)

    def _find_writer(self, kind: type) -> Writer:
        write = _writer_for(kind)
        if len(self._writers) < _MAX_WRITERS:
            self._writers[kind] = write
        return write


Writer = Callable[[ValueWriter, Any, int], Any]


def _is_native(items: Iterable[Any]) -> bool:
    return _NATIVE.issuperset(map(type, items))


def _write_dict(writer: ValueWriter, value: dict[Any, Any], room: int) -> dict[Any, Any]:
    if not _is_native(value):
        # Checked only: the portable form of a tuple is a list, no key of a dict. The packer turns keys into it itself.
        for key in value:
            writer.item(key, key, room)
    return value if _is_native(value.values()) else writer.by_key(value, room)


def _write_list(writer: ValueWriter, value: list[Any], room: int) -> list[Any]:
    return value if _is_native(value) else writer.in_turn(value, room)


def _write_tuple(writer: ValueWriter, value: tuple[Any, ...], room: int) -> list[Any]:
    return [_MARKS[_TUPLE], *writer.in_turn(value, room)]


def _write_set(writer: ValueWriter, value: set[Any] | frozenset[Any], room: int) -> list[Any]:
    code = _SET if type(value) is set else _FROZENSET
    return [_MARKS[code], *(writer.item(item, item, room) for item in value)]


def _write_moment(writer: ValueWriter, value: datetime | time, room: int) -> list[Any]:
    code = _DATETIME if type(value) is datetime else _TIME
    zone, fold = zone_of(value)
    return [_MARKS[code], value.replace(tzinfo=None).isoformat(), writer.portable(zone), fold]


def _write_pattern(writer: ValueWriter, value: re.Pattern[Any], room: int) -> list[Any]:
    writer.patterns += cost_of(value.pattern)
    if writer.patterns > MAX_PATTERNS:
        raise Unstorable("regular expressions that long can't be stored", name_of_type(value))
    return _write_standard(writer, value, room)


def _write_standard(writer: ValueWriter, value: Any, room: int) -> list[Any]:
    standard = STANDARD[type(value)]
    items = standard.take(value)
    if len(items) == 1 and type(items[0]) is dict:
        items = [_write_dict(writer, items[0], room)]
    else:
        items = writer.in_turn(items, room)
    return [_MARKS[_STANDARD], type(value).__name__, *items]


def _write_object(writer: ValueWriter, value: Any, room: int) -> list[Any]:
    cls: type = type(value)
    shape = classes.shape_of(cls)
    assert shape is not None
    path = _path(cls)
    try:
        taken = shape.take(value)
        if writer.is_first(cls) and not _is_same(taken, shape.take(shape.make(*map(dict, taken)))):
            raise ValueError("it doesn't come back as it is")
    except Exception as error:  # classes are the user's
        raise Unstorable(f"{name_of_type(value)} can't be stored: {error}", name_of_type(value)) from error
    fields, others = (writer.by_key(part, room) for part in taken)
    return [_MARKS[OBJECT], path, fields, others] if others else [_MARKS[OBJECT], path, fields]


def _is_same(one: classes.Taken, other: classes.Taken) -> bool:
    return all(
        left.keys() == right.keys() and all(value is right[name] for name, value in left.items())
        for left, right in zip(one, other, strict=True)
    )


def _write_named_tuple(writer: ValueWriter, value: Any, room: int) -> list[Any]:
    path = _path(type(value))
    _refuse_state(value, tuple)
    return [_MARKS[NAMED_TUPLE], path, *writer.in_turn(tuple.__iter__(value), room)]


def _write_member(writer: ValueWriter, value: enum.Enum, room: int) -> Any:
    path = _path(type(value))
    try:
        names = classes.names_of(value)
        comes_back = classes.member_at(path, names) is value
    except Exception:  # classes are the user's
        comes_back = False
    if not comes_back:
        raise Unstorable(f"{brief(value)} can't be stored, since no name stands for it", name_of_type(value))
    return [_MARKS[MEMBER], path, *names]


def _write_method(writer: ValueWriter, value: Callable[..., Any], room: int) -> ExtType:
    name = writer.name_of(value)
    if name is None:
        raise Unstorable(
            f"{name_of_type(value)} can't be stored unless it is a method of the spider: {brief(value)}",
            name_of_type(value),
        )
    return _text(METHOD, name)


def _write_class(writer: ValueWriter, value: type, room: int) -> ExtType:
    if not classes.is_data_class(value):
        raise Unstorable(f"{name_of_type(value)} can't be stored: {brief(value)}", name_of_type(value))
    return _text(CLASS, _path(value))


def _write_stand_in(writer: ValueWriter, value: StandIn, room: int) -> Any:
    if value.code in (METHOD, CLASS):
        return _text(value.code, value.name)
    return [_MARKS[value.code], value.name, *writer.in_turn(value.content, room)]


def _text(code: int, text: str) -> ExtType:
    return ExtType(code, text.encode("utf-8", "surrogatepass"))


def _path(cls: type) -> str:
    path = path_of(cls)
    if path is None:
        name = f"{cls.__module__}.{cls.__qualname__}"
        raise Unstorable(f"{name} can't be stored: no module has the class under this name", name)
    return path


_WRITERS: dict[type, Writer] = {
    dict: _write_dict,
    Lineage: lambda writer, value, room: _write_dict(writer, dict(value), room),
    list: _write_list,
    tuple: _write_tuple,
    set: _write_set,
    frozenset: _write_set,
    complex: lambda writer, value, room: [_MARKS[_COMPLEX], value.real, value.imag],
    timedelta: lambda writer, value, room: [_MARKS[_TIMEDELTA], value.days, value.seconds, value.microseconds],
    time: _write_moment,
    datetime: _write_moment,
    bytearray: lambda writer, value, room: ExtType(_BYTEARRAY, bytes(value)),
    Decimal: lambda writer, value, room: _text(_DECIMAL, str(value)),
    UUID: lambda writer, value, room: ExtType(_UUID, value.bytes),
    date: lambda writer, value, room: _text(_DATE, value.isoformat()),
    MethodType: _write_method,
    FunctionType: _write_method,
    type: _write_class,
    StandIn: _write_stand_in,
    **dict.fromkeys(STANDARD, _write_standard),
    re.Pattern: _write_pattern,
}


# Subclasses of these types, and types of other packages


def _writer_for(kind: type) -> Writer:
    """Return how values of a type are written that isn't one of the exact ones."""
    if inherits(kind, type):
        return _write_class
    if classes.is_enum(kind):
        return _write_member if path_of(kind) is not None else _base_writer(kind) or _refuse
    if classes.is_named_tuple(kind):
        return _write_named_tuple
    if classes.shape_of(kind) is not None:
        return _write_object
    numpy = sys.modules.get("numpy")
    if type(numpy) is ModuleType and inherits(kind, vars(numpy).get("generic")):
        return _write_scalar
    return _base_writer(kind) or _refuse


def _refuse(writer: ValueWriter, value: Any, room: int) -> Any:
    raise Unstorable(f"{name_of_type(value)} can't be stored", name_of_type(value))


def _base_writer(kind: type) -> Writer | None:
    """Return how values of a subclass are written as the type that it extends, None if they can't be."""
    bases = bases_of(kind)
    base = next((each for each in bases if each in _PLAIN), None)
    if base is None:
        return None
    above = bases[: bases.index(base)]
    if base in _CONTAINERS and any(name in vars(each) for each in above for name in _ACCESS):
        return None
    return partial(_write_as, base)


def _write_as(base: type, writer: ValueWriter, value: Any, room: int) -> Any:
    if base in _CONTAINERS:
        _refuse_state(value, base)
    try:
        plain = _PLAIN[base](value)
    except Exception as error:  # a subclass is anybody's code
        raise Unstorable(f"{name_of_type(value)} can't be stored: {error}", name_of_type(value)) from error
    return writer.portable(plain, room + 1)


def _refuse_state(value: Any, extending: type) -> None:
    """Refuse a container that has attributes besides what it contains.

    Args:
        extending: the plain type of which its class is a subclass.
    """
    bases = bases_of(type(value))
    slots = [
        found
        for base in bases[: bases.index(extending)]
        for found in vars(base).values()
        if type(found) is MemberDescriptorType
    ]
    if getattr(value, "__dict__", None) or any(hasattr(value, slot.__name__) for slot in slots):
        raise Unstorable(
            f"{name_of_type(value)} can't be stored, since it has attributes of its own", name_of_type(value)
        )


def _plain_moment(value: Any) -> Any:
    """Return the `datetime` or `time` that a value of a subclass is equal to."""
    parts = (value.hour, value.minute, value.second, value.microsecond, value.tzinfo)
    if isinstance(value, datetime):
        plain: Any = datetime(value.year, value.month, value.day, *parts, fold=value.fold)
    else:
        plain = time(*parts, fold=value.fold)
    if not bool(plain == value):
        raise ValueError("it is finer than a microsecond")
    return plain


def _plain_timedelta(value: timedelta) -> timedelta:
    plain = timedelta(value.days, value.seconds, value.microseconds)
    if not bool(plain == value):
        raise ValueError("it is finer than a microsecond")
    return plain


def _plain_path(kind: type, value: Any) -> Any:
    return kind(str(value))


_PLAIN: Mapping[type, Callable[[Any], Any]] = {
    str: str.__str__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    bytearray: lambda value: bytearray(memoryview(value)),
    int: int.__int__,
    float: float.__float__,
    complex: lambda value: complex(value.real, value.imag),
    Decimal: Decimal,
    UUID: lambda value: UUID(int=value.int),
    datetime: _plain_moment,
    date: lambda value: date(value.year, value.month, value.day),
    time: _plain_moment,
    timedelta: _plain_timedelta,
    **{kind: kind for kind in (list, tuple, set, frozenset, dict, OrderedDict, Counter)},
    defaultdict: lambda value: defaultdict(value.default_factory, value),
    deque: lambda value: deque(value, value.maxlen),
    **{kind: partial(_plain_path, kind) for kind in (PosixPath, WindowsPath, PurePosixPath, PureWindowsPath)},
}
"""What makes the exact type of a value of a subclass."""


def _write_scalar(writer: ValueWriter, value: Any, room: int) -> Any:
    """Write a scalar of numpy as the Python value that it stands for."""
    try:
        found = value.item()
        is_same = type(found) in _SCALARS and bool(found == value or found != found)
    except Exception:  # types of other packages are anybody's code
        is_same = False
    if not is_same:
        raise Unstorable(f"{name_of_type(value)} has no exact Python value, so it can't be stored", name_of_type(value))
    return writer.portable(found)


_SCALARS = frozenset({bool, int, float, complex, str, bytes, date, datetime, timedelta})


class Resolver(Protocol):
    """What a payload names, looked up."""

    def method(self, name: str) -> Any: ...

    def class_(self, path: str) -> Any: ...

    def instance(self, path: str, *content: Any) -> Any: ...

    def named_tuple(self, path: str, *items: Any) -> Any: ...

    def member(self, path: str, *names: Any) -> Any: ...


class Loaded:
    """Makes values of the classes that are imported here and of the methods of a spider.

    Args:
        callbacks: the methods of the spider.
    """

    def __init__(self, callbacks: Callbacks) -> None:
        self.method = callbacks.get
        self.class_ = classes.class_at
        self.instance = classes.object_at

    def named_tuple(self, path: str, *items: Any) -> Any:
        """Return the named tuple."""
        return classes.named_tuple_at(path, items)

    def member(self, path: str, *names: Any) -> Any:
        """Return the member of an enum."""
        return classes.member_at(path, names)


class StandIns:
    """Makes stand-ins, for programs that have neither spider nor project at hand."""

    def method(self, name: str) -> Any:
        """Return what stands for a method of the spider."""
        return StandIn(METHOD, name)

    def class_(self, path: str) -> Any:
        """Return what stands for a class."""
        return StandIn(CLASS, path)

    def instance(self, path: str, *content: Any) -> Any:
        """Return what stands for an object: its fields, and other attributes."""
        return StandIn(OBJECT, path, content)

    def named_tuple(self, path: str, *items: Any) -> Any:
        """Return what stands for a named tuple."""
        return StandIn(NAMED_TUPLE, path, items)

    def member(self, path: str, *names: Any) -> Any:
        """Return what stands for a member of an enum."""
        return StandIn(MEMBER, path, names)


class ValueReader:
    """Reads what `ValueWriter` has written; not to be shared between threads.

    Args:
        resolver: looks up what is named.
    """

    def __init__(self, resolver: Resolver | None = None) -> None:
        self._loose_marks = 0
        self._patterns = 0
        self._resolver: Resolver = resolver or StandIns()
        self._readers = _READERS | {
            METHOD: lambda content: self._resolver.method(_decoded(content)),
            CLASS: lambda content: self._resolver.class_(_decoded(content)),
        }
        self._builders = _BUILDERS | {
            _STANDARD: self._read_standard,
            OBJECT: lambda items: self._resolver.instance(*items),
            MEMBER: lambda items: self._resolver.member(*items),
            NAMED_TUPLE: lambda items: self._resolver.named_tuple(*items),
        }

    def read(self, packed: bytes) -> Any:
        """Return the value.

        Raises:
            Exception: of some kind, if the bytes are not exactly one value of the types that are stored.
        """
        self._loose_marks = self._patterns = 0
        value = unpackb(
            packed,
            ext_hook=self._read_extension,
            list_hook=self._read_array,
            object_pairs_hook=None if len(packed) <= SMALL else _read_map,
            strict_map_key=False,
            unicode_errors="surrogatepass",
            timestamp=3,  # MessagePack's own extension becomes a datetime
        )
        if self._loose_marks:
            raise ValueError("there is a mark that isn't the first item of an array")
        return value

    def _read_extension(self, code: int, content: bytes) -> Any:
        read = self._readers.get(code)
        if read is not None:
            return read(content)
        self._loose_marks += 1
        return _Mark(self._builders[code])

    def _read_array(self, items: list[Any]) -> Any:
        if not items or type(items[0]) is not _Mark:
            return items
        self._loose_marks -= 1
        return items[0].build(items[1:])

    def _read_standard(self, items: list[Any]) -> Any:
        name, *rest = items
        if name == "Pattern":
            self._patterns += cost_of(rest[0])
            if self._patterns > MAX_PATTERNS:
                raise ValueError("there are too many regular expressions")
        return BY_NAME[name].make(*rest)


class _Mark:
    """The first item of an array that stands for something else; what that is, `build` makes of the other items."""

    __slots__ = ("build",)

    def __init__(self, build: Callable[[list[Any]], Any]) -> None:
        self.build = build


def _read_map(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    if len(pairs) > MAX_COLLISIONS:
        _refuse_collisions([key for key, _ in pairs])
    return dict(pairs)


def _read_set(kind: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    def read(items: list[Any]) -> Any:
        if len(items) > MAX_COLLISIONS:
            _refuse_collisions(items)
        return kind(items)

    return read


def _refuse_collisions(keys: list[Any]) -> None:
    """Refuse keys made to share a hash, among which Python finds one only by looking at all."""
    if max(Counter(map(hash, keys)).values()) > MAX_COLLISIONS:
        raise ValueError("too many keys have the same hash")


def _decoded(content: bytes) -> str:
    return content.decode("utf-8", "surrogatepass")


_BUILDERS: dict[int, Callable[[list[Any]], Any]] = {
    _TUPLE: tuple,
    _SET: _read_set(set),
    _FROZENSET: _read_set(frozenset),
    _COMPLEX: lambda items: complex(*items),
    _TIMEDELTA: lambda items: timedelta(*items),
    _TIME: lambda items: in_zone(time.fromisoformat(items[0]), *items[1:]),
    _DATETIME: lambda items: in_zone(datetime.fromisoformat(items[0]), *items[1:]),
}

_READERS: dict[int, Callable[[bytes], Any]] = {
    _INT: lambda content: int.from_bytes(content, "big", signed=True),
    _BYTEARRAY: bytearray,
    _DECIMAL: lambda content: Decimal(content.decode("ascii")),
    _UUID: lambda content: UUID(bytes=content),
    _DATE: lambda content: date.fromisoformat(content.decode("ascii")),
}
