"""`FrontierClient`: pushes requests from any program, and lists the requests of a frontier."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from scrapy.utils.request import fingerprint as fingerprint_of

from scrapy_prioqueue.client.drafts import Item, PushMaker
from scrapy_prioqueue.client.plain_urls import Fingerprint
from scrapy_prioqueue.codec.plain import plain_or_none
from scrapy_prioqueue.dupefilter import ForeignFingerprinter
from scrapy_prioqueue.errors import EncodeError, RequestError
from scrapy_prioqueue.frontier.base import Depth
from scrapy_prioqueue.frontier.redis.keys import connection_name
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.inspector import tier_name
from scrapy_prioqueue.frontier.redis.operators.operator import CrawlPlan, Operator
from scrapy_prioqueue.frontier.seen import SeenPolicy
from scrapy_prioqueue.rank import priority_of
from scrapy_prioqueue.settings import SETTINGS, TierRule
from scrapy_prioqueue.settings.readers import frontier_name, redis_url
from scrapy_prioqueue.tiers import TierPolicy


@dataclass(frozen=True, slots=True)
class Pushed:
    """How many pushed requests were stored, and how many were duplicates."""

    accepted: int = 0
    duplicates: int = 0


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A pending or delayed request, as far as it can be read without its spider.

    Args:
        callback: name of the method, None for `parse`.
        due_ms: Unix time before which it is not served, in milliseconds; 0 if it may be served now.
    """

    id: int
    url: str
    tier: str
    priority: int
    slot: str
    callback: str | None
    meta: Mapping[Any, Any]
    attempts: int
    due_ms: int


@dataclass(frozen=True, slots=True)
class DeadRequest:
    """A dead letter.

    Args:
        url: empty if the request can't be read.
        worker: the last worker that held it.
        died_ms: Unix time in milliseconds.
    """

    id: int
    url: str
    reason: str
    detail: str
    traceback: str
    attempts: int
    worker: str
    died_ms: int


class FrontierClient:
    """Access to a frontier for programs that aren't workers; not thread-safe, best used in a `with` statement.

    Args:
        url: of the Redis server.
        name: of the frontier, as in `PRIOQUEUE_NAME`; by default that is the spider's name.
        plan: settings of a new crawl if there is none; they must agree with those of the workers.
        default_tier: tier of requests that get none otherwise.
        tier_rules: as `PRIOQUEUE_TIER_RULES`.
        fingerprint: the fingerprinter of the spider, if that isn't Scrapy's default.
        timeout_s: time-out of connecting, and of each answer, in seconds.
        options: further keyword arguments of `redis.Redis`.

    Raises:
        SettingError: the URL or the name is invalid.
    """

    def __init__(
        self,
        url: str,
        name: str,
        *,
        plan: CrawlPlan | None = None,
        default_tier: str | None = None,
        tier_rules: Sequence[TierRule] = (),
        fingerprint: Fingerprint = fingerprint_of,
        timeout_s: float = 5.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        redis_url("url", url)
        frontier_name("name", name)
        self._plan = plan or CrawlPlan(SETTINGS["PRIOQUEUE_TIERS"].default)
        self._link = Link(url, timeout_s=timeout_s, options=options, name=connection_name(name, "client"))
        self._operator = Operator(self._link, name)
        self._requests = self._operator.requests
        self._default_tier = default_tier or SETTINGS["PRIOQUEUE_DEFAULT_TIER"].default
        self._rules = tier_rules
        self._fingerprint = fingerprint

    def push(self, request: Item, **parts: Any) -> bool:
        """Store a request unless it is a duplicate; return whether it was stored.

        Args:
            request: a URL, a Scrapy request, a `Draft`, or a mapping with fields of a draft.
            parts: fields of a `Draft` (`tier`, `priority`, `callback`, `meta`, …) for a URL or a mapping.

        Raises:
            RequestError: its tier is unknown, its priority not a number, or its slot too long.
            EncodeError: a part of it can't be stored.
            FrontierUnavailable: the server can't be used.
            FrontierFull: the server has no memory left.
        """
        return self.push_many([request], **parts).accepted == 1

    def push_many(
        self,
        requests: Iterable[Item],
        *,
        progress: Callable[[int], object] | None = None,
        skip: Callable[[RequestError | EncodeError], object] | None = None,
        **parts: Any,
    ) -> Pushed:
        """Store requests in the given order; 50 in each round trip, and more if the server is far away.

        The first error ends the call; requests of earlier round trips stay stored.

        Args:
            progress: called after each round trip with the number of requests done so far.
            skip: called with the error of each request that can't be stored, which is left out; None to raise it.
            parts: as for `push`, for all requests given as URLs or mappings.
        """
        if not self._operator.is_open():
            valid = self._from_first_valid(requests, parts, skip)
            if valid is None:
                return Pushed()
            requests = valid
        policy = TierPolicy(self.tiers(), self._default_tier, self._rules)
        rules = self._operator.push_rules()
        has_budgets, seen = self._plan.has_budgets or rules.has_budgets, SeenPolicy(revisit_s=rules.revisit_s)
        fingerprint = ForeignFingerprinter(rules.identity).fingerprint if rules.identity else self._fingerprint
        maker = PushMaker(policy, fingerprint, parts, has_rules=bool(self._rules), has_budgets=has_budgets, seen=seen)
        pushes, done, duplicates = maker.make_all(requests, skip), 0, 0
        while part := list(islice(pushes, self._operator.pushes_per_trip)):
            duplicates += len(self._operator.push(part, self._plan))
            done += len(part)
            if progress is not None:
                progress(done)
        return Pushed(done - duplicates, duplicates)

    def _from_first_valid(
        self,
        requests: Iterable[Item],
        parts: Mapping[str, Any],
        skip: Callable[[RequestError | EncodeError], object] | None,
    ) -> Iterable[Item] | None:
        """Return the requests from the first valid one on, None if there is none: then no crawl must begin."""
        policy = TierPolicy(self._plan.tiers, self._default_tier, self._rules)
        maker, items = PushMaker(policy, self._fingerprint, parts, has_rules=bool(self._rules)), iter(requests)
        for item in items:
            for _ in maker.make_all([item], skip):
                return chain([item], items)
        return None

    def depth(self) -> Depth:
        """Return the counts of the crawl; all are 0 if there is none."""
        return self._operator.depth()

    def pending(self) -> Iterator[PendingRequest]:
        """Iterate over pending and delayed requests, in no order, some hundred per round trip.

        A request that moves meanwhile may come twice or not at all. Requests that can't be read are skipped.
        """
        tiers = self._operator.tiers()
        for stored in self._requests.each(("pending", "delayed")):
            plain = plain_or_none(stored.payload, stored.slot)
            if plain is not None:
                tier, priority = tier_name(tiers, stored.rank), priority_of(stored.rank)
                yield PendingRequest(
                    *(stored.lease_id, plain.url, tier, priority, stored.slot, plain.callback),
                    *(plain.meta, stored.attempts, stored.at_ms),
                )

    def dead_letters(self) -> Iterator[DeadRequest]:
        """Iterate over the dead letters, the newest first."""
        for stored in self._requests.dead():
            plain = plain_or_none(stored.payload, stored.slot)
            yield DeadRequest(
                *(stored.lease_id, plain.url if plain else "", stored.reason, stored.detail, stored.traceback),
                *(stored.attempts, stored.worker, stored.at_ms),
            )

    def tiers(self) -> Sequence[str]:
        """Return the names of the frontier's tiers, best first; this begins a crawl if there is none."""
        return self._operator.open(self._plan)

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def __enter__(self) -> FrontierClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
