"""Python values as MessagePack and back, each with its exact type; independent of requests.

MessagePack has no tuple, set, date and so on.
A value that consists of one text or byte string is written as an *extension* that contains it.
A value made of other values is written as an array whose first item is an empty extension, its *mark*.
Extensions contain no other values, so no payload, however hostile, makes the reader recurse.
A mutable object that occurs several times in a payload is written once, with a number, and then as references to it.

docs/reference/payload.md describes the format, docs/reference/values.md the rules for users.
"""

from __future__ import annotations

import enum
import re
import sys
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType, SimpleNamespace
from typing import Any, TypeVar
from uuid import UUID

from msgpack import ExtType, Packer, unpackb

from scrapy_prioqueue.codec import classes
from scrapy_prioqueue.codec.lineage import Lineage
from scrapy_prioqueue.codec.names import Callbacks, bases_of, inherits, is_hashed_by_value, path_of
from scrapy_prioqueue.codec.reasons import Unstorable, brief, name_of_class, name_of_type
from scrapy_prioqueue.codec.standard import BY_NAME, MAX_PATTERNS, STANDARD, cost_of
from scrapy_prioqueue.codec.standins import CLASS, MEMBER, METHOD, NAMED_TUPLE, OBJECT, StandIn
from scrapy_prioqueue.codec.zones import in_zone, zone_of
from scrapy_prioqueue.errors import UnknownName

MAX_DEPTH = 100
"""Deepest nesting that can be stored; so a value that contains itself can't."""

MAX_COLLISIONS = 100
"""Number of keys of a map, or items of a set, that may have the same hash; more make it slow to build."""

MAX_VISITS = 100_000
"""Number of visits to shared objects that walking through a payload may take, counting each path to them."""

SMALL = 4096
"""Payloads of up to this many bytes are read without checking for hash collisions."""

# Codes of MessagePack extensions, part of the format. First the marks ...
_TUPLE = 1
_SET = 2
_FROZENSET = 3
_COMPLEX = 4
_TIMEDELTA = 5
_TIME = 6
_DATETIME = 7
_STANDARD = 8
_SHARED = 12
# ... then those that hold something; codes that stand for names are in `standins`.
_INT = 16
_BYTEARRAY = 17
_DECIMAL = 18
_UUID = 19
_DATE = 20
_REFERENCE = 23

_NATIVE = frozenset({type(None), bool, int, float, str, bytes})
_MARKS = {code: ExtType(code, b"") for code in range(1, 13)}
_MAX_WRITERS = 1000
_TOO_DEEP = f"what is nested deeper than {MAX_DEPTH} levels, or holds itself, can't be stored"

_Written = TypeVar("_Written")

_CONTAINERS = (list, tuple, set, frozenset, dict, OrderedDict, Counter, defaultdict, deque)
_ACCESS = (
    *("__getattr__", "__getattribute__", "__getitem__", "__missing__", "__iter__", "__len__", "__contains__"),
    *("get", "keys", "values", "items"),
)
"""Access methods of containers; a subclass that overrides one can't be stored as its plain type."""


class _Repeated(Exception):
    """A mutable object occurs in a payload for the second time."""


