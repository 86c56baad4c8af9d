"""The write side of a frontier in Redis for programs that aren't workers; it blocks.

Every script call is bounded and leaves the counters balanced. Workers are served between the calls: a round trip has
one call, unless the server is far away.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Any, NamedTuple

from scrapy_prioqueue.errors import FrontierUnavailable, NotPermitted
from scrapy_prioqueue.frontier.base import Depth, OnFinish, Order, Push
from scrapy_prioqueue.frontier.policy import Budget, SlotLimit, values_of
from scrapy_prioqueue.frontier.redis.clearing import FIELDS, KEYS_PER_CALL, WAIT_S, must_scan, seen_names
from scrapy_prioqueue.frontier.redis.clock import clock_of, clock_questions
from scrapy_prioqueue.frontier.redis.key_types import refuse_wrong_types, type_questions
from scrapy_prioqueue.frontier.redis.keys import LAYOUT, Keys
from scrapy_prioqueue.frontier.redis.link import Command, Link
from scrapy_prioqueue.frontier.redis.operators.calls import ITEMS_PER_CALL, ScriptCalls, trips
from scrapy_prioqueue.frontier.redis.operators.clearing import Progress, clear, scan
from scrapy_prioqueue.frontier.redis.operators.findings import Stored
from scrapy_prioqueue.frontier.redis.operators.requests import Requests
from scrapy_prioqueue.frontier.redis.operators.seen_sets import home_and_shape
from scrapy_prioqueue.frontier.redis.rejections import (
    CLEAR,
    IMPORTING,
    WAIT,
    cut_short,
    other_layout,
    refuse_other_hash_slot,
)
from scrapy_prioqueue.frontier.redis.scripts import Argument
from scrapy_prioqueue.frontier.redis.seen.bloom import is_bloom
from scrapy_prioqueue.frontier.redis.seen.fingerprints import hashed, seen_argument
from scrapy_prioqueue.frontier.redis.seen.offers import Offers, offers_by
from scrapy_prioqueue.frontier.redis.seen.shapes import shape_text
from scrapy_prioqueue.frontier.redis.wire import ID, OK, OTHER_CRAWL, decoded, encoded, pieces, push_arguments
from scrapy_prioqueue.frontier.seen import SeenPolicy
from scrapy_prioqueue.hints import frontier_command

_CLEARING_TIMEOUT_S = 60.0

POSITIONS_PER_CALL = 100
"""Number of positions in lanes whose requests one call drops."""


@dataclass(frozen=True, slots=True)
class CrawlPlan:
    """Settings of a new crawl, used if there is none yet.

    Args:
        tiers: names, best first.
        on_finish: as `PRIOQUEUE_ON_FINISH`; None for that of the last crawl, or "restart" if there was none.
        crawl_id: as `PRIOQUEUE_CRAWL_ID`, empty for none.
        suspect_attempts: number of losses that makes a request a suspect.
        has_budgets: requests have budget keys from the beginning, as with `PRIOQUEUE_BUDGETS`.
        seen: how fingerprints are remembered.
        seen_name: name of the frontier that stores them, as `PRIOQUEUE_SEEN_NAME`; None for that of the last crawl, or
            the frontier itself if there was none.
    """

    tiers: Sequence[str]
    order: Order = "lifo"
    on_finish: OnFinish | None = None
    crawl_id: str = ""
    suspect_attempts: int = 2
    has_budgets: bool = False
    seen: SeenPolicy = SeenPolicy()
    seen_name: str | None = None


class PushRules(NamedTuple):
    """What a crawl requires of requests that are pushed to it.

    Args:
        has_budgets: they need budget keys.
        revisit_s: seconds after which a fingerprint expires; None if no times are stored.
        identity: whose fingerprints tell requests apart; see `IDENTITIES`.
    """

    has_budgets: bool
    revisit_s: int | None
    identity: str


class Operator:
    """Changes one frontier.

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
        self._calls = ScriptCalls(link, self.keys.state)
        self._client = f"operator:{token_hex(8)}"
        self._ttl_ms = int(lease_ttl_s * 1000)

    def open(self, plan: CrawlPlan) -> Sequence[str]:
        """Make the frontier ready for requests, and return the names of its tiers.

        Raises:
            LayoutMismatch: another release has written it.
            NotPermitted: an import into it was interrupted, or another program has written one of its keys.
        """
        if self.link.in_cluster:
            refuse_other_hash_slot(self.name, plan.seen_name)
        refuse_wrong_types(self.keys, self.link.attempt(*type_questions(self.keys)))
        has_cleared, until = False, time.monotonic() + _CLEARING_TIMEOUT_S
        # For the other modes defaults are good enough, since most crawls are begun by workers.
        offers = offers_by(self.link, self.keys) if plan.seen.mode == "bloom" else Offers()
        while True:
            reply = self._call("open", self._plan_arguments(plan, offers, has_cleared=has_cleared))
            has_cleared = False
            if reply[0] == OK:
                return tuple(map(str, json.loads(reply[3])))
            if reply[0] == CLEAR:
                has_cleared = self._clear(reply[1].decode())
            elif reply[0] == WAIT and time.monotonic() < until:
                time.sleep(WAIT_S)  # noqa: TID251 - no reactor runs in a program that uses this
            elif reply[0] == WAIT:
                raise FrontierUnavailable(
                    self.link.address,
                    f"the earlier crawl of frontier {self.name!r} is still being deleted; try again later",
                )
            elif reply[0] == IMPORTING:
                raise cut_short(self.name, reply[1])
            else:
                raise other_layout(self.name, reply[1], layout=LAYOUT)

    def _plan_arguments(self, plan: CrawlPlan, offers: Offers, *, has_cleared: bool) -> Sequence[Argument]:
        shape = shape_text(plan.seen, offers.limits, has_filters=offers.has_filters)
        return (
            *("", self._client, int(has_cleared), LAYOUT, json.dumps(list(plan.tiers))),
            *(plan.order, plan.on_finish or "", plan.crawl_id, plan.suspect_attempts),
            *(shape, "" if plan.seen.revisit_s is None else plan.seen.revisit_s, plan.seen_name or ""),
        )

    def push_rules(self) -> PushRules:
        """Return what the crawl requires of requests that are pushed."""
        (found,) = self.link.pipe(("HMGET", self.keys.state, "has_budgets", "revisit_s", "identity"))
        has_budgets, revisit_s, identity = found
        return PushRules(bool(has_budgets), None if revisit_s is None else int(revisit_s), decoded(identity or b""))

    def push(self, pushes: Sequence[Push], plan: CrawlPlan) -> Sequence[int]:
        """Store requests, in calls of some dozens, and return the indexes of duplicates.

        Like start requests, they come after others of equal rank, in the given order.

        Raises:
            FrontierFull: the server has no memory for them; those of earlier calls are stored.
        """
        duplicates: list[int] = []
        firsts = list(range(0, len(pushes), ITEMS_PER_CALL))
        while firsts:
            trip, firsts = firsts[: self._calls.per_trip], firsts[self._calls.per_trip :]
            replies = self._calls.run([("push", push_call(pushes[at : at + ITEMS_PER_CALL])) for at in trip])
            refused = []
            for first, reply in zip(trip, replies, strict=True):
                if reply[0] == OTHER_CRAWL:
                    refused.append(first)
                else:
                    duplicates += [first + index for index in reply[1]]
            if refused:
                self.open(plan)
                firsts = refused + firsts
        return duplicates

    @property
    def pushes_per_trip(self) -> int:
        """Number of requests that `push` sends in one round trip."""
        return ITEMS_PER_CALL * self._calls.per_trip

    def tiers(self) -> Sequence[str]:
        """Return the names of the tiers, none if there is no such frontier."""
        found: Any = self.link.ask(lambda client: client.hget(self.keys.state, "tiers"))
        return tuple(map(str, json.loads(found or "[]")))

    def is_open(self) -> bool:
        """Return whether a crawl is open, so that `open` begins none."""
        phase: Any = self.link.ask(lambda client: client.hget(self.keys.state, "phase"))
        return bool(phase == b"open")

    def depth(self) -> Depth:
        """Return the counts of the crawl."""
        names = ("accepted", "pending", "leased", "dead", "done", "delayed")
        counts, heard, *clock = self.link.pipe(
            ("HMGET", self.keys.of("stats"), *names),
            ("ZRANGE", self.keys.of("workers"), 0, -1, "WITHSCORES"),
            *clock_questions(self.keys),
        )
        workers = sum(at >= clock_of(*clock) - self._ttl_ms for _, at in heard)
        return Depth(workers=workers, **{name: int(count or 0) for name, count in zip(names, counts, strict=True)})

    def order(
        self, *, paused: bool | None = None, drained: bool | None = None, stop_reason: str = ""
    ) -> Sequence[str] | None:
        """Send a command to all workers, which read it with their next exchange; None leaves a flag unchanged.

        Args:
            paused: start no requests, or resume.
            drained: accept no requests found on pages, or accept them again.
            stop_reason: close all workers that have joined, with this reason.

        Returns:
            the living workers; None if there is no such frontier.
        """
        flags = ["" if flag is None else int(flag) for flag in (paused, drained)]
        reply = self._call("order", ("", *flags, stop_reason))
        return [decoded(worker) for worker in reply[1]] if reply[0] == OK else None

    def limit(self, pattern: str, limit: SlotLimit | None) -> SlotLimit | None:
        """Set an operator's limit of a slot, or of all that match a pattern; return the operator's limit now in force.

        Args:
            limit: None in a field keeps its value; None instead of a limit removes the operator's limit.

        Raises:
            NotPermitted: no crawl is running.
        """
        found = self._say("limit", pattern, limit)
        return found and SlotLimit(**found)

    def open_slot(self, slot: str) -> None:
        """Open a slot at once, regardless of its rate and of a pause that its site has asked for.

        Raises:
            NotPermitted: no crawl is running.
        """
        self._change("open_slot", slot)

    def budget(self, key: str, budget: Budget | None) -> Budget | None:
        """Set an operator's budget of a key, or `*` for all; return the operator's budget now in force.

        Args:
            budget: None in a field keeps its value; None instead of a budget removes the operator's budget.

        Raises:
            NotPermitted: no crawl is running.
        """
        found = self._say("budget", key, budget)
        return found and Budget(**found)

    def _say(self, script: str, name: str, entry: SlotLimit | Budget | None) -> Any:
        reply = self._change(script, name, "" if entry is None else json.dumps(values_of(entry)))
        return json.loads(reply[1]) if reply[1] else None

    def _change(self, script: str, name: str, *arguments: Argument) -> Any:
        reply = self._call(script, ("", encoded(name), *arguments))
        if reply[0] != OK:
            raise NotPermitted(
                f"no crawl of frontier {self.name!r} is under way, and the next one begins with its own settings:"
                " wait until it has begun"
            )
        return reply

    def replay(self, letters: Sequence[tuple[Stored, bytes, bytes | None]], plan: CrawlPlan) -> int:
        """Put dead letters back into their queues, with no attempts; return how many still existed.

        Args:
            letters: each with its new payload and, if it is filtered, its fingerprint, which is then marked as seen.

        Raises:
            FrontierFull: the server has no memory for some of them, which stay dead letters.
        """
        replayed = 0
        self.open(plan)
        items = (
            (ID.pack(stored.lease_id), payload, seen_argument(fingerprint)) for stored, payload, fingerprint in letters
        )
        for reply in self._each("replay", items):
            if reply[0] != OK:
                raise FrontierUnavailable(self.link.address, f"the crawl of frontier {self.name!r} has just ended")
            replayed += reply[1]
        return replayed

    def give_back_seeds(self, letters: Sequence[tuple[str, Stored]]) -> int:
        """Put unreadable seeds back into their keys, to be read again; return how many letters these were.

        Args:
            letters: each after the key that it came from.

        Raises:
            FrontierUnavailable: the server has refused some of them, which stay dead letters.
        """
        given_back, refusals = 0, []
        for key in dict.fromkeys(key for key, _ in letters):
            own, link = [letter for other, letter in letters if other == key], self.link.at(key)
            (kind,) = link.pipe(("TYPE", key))
            answers = link.replies(*(_pushed_seed(key, kind, letter.payload) for letter in own))
            # A kill at this point leaves some of them in both places, so none is lost.
            pairs = zip(own, answers, strict=True)
            given_back += self.purge(letter for letter, answer in pairs if not isinstance(answer, Exception))
            refusals += answers
        self.link.refuse(refusals)
        return given_back

    def purge(self, letters: Iterable[Stored], progress: Progress | None = None) -> int:
        """Delete dead letters; return how many still existed."""
        return _sum(self._each("purge", ((ID.pack(stored.lease_id),) for stored in letters)), progress)

    def remove(self, requests: Iterable[Stored], progress: Progress | None = None) -> int:
        """Remove pending and delayed requests from the crawl; return how many still existed.

        Args:
            requests: may be read from the frontier meanwhile.
            progress: called after each round trip with the number removed.
        """
        return _sum(self._each("remove", (_pending_arguments(stored) for stored in requests)), progress)

    def move(self, requests: Iterable[tuple[Stored, int, bytes]], progress: Progress | None = None) -> int:
        """Give pending and delayed requests a new rank and payload; return how many still existed.

        Args:
            requests: may be read from the frontier meanwhile.
            progress: called after each round trip with the number moved.
        """
        moves = ((*_pending_arguments(stored), rank, payload) for stored, rank, payload in requests)
        return _sum(self._each("move", moves), progress)

    def forget(self, fingerprints: Sequence[bytes]) -> Sequence[int]:
        """Forget fingerprints; return the indexes of those that were seen.

        Raises:
            NotPermitted: see `check_may_forget`.
        """
        self.check_may_forget()
        replies = self._each("forget", ((hashed(fingerprint),) for fingerprint in fingerprints))
        return [call * ITEMS_PER_CALL + index for call, indexes in enumerate(replies) for index in indexes]

    def check_may_forget(self) -> None:
        """Raise an error if single fingerprints can't be forgotten.

        Raises:
            NotPermitted: they are in a Bloom filter, in which fingerprints share bits.
        """
        _, shape = home_and_shape(self.link, self.keys)
        if is_bloom(shape):
            raise NotPermitted(
                "fingerprints are in a Bloom filter (PRIOQUEUE_SEEN = 'bloom'), which can't forget single ones:"
                " push the request with dont_filter, or forget all fingerprints"
                f" ({frontier_command('reset --seen', self.name)})"
            )

    def evict(self, worker: str, *, max_attempts: int) -> int:
        """Take all leases from a worker, in order of their ids, and remove it from the frontier; return how many."""
        name = worker.encode()
        taken = self.take_leases(
            worker,
            (stored.lease_id for stored in self.requests.leased() if stored.worker == worker),
            max_attempts=max_attempts,
        )
        # In a call of its own, so that the worker is kept if an earlier call fails.
        self._call("evict", ("", name, max_attempts, 1, ""))
        return taken

    def take_leases(self, worker: str, lease_ids: Iterable[int], *, max_attempts: int) -> int:
        """End these leases of a worker, in order of their ids, as their expiry would; return how many it held."""
        ids = sorted({ID.pack(lease_id) for lease_id in lease_ids})
        replies = self._each("evict", ((lease_id,) for lease_id in ids), worker.encode(), max_attempts, 0, "")
        return sum(reply[1] for reply in replies)

    def drop(self, progress: Callable[[int], object] | None = None) -> int:
        """Remove all pending and delayed requests from the crawl; return how many there were.

        Args:
            progress: called now and then with the number dropped.
        """
        dropped, calls = 0, [("drop", ("", POSITIONS_PER_CALL))] * self._calls.per_trip
        while True:
            replies: list[tuple[int, int]] = self._calls.run(calls)
            dropped += sum(count for count, _ in replies)
            if progress is not None:
                progress(dropped)
            if not replies[-1][1]:
                return dropped

    def forget_all(self, progress: Callable[[int], object] | None = None) -> None:
        """Forget all fingerprints and start marks; stored requests stay.

        Args:
            progress: called now and then with the number of keys dropped, or scanned.
        """
        home, _ = home_and_shape(self.link, self.keys)
        (fields,) = self.link.pipe(("HMGET", home.state, *FIELDS))
        layout = fields[0]
        # The counts go first: without them a worker with other settings may choose a new shape. Frontiers that share
        # the fingerprints have a copy of the shape and restore it.
        shared = () if home is self.keys and layout is not None else ("seen_shape",)
        numbers = ("seen", "seen_sets", "seen_moved", "seen_swept", "seen_levels", *shared)
        self.link.ask(lambda client: client.hdel(home.state, *numbers))
        parts: Iterable[Sequence[str | bytes]]
        if must_scan(fields):
            parts = ([key for key in found if home.noun(key) == "seen"] for found in scan(self.link, home))
        else:
            parts = pieces(seen_names(home, fields), KEYS_PER_CALL)
        dropped = 0
        for names in parts:
            if names:
                self.link.pipe(("UNLINK", *names))
            dropped += len(names)
            if progress is not None:
                progress(dropped)
        self.link.pipe(("UNLINK", self.keys.of("marks")))

    def reset(self, progress: Callable[[int], object] | None = None) -> None:
        """Delete the whole frontier.

        Args:
            progress: called now and then with the number of keys dropped, or scanned.

        Raises:
            NotPermitted: workers are alive, or one has joined meanwhile.
        """
        reply = self._call("reset", ("", self._client, self._ttl_ms))
        if reply[0] != OK:
            names = ", ".join(sorted(decoded(worker) for worker in reply[1]))
            raise NotPermitted(
                f"frontier {self.name!r} has living workers ({names}): stop them first"
                f" ({frontier_command('stop', self.name)}), or wait {self._ttl_ms / 1000:g} s (PRIOQUEUE_LEASE_TTL)"
                " if they are gone"
            )
        if not self._clear("all", progress):
            raise NotPermitted(f"a worker has joined frontier {self.name!r} meanwhile")

    def _each(self, script: str, items: Iterable[Sequence[Argument]], *fixed: Argument) -> Iterator[Any]:
        """Yield the replies to the calls for all items; a round trip may have several calls.

        Each call is all or nothing, and none depends on another. If one is refused, which is raised, the other calls of
        its round trip have been made.

        Args:
            fixed: first arguments of each call, after the clock.
        """
        for calls in trips(items, self._calls.per_trip):
            yield from self._calls.run([(script, ("", *fixed, *arguments)) for arguments in calls])

    def _clear(self, scope: str, progress: Progress | None = None) -> bool:
        """Drop the keys of a scope; return False if another client has taken over."""
        return clear(self.link, self._calls, self.keys, self._client, scope, progress)

    def _call(self, name: str, arguments: Sequence[Argument]) -> Any:
        return self._calls.run([(name, arguments)])[0]


def push_call(pushes: Sequence[Push]) -> Sequence[Argument]:
    """Return the arguments of `push`; these requests are served after equals, as start requests are."""
    starts = (replace(push, is_start=True, is_lifo_start=False, start_mark=None) for push in pushes)
    return ("", *(argument for push in starts for argument in push_arguments(push)))


def _pushed_seed(key: str, kind: bytes, seed: bytes) -> Command:
    if kind == b"zset":
        return ("ZADD", key, 0, seed)
    return ("SADD" if kind == b"set" else "LPUSH", key, seed)


def _sum(counts: Iterable[int], progress: Progress | None) -> int:
    total = 0
    for count in counts:
        total += count
        if progress is not None:
            progress(total)
    return total


def _pending_arguments(stored: Stored) -> Sequence[Argument]:
    slot = encoded(stored.slot)
    return (ID.pack(stored.lease_id), stored.attempts, stored.rank, slot, stored.payload)
