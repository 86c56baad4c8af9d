"""A whole frontier as a stream of plain records, and back: export and import. Everything here blocks."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from secrets import token_hex
from typing import Any

import msgpack

from scrapy_prioqueue.errors import FrontierUnavailable, NotPermitted, PrioQueueError
from scrapy_prioqueue.frontier.labels import label_of
from scrapy_prioqueue.frontier.redis import seen_sets
from scrapy_prioqueue.frontier.redis.bloom import is_bloom
from scrapy_prioqueue.frontier.redis.calls import ScriptCalls
from scrapy_prioqueue.frontier.redis.findings import Stored
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.lanes import Lanes, slot_of
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.requests import SCAN_COUNT, Requests, slot_text
from scrapy_prioqueue.frontier.redis.scripts import Argument
from scrapy_prioqueue.frontier.redis.session import LAYOUT
from scrapy_prioqueue.frontier.redis.shapes import DEFAULT_SHAPE
from scrapy_prioqueue.frontier.redis.wire import ID, OK

VERSION = 1
FORMAT = "scrapy-prioqueue frontier"

ITEMS_PER_CALL = 100
CALLS_PER_TRIP = 16

_STATE = ("crawl_id", "created_ms", "ended_ms", "tiers", "order", "on_finish", "suspect_attempts", "sequence", "turn")
_SEEN = ("seen_shape", "seen_sets", "seen_moved", "revisit_s")
_ORDERS = ("dead_on", "dead_limit", "paused", "drained")
_PLACING = ("has_limits", "has_delays", "throttle", "has_budgets", "lanes")
"""Fields of the state on which it depends where requests go."""

_SHARING = ("weights", "has_marks", "high_water", "low_water", "discovery", "is_flooded")

_HASHES = ("limits", "delays", "budgets", "passes", "used")

_CLOCKS = {"paced": "P", "closed": "W"}
"""Nouns of which each field is a record."""

_KEPT_COUNTS = ("done", "dead", "dead_dropped", "duplicates", "void", "reaped", "removed")
_MEMBERS_PER_RECORD = 500
_EXPORTED = (*_STATE, *_SEEN, *_ORDERS, *_PLACING, *_SHARING)

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import has brought."""

    pending: int = 0
    delayed: int = 0
    dead: int = 0
    seen: int = 0


