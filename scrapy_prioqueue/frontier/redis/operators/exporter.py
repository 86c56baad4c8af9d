"""Exports a frontier as a stream of records; it blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from scrapy_prioqueue.errors import PrioQueueError
from scrapy_prioqueue.frontier.labels import label_of
from scrapy_prioqueue.frontier.redis.clock import clock_of, clock_questions
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators import seen_sets
from scrapy_prioqueue.frontier.redis.operators.findings import Stored
from scrapy_prioqueue.frontier.redis.operators.lanes import Lanes, slot_of
from scrapy_prioqueue.frontier.redis.operators.records import CLOCKS, EXPORTED, FORMAT, VERSION, Record, base64_text
from scrapy_prioqueue.frontier.redis.operators.requests import SCAN_COUNT, Requests
from scrapy_prioqueue.frontier.redis.wire import ID, decoded, decoded_hash, encoded

_MEMBERS_PER_RECORD = 500


class Exporter:
    """Reads one frontier in pieces; data that changes meanwhile may be exported twice or not at all."""

    def __init__(self, link: Link, name: str) -> None:
        self._name = name
        self._keys = Keys(name)
        self._link = link = link.at(self._keys.state)
        self._requests = Requests(link, self._keys)
        self._held = Counter[bytes]()

    def records(self) -> Iterator[Record]:
        """Yield the head, the records of all data, and the end with their number.

        Raises:
            PrioQueueError: there is no such frontier, or it is being cleared.
        """
        head = self._head()
        yield head
        count = 0
        settings = chain(
            *(self._fields(noun) for noun in ("limits", "delays", "budgets")), self._clocks(), self._turns()
        )
        left = (
            self._lost(),
            self._used(),
            self._fields("passes"),
            seen_sets.exported(self._link, self._keys),
            self._members("marks"),
        )
        for record in chain(settings, self._stored(), *left, self._ended()):
            count += 1
            yield record
        yield {"kind": "end", "records": count}

    def _head(self) -> Record:
        state, stats, *clock = self._link.pipe(
            ("HGETALL", self._keys.state), ("HGETALL", self._keys.of("stats")), *clock_questions(self._keys)
        )
        state, stats = decoded_hash(state), decoded_hash(stats)
        if "layout" not in state or state.get("phase") == "clearing":
            raise PrioQueueError(f"frontier {self._name!r} isn't there, or is being cleared")
        return {
            "kind": "frontier",
            "format": FORMAT,
            "version": VERSION,
            "layout": state["layout"],
            "name": self._name,
            "exported_ms": clock_of(*clock),
            "phase": state["phase"],
            "epoch": int(state["epoch"]),
            "seen": int(state.get("seen", 0)),
            "state": {field: state[field] for field in EXPORTED if field in state},
            "counts": {name: int(value) for name, value in stats.items()},
        }

    def _turns(self) -> Iterator[Record]:
        is_split = Lanes(self._link, self._keys).all()[0].tier is not None
        for position, turn in self._hash("turns"):
            record: Record = {"kind": "turn", "slot": decoded(slot_of(position, is_split=is_split))}
            if is_split:
                record["tier"] = int(position.partition(b":")[0])
            yield {**record, "turn": int.from_bytes(turn, "big")}

    def _fields(self, noun: str) -> Iterator[Record]:
        for field, value in self._hash(noun):
            yield {"kind": noun, "field": decoded(field), "value": decoded(value)}

    def _clocks(self) -> Iterator[Record]:
        for noun in CLOCKS:
            for found in self._link.pages("ZSCAN", self._keys.of(noun), SCAN_COUNT):
                for slot, at_ms in found:
                    yield {"kind": noun, "slot": decoded(slot), "ms": at_ms}

    def _used(self) -> Iterator[Record]:
        """The use of budgets, without the share of leased requests, since these are exported as pending."""
        for field, value in self._hash("used"):
            left = int(value) - self._held[field]
            if left > 0:
                yield {"kind": "used", "field": decoded(field), "value": str(left)}

    def _note_held(self, payload: bytes) -> None:
        label = label_of(payload)
        for key in label.keys if label else ():
            self._held[encoded(f"pages:{key}")] += 1
            self._held[encoded(f"renders:{key}")] += bool(label and label.is_rendered)

    def _stored(self) -> Iterator[Record]:
        """Leased ones are read first and last, so that one that is returned or leased meanwhile isn't missed."""
        held: set[int] = set()
        for stored in chain(self._requests.each(("leased", "pending", "delayed")), self._requests.leased()):
            if stored.state == "leased":
                if stored.lease_id in held:
                    continue
                held.add(stored.lease_id)
                self._note_held(stored.payload)
                # As if its worker had released it.
                stored = replace(stored, state="pending", attempts=stored.attempts - 1, at_ms=0)
            elif stored.lease_id in held:
                continue
            yield _request_record(stored)
        for stored in self._requests.dead():
            yield _dead_record(stored)

    def _lost(self) -> Iterator[Record]:
        for key, workers in self._hash("lost"):
            yield {"kind": "lost", "id": ID.unpack(key)[0], "workers": decoded(workers)}

    def _members(self, noun: str) -> Iterator[Record]:
        for members in self._link.pages("SSCAN", self._keys.of(noun), _MEMBERS_PER_RECORD):
            if members:
                yield {"kind": noun, "members": [base64_text(member) for member in members]}

    def _ended(self) -> Iterator[Record]:
        (found,) = self._link.pipe(("ZRANGE", self._keys.of("ended"), 0, -1, "WITHSCORES"))
        for crawl_id, ended_ms in found:
            yield {"kind": "ended", "crawl_id": decoded(crawl_id), "ended_ms": int(ended_ms)}

    def _hash(self, noun: str) -> Iterator[tuple[bytes, bytes]]:
        for found in self._link.pages("HSCAN", self._keys.of(noun), SCAN_COUNT):
            yield from found.items()


def _request_record(stored: Stored) -> Record:
    record = {
        "kind": stored.state,
        "id": stored.lease_id,
        "attempts": stored.attempts,
        "rank": stored.rank,
        "slot": stored.slot,
        "payload": base64_text(stored.payload),
    }
    if stored.state == "delayed":
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
