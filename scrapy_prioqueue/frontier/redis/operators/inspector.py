"""The read side of a frontier in Redis, for operators; it blocks and changes nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from scrapy_prioqueue.errors import LayoutMismatch
from scrapy_prioqueue.frontier.kept import read_kept
from scrapy_prioqueue.frontier.redis.clock import clock_of, clock_questions
from scrapy_prioqueue.frontier.redis.keys import LAYOUT, Keys
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.ahead import Ahead
from scrapy_prioqueue.frontier.redis.operators.budgets import BudgetReader
from scrapy_prioqueue.frontier.redis.operators.findings import (
    Memory,
    PolicyFound,
    Rates,
    SeedsFound,
    SlotsFound,
    Sorting,
    State,
    Status,
    Stored,
    TierDepth,
    WorkerFound,
)
from scrapy_prioqueue.frontier.redis.operators.history import RunReader
from scrapy_prioqueue.frontier.redis.operators.lanes import SLOTS_PER_CALL, Lanes, tier_range
from scrapy_prioqueue.frontier.redis.operators.limits import LimitReader
from scrapy_prioqueue.frontier.redis.operators.order import ServingOrder
from scrapy_prioqueue.frontier.redis.operators.requests import Requests
from scrapy_prioqueue.frontier.redis.operators.seen_sets import seen_until
from scrapy_prioqueue.frontier.redis.operators.slots import BUCKET_MS, SlotList, pace_span
from scrapy_prioqueue.frontier.redis.seen.bloom import expected_losses, is_bloom, read_subfilters
from scrapy_prioqueue.frontier.redis.seen.shapes import DEFAULT_SHAPE
from scrapy_prioqueue.frontier.redis.servers import version_text
from scrapy_prioqueue.frontier.redis.wire import (
    DIED_RANGES,
    ID,
    decoded,
    decoded_hash,
    pieces,
    read_blocked,
    read_info,
    read_lease,
    read_owners,
    read_slow,
)
from scrapy_prioqueue.frontier.waits import SlowPage
from scrapy_prioqueue.rank import tier_of

COUNTERS = (
    *("accepted", "pending", "delayed", "leased", "done", "dead"),
    *("removed", "duplicates", "void", "reaped", "dead_dropped"),
)

SLOT_SAMPLE = 1000
"""Number of slots that are read to count tiers; with more slots, a random sample."""

NEAREST_BUDGETS = 3
"""Number of budget keys in the summary."""

HISTORY_BUCKETS = 30

SEED_COUNTS = {"list": "LLEN", "zset": "ZCARD", "set": "SCARD"}
"""Commands that count the seeds of a key, by its type."""

ENOUGH = 10
"""Requests done in the last ten to twenty seconds; with fewer the pace is that of the last minute."""

ORDERS = ("paused", "drained")
"""Operators' commands that hold for all workers, also for later ones."""

STOPPING = "stopping"
"""The command in force while a worker lives that was told to stop."""


