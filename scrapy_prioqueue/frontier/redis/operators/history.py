"""Reads the runs of a frontier, and the history of its newest crawl."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any

from scrapy_prioqueue.frontier.redis.clock import clock_of, clock_questions
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Command, Link
from scrapy_prioqueue.frontier.redis.wire import decoded, pieces, read_info
from scrapy_prioqueue.frontier.runs import FleetTotals, Run, latency_s, read_dropped, read_run, read_stats, totals_of

_RUNS_PER_CALL = 100


@dataclass(frozen=True, slots=True)
class Sample:
    """A frontier at one moment. Counters count from the beginning of the crawl; of each run up to its last report.

    Args:
        ms: time, on the frontier's clock.
        reaped: expired leases returned to the queue or given up.
        void: acks, releases and fails that came too late.
        suspects: pending requests that have lost workers.
        workers: living workers.
        slots: slots with pending requests; a lower bound if very many are in several lanes.
        waiting: those of them that may not be served yet.
        seen: fingerprints.
        memory: used by the server, in bytes; 0 if unknown.
        memory_limit: its `maxmemory`, 0 for none.
        tiers: pending requests by tier, best first; estimated if there are many slots.
        letters: dead letters of this crawl that are kept, by reason.
        pages: requests done, by all runs, as are the following.
        latency: exchanges by latency, see `runs.LATENCY_BOUNDS_S`.
        done_per_s: rate since the previous sample, None in the first one; as are the following.
        latency_p50_s: median of the exchanges, None if there were none.
        latency_p95_s: latency that 95 % of them did not exceed.
    """

    ms: int
    accepted: int = 0
    pending: int = 0
    delayed: int = 0
    leased: int = 0
    done: int = 0
    dead: int = 0
    duplicates: int = 0
    reaped: int = 0
    void: int = 0
    removed: int = 0
    suspects: int = 0
    workers: int = 0
    slots: int = 0
    waiting: int = 0
    seen: int = 0
    memory: int = 0
    memory_limit: int = 0
    tiers: Sequence[int] = ()
    letters: Mapping[str, int] = field(default_factory=dict)
    pages: int = 0
    items: int = 0
    errors: int = 0
    retries: int = 0
    escalations: int = 0
    latency: Sequence[int] = ()
    done_per_s: float | None = None
    accepted_per_s: float | None = None
    retries_per_s: float | None = None
    latency_p50_s: float | None = None
    latency_p95_s: float | None = None


@dataclass(frozen=True, slots=True)
class History:
    """The history of the newest crawl, which is kept until the next one begins.

    Args:
        tiers: names of the tiers, best first.
        step_s: time between two samples; longer if no worker had anything to report.
        samples: in order.
    """

    tiers: Sequence[str] = ()
    step_s: float = 0.0
    samples: Sequence[Sample] = ()


class RunReader:
    """Reads the runs and the history of one frontier.

    Args:
        ttl_ms: how long a silent worker counts as alive.
    """

    def __init__(self, link: Link, keys: Keys, ttl_ms: int) -> None:
        self._link, self._keys, self._ttl_ms = link, keys, ttl_ms

    def all(self, limit: int | None = None, *, since_ms: int = 0) -> Sequence[Run]:
        """Return the runs, those that joined last first.

        Args:
            limit: only so many, those heard of last; None for all, up to 1,000.
            since_ms: leave out runs that were last heard of before that time.
        """
        page = () if limit is None else ("LIMIT", 0, limit)
        ids, heard, info, *clock = self._link.pipe(
            ("ZREVRANGEBYSCORE", self._keys.of("ran"), "+inf", since_ms, *page, "WITHSCORES"),
            ("ZRANGE", self._keys.workers, 0, -1, "WITHSCORES"),
            ("HGETALL", self._keys.of("info")),
            *clock_questions(self._keys),
        )
        since_alive_ms = clock_of(*clock) - self._ttl_ms
        alive = {
            f"{read_info(info.get(name)).get('joined_ms')} {decoded(name)}"
            for name, at in heard
            if at >= since_alive_ms
        }
        stored = self._values("runs", [run_id for run_id, _ in ids])
        found = (
            read_run(decoded(run_id), value, int(at), alive)
            for (run_id, at), value in zip(ids, stored, strict=True)
            if value is not None
        )
        return sorted((run for run in found if run is not None), key=lambda run: run.joined_ms, reverse=True)

    def totals(self) -> FleetTotals | None:
        """Return the totals of the newest crawl's runs, None if none is known."""
        (epoch, created_ms), dropped = self._link.pipe(
            ("HMGET", self._keys.state, "epoch", "created_ms"), ("HGET", self._keys.of("history"), "dropped")
        )
        if epoch is None:
            return None
        runs = [run for run in self.all(since_ms=int(created_ms or 0)) if run.epoch == decoded(epoch)]
        stats = self._values("numbers", [run.run_id.encode() for run in runs])
        return totals_of(runs, map(read_stats, stats), read_dropped(dropped)) if runs else None

    def sums(self) -> Mapping[str, Any]:
        """Return the sums of the figures that all runs of the newest crawl have reported, empty if there are none.

        They never fall in a crawl; `by_tier` has the pages by tier.
        """
        (stored,) = self._link.pipe(("HGET", self._keys.of("history"), "sums"))
        found: Mapping[str, Any] = json.loads(stored or b"{}")
        return found

    def history(self) -> History:
        """Return the samples of the newest crawl, at most 360; empty if there are none."""
        found, (tiers,) = self._link.pipe(("HGETALL", self._keys.of("history")), ("HMGET", self._keys.state, "tiers"))
        stored = (found.get(b"%d" % number) for number in range(1, int(found.get(b"count", 0)) + 1))
        samples = [sample for value in stored if value and (sample := read_sample(value)) is not None]
        names = tuple(map(str, json.loads(tiers or b"[]")))
        return History(names, int(found.get(b"step_ms", 0)) / 1000, with_rates(samples))

    def _values(self, noun: str, ids: Sequence[bytes]) -> list[bytes | None]:
        name = self._keys.of(noun)
        questions: list[Command] = [("HMGET", name, *part) for part in pieces(ids, _RUNS_PER_CALL)]
        return [value for part in self._link.pipe(*questions) for value in part]


