"""All frontiers of a server, found by a scan of its keys, and the state of each in a few words."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from scrapy_prioqueue.errors import FrontierRefused, FrontierUnavailable
from scrapy_prioqueue.frontier.redis.clock import clock_of, clock_questions
from scrapy_prioqueue.frontier.redis.keys import LAYOUT, Keys, name_of_state, state_pattern
from scrapy_prioqueue.frontier.redis.link import KEYS_PER_SCAN, Link
from scrapy_prioqueue.frontier.redis.operators.inspector import STOPPING, has_crawl, state_of
from scrapy_prioqueue.frontier.redis.servers import is_node_of_cluster
from scrapy_prioqueue.frontier.redis.troubles import is_moving
from scrapy_prioqueue.frontier.redis.wire import decoded, decoded_hash
from scrapy_prioqueue.hints import alike_first, nearest

NAMES_SEARCH_S = 1.0
"""Seconds for which names are searched for a message."""

_COUNTERS = ("pending", "delayed", "leased", "dead", "done", "accepted")


@dataclass(frozen=True, slots=True)
class FrontierFound:
    """A frontier of the server.

    Args:
        crawl: running; waiting, for workers or for work; paused, drained or stopping by an operator's command; ended;
            importing; clearing; moving, to another node of a cluster; fingerprints, if it only stores those of other
            frontiers; unreadable, if this user may not read it or another release has written it.
        crawl_id: empty for none.
        ended_ms: 0 if its crawl hasn't ended.
        workers: number of living ones.
        now_ms: its time.
    """

    name: str
    crawl: str
    crawl_id: str = ""
    ended_ms: int = 0
    workers: int = 0
    pending: int = 0
    delayed: int = 0
    leased: int = 0
    dead: int = 0
    done: int = 0
    accepted: int = 0
    now_ms: int = 0


def frontier_names(
    link: Link,
    progress: Callable[[int], object] | None = None,
    *,
    within_s: float = float("inf"),
    on_silent: Callable[[str], object] | None = None,
) -> Sequence[str]:
    """Return the names of all frontiers, in a cluster those of all nodes, sorted.

    Args:
        progress: called after each call with the number of keys looked at.
        within_s: seconds after which the scan ends early.
        on_silent: called with the address of each node of a cluster that can't be used, and why; None to raise.
    """
    names = set[str]()
    scan = link.root.scan(state_pattern(), within_s=within_s, on_silent=on_silent)
    for calls, found in enumerate(scan, 1):
        names |= {name for key in found if (name := name_of_state(decoded(key))) is not None}
        if progress is not None:
            progress(calls * KEYS_PER_SCAN)
    return sorted(names)


def is_one_node(link: Link) -> bool:
    """Return whether the URL names a single node of a cluster, so that the frontiers of others aren't found."""
    return not link.in_cluster and is_node_of_cluster(link.info("server") or {})


def others_of(link: Link, name: str) -> str:
    """Return the end of a message that there is no frontier of this name: some that there are, by a short scan."""
    try:
        names = frontier_names(link, within_s=NAMES_SEARCH_S)
        # Most alike first, in case the time isn't enough to look at all of them.
        existing = _within(NAMES_SEARCH_S, frontiers(link, alike_first(name, names), lease_ttl_s=0))
        others = nearest(name, [found.name for found in existing if found.name != name])
    except FrontierUnavailable:
        return ""
    return f"; there are: {others} ('scrapy frontier list')" if others else ""


def _within(seconds: float, found: Iterable[FrontierFound]) -> Iterator[FrontierFound]:
    deadline = time.monotonic() + seconds
    return takewhile(lambda _: time.monotonic() < deadline, found)


def frontiers(link: Link, names: Sequence[str], *, lease_ttl_s: float) -> Iterator[FrontierFound]:
    """Yield the frontiers of these names, except for those that have gone.

    Args:
        lease_ttl_s: seconds for which a silent worker counts as alive.
    """
    for name in names:
        try:
            found = _frontier(link, name, int(lease_ttl_s * 1000))
        except FrontierRefused:
            found = FrontierFound(name, "unreadable")
        except FrontierUnavailable as error:
            if not is_moving(error.__cause__):
                raise
            found = FrontierFound(name, "moving")
        if found is not None:
            yield found


def _frontier(link: Link, name: str, ttl_ms: int) -> FrontierFound | None:
    keys = Keys(name)
    fields, counters, heard, busy, stops, *clock = link.at(keys.state).pipe(
        ("HGETALL", keys.state),
        ("HMGET", keys.of("stats"), *_COUNTERS),
        ("ZRANGE", keys.workers, 0, -1, "WITHSCORES"),
        ("ZCARD", keys.of("busy")),
        ("HGETALL", keys.of("stops")),
        *clock_questions(keys),
    )
    found, now_ms = decoded_hash(fields), clock_of(*clock)
    if not has_crawl(found):
        what = "importing" if found.get("phase") == "importing" else "fingerprints"
        return FrontierFound(name, what, now_ms=now_ms) if what == "importing" or "seen_shape" in found else None
    if found["layout"] != LAYOUT:
        return FrontierFound(name, "unreadable", now_ms=now_ms)
    alive = [worker for worker, at in heard if at >= now_ms - ttl_ms]
    counts = {name: int(count or 0) for name, count in zip(_COUNTERS, counters, strict=True)}
    has_work = bool(busy or counts["pending"] or counts["delayed"] or counts["leased"])
    state = state_of(found)
    words = [*state.orders, *([STOPPING] if any(worker in stops for worker in alive) else [])]
    words.append("running" if alive and has_work else "waiting")
    crawl = words[0] if state.phase == "open" else state.phase
    return FrontierFound(name, crawl, state.crawl_id, state.ended_ms, len(alive), **counts, now_ms=now_ms)