class Inspector:
    """Reads one frontier.

    Args:
        link: to the server.
        name: of the frontier.
        lease_ttl_s: seconds for which a silent worker counts as alive.
    """

    def __init__(self, link: Link, name: str, *, lease_ttl_s: float = 60.0) -> None:
        self.name = name
        self.keys = Keys(name)
        self.link = link = link.at(self.keys.state)
        self.requests = Requests(link, self.keys)
        self.lanes = Lanes(link, self.keys)
        self.limits = LimitReader(link, self.keys)
        self.budgets = BudgetReader(link, self.keys)
        self._ttl_ms = int(lease_ttl_s * 1000)
        self.runs = RunReader(link, self.keys, self._ttl_ms)

    def state(self, *, of_any_layout: bool = False) -> State | None:
        """Return the state, None if there is no such frontier.

        Raises:
            LayoutMismatch: another version has written the frontier, which this one can't read.
        """
        found = decoded_hash(self.link.ask(lambda client: client.hgetall(self.keys.state)))
        if not has_crawl(found):
            return None
        if "seen_name" in found:
            ((seen, shape),) = self.link.pipe(("HMGET", Keys(found["seen_name"]).state, "seen", "seen_shape"))
            found |= {"seen": str(int(seen or 0))} | ({} if shape is None else {"seen_shape": decoded(shape)})
        if found["layout"] != LAYOUT and not of_any_layout:
            raise LayoutMismatch(
                f"frontier {self.name!r} has layout {found['layout']} and this version reads layout {LAYOUT}:"
                " use the version that its workers have"
            )
        return state_of(found)

    def import_age_s(self) -> float | None:
        """Return the seconds since an unfinished import was last heard of, None if there is none."""
        (phase, heard_ms), *clock = self.link.pipe(
            ("HMGET", self.keys.state, "phase", "cleaning_ms"), *clock_questions(self.keys)
        )
        return max(0.0, clock_of(*clock) - int(heard_ms)) / 1000 if phase == b"importing" else None

    def seen_of_others(self) -> int | None:
        """Return the number of fingerprints of other frontiers under a name without a crawl, None if there are none."""
        ((seen, shape),) = self.link.pipe(("HMGET", self.keys.state, "seen", "seen_shape"))
        return None if shape is None else int(seen or 0)

    def slots(
        self,
        limit: int,
        sort: Sorting | None = None,
        progress: Callable[[int], object] | None = None,
        look_limit: int | None = None,
    ) -> SlotsFound:
        """Return the first slots with pending or leased requests.

        Args:
            sort: the order; None for the longest queues first, unless there are very many slots.
            progress: called now and then with the number of slots read, if there are very many.
            look_limit: with more slots not all are read, unless the order requires it; None for 20,000.
        """
        created_ms, suspects = self.link.pipe(
            ("HGET", self.keys.state, "created_ms"), ("ZCARD", self.keys.of("suspects"))
        )
        slots = SlotList(self.link, self.keys, self.now_ms(), int(created_ms or 0))
        return replace(slots.first(limit, sort, progress, look_limit), suspects=suspects)

    def held_by_worker(self) -> Mapping[str, int]:
        """Count leases by worker."""
        return Counter(stored.worker for stored in self.requests.leased())

    def kept_of(self, stored: Stored) -> int:
        """Return for how many requests that stay in its worker a leased page waits, by the worker's last report."""
        kept = self.link.ask(lambda client: client.hget(self.keys.of("kept"), stored.worker))
        return read_kept(kept).by_lease.get(stored.lease_id, 0)

    def peek(self, limit: int) -> Sequence[Stored]:
        """Return the requests that would be served next, in that order."""
        return ServingOrder(self.link, self.keys).first(limit)

    def ahead_of(self, stored: Stored) -> tuple[int, bool]:
        """Return how many pending requests are served before this pending one, and whether that is exact."""
        return Ahead(self.link, self.keys, stored).count()

    def seen_until(self, fingerprint: bytes) -> float | None:
        """Return the Unix time in seconds at which a fingerprint is new again, None if it was never seen.

        The time may be in the past, or infinite.
        """
        return seen_until(self.link, self.keys, fingerprint)

    def knows_marks(self, *marks: bytes) -> Sequence[bool]:
        """Return for each of these marks whether a request with it was pushed in this crawl."""
        return [
            bool(found) for found in self.link.pipe(*(("SISMEMBER", self.keys.of("marks"), mark) for mark in marks))
        ]

    def seeds(self, keys: Sequence[str]) -> Sequence[SeedsFound]:
        """Return what these keys of seeds hold for workers, as far as this user may read them."""
        return [self._seeds(self.link.at(key), key) for key in keys]

    def _seeds(self, link: Link, key: str) -> SeedsFound:
        (kind,) = link.attempt(("TYPE", key))
        if isinstance(kind, Exception):
            return SeedsFound(key, "", None)
        kind = kind if isinstance(kind, str) else kind.decode()
        if kind == "none":
            return SeedsFound(key, kind, 0)
        (count,) = link.attempt((SEED_COUNTS[kind], key)) if kind in SEED_COUNTS else [None]
        return SeedsFound(key, kind, count if isinstance(count, int) else None)

    def letters_by_reason(self) -> Mapping[str, int]:
        """Count the dead letters that are kept; those of unknown reasons have an empty one."""
        counts = self.link.pipe(*(("ZCOUNT", self.keys.died, *bounds) for bounds in DIED_RANGES.values()))
        return dict(zip(DIED_RANGES, counts, strict=True))

    def now_ms(self) -> int:
        """Return the frontier's time."""
        return clock_of(*self.link.pipe(*clock_questions(self.keys)))

    def status(self, seeds_keys: Sequence[str] = ()) -> Status | None:
        """Return the summary, None if there is no such frontier; the cost hardly depends on its size."""
        state = self.state()
        if state is None:
            return None
        keys, now_ms = self.keys, self.now_ms()
        stats, pace, suspects, due, letters = self.link.pipe(
            ("HGETALL", keys.of("stats")),
            ("HGETALL", keys.of("pace")),
            ("ZCARD", keys.of("suspects")),
            ("ZRANGE", keys.of("delayed"), 0, 0, "WITHSCORES"),
            ("ZCARD", keys.died),
        )
        counts = {name: int(decoded_hash(stats).get(name, 0)) for name in COUNTERS}
        tiers, is_sampled = self._tier_depths(state.tiers, suspects, counts["pending"])
        unfinished = counts["pending"] + counts["delayed"] + counts["leased"]
        memory, version = self._server()
        waiting = self.limits.waiting(now_ms)
        limits, learnt = self.limits.counts()
        workers = self.workers(now_ms)
        if any(worker.is_alive and worker.stop for worker in workers):
            state = replace(state, orders=[*state.orders, STOPPING])
        return Status(
            name=self.name,
            address=self.link.address,
            state=state,
            counts=counts,
            tiers=tiers,
            is_sampled=is_sampled,
            slots=self.lanes.count(),
            pace=pace_of(decoded_hash(pace), now_ms, state.created_ms, unfinished),
            workers=workers,
            memory=memory,
            next_due_ms=int(due[0][1]) if due else 0,
            now_ms=now_ms,
            server_version=version,
            waiting_for_rate=waiting.by_rate,
            waiting_for_leases=waiting.by_leases,
            closed_waiting=waiting.closed,
            closed_slots=waiting.all_closed,
            rate_left_s=self._rate_left_s(now_ms) if limits + learnt else 0.0,
            limits=limits,
            learnt_delays=learnt,
            budgets=self.budgets.summary(NEAREST_BUDGETS),
            suspects=suspects,
            opening_ms=self.limits.opening_ms(now_ms),
            seeds=self.seeds(seeds_keys),
            letters=int(letters),
        )

    def workers(self, now_ms: int | None = None) -> Sequence[WorkerFound]:
        """Return the workers, those last heard of first."""
        keys = self.keys
        heard, busy, hungry, info, work, stops, slow, kept = self.link.pipe(
            ("ZRANGE", keys.of("workers"), 0, -1, "WITHSCORES"),
            ("ZRANGE", keys.of("busy"), 0, -1, "WITHSCORES"),
            ("ZRANGE", keys.of("hungry"), 0, -1, "WITHSCORES"),
            ("HGETALL", keys.of("info")),
            ("HGETALL", keys.of("work")),
            ("HGETALL", keys.of("stops")),
            ("HGETALL", keys.of("slow")),
            ("HGETALL", keys.of("kept")),
        )
        now_ms = self.now_ms() if now_ms is None else now_ms
        are_busy, are_hungry = ({name for name, _ in found} for found in (busy, hungry))
        pages = self._slow(slow, now_ms)

        def worker(name: bytes, heard_ms: float) -> WorkerFound:
            about, done, stays = read_info(info.get(name)), work.get(name), read_kept(kept.get(name))
            joined_ms = int(about.get("joined_ms", 0))
            present_s = (heard_ms - joined_ms) / 1000 if joined_ms else 0
            return WorkerFound(
                name=decoded(name),
                host=about.get("host", ""),
                pid=about.get("pid", ""),
                heard_s=max(0.0, (now_ms - heard_ms) / 1000),
                is_alive=now_ms - heard_ms <= self._ttl_ms,
                is_busy=name in are_busy,
                is_hungry=name in are_hungry,
                done=None if done is None else int(done),
                rate_per_s=int(done) / present_s if done is not None and present_s > 0 else None,
                joined_ms=joined_ms,
                stop=decoded(stops.get(name, b"")),
                slow=pages.get(name, ()),
                blocked=read_blocked(slow.get(name, b""), now_ms),
                kept=stays.requests,
                kept_pages=stays.pages,
                unstorable=stays.unstorable,
                has_more_starts=stays.has_more_starts,
                is_paused=stays.is_paused,
                has_handlers=stays.has_handlers,
            )

        return [worker(name, at) for name, at in sorted(heard, key=lambda pair: (-pair[1], pair[0]))]

    def _slow(self, stored: Mapping[bytes, bytes], now_ms: int) -> Mapping[bytes, Sequence[SlowPage]]:
        """Return the pages that workers have reported and still hold."""
        found: dict[bytes, Sequence[SlowPage]] = {}
        for name, value in stored.items():
            pages = read_slow(value, now_ms)
            leases = self.link.pipe(*(("HGET", self.keys.leased, ID.pack(page.lease_id)) for page in pages))
            found[name] = [
                page
                for page, lease in zip(pages, leases, strict=True)
                if lease is not None and read_lease(lease).worker == name
            ]
        return found

    def _tier_depths(self, tiers: Sequence[str], suspects: int, pending: int) -> tuple[Sequence[TierDepth], bool]:
        """Count pending requests by tier; with many slots, estimate them from a sample."""
        names, is_sampled = self.lanes.sample(SLOT_SAMPLE)
        ranges = [tier_range(tier) for tier in range(len(tiers))]
        depths = [0] * len(tiers)
        for queues in pieces(map(self.keys.queue, names), SLOTS_PER_CALL):
            found = self.link.pipe(*(("ZCOUNT", queue, *bounds) for queue in queues for bounds in ranges))
            for index, count in enumerate(found):
                depths[index % len(tiers)] += count
        if is_sampled:
            scale = (pending - suspects) / max(1, sum(depths))
            depths = [round(depth * scale) for depth in depths]
        if suspects:
            apart = self.link.pipe(*(("ZCOUNT", self.keys.of("suspects"), *bounds) for bounds in ranges))
            depths = [depth + more for depth, more in zip(depths, apart, strict=True)]
        return [TierDepth(tier, depth) for tier, depth in zip(tiers, depths, strict=True)], is_sampled

    def _rate_left_s(self, now_ms: int) -> float:
        """Return how long the slowest slot takes to serve its pending requests at its rate."""
        names, is_sampled = self.lanes.sample(SLOT_SAMPLE)
        if is_sampled or not names:
            return 0.0
        depths = self.link.pipe(*(("ZCARD", self.keys.queue(name)) for name in names))
        clocks = self.limits.of([decoded(name) for name in names])
        times_ms = [
            max(0.0, clock.opens_ms - now_ms) + (depth - 1) * clock.limit.interval_ms
            for depth, clock in zip(depths, clocks, strict=True)
            if depth and clock.limit.delay
        ]
        return max(times_ms, default=0.0) / 1000

    def _server(self) -> tuple[Memory, str]:
        memory, server = self.link.info("memory"), self.link.info("server")
        if memory is None or server is None:
            return Memory(), ""
        return Memory(int(memory.get("used_memory", 0)), int(memory.get("maxmemory", 0))), version_text(server)