_STORED = {each.name for each in fields(Sample)}


def read_sample(stored: bytes) -> Sample | None:
    """Return a stored sample, None if it can't be read."""
    try:
        found: dict[str, Any] = json.loads(stored)
        found |= found.pop("sums", {})
        # Lua writes empty lists and objects alike.
        for name, kind in (("tiers", tuple), ("latency", tuple), ("letters", dict)):
            found[name] = kind(found.get(name) or ())
        return Sample(**{name: value for name, value in found.items() if name in _STORED})
    except (AttributeError, TypeError, ValueError):
        return None


def with_rates(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Return samples with their rates since the one before each."""
    return [*samples[:1], *(_with_rates(one, other) for one, other in pairwise(samples))]


def _with_rates(before: Sample, sample: Sample) -> Sample:
    seconds = max(1, sample.ms - before.ms) / 1000

    def rate(name: str) -> float:
        # A server that has lost its newest writes may count less than before.
        change: int = getattr(sample, name) - getattr(before, name)
        return max(0, change) / seconds

    counts = zip(sample.latency, before.latency or [0] * len(sample.latency), strict=False)
    latency = [max(0, count - old) for count, old in counts]
    return replace(
        sample,
        done_per_s=rate("done"),
        accepted_per_s=rate("accepted"),
        retries_per_s=rate("retries"),
        latency_p50_s=latency_s(latency, 0.5),
        latency_p95_s=latency_s(latency, 0.95),
    )
