"""Imports a frontier from the records of an export; it blocks."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Any

from redis.exceptions import ResponseError

from scrapy_prioqueue.errors import FrontierRefused, FrontierUnavailable, NotPermitted, PrioQueueError
from scrapy_prioqueue.frontier.redis.keys import LAYOUT, Keys
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators import seen_sets
from scrapy_prioqueue.frontier.redis.operators.calls import ScriptCalls, trips
from scrapy_prioqueue.frontier.redis.operators.clearing import clear
from scrapy_prioqueue.frontier.redis.operators.records import CLOCKS, PLACING, Record, checked
from scrapy_prioqueue.frontier.redis.scripts import Argument
from scrapy_prioqueue.frontier.redis.seen.bloom import is_bloom, needs_filters
from scrapy_prioqueue.frontier.redis.seen.offers import NO_FILTERS, offers_by
from scrapy_prioqueue.frontier.redis.seen.shapes import DEFAULT_SHAPE
from scrapy_prioqueue.frontier.redis.wire import ID, OK, died_score, encoded, stored_letter
from scrapy_prioqueue.hints import frontier_command

_RECORDS_PER_PROGRESS = 1000

_HASHES = ("limits", "delays", "budgets", "passes", "used")
_KEPT_COUNTS = ("done", "dead", "dead_dropped", "duplicates", "void", "reaped", "removed")


@dataclass(frozen=True, slots=True)
class Imported:
    """Number of imported requests and fingerprints."""

    pending: int = 0
    delayed: int = 0
    dead: int = 0
    seen: int = 0


class Importer:
    """Creates a frontier from the records of an export; workers wait until it is complete.

    Args:
        link: to the server.
        name: of the frontier, which must be new or reset.
        verb: of `scrapy frontier`, to be repeated if it is interrupted.
    """

    def __init__(self, link: Link, name: str, verb: str = "import") -> None:
        self._name = name
        self._keys = Keys(name)
        self._link = link = link.at(self._keys.state)
        self._calls = ScriptCalls(link, self._keys.state)
        self._client = f"{verb}:{token_hex(8)}"
        self._epoch = ""
        self._head: Record = {}
        self.has_left: bool | None = None
        """Whether data of a started import is left, complete or in part; None if none was started."""

    def run(self, records: Iterable[Record], progress: Callable[[int], object] | None = None) -> Imported:
        """Import all records, or drop what was imported.

        Raises:
            PrioQueueError: the records are incomplete or invalid; see `checked`.
            NotPermitted: the frontier exists already.
            FrontierFull: the server has no memory for all records.
        """
        iterator = checked(records)
        try:
            self._begin(next(iterator))
            return self._end(self._restore(self._items_of(iterator, progress)))
        except BaseException:
            # Also for Ctrl-C. If this fails, the next import or `reset --all` drops the rest.
            if self.has_left:
                with suppress(PrioQueueError):
                    self._drop()
                    self.has_left = False
            raise

    def _items_of(
        self, records: Iterable[Record], progress: Callable[[int], object] | None
    ) -> Iterator[Sequence[Argument]]:
        for done, record in enumerate(records):
            yield from self._items(record)
            if progress is not None and done % _RECORDS_PER_PROGRESS == 0:
                progress(done)

    def _begin(self, head: Record) -> None:
        self._head = head
        has_filters = needs_filters(head["state"].get("seen_shape", ""))
        if has_filters and not offers_by(self._link, self._keys).has_filters:
            raise FrontierRefused(self._link.address, NO_FILTERS)
        suspect_attempts = int(head["state"].get("suspect_attempts", 2))
        placing = json.dumps({field: head["state"][field] for field in PLACING if field in head["state"]})
        self._calls.loaded()
        # Set before the call, which may be executed even if it is interrupted.
        self.has_left = True
        try:
            (reply,) = self._calls.run([("adopt", ("", self._client, int(head["epoch"]), suspect_attempts, placing))])
        except PrioQueueError as error:
            if isinstance(error.__cause__, ResponseError):
                # The server has refused the call.
                self.has_left = None
            raise
        if reply[0] != OK:
            self.has_left = None
            raise self._occupied(reply[1].decode())
        self._epoch = reply[1].decode()
        if reply[2] and not self._clear():
            raise self._taken()

    def _occupied(self, phase: str) -> NotPermitted:
        if phase != "importing":
            what = f"frontier {self._name!r} exists already: import under another name, or delete it first"
        else:
            what = (
                f"another import into frontier {self._name!r} is in progress; if it was killed, try again in"
                " half a minute, or delete what it has written"
            )
        return NotPermitted(f"{what} ({frontier_command('reset --all', self._name)})")

    def _drop(self) -> None:
        """Delete all data of this import, so that another one may begin at once."""
        if self._link.ask(lambda client: client.hget(self._keys.state, "cleaner")) == self._client.encode():
            self._calls.run([("reset", ("", self._client, 0))])
            self._clear()

    def _clear(self) -> bool:
        return clear(self._link, self._calls, self._keys, self._client, "all")

    def _restore(self, items: Iterable[Sequence[Argument]]) -> Imported:
        total = Imported()
        for calls in trips(items, self._calls.per_trip):
            for reply in self._calls.run([("restore", ("", self._client, *arguments)) for arguments in calls]):
                if reply[0] != OK:
                    raise self._taken()
                pending, delayed, dead, seen, _ = reply[1:]
                total = Imported(total.pending + pending, total.delayed + delayed, total.dead + dead, total.seen + seen)
        return total

    def _items(self, record: Mapping[str, Any]) -> Iterator[Sequence[Argument]]:
        kind = record.get("kind")
        if kind == "hashes":
            yield from (("N", b64decode(member)) for member in record["members"])
        elif kind in ("seen", "packed", "bits", "filter"):
            yield from seen_sets.restored(record, self._head["state"].get("seen_shape", DEFAULT_SHAPE))
        elif kind == "marks":
            yield from (("M", b64decode(mark)) for mark in record["members"])
        elif kind == "turn":
            position = f"{record['tier']}:{record['slot']}" if "tier" in record else record["slot"]
            yield ("T", encoded(position), ID.pack(record["turn"]))
        elif kind in _HASHES:
            yield ("H", kind, encoded(record["field"]), encoded(record["value"]))
        elif kind in CLOCKS:
            yield (CLOCKS[kind], encoded(record["slot"]), repr(float(record["ms"])))
        elif kind == "lost":
            yield ("L", ID.pack(record["id"]), encoded(record["workers"]))
        elif kind == "ended":
            yield ("E", encoded(record["crawl_id"]), record["ended_ms"])
        elif kind == "dead":
            score = died_score(record["reason"], record["died_ms"])
            yield ("X", ID.pack(record["id"]), score, self._letter(record))
        else:
            envelope = (ID.pack(record["id"]), record["attempts"], record["rank"], encoded(record["slot"]))
            payload = b64decode(record["payload"])
            yield ("Q", *envelope, payload) if kind == "pending" else ("D", *envelope, payload, record["due_ms"])

    def _letter(self, record: Mapping[str, Any]) -> bytes:
        is_current = record["epoch"] == str(self._head["epoch"])
        # Letters of earlier crawls must not be mistaken for those of this one.
        epoch = self._epoch if is_current else f"{record['epoch']} of {self._head['name']}"
        return stored_letter({**record, "payload": b64decode(record["payload"]), "epoch": epoch})

    def _end(self, total: Imported) -> Imported:
        head, counts = self._head, self._head["counts"]
        if is_bloom(head["state"].get("seen_shape", "")) and not total.seen:
            # The content of a Bloom filter can't be counted.
            total = replace(total, seen=head["seen"])
        stats = {name: counts[name] for name in _KEPT_COUNTS if name in counts}
        accepted = total.pending + total.delayed + stats.get("done", 0) + stats.get("dead", 0)
        stats |= {"accepted": accepted, "pending": total.pending, "delayed": total.delayed, "leased": 0}
        is_over = head["phase"] == "ended" and total.pending + total.delayed == 0
        state = {**head["state"], "layout": LAYOUT, "epoch": self._epoch, "seen": str(total.seen)}
        state["phase"] = "ended" if is_over else "open"
        texts = {name: str(value) for name, value in stats.items()}
        if not self._calls.run([("complete", ("", self._client, json.dumps(state), json.dumps(texts)))])[0]:
            raise self._taken()
        return total

    def _taken(self) -> PrioQueueError:
        return FrontierUnavailable(
            self._link.address,
            f"the import of frontier {self._name!r} was stopped for too long, and its data was deleted meanwhile:"
            " run it again",
        )
