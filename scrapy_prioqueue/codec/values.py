"""Plain Python values as MessagePack and back, each with its exact type; nothing of requests or Scrapy.

MessagePack has no tuple, set, date and so on.
A value that is one text or one run of bytes is written as an *extension* that holds it.
A value made of other values is written as an array whose first item is an empty extension, its *mark*.
Nothing is nested inside extensions, so no payload, however hostile, makes the reader call itself.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from msgpack import ExtType, Packer, unpackb

from scrapy_prioqueue.codec.lineage import Lineage

MAX_DEPTH = 100
"""A value nested deeper can't be stored; so one that holds itself can't either."""

# Codes of MessagePack extensions, part of the format. First the marks ...
_TUPLE = 1
_SET = 2
_FROZENSET = 3
_COMPLEX = 4
_TIMEDELTA = 5
_TIME = 6
_DATETIME = 7
# ... then those that hold something.
_INT = 16
_BYTEARRAY = 17
_DECIMAL = 18
_UUID = 19
_DATE = 20

_NATIVE = frozenset({type(None), bool, int, float, str, bytes})
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 200


class Unstorable(Exception):
    """A value has no exact form in MessagePack.

    Args:
        why: what it is and why it can't be stored.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
        self._steps: list[Any] = []

    def add_step(self, key: Any) -> None:
        """Note the key under which the value was found, innermost first."""
        self._steps.append(key)

    @property
    def path(self) -> str:
        """Where the value is, for example ``['items'][3]``."""
        steps = [f"[{brief(key)}]" for key in reversed(self._steps)]
        return "".join(steps if len(steps) <= 8 else [*steps[:8], "…"])


def brief(value: Any) -> str:
    """Return the value's repr fit for a message: not long, and never an error itself."""
    try:
        return _REPR.repr(value)
    except Exception:  # such as that of an integer with more digits than Python is willing to print
        return f"<{type(value).__qualname__}>"


def portable(value: Any, room: int = MAX_DEPTH) -> Any:
    """Return a value in the form that `new_packer` writes: itself, or a copy with its rarer types replaced.

    Args:
        value: only these exact types are stored, at any depth: None, bool, int, float, complex, str, bytes, bytearray,
            list, tuple, set, frozenset, dict, date, time, datetime, timedelta, Decimal, UUID; and a lineage, as dict.
        room: how many levels deep the value may be.

    Raises:
        Unstorable: there is another type in it, a subclass of these included, or it is nested too deep.
    """
    kind = type(value)
    if kind in _NATIVE:
        return value
    write = _WRITERS.get(kind)
    if write is None:
        raise Unstorable(f"{kind.__module__}.{kind.__qualname__} can't be stored")
    if room == 0:
        raise Unstorable(f"what is nested deeper than {MAX_DEPTH} levels, or holds itself, can't be stored")
    return write(value, room - 1)


def _portable_item(key: Any, item: Any, room: int) -> Any:
    try:
        return portable(item, room)
    except Unstorable as reason:
        reason.add_step(key)
        raise


def _is_native(items: Iterable[Any]) -> bool:
    return _NATIVE.issuperset(map(type, items))


def _write_dict(value: dict[Any, Any], room: int) -> dict[Any, Any]:
    if not _is_native(value):
        # Checked only: the portable form of a tuple is a list, no key of a dict. The packer turns keys into it itself.
        for key in value:
            _portable_item(key, key, room)
    if _is_native(value.values()):
        return value
    return {key: _portable_item(key, item, room) for key, item in value.items()}


def _write_list(value: list[Any], room: int) -> list[Any]:
    return value if _is_native(value) else [_portable_item(key, item, room) for key, item in enumerate(value)]


def _write_tuple(value: tuple[Any, ...], room: int) -> list[Any]:
    return [_mark(_TUPLE), *(_portable_item(key, item, room) for key, item in enumerate(value))]


def _write_set(value: set[Any] | frozenset[Any], room: int) -> list[Any]:
    code = _SET if type(value) is set else _FROZENSET
    return [_mark(code), *(_portable_item(item, item, room) for item in value)]


def _write_timedelta(value: timedelta, room: int) -> list[Any]:
    return [_mark(_TIMEDELTA), value.days, value.seconds, value.microseconds]


def _write_moment(value: datetime | time, room: int) -> list[Any]:
    code = _DATETIME if type(value) is datetime else _TIME
    return [_mark(code), value.replace(tzinfo=None).isoformat(), _write_zone(value.tzinfo), value.fold]


