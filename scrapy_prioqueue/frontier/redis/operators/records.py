"""The records of an export, JSON Lines in a file: their fields, and checks that an import makes before it writes."""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any

from scrapy_prioqueue.errors import PrioQueueError
from scrapy_prioqueue.frontier.base import DEAD_REASONS
from scrapy_prioqueue.frontier.redis.keys import LAYOUT
from scrapy_prioqueue.frontier.seen import IDENTITIES
from scrapy_prioqueue.printable import counted
from scrapy_prioqueue.rank import MAX_TIERS

VERSION = 1
FORMAT = "scrapy-prioqueue frontier"

PLACING = ("has_limits", "has_delays", "throttle", "has_budgets", "lanes", "seen_shape", "revisit_s")
"""Fields of the state that determine where requests and fingerprints are stored."""

EXPORTED = (
    *("crawl_id", "created_ms", "ended_ms", "tiers", "order", "on_finish", "suspect_attempts", "sequence", "turn"),
    *("seen_sets", "seen_moved", "identity"),
    *("dead_on", "dead_limit", "paused", "drained", "clock_ahead_ms"),
    *PLACING,
    *("weights", "has_marks", "high_water", "low_water", "pending_limit", "discovery", "is_flooded"),
)
"""All fields of the state that are exported."""

CLOCKS = {"paced": "P", "closed": "W"}
"""Nouns with one record per slot, and the letters of their items in `restore`."""

Record = dict[str, Any]
"""A line of an export."""

Check = Callable[[Any], object]
"""Raises `ValueError` with a text that says which values are valid."""

_EXACT = 2**53
"""Limit of numbers that are exact in a sorted set and in Lua."""

_SHOWN = 80
_NAME, _TEXT = 4096, 2**20


def checked(records: Iterable[Record]) -> Iterator[Record]:
    """Yield the records of an export, each after a check; the end is checked but not yielded.

    Raises:
        PrioQueueError: a record is invalid or missing; names the line, counted from 1, and the field.
    """
    fields: Mapping[str, Mapping[str, Check]] = {}
    line = 0
    for line, record in enumerate(records, 1):
        if line == 1:
            _check_format(record)
            _check_fields(line, "frontier", record, _HEAD)
            _check_fields(line, "state", record["state"], STATE, optional=STATE)
            fields = {**_KINDS, **_seen_kinds(record["state"].get("seen_shape", ""))}
        elif record.get("kind") == "end":
            _check_fields(line, "end", record, {"records": _whole(0)})
            if record["records"] != line - 2:
                had, read = counted(record["records"], "record"), counted(line - 2, "was read", "were read")
                raise PrioQueueError(f"the export had {had}, but {read}")
            return
        else:
            kind = record.get("kind")
            if not isinstance(kind, str) or kind not in fields:
                raise PrioQueueError(
                    f"line {line}: a record of the unknown kind {_shown(kind)}: was it written by a newer version?"
                )
            _check_fields(line, kind, record, fields[kind])
        yield record
    if not line:
        _check_format({})
    raise PrioQueueError("the last line is missing: the export is truncated")


def _check_format(head: Record) -> None:
    if head.get("format") != FORMAT or head.get("version") != VERSION or head.get("layout") != LAYOUT:
        found = {part: head.get(part) for part in ("format", "version", "layout")}
        raise PrioQueueError(
            f"this is not an export that can be read here (version {VERSION}, layout {LAYOUT}): {_shown(found)}"
        )


def _check_fields(
    line: int, kind: str, record: Record, fields: Mapping[str, Check], *, optional: Container[str] = ("tier",)
) -> None:
    for name in record:
        if name not in fields and name != "kind":
            raise PrioQueueError(f"line {line}: {kind} has the unknown field {_shown(name)}")
    for name, check in fields.items():
        if name not in record and name not in optional:
            raise PrioQueueError(f"line {line}: {kind} has no field {name!r}")
        if name in record:
            try:
                check(record[name])
            except ValueError as error:
                raise PrioQueueError(f"line {line}: {name} of {kind} is {_shown(record[name])}: {error}") from None


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


