"""A crawl of another scheduler as the records of an import."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from scrapy import Request, Spider

from scrapy_prioqueue.client.drafts import PushMaker
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

_PROBES = 200
_HASHES_PER_RECORD = 500


class Mover:
    """Turns a source into records of a frontier.

    Args:
        spider_class: of the crawl, None if unknown.
        maker: assigns tier and slot as the crawl's workers do.
        may_unpickle: whether pickles may be read.
        skip: called with the reason for each request that can't be moved and is left out; if None, that is an error.
    """

    def __init__(
        self,
        source: Source,
        spider_class: type[Spider] | None,
        maker: PushMaker,
        *,
        may_unpickle: bool,
        skip: Callable[[str], object] | None = None,
    ) -> None:
        self._source = source
        self._spider_class = spider_class
        self._maker = maker
        self._may_unpickle = may_unpickle
        self._skip = skip

    def identity(self, own: Callable[[Request], bytes | None]) -> str:
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
        ways: Mapping[str, Callable[[Request], bytes | None]] = {
            "": own,
            **{name: ForeignFingerprinter(name).fingerprint for name in IDENTITIES},
        }
        matches = {name: self._matches(probes, way) for name, way in ways.items()}
        best = max(matches, key=lambda name: matches[name])
        if not matches[best]:
            raise SourceError(
                f"{self._source.where}: none of {len(probes)} pending requests shows how its fingerprints were"
                f" computed: choose the way with --fingerprints ({', '.join(ways_by_name())})"
            )
        return best

    def _matches(self, probes: Iterable[Request], way: Callable[[Request], bytes | None]) -> int:
        fingerprints = {found for probe in probes if (found := way(probe)) is not None}
        return self._source.known(fingerprints) if fingerprints else 0

    def records(
        self, plan: CrawlPlan, name: str, shape: str, identity: str, now_ms: int, marks: Collection[bytes]
    ) -> Iterator[Record]:
        """Yield the records: the head, requests, fingerprints, marks of start requests, and the end.

        Args:
            shape: how the frontier stores fingerprints.
            identity: whose they are.
            marks: start requests that count as stored already.

        Raises:
            SourceError: the source has changed meanwhile.
        """
        count, seen = self._source.count(), self._source.seen_count()
        yield _head(plan, name, shape, identity, now_ms, count)
        records, moved, read = 0, 0, 0
        for index, waiting in enumerate(self._source.requests()):
            read += 1
            push = self._push(waiting)
            if push is not None:
                moved += 1
                yield {"kind": "pending", "id": _id(index, count, plan.order, is_start=waiting.is_start), **push}
        records += moved
        hashes = map(hashed, self._source.fingerprints())
        while part := list(islice(hashes, _HASHES_PER_RECORD)):
            records += 1
            yield {"kind": "hashes", "members": list(map(base64_text, part))}
        if marks:
            records += 1
            yield {"kind": "marks", "members": list(map(base64_text, marks))}
        if (read, count, seen) != (count, self._source.count(), self._source.seen_count()):
            raise SourceError("the crawl changes while it is read: stop all its processes, and try again")
        yield {"kind": "end", "records": records}

    def record_count(self) -> int:
        """Return about how many records there are."""
        return self._source.count() + self._source.seen_count() // _HASHES_PER_RECORD

    def _push(self, waiting: SourceRequest) -> Record | None:
        request = self._request(waiting)
        if request is None:
            return None
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


def ways_by_name() -> Mapping[str, str]:
    """Return the names of identities on the command line, with what the frontier calls each."""
    return {"project": "", **{name: name for name in IDENTITIES}}


def _head(plan: CrawlPlan, name: str, shape: str, identity: str, now_ms: int, count: int) -> Record:
    state: dict[str, Any] = {
        "crawl_id": plan.crawl_id,
        "created_ms": now_ms,
        "tiers": json.dumps(list(plan.tiers)),
        "order": plan.order,
        "on_finish": plan.on_finish,
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