class _Node:
    """The portable form of a mutable object, in a payload that contains some object several times.

    Args:
        value: the object, kept alive so that its id isn't reused.
    """

    __slots__ = ("is_shared", "portable", "size", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.portable: Any = None
        self.is_shared = False
        self.size = 1
        """Number of nodes on a walk through it."""


class ValueWriter:
    """Writes values as MessagePack; not thread-safe.

    Args:
        name_of: returns the name of a method of the spider, None for any other function.
    """

    def __init__(self, name_of: Callable[[Callable[..., Any]], str | None] = lambda _: None) -> None:
        self.name_of = name_of
        self.patterns = 0
        """Cost of the regular expressions of this payload so far."""
        self._writers = dict(_WRITERS)
        self._tried: set[type] = set()
        self._seen: dict[int, Any] | None = None
        self._nodes: dict[int, _Node] | None = None
        self._is_packing = False
        self._numbers: dict[int, int] = {}
        self._size = self._repeated = 0
        # Python's strings may hold lone surrogates, which strict UTF-8 can't write.
        packer = Packer(default=self._write_rare, strict_types=True, unicode_errors="surrogatepass")
        self._pack: Callable[[Any], bytes] = packer.pack

    def whole(self, write: Callable[..., _Written], *args: Any) -> _Written:
        """Return the result of a function that makes all values of one payload portable; it may be called twice.

        A mutable object that occurs several times in them is one object again when the payload is read. Few payloads
        have one, so the first call only detects it, and the second one writes references.
        """
        self.patterns = 0
        if self._seen or self._seen is None:
            self._seen, self._nodes = {}, None
        try:
            return write(*args)
        except _Repeated:
            self.patterns = self._size = self._repeated = 0
            self._seen, self._nodes = None, {}
            return write(*args)

    def pack(self, value: Any) -> bytes:
        """Return the result of `portable` as bytes.

        Raises:
            Unstorable: it is nested too deep.
        """
        if not self._seen and not self._nodes:
            return self._pack(value)
        self._is_packing = True
        self._numbers.clear()
        try:
            return self._pack(value)
        except ValueError as error:  # msgpack's limit; references lead deeper than `portable` has counted
            raise Unstorable(_TOO_DEEP, name_of_type(value)) from error
        finally:
            self._is_packing = False

    def portable(self, value: Any, room: int = MAX_DEPTH) -> Any:
        """Return a value in the form that `pack` accepts: itself, or a copy in which rarer types are replaced.

        Args:
            value: of the types in docs/reference/values.md, at any depth.
            room: how many levels deep the value may be.

        Raises:
            Unstorable: it contains another type, or is nested too deep.
        """
        kind = type(value)
        if kind in _NATIVE:
            return value
        write = self._writers.get(kind) or self._find_writer(kind)
        if room == 0:
            raise Unstorable(_TOO_DEEP, name_of_type(value))
        return write(self, value, room - 1)

    def field(self, value: Any) -> Any:
        """Return the portable form of a field that must be a map and not a reference to one."""
        portable = self.portable(value)
        while type(portable) is _Node:
            portable = portable.portable
        return portable

    def once(self, write: Writer, value: Any, room: int) -> Any:
        """Return the portable form of a mutable object, which stays one object if it occurs again."""
        if self._nodes is not None:
            return self._node(self._nodes, write, value, room)
        if self._seen is not None and not self._is_packing:
            if id(value) in self._seen:
                raise _Repeated
            self._seen[id(value)] = value
        return write(self, value, room)

    def _node(self, nodes: dict[int, _Node], write: Writer, value: Any, room: int) -> _Node:
        node = nodes.get(id(value))
        if node is None:
            nodes[id(value)] = node = _Node(value)
            size = self._size
            node.portable = write(self, value, room)
            self._size += 1
            node.size = self._size - size
        elif node.portable is None:
            raise Unstorable(_TOO_DEEP, name_of_type(value))
        elif not self._is_packing:
            node.is_shared = True
            self._size += node.size
            self._repeated += node.size
            # Half of the limit, since a reader also counts the first occurrence of each object.
            if self._repeated > MAX_VISITS // 2:
                raise Unstorable("an object that occurs too often in one request can't be stored", name_of_type(value))
        return node

    def item(self, key: Any, item: Any, room: int) -> Any:
        """Return the portable form of the value under a key, which is added to the path of an error."""
        try:
            return self.portable(item, room)
        except Unstorable as reason:
            reason.add_step(key)
            raise

    def by_key(self, items: dict[Any, Any], room: int) -> dict[Any, Any]:
        """Return a map with its values in portable form."""
        return {key: item if type(item) in _NATIVE else self.item(key, item, room) for key, item in items.items()}

    def in_turn(self, items: Iterable[Any], room: int) -> list[Any]:
        """Return the portable form of items in order."""
        return [item if type(item) in _NATIVE else self.item(at, item, room) for at, item in enumerate(items)]

    def is_first(self, cls: type) -> bool:
        """Return whether this writer has not yet written an object of that class."""
        if cls in self._tried:
            return False
        if len(self._tried) < _MAX_WRITERS:
            self._tried.add(cls)
        return True

    def _write_rare(self, value: Any) -> Any:
        """Write values that `portable` has left and MessagePack can't write: nodes, big integers, keys of maps."""
        if type(value) is int:
            return ExtType(_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
        if type(value) is not _Node:
            self.patterns = 0  # keys were counted before
            value = self.portable(value)
        while type(value) is _Node and not value.is_shared:
            value = value.portable
        if type(value) is not _Node:
            return value
        number = self._numbers.get(id(value))
        if number is not None:
            return ExtType(_REFERENCE, number.to_bytes(number.bit_length() // 8 + 1, "big"))
        self._numbers[id(value)] = number = len(self._numbers)
        return [_MARKS[_SHARED], number, value.portable]

    def _find_writer(self, kind: type) -> Writer:
        write = _writer_for(kind)
        if len(self._writers) < _MAX_WRITERS:
            self._writers[kind] = write
        return write


Writer = Callable[[ValueWriter, Any, int], Any]


def _kept_one(write: Writer) -> Writer:
    """Return a writer of mutable objects that stay one object if they occur several times."""

    def write_once(writer: ValueWriter, value: Any, room: int) -> Any:
        return writer.once(write, value, room)

    return write_once


def _is_native(items: Iterable[Any]) -> bool:
    return _NATIVE.issuperset(map(type, items))


def _write_dict(writer: ValueWriter, value: dict[Any, Any], room: int) -> dict[Any, Any]:
    if not _is_native(value):
        # Keys are only checked here; the packer writes them. The portable form of a tuple, a list, can't be a key.
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
        raise Unstorable(
            f"regular expressions of more than {MAX_PATTERNS:,} characters can't be stored", name_of_type(value)
        )
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
    except Exception as error:  # the class may be the user's
        raise Unstorable(f"{name_of_type(value)} can't be stored: {error}", name_of_type(value)) from error
    fields, others = (writer.by_key(part, room) for part in taken)
    return [_MARKS[OBJECT], path, fields, others] if others else [_MARKS[OBJECT], path, fields]


def _is_same(one: classes.Attributes, other: classes.Attributes) -> bool:
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
        comes_back = classes.member_at(path, *names) is value
    except Exception:  # the class may be the user's
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
    return writer.once(_write_content, value, room) if value.code == OBJECT else _write_content(writer, value, room)


def _write_content(writer: ValueWriter, value: StandIn, room: int) -> list[Any]:
    return [_MARKS[value.code], value.name, *writer.in_turn(value.content, room)]


def _text(code: int, text: str) -> ExtType:
    return ExtType(code, text.encode("utf-8", "surrogatepass"))


def _path(cls: type) -> str:
    path = path_of(cls)
    if path is None:
        name = name_of_class(cls)
        raise Unstorable(f"{name} can't be stored: no module has the class under this name", name)
    return path


_WRITERS: dict[type, Writer] = {
    dict: _kept_one(_write_dict),
    Lineage: lambda writer, value, room: _write_dict(writer, dict(value), room),
    list: _kept_one(_write_list),
    tuple: _write_tuple,
    set: _kept_one(_write_set),
    frozenset: _write_set,
    complex: lambda writer, value, room: [_MARKS[_COMPLEX], value.real, value.imag],
    timedelta: lambda writer, value, room: [_MARKS[_TIMEDELTA], value.days, value.seconds, value.microseconds],
    time: _write_moment,
    datetime: _write_moment,
    bytearray: _kept_one(lambda writer, value, room: ExtType(_BYTEARRAY, bytes(value))),
    Decimal: lambda writer, value, room: _text(_DECIMAL, str(value)),
    UUID: lambda writer, value, room: ExtType(_UUID, value.bytes),
    date: lambda writer, value, room: _text(_DATE, value.isoformat()),
    MethodType: _write_method,
    FunctionType: _write_method,
    type: _write_class,
    StandIn: _write_stand_in,
    **dict.fromkeys(STANDARD, _write_standard),
    **dict.fromkeys((OrderedDict, Counter, defaultdict, deque, ChainMap, SimpleNamespace), _kept_one(_write_standard)),
    re.Pattern: _write_pattern,
}


# Subclasses of these types, and types of other packages


def _writer_for(kind: type) -> Writer:
    """Return the writer for a type that has none of its own."""
    if inherits(kind, type):
        return _write_class
    if classes.is_enum(kind):
        return _write_member if path_of(kind) is not None else _base_writer(kind) or _refuse
    if classes.is_named_tuple(kind):
        return _write_named_tuple
    if classes.shape_of(kind) is not None:
        return _write_object if is_hashed_by_value(kind) else _kept_one(_write_object)
    numpy = sys.modules.get("numpy")
    if type(numpy) is ModuleType and inherits(kind, vars(numpy).get("generic")):
        return _write_scalar
    return _base_writer(kind) or _refuse


def _refuse(writer: ValueWriter, value: Any, room: int) -> Any:
    raise Unstorable(f"{name_of_type(value)} can't be stored", name_of_type(value))


def _base_writer(kind: type) -> Writer | None:
    """Return a writer that writes values of a subclass as the type that it extends, None if they can't be stored."""
    bases = bases_of(kind)
    base = next((each for each in bases if each in _PLAIN), None)
    if base is None:
        return None
    above = bases[: bases.index(base)]
    if base in _CONTAINERS and any(name in vars(each) for each in above for name in _ACCESS):
        return None
    write = partial(_write_as, base)
    return write if is_hashed_by_value(base) else _kept_one(write)


def _write_as(base: type, writer: ValueWriter, value: Any, room: int) -> Any:
    if base in _CONTAINERS:
        _refuse_state(value, base)
    try:
        plain = _PLAIN[base](value)
    except Exception as error:  # a subclass may be code of any package
        raise Unstorable(f"{name_of_type(value)} can't be stored: {error}", name_of_type(value)) from error
    return writer.portable(plain, room + 1)


def _refuse_state(value: Any, extending: type) -> None:
    """Refuse a container with attributes besides its content.

    Args:
        extending: the plain type that its class extends.
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
    """Return the plain `datetime` or `time` equal to a value of a subclass."""
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
"""Functions that convert a value of a subclass to its plain type."""


def _write_scalar(writer: ValueWriter, value: Any, room: int) -> Any:
    """Write a numpy scalar as the equal Python value."""
    try:
        found = value.item()
        is_same = type(found) in _SCALARS and bool(found == value or found != found)
    except Exception:  # types of other packages may run any code
        is_same = False
    if not is_same:
        raise Unstorable(f"{name_of_type(value)} has no exact Python value, so it can't be stored", name_of_type(value))
    return writer.portable(found)


_SCALARS = frozenset({bool, int, float, complex, str, bytes, date, datetime, timedelta})


Resolve = Callable[..., Any]
"""Returns what a name in a payload stands for; called with the name and the data that is stored with it."""


def loaded(callbacks: Callbacks) -> Mapping[int, Resolve]:
    """Return functions that resolve names to methods of a spider and to imported classes, by code of the extension."""
    return {
        METHOD: callbacks.get,
        CLASS: classes.class_at,
        OBJECT: classes.object_at,
        NAMED_TUPLE: classes.named_tuple_at,
        MEMBER: classes.member_at,
    }


def _stand_in(code: int) -> Resolve:
    return lambda name, *content: StandIn(code, name, content)


_STAND_INS = {code: _stand_in(code) for code in (METHOD, CLASS, OBJECT, NAMED_TUPLE, MEMBER)}


class ValueReader:
    """Reads values that `ValueWriter` has written; not thread-safe.

    Args:
        resolvers: by code of the extension; without them names become stand-ins.
    """

    def __init__(self, resolvers: Mapping[int, Resolve] = _STAND_INS) -> None:
        self._loose_marks = 0
        self._patterns = 0
        self._shared: dict[int, tuple[Any, int]] = {}
        self._visits = 0
        self._readers = _READERS | {
            METHOD: lambda content: resolvers[METHOD](_decoded(content)),
            CLASS: lambda content: resolvers[CLASS](_decoded(content)),
            _REFERENCE: self._read_reference,
        }
        self._builders = _BUILDERS | {
            _STANDARD: self._read_standard,
            OBJECT: lambda items: resolvers[OBJECT](*items),
            MEMBER: lambda items: resolvers[MEMBER](*items),
            NAMED_TUPLE: lambda items: resolvers[NAMED_TUPLE](*items),
            _SHARED: self._read_shared,
        }

    @property
    def has_shared(self) -> bool:
        """Whether the last value that was read contains an object several times."""
        return bool(self._shared)

    def read(self, packed: bytes) -> Any:
        """Return the value.

        Raises:
            Exception: any, if the bytes are not exactly one value of the supported types.
        """
        self._loose_marks = self._patterns = self._visits = 0
        self._shared = {}
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
        build = self._builders[code]
        return _Mark(build if code != _SHARED else partial(build, visits=self._visits))

    def _read_array(self, items: list[Any]) -> Any:
        if not items or type(items[0]) is not _Mark:
            return items
        self._loose_marks -= 1
        return items[0].build(items[1:])

    def _read_shared(self, items: list[Any], visits: int = 0) -> Any:
        """Register an object under its number and return it.

        Args:
            visits: number of visits counted before it.
        """
        number, value = items
        if type(number) is not int or number in self._shared:
            raise ValueError("there are two objects of one number")
        if type(value) is StandIn:
            value.is_shared = True
        elif is_hashed_by_value(type(value)):
            # Hashing objects that refer to each other in many ways could take forever.
            raise UnknownName(f"{name_of_type(value)} can't be referred to; is it another version of that class?")
        self._visit(1)
        self._shared[number] = value, self._visits - visits
        return value

    def _read_reference(self, content: bytes) -> Any:
        value, visits = self._shared[int.from_bytes(content, "big")]
        self._visit(visits)
        return value

    def _visit(self, count: int) -> None:
        self._visits += count
        if self._visits > MAX_VISITS:
            raise ValueError("there are too many ways through its references")

    def _read_standard(self, items: list[Any]) -> Any:
        name, *rest = items
        if name == "Pattern":
            self._patterns += cost_of(rest[0])
            if self._patterns > MAX_PATTERNS:
                raise ValueError("there are too many regular expressions")
        return BY_NAME[name].make(*rest)


class _Mark:
    """The first item of an array that encodes another type; `build` creates the value from the other items."""

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
    """Refuse keys crafted to share a hash, which make each look-up a search through all of them."""
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