# Values


def _whole(low: int, high: int = _EXACT) -> Check:
    def check(value: Any) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"it must be an integer from {low} to {high}")

    return check


def _number(low: float, high: float = _EXACT) -> Check:
    def check(value: Any) -> None:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not low <= value <= high:  # NaN is in no range
            raise ValueError(f"it must be a number from {low:g} to {high:g}")

    return check


def _text(longest: int, pattern: str = r"(?s:.*)") -> Check:
    form = re.compile(pattern)

    def check(value: Any) -> None:
        if not isinstance(value, str) or len(value) > longest or not form.fullmatch(value):
            what = "" if pattern == r"(?s:.*)" else f" of the form {pattern}"
            raise ValueError(f"it must be a string of at most {longest} characters{what}")

    return check


def base64_text(value: bytes) -> str:
    """Return bytes as records contain them."""
    return b64encode(value).decode()


def _one_of(*known: str) -> Check:
    def check(value: Any) -> None:
        if value not in known:
            raise ValueError(f"it must be {' or '.join(map(repr, known))}")

    return check


def _base64(value: Any) -> None:
    if not isinstance(value, str):
        raise ValueError("it must be a string in Base64")
    try:
        b64decode(value, validate=True)
    except ValueError:
        raise ValueError("it must be a string in Base64") from None


def _list_of(item: Check, most: int) -> Check:
    def check(value: Any) -> None:
        if not isinstance(value, list) or not len(value) <= most:
            raise ValueError(f"it must be a list of at most {most}")
        for each in value:
            item(each)

    return check


def _map_of(name: Check, item: Check) -> Check:
    def check(value: Any) -> None:
        if not isinstance(value, dict):
            raise ValueError("it must be an object")
        for key, each in value.items():
            name(key)
            item(each)

    return check


def _object(**fields: Check) -> Check:
    def check(value: Any) -> None:
        if not isinstance(value, dict) or not value.keys() <= fields.keys():
            raise ValueError(f"it must be an object with any of {', '.join(fields)}")
        for name, each in value.items():
            try:
                fields[name](each)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None

    return check


def _written(check: Check) -> Check:
    """Return a check of a text that contains a value as JSON."""

    def check_text(value: Any) -> None:
        _text(_TEXT)(value)
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError("it must be JSON") from None
        check(found)

    return check_text


def _bucket(levels: int) -> Check:
    def check(value: Any) -> None:
        _text(_NAME, r"\d{1,3}:\d{1,15}")(value)
        if int(value.partition(":")[0]) >= levels:
            raise ValueError(f"its level must be below {levels}")

    return check


_LEVEL = r"[ps](?:[0-9]|[12][0-9]|3[0-2]):\d{1,4}"
_LAYER = r"b\d{1,2}(?::\d{1,15}){3}|f\d{1,15}(?::\d{1,15}){2}:[0-9.e+-]{1,15}"
_TABLE = r"t(?:[0-9]|1[0-9]|20):[4-9]"
_SHAPE = (
    rf"(?:exact|compact) (?:0 \d{{1,5}} \d{{1,5}}(?: {_LEVEL}){{1,32}}|2 \d{{1,5}} \d{{1,5}} {_TABLE})"
    rf"|bloom 0 \d{{1,15}} \d{{1,10}}(?: (?:{_LAYER})){{1,32}}"
)

_COUNT, _FLAG, _NAMED = _written(_number(0)), _one_of("0", "1"), _text(_NAME)
_TIER = _whole(0, MAX_TIERS - 1)
_MS = _number(-_EXACT)
_SECONDS = _number(0, 1e10)


def _seen_kinds(shape: str) -> Mapping[str, Mapping[str, Check]]:
    bucket = _bucket(max(1, len(shape.split()) - 4) if shape else _LEVELS_BY_DEFAULT)
    return {
        "seen": {"bucket": bucket, "members": _list_of(_whole(-(2**63), 2**63 - 1), 10**6)},
        "hashes": {"members": _list_of(_base64, 10**6)},
        "packed": {"bucket": bucket, "fields": _map_of(_text(20, r"\d+"), _base64)},
        "bits": {"bucket": bucket, "value": _base64},
        "filter": {"bucket": bucket, "cursor": _whole(0, 2**63 - 1), "value": _base64},
    }