class Exporter:
    """Reads one frontier, in pieces; what changes meanwhile may be there twice or not at all."""

    def __init__(self, link: Link, name: str) -> None:
        self._link = link
        self._name = name
        self._keys = Keys(name)
        self._requests = Requests(link, self._keys)
        self._held = Counter[bytes]()

    def records(self) -> Iterator[Record]:
        """Yield the head, a record each of what there is, and the end, which counts them.

        Raises:
            PrioQueueError: there is no such frontier, or it is being cleared.
        """
        head = self._head()
        yield head
        count = 0
        said = chain(*(self._fields(noun) for noun in ("limits", "delays", "budgets")), self._clocks(), self._turns())
        left = (
            self._lost(),
            self._used(),
            self._fields("passes"),
            seen_sets.exported(self._link, self._keys),
            self._members("marks"),
        )
        for record in chain(said, self._stored(), *left, self._ended()):
            count += 1
            yield record
        yield {"kind": "end", "records": count}

    def _head(self) -> Record:
        state, stats, (seconds, micros) = self._link.pipe(
            ("HGETALL", self._keys.state), ("HGETALL", self._keys.of("stats")), ("TIME",)
        )
        state, stats = _texts(state), _texts(stats)
        if "layout" not in state or state.get("phase") == "clearing":
            raise PrioQueueError(f"frontier {self._name!r} isn't there, or is being cleared")
        return {
            "kind": "frontier",
            "format": FORMAT,
            "version": VERSION,
            "layout": state["layout"],
            "name": self._name,
            "exported_ms": int(seconds) * 1000 + int(micros) // 1000,
            "phase": state["phase"],
            "epoch": int(state["epoch"]),
            "seen": int(state.get("seen", 0)),
            "state": {field: state[field] for field in _EXPORTED if field in state},
            "counts": {name: int(value) for name, value in stats.items()},
        }

    def _turns(self) -> Iterator[Record]:
        is_split = Lanes(self._link, self._keys).all()[0].tier is not None
        for place, turn in self._hash("turns"):
            record: Record = {"kind": "turn", "slot": slot_text(slot_of(place, is_split=is_split))}
            if is_split:
                record["tier"] = int(place.partition(b":")[0])
            yield {**record, "turn": int.from_bytes(turn, "big")}

    def _fields(self, noun: str) -> Iterator[Record]:
        for field, value in self._hash(noun):
            yield {"kind": noun, "field": slot_text(field), "value": _text(value)}

    def _clocks(self) -> Iterator[Record]:
        for noun in _CLOCKS:
            cursor = None
            while cursor != 0:
                ((cursor, found),) = self._link.pipe(("ZSCAN", self._keys.of(noun), cursor or 0, "COUNT", SCAN_COUNT))
                for slot, at_ms in found:
                    yield {"kind": noun, "slot": slot_text(slot), "ms": at_ms}

    def _used(self) -> Iterator[Record]:
        """What is used of budgets, without what leased requests hold, since these are pending now."""
        for field, value in self._hash("used"):
            left = int(value) - self._held[field]
            if left > 0:
                yield {"kind": "used", "field": slot_text(field), "value": str(left)}

    def _note_held(self, payload: bytes) -> None:
        label = label_of(payload)
        for key in label.keys if label else ():
            self._held[f"pages:{key}".encode("utf-8", "surrogatepass")] += 1
            self._held[f"renders:{key}".encode("utf-8", "surrogatepass")] += bool(label and label.is_rendered)

    def _stored(self) -> Iterator[Record]:
        """Leased ones first and last, so that one that is given back or taken meanwhile isn't missed."""
        held: set[int] = set()
        for stored in chain(self._requests.each(("leased", "pending", "delayed")), self._requests.leased()):
            if stored.place == "leased":
                if stored.lease_id in held:
                    continue
                held.add(stored.lease_id)
                self._note_held(stored.payload)
                # As if its worker had given it back.
                stored = replace(stored, place="pending", attempts=stored.attempts - 1, at_ms=0)
            elif stored.lease_id in held:
                continue
            yield _request_record(stored)
        for stored in self._requests.dead():
            yield _dead_record(stored)

    def _lost(self) -> Iterator[Record]:
        for key, workers in self._hash("lost"):
            yield {"kind": "lost", "id": ID.unpack(key)[0], "workers": _text(workers)}

    def _members(self, noun: str) -> Iterator[Record]:
        for members in self._set(self._keys.of(noun)):
            yield {"kind": noun, "members": [_base64(member) for member in members]}

    def _ended(self) -> Iterator[Record]:
        (found,) = self._link.pipe(("ZRANGE", self._keys.of("ended"), 0, -1, "WITHSCORES"))
        for crawl_id, ended_ms in found:
            yield {"kind": "ended", "crawl_id": _text(crawl_id), "ended_ms": int(ended_ms)}

    def _hash(self, noun: str) -> Iterator[tuple[bytes, bytes]]:
        cursor = 0
        while True:
            ((cursor, found),) = self._link.pipe(("HSCAN", self._keys.of(noun), cursor, "COUNT", SCAN_COUNT))
            yield from found.items()
            if not cursor:
                return

    def _set(self, key: str | bytes) -> Iterator[Sequence[bytes]]:
        cursor = 0
        while True:
            ((cursor, found),) = self._link.pipe(("SSCAN", key, cursor, "COUNT", _MEMBERS_PER_RECORD))
            if found:
                yield list(found)
            if not int(cursor):
                return