def tier_name(tiers: Sequence[str], rank: float) -> str:
    """Return the name of a rank's tier."""
    index = tier_of(int(rank))
    return tiers[index] if 0 <= index < len(tiers) else f"tier {index}"


def pace_of(fields: Mapping[str, str], now_ms: int, created_ms: int, unfinished: int) -> Rates:
    """Return the pace over the last ten to twenty seconds, or over the last minute if that is too short to count.

    Time before the crawl began doesn't count.
    """
    if not fields:
        return Rates()
    current = now_ms // BUCKET_MS

    def counted(kind: str, buckets: Iterable[int]) -> int:
        return sum(int(fields.get(f"{kind}{bucket}", 0)) for bucket in buckets)

    lately, (span, seconds) = range(current - 1, current + 1), pace_span(now_ms, created_ms)
    lately_s = max(1.0, (now_ms - max(lately[0] * BUCKET_MS, created_ms)) / 1000)
    # Nothing done lately is a pace, too, if at that of the minute there would have been enough.
    is_enough = max(counted("d", lately), counted("d", span) * lately_s / seconds) >= ENOUGH
    span, seconds = (lately, lately_s) if is_enough else (span, seconds)
    until_ms = min(now_ms, span.stop * BUCKET_MS)
    done, accepted, gone = (counted(kind, span) / seconds for kind in "dax")
    drain = done + gone - accepted
    left_s = unfinished / drain if unfinished and drain > 0 else None
    history = [int(fields.get(f"d{bucket}", 0)) for bucket in range(current - HISTORY_BUCKETS + 1, current + 1)]
    is_growing = counted("d", lately) + counted("x", lately) < counted("a", lately)
    left_s = left_s if unfinished else 0.0
    return Rates(done, accepted, left_s, history, is_growing, gone, (until_ms - round(seconds * 1000), until_ms))


