"""A crawl of another scheduler as the records of an import."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from scrapy import Request, Spider

from scrapy_prioqueue.client.drafts import PushMaker
from scrapy_prioqueue.client.plain_urls import Fingerprint
from scrapy_prioqueue.dupefilter import ForeignFingerprinter
from scrapy_prioqueue.errors import EncodeError, RequestError
from scrapy_prioqueue.frontier.base import Order
from scrapy_prioqueue.frontier.memory.pending import lease_id_of
from scrapy_prioqueue.frontier.redis.keys import LAYOUT
from scrapy_prioqueue.frontier.redis.operators.operator import CrawlPlan
from scrapy_prioqueue.frontier.redis.operators.records import FORMAT, VERSION, Record, base64_text
from scrapy_prioqueue.frontier.redis.seen.fingerprints import hashed
from scrapy_prioqueue.frontier.seen import IDENTITIES
from scrapy_prioqueue.moving.serialized import UnreadableRequest, read_dict, request_from
from scrapy_prioqueue.moving.source import Source, SourceError, SourceRequest
from scrapy_prioqueue.printable import counted

_PROBES = 200
_HASHES_PER_RECORD = 500
_CHANGES = "the crawl changes while it is read: stop all its processes, and try again"
_OWN_FILTER = (
    "If the project's own dupefilter has computed them, make DUPEFILTER_CLASS a subclass of scrapy_prioqueue.DupeFilter"
    " with the same fingerprint()"
)

WAYS: Mapping[str, str] = {"project": "", **{name: name for name in IDENTITIES}}
"""Names of identities on the command line, with what the frontier calls each."""


class Mover:
    """Turns a source into records of a frontier.

    Args:
        spider_class: of the crawl, None if unknown.
        maker: assigns tier and slot as the crawl's workers do.
        own: computes the project's fingerprints.
        may_unpickle: whether pickles may be read.
        skip: called with the reason for each request that can't be moved and is left out; if None, that is an error.
        may_be_unmatched: pending requests whose fingerprint the source doesn't have are no error.
    """

    def __init__(
        self,
        source: Source,
        spider_class: type[Spider] | None,
        maker: PushMaker,
        own: Fingerprint,
        *,
        may_unpickle: bool,
        skip: Callable[[str], object] | None,
        may_be_unmatched: bool,
    ) -> None:
        self._source = source
        self._spider_class = spider_class
        self._maker = maker
        self._own = own
        self._may_unpickle = may_unpickle
        self._skip = skip
        self._may_be_unmatched = may_be_unmatched
        self._first_unmatched = ""
        self.unmatched = 0
        """Number of pending requests whose fingerprint the source doesn't have, so far."""

    def identity(self) -> str:
        """Return whose fingerprints the source has: one of `IDENTITIES`, empty for those of the project itself.

        Those of its pending requests are looked up.

        Raises:
            SourceError: they are nobody's.
        """
        if not self._source.seen_count():
            return ""
        found = filter(None, map(self._request, self._source.requests()))
        probes = list(islice((each for each in found if not each.dont_filter), _PROBES))
        if not probes and self._source.usual_identity is not None:
            return self._source.usual_identity
        matches = {name: self._matches(probes, self._way_of(name)) for name in WAYS.values()}
        best = max(matches, key=lambda name: matches[name])
        if matches[best]:
            return best
        if not probes:
            raise SourceError(
                f"no pending request shows how the fingerprints in {self._source.where} were computed: choose the way"
                f" with --fingerprints ({', '.join(WAYS)})"
            )
        raise SourceError(
            f"none of {counted(len(probes), 'pending request')} has its fingerprint in {self._source.where}: check that"
            f" it belongs to the same crawl. {_OWN_FILTER}. --allow-unmatched with --fingerprints moves all as they are"
        )

    def _way_of(self, identity: str) -> Fingerprint:
        """Return the function that computes the fingerprints of an identity."""
        return ForeignFingerprinter(identity).fingerprint if identity else self._own

    def _matches(self, probes: Iterable[Request], way: Fingerprint) -> int:
        fingerprints = [found for probe in probes if (found := way(probe)) is not None]
        return sum(self._source.known(fingerprints)) if fingerprints else 0

    def records(
        self, plan: CrawlPlan, name: str, shape: str, identity: str, now_ms: int, marks: Collection[bytes]
    ) -> Iterator[Record]:
        """Yield the records: the head, requests, fingerprints, marks of start requests, and the end.

        Args:
            shape: how the frontier stores fingerprints.
            identity: whose they are.
            marks: start requests that count as stored already.

        Raises:
            SourceError: the source has changed meanwhile, or lacks fingerprints of pending requests.
        """
        count, seen = self._source.count(), self._source.seen_count()
        yield _head(plan, name, shape, identity, now_ms, count)
        records = 0
        try:
            for record in self._all(count, plan.order, marks, self._way_of(identity)):
                records += 1
                yield record
        except SourceError as error:
            self._refuse_changes(count, seen, error)
            raise
        self._refuse_changes(count, seen)
        if seen and self.unmatched and not (self._may_be_unmatched or self._source.was_killed):
            raise SourceError(
                f"{self.unmatched:,} of {counted(count, 'pending request')} without a fingerprint in"
                f" {self._source.where}; the first one is {self._first_unmatched}. Check the key and"
                " --fingerprints. A serializer may have changed requests, such as bodies that aren't UTF-8."
                f" {_OWN_FILTER}. --allow-unmatched moves them as they are"
            )
        yield {"kind": "end", "records": records}

    def _refuse_changes(self, count: int, seen: int, cause: Exception | None = None) -> None:
        if (count, seen) != (self._source.count(), self._source.seen_count()):
            raise SourceError(_CHANGES) from cause

    def _all(self, count: int, order: Order, marks: Collection[bytes], way: Fingerprint) -> Iterator[Record]:
        self.unmatched = read = 0
        requests = enumerate(self._source.requests())
        while part := list(islice(requests, _HASHES_PER_RECORD)):
            read += len(part)
            moved = list[tuple[SourceRequest, Request]]()
            for index, each in part:
                request = self._request(each)
                push = None if request is None else self._push(each, request)
                if request is not None and push is not None:
                    moved.append((each, request))
                    yield {"kind": "pending", "id": _id(index, count, order, is_start=each.is_start), **push}
            yield from _hashes(self._unknown(moved, way))
        if read != count:
            raise SourceError(_CHANGES)
        fingerprints = self._source.fingerprints()
        while hashes := list(islice(fingerprints, _HASHES_PER_RECORD)):
            yield from _hashes(hashes)
        if marks:
            yield {"kind": "marks", "members": list(map(base64_text, marks))}

    def _unknown(self, waiting: Iterable[tuple[SourceRequest, Request]], way: Fingerprint) -> Sequence[bytes]:
        """Return the fingerprints of pending requests that the source doesn't have, and count them."""
        filtered = [(each, way(request)) for each, request in waiting if not request.dont_filter]
        computed = [(each, found) for each, found in filtered if found is not None]
        known = self._source.known([found for _, found in computed])
        unknown = [pair for pair, is_known in zip(computed, known, strict=True) if not is_known]
        if unknown and not self.unmatched:
            self._first_unmatched = unknown[0][0].where
        self.unmatched += len(unknown)
        return [found for _, found in unknown]

    def record_count(self) -> int:
        """Return about how many records there are."""
        return self._source.count() + self._source.seen_count() // _HASHES_PER_RECORD

    def _push(self, waiting: SourceRequest, request: Request) -> Record | None:
        try:
            made = self._maker.make(request)
        except (RequestError, EncodeError) as error:
            self._leave_out(waiting, error)
            return None
        return {"attempts": 0, "rank": made.rank, "slot": made.slot, "payload": base64_text(made.payload)}

    def _request(self, waiting: SourceRequest) -> Request | None:
        try:
            found = read_dict(waiting.data, self._source.formats, may_unpickle=self._may_unpickle)
            return request_from(found, self._spider_class)
        except UnreadableRequest as error:
            self._leave_out(waiting, error)
            return None

    def _leave_out(self, waiting: SourceRequest, error: Exception) -> None:
        if self._skip is None:
            raise SourceError(f"{waiting.where}: {error}; --skip-bad leaves such requests out") from error
        self._skip(f"{waiting.where}: {error}")