_LEVELS_BY_DEFAULT = 4

STATE: Mapping[str, Check] = {
    "crawl_id": _NAMED,
    **dict.fromkeys(("created_ms", "ended_ms", "sequence", "turn", "seen_sets", "seen_moved", "dead_limit"), _COUNT),
    "tiers": _written(_list_of(_NAMED, MAX_TIERS)),
    "order": _one_of("lifo", "fifo"),
    "on_finish": _one_of("restart", "keep"),
    "suspect_attempts": _written(_whole(1, 255)),
    "seen_shape": _text(_NAME, _SHAPE),
    "identity": _one_of(*IDENTITIES),
    "revisit_s": _written(_SECONDS),
    "dead_on": _text(_NAME, rf"(?:(?:{'|'.join(DEAD_REASONS)})(?:,|$))*"),
    **dict.fromkeys(("paused", "drained", "is_flooded"), _FLAG),
    "has_limits": _COUNT,
    **dict.fromkeys(("has_delays", "has_budgets", "has_marks"), _FLAG),
    "lanes": _written(_whole(0, MAX_TIERS)),
    "throttle": _written(_object(start_delay=_SECONDS, max_delay=_SECONDS, target_concurrency=_number(0))),
    "weights": _written(_list_of(_number(0), MAX_TIERS)),
    "discovery": _written(_list_of(_TIER, MAX_TIERS)),
    **dict.fromkeys(("high_water", "low_water", "pending_limit"), _COUNT),
    "clock_ahead_ms": _written(_MS),
}
_HEAD: Mapping[str, Check] = {
    "format": _NAMED,
    "version": _whole(0),
    "layout": _NAMED,
    "name": _NAMED,
    "exported_ms": _whole(0),
    "phase": _NAMED,
    "epoch": _whole(0),
    "seen": _whole(0),
    "state": _map_of(_NAMED, _text(_TEXT)),
    "counts": _map_of(_NAMED, _whole(-_EXACT)),
}

_REQUEST: Mapping[str, Check] = {
    "id": _whole(0, 2**64 - 1),
    "attempts": _whole(0, 255),
    "rank": _whole(-_EXACT),
    "slot": _NAMED,
    "payload": _base64,
}

_KINDS: Mapping[str, Mapping[str, Check]] = {
    "pending": _REQUEST,
    "delayed": {**_REQUEST, "due_ms": _MS},
    "dead": {
        **_REQUEST,
        "died_ms": _whole(0),
        **dict.fromkeys(("reason", "worker", "epoch"), _NAMED),
        **dict.fromkeys(("detail", "traceback", "lost_by"), _text(_TEXT)),
    },
    "limits": {"field": _NAMED, "value": _written(_object(delay=_SECONDS, concurrency=_whole(0), burst=_whole(1)))},
    "delays": {"field": _text(_NAME, r"(?s:[ct].*)"), "value": _COUNT},
    "budgets": {
        "field": _NAMED,
        "value": _written(_object(**dict.fromkeys(("pages", "renders", "bytes", "seconds"), _number(0)))),
    },
    "used": {"field": _text(_NAME, r"(?s:(?:pages|renders|bytes|time_ms|over):.*)"), "value": _COUNT},
    "passes": {"field": _text(4, r"v|\d{1,3}"), "value": _COUNT},
    **{noun: {"slot": _NAMED, "ms": _MS} for noun in CLOCKS},
    "turn": {"slot": _NAMED, "tier": _TIER, "turn": _whole(0, 2**64 - 1)},
    "lost": {"id": _whole(0, 2**64 - 1), "workers": _text(_TEXT)},
    "marks": {"members": _list_of(_base64, 10**6)},
    "ended": {"crawl_id": _NAMED, "ended_ms": _whole(0)},
}