def has_crawl(found: Mapping[str, str]) -> bool:
    """Return whether the fields of a frontier are those of a crawl; a reset leaves only those of its key."""
    return "layout" in found and (found.get("is_clear") != "1" or "ended_ms" in found)


def state_of(found: Mapping[str, str]) -> State:
    """Return the state that is in the fields of a frontier."""
    phase = found.get("phase", "")
    if phase == "ended" and "ended_ms" not in found:
        # A reset has made its crawl end, and is still deleting the rest.
        phase = "clearing"
    try:
        tiers = tuple(map(str, json.loads(found.get("tiers", "[]"))))
    except (TypeError, ValueError):
        tiers = ()
    seen, shape = int(found.get("seen", 0)), found.get("seen_shape", DEFAULT_SHAPE)
    return State(
        layout=found["layout"],
        phase=phase,
        epoch=found.get("epoch", ""),
        crawl_id=found.get("crawl_id", ""),
        created_ms=int(found.get("created_ms", 0)),
        ended_ms=int(found.get("ended_ms", 0)),
        tiers=tiers,
        order=found.get("order", ""),
        on_finish=found.get("on_finish", ""),
        seen=seen,
        seen_name=found.get("seen_name", ""),
        seen_mode=shape.partition(" ")[0],
        seen_lost=expected_losses(read_subfilters(shape), seen) if is_bloom(shape) else 0.0,
        orders=[order for order in ORDERS if found.get(order) == "1"],
        keeps_letters=found.get("dead_on") != "",
        cleaning_ms=int(found.get("cleaning_ms", 0)),
        policy=_policy(found),
    )


def _policy(found: Mapping[str, str]) -> PolicyFound:
    return PolicyFound(
        has_limits="has_limits" in found,
        has_budgets=found.get("has_budgets") == "1",
        weights=json.loads(found.get("weights", "[]")),
        discovery=json.loads(found.get("discovery", "[]")),
        high_water=int(found.get("high_water", 0)),
        low_water=int(found.get("low_water", 0)),
        pending_limit=int(found.get("pending_limit", 0)),
        is_flooded=found.get("is_flooded") == "1",
        is_memory_high=found.get("memory_high") == "1",
        owners=read_owners(json.loads(found.get("policy_parts", "{}"))),
    )