def _hashes(fingerprints: Collection[bytes]) -> Iterator[Record]:
    if fingerprints:
        yield {"kind": "hashes", "members": [base64_text(hashed(each)) for each in fingerprints]}


def _head(plan: CrawlPlan, name: str, shape: str, identity: str, now_ms: int, count: int) -> Record:
    state: dict[str, Any] = {
        "crawl_id": plan.crawl_id,
        "created_ms": now_ms,
        "tiers": json.dumps(list(plan.tiers)),
        "order": plan.order,
        "on_finish": plan.on_finish or "restart",
        "suspect_attempts": plan.suspect_attempts,
        "sequence": count,
        "seen_shape": shape,
    }
    if identity:
        state["identity"] = identity
    if plan.seen.revisit_s is not None:
        state["revisit_s"] = plan.seen.revisit_s
    return {
        "kind": "frontier",
        "format": FORMAT,
        "version": VERSION,
        "layout": LAYOUT,
        "name": name,
        "exported_ms": now_ms,
        "phase": "open",
        "epoch": 0,
        "seen": 0,
        "state": {field: str(value) for field, value in state.items()},
        "counts": {},
    }


def _id(index: int, count: int, order: Order, *, is_start: bool) -> int:
    """Return the id of a request by its index among all of them, so that it is served before those behind it.

    New requests then come before or behind all of these, as the order of the frontier says.
    """
    goes_back = order == "lifo" and not is_start
    return lease_id_of(count - index if goes_back else index + 1, order=order, is_start=is_start)