def _write_zone(zone: tzinfo | None) -> Any:
    if zone is None:
        return None
    if type(zone) is ZoneInfo and zone.key:
        return zone.key
    if type(zone) is timezone:
        offset = zone.utcoffset(None)
        if zone.tzname(None) == timezone(offset).tzname(None):
            return portable(offset)
    raise Unstorable(f"the time zone {brief(zone)} can't be stored, only an offset without a name or a ZoneInfo")


def _mark(code: int) -> ExtType:
    return ExtType(code, b"")


_WRITERS: dict[type, Callable[[Any, int], Any]] = {
    dict: _write_dict,
    Lineage: lambda value, room: _write_dict(dict(value), room),
    list: _write_list,
    tuple: _write_tuple,
    set: _write_set,
    frozenset: _write_set,
    complex: lambda value, room: [_mark(_COMPLEX), value.real, value.imag],
    timedelta: _write_timedelta,
    time: _write_moment,
    datetime: _write_moment,
    bytearray: lambda value, room: ExtType(_BYTEARRAY, bytes(value)),
    Decimal: lambda value, room: ExtType(_DECIMAL, str(value).encode("ascii")),
    UUID: lambda value, room: ExtType(_UUID, value.bytes),
    date: lambda value, room: ExtType(_DATE, value.isoformat().encode("ascii")),
}


def new_packer() -> Packer:
    """Return a packer for portable values; not to be shared between threads."""
    # Python's strings may hold lone surrogates, which strict UTF-8 can't write.
    return Packer(default=_write_rare, strict_types=True, unicode_errors="surrogatepass")


def _write_rare(value: Any) -> Any:
    """Write what MessagePack has no form for and `portable` has left alone: big integers and keys of dicts."""
    if type(value) is int:
        return ExtType(_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
    return portable(value)


class ValueReader:
    """Reads what `new_packer` has written; not to be shared between threads."""

    def __init__(self) -> None:
        self._loose_marks = 0

    def read(self, packed: bytes) -> Any:
        """Return the value.

        Raises:
            Exception: of some kind, if the bytes are not exactly one value of the types that `portable` lists.
        """
        self._loose_marks = 0
        value = unpackb(
            packed,
            ext_hook=self._read_extension,
            list_hook=self._read_array,
            strict_map_key=False,
            unicode_errors="surrogatepass",
            timestamp=3,  # MessagePack's own extension becomes a datetime
        )
        if self._loose_marks:
            raise ValueError("there is a mark that isn't the first item of an array")
        return value

    def _read_extension(self, code: int, content: bytes) -> Any:
        read = _READERS.get(code)
        if read is not None:
            return read(content)
        self._loose_marks += 1
        return _Mark(_BUILDERS[code])

    def _read_array(self, items: list[Any]) -> Any:
        if not items or type(items[0]) is not _Mark:
            return items
        self._loose_marks -= 1
        return items[0].build(items[1:])


class _Mark:
    """The first item of an array that stands for something else; what that is, `build` makes of the other items."""

    __slots__ = ("build",)

    def __init__(self, build: Callable[[list[Any]], Any]) -> None:
        self.build = build


def _read_zone(zone: str | timedelta | None) -> tzinfo | None:
    if zone is None:
        return None
    # Any text is safe: ZoneInfo looks in its own directories only and refuses a key that leads out of them.
    return timezone(zone) if isinstance(zone, timedelta) else ZoneInfo(zone)


def _read_time(text: str, zone: str | timedelta | None, fold: int) -> time:
    return time.fromisoformat(text).replace(tzinfo=_read_zone(zone), fold=fold)


def _read_datetime(text: str, zone: str | timedelta | None, fold: int) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=_read_zone(zone), fold=fold)


_BUILDERS: dict[int, Callable[[list[Any]], Any]] = {
    _TUPLE: tuple,
    _SET: set,
    _FROZENSET: frozenset,
    _COMPLEX: lambda items: complex(*items),
    _TIMEDELTA: lambda items: timedelta(*items),
    _TIME: lambda items: _read_time(*items),
    _DATETIME: lambda items: _read_datetime(*items),
}

_READERS: dict[int, Callable[[bytes], Any]] = {
    _INT: lambda content: int.from_bytes(content, "big", signed=True),
    _BYTEARRAY: bytearray,
    _DECIMAL: lambda content: Decimal(content.decode("ascii")),
    _UUID: lambda content: UUID(bytes=content),
    _DATE: lambda content: date.fromisoformat(content.decode("ascii")),
}