class Importer:
    """Makes a frontier of the records of another one; workers wait until it is done.

    Args:
        link: to the server.
        name: of the frontier, which must be new or reset.
    """

    def __init__(self, link: Link, name: str) -> None:
        self._address = link.address
        self._name = name
        self._keys = Keys(name)
        self._calls = ScriptCalls(link)
        self._client = f"import:{token_hex(8)}"
        self._epoch = ""
        self._head: Record = {}

    def run(self, records: Iterable[Record], progress: Callable[[int], object] | None = None) -> Imported:
        """Take in all records.

        Raises:
            PrioQueueError: the records are not complete, or not of this format; then nothing is let in.
            NotPermitted: there is such a frontier already.
            FrontierFull: the server has no memory for all of it.
        """
        iterator = iter(records)
        self._begin(next(iterator, {}))
        total, waiting = Imported(), list[Sequence[Argument]]()
        for done, record in enumerate(iterator):
            if record.get("kind") == "end":
                total = self._send(waiting, total)
                if record.get("records") != done:
                    raise PrioQueueError(
                        f"{done} records came and {record.get('records')} were written: some are missing"
                    )
                return self._end(total)
            waiting += self._items(record)
            if len(waiting) >= ITEMS_PER_CALL * CALLS_PER_TRIP:
                total, waiting = self._send(waiting, total), []
                if progress is not None:
                    progress(done + 1)
        raise PrioQueueError("the end is missing: the export was cut short")

    def _begin(self, head: Record) -> None:
        if head.get("format") != FORMAT or head.get("version") != VERSION or head.get("layout") != LAYOUT:
            found = {part: head.get(part) for part in ("format", "version", "layout")}
            raise PrioQueueError(
                f"this is no export that can be read here (version {VERSION}, layout {LAYOUT}): {found}"
            )
        self._head = head
        suspect_attempts = int(head["state"].get("suspect_attempts", 2))
        placing = json.dumps({field: head["state"][field] for field in _PLACING if field in head["state"]})
        reply = self._run([("adopt", ("", self._client, int(head["epoch"]), suspect_attempts, placing))])[0]
        if reply[0] != OK:
            raise NotPermitted(
                f"frontier {self._name!r} is there already: import under another name, or drop it first"
                " (scrapy frontier reset --all)"
            )
        self._epoch = reply[1].decode()

    def _send(self, items: Sequence[Sequence[Argument]], total: Imported) -> Imported:
        calls = []
        for first in range(0, len(items), ITEMS_PER_CALL):
            flat = [argument for item in items[first : first + ITEMS_PER_CALL] for argument in item]
            calls.append(("restore", ("", self._client, *flat)))
        for first in range(0, len(calls), CALLS_PER_TRIP):
            for reply in self._run(calls[first : first + CALLS_PER_TRIP]):
                if reply[0] != OK:
                    raise self._taken()
                pending, delayed, dead, seen, _ = reply[1:]
                total = Imported(total.pending + pending, total.delayed + delayed, total.dead + dead, total.seen + seen)
        return total

    def _items(self, record: Mapping[str, Any]) -> Iterator[Sequence[Argument]]:
        kind = record.get("kind")
        if kind in ("seen", "packed", "bits"):
            yield from seen_sets.restored(record, self._head["state"].get("seen_shape", DEFAULT_SHAPE))
        elif kind == "marks":
            yield from (("M", b64decode(mark)) for mark in record["members"])
        elif kind == "turn":
            place = f"{record['tier']}:{record['slot']}" if "tier" in record else record["slot"]
            yield ("T", _bytes(place), ID.pack(record["turn"]))
        elif kind in _HASHES:
            yield ("H", kind, _bytes(record["field"]), _bytes(record["value"]))
        elif kind in _CLOCKS:
            yield (_CLOCKS[kind], _bytes(record["slot"]), repr(float(record["ms"])))
        elif kind in ("lost", "ended"):
            yield _noted(record)
        elif kind == "dead":
            yield ("X", ID.pack(record["id"]), record["died_ms"], self._letter(record))
        elif kind in ("pending", "delayed"):
            envelope = (ID.pack(record["id"]), record["attempts"], record["rank"], _bytes(record["slot"]))
            payload = b64decode(record["payload"])
            yield ("Q", *envelope, payload) if kind == "pending" else ("D", *envelope, payload, record["due_ms"])
        else:
            raise PrioQueueError(f"a record of the unknown kind {kind!r}: was it written by a newer version?")

    def _letter(self, record: Mapping[str, Any]) -> bytes:
        is_current = record["epoch"] == str(self._head["epoch"])
        packed: bytes = msgpack.packb(
            [
                *(_bytes(record["reason"]), _bytes(record["detail"]), record["attempts"], record["rank"]),
                *(_bytes(record["slot"]), _bytes(record["worker"]), record["died_ms"], b64decode(record["payload"])),
                *(_bytes(record["traceback"]), _bytes(record["lost_by"])),
                # Letters of earlier crawls must not be taken for some of this one.
                _bytes(self._epoch if is_current else f"{record['epoch']} of {self._head['name']}"),
            ],
            # The scripts know texts only.
            use_bin_type=False,
        )
        return packed

    def _end(self, total: Imported) -> Imported:
        head, counts = self._head, self._head["counts"]
        if is_bloom(head["state"].get("seen_shape", "")):
            # What is in a Bloom filter can't be counted.
            total = replace(total, seen=head["seen"])
        stats = {name: counts[name] for name in _KEPT_COUNTS if name in counts}
        accepted = total.pending + total.delayed + stats.get("done", 0) + stats.get("dead", 0)
        stats |= {"accepted": accepted, "pending": total.pending, "delayed": total.delayed, "leased": 0}
        is_over = head["phase"] == "ended" and total.pending + total.delayed == 0
        state = {**head["state"], "layout": LAYOUT, "epoch": self._epoch, "seen": str(total.seen)}
        state["phase"] = "ended" if is_over else "open"
        texts = {name: str(value) for name, value in stats.items()}
        if not self._run([("settle", ("", self._client, json.dumps(state), json.dumps(texts)))])[0]:
            raise self._taken()
        return total

    def _taken(self) -> PrioQueueError:
        return FrontierUnavailable(
            self._address, f"a worker has found the import of frontier {self._name!r} stalled, and drops it: begin anew"
        )

    def _run(self, calls: Sequence[tuple[str, Sequence[Argument]]]) -> list[Any]:
        return self._calls.run([(name, self._keys.state, arguments) for name, arguments in calls])


def _noted(record: Mapping[str, Any]) -> Sequence[Argument]:
    if record["kind"] == "lost":
        return ("L", ID.pack(record["id"]), _bytes(record["workers"]))
    return ("E", _bytes(record["crawl_id"]), record["ended_ms"])


def _request_record(stored: Stored) -> Record:
    record = {
        "kind": stored.place,
        "id": stored.lease_id,
        "attempts": stored.attempts,
        "rank": stored.rank,
        "slot": stored.slot,
        "payload": _base64(stored.payload),
    }
    if stored.place == "delayed":
        record["due_ms"] = stored.at_ms
    return record


def _dead_record(stored: Stored) -> Record:
    return {
        **_request_record(stored),
        "died_ms": stored.at_ms,
        "reason": stored.reason,
        "detail": stored.detail,
        "worker": stored.worker,
        "traceback": stored.traceback,
        "lost_by": stored.lost_by,
        "epoch": stored.epoch,
    }


def _base64(value: bytes) -> str:
    return b64encode(value).decode()


def _bytes(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def _texts(found: Mapping[bytes, bytes]) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in found.items()}
