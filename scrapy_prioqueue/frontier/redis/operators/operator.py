"""The write side of a frontier in Redis for programs that are no workers. Everything here blocks.

Every call of a script is bounded and leaves the books balanced. Workers have the server between the calls: a round trip
holds one, unless the server is far away.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from secrets import token_hex
from typing import Any

from scrapy_prioqueue.errors import FrontierUnavailable, NotPermitted
from scrapy_prioqueue.frontier.base import Depth, OnFinish, Order, Push
from scrapy_prioqueue.frontier.policy import Budget, SlotLimit
from scrapy_prioqueue.frontier.redis.clearing import FIELDS, KEYS_PER_CALL, must_scan, seen_names
from scrapy_prioqueue.frontier.redis.clock import clock_of, clock_questions
from scrapy_prioqueue.frontier.redis.key_types import check_key_types_by
from scrapy_prioqueue.frontier.redis.keys import LAYOUT, Keys
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.calls import ScriptCalls
from scrapy_prioqueue.frontier.redis.operators.clearing import Progress, clear, scan
from scrapy_prioqueue.frontier.redis.operators.findings import Stored
from scrapy_prioqueue.frontier.redis.operators.requests import Requests
from scrapy_prioqueue.frontier.redis.operators.seen_sets import seen_home, seen_shape
from scrapy_prioqueue.frontier.redis.operators.trips import ITEMS_PER_CALL, trips
from scrapy_prioqueue.frontier.redis.operators.unread_seeds import put_back
from scrapy_prioqueue.frontier.redis.refusals import CLEAR, IMPORTING, WAIT, cut_short, other_layout
from scrapy_prioqueue.frontier.redis.scripts import Argument
from scrapy_prioqueue.frontier.redis.seen.bloom import is_bloom
from scrapy_prioqueue.frontier.redis.seen.fingerprints import hashed, seen_argument
from scrapy_prioqueue.frontier.redis.seen.offers import Offers, offers_by
from scrapy_prioqueue.frontier.redis.seen.shapes import shape_text
from scrapy_prioqueue.frontier.redis.wire import ID, OK, OTHER_CRAWL
from scrapy_prioqueue.frontier.seen import SeenPolicy
from scrapy_prioqueue.hints import frontier_command

_WAIT_FOR_CLEARING_S = 0.2
_CLEARING_TIMEOUT_S = 60.0

PLACES_PER_CALL = 100
"""Slots, by line, that a call takes everything out of."""


@dataclass(frozen=True, slots=True)
class CrawlPlan:
    """What a crawl begins with, where there is none yet.

    Args:
        tiers: names, best first.
        crawl_id: as `PRIOQUEUE_CRAWL_ID`, empty for none.
        suspect_attempts: a request lost so often is handed out with care.
        has_budgets: requests carry their budget keys from the beginning, as where `PRIOQUEUE_BUDGETS` is set.
        seen: how fingerprints are remembered.
        seen_name: of the frontier in which they are kept, as `PRIOQUEUE_SEEN_NAME`; None for where the last crawl kept
            them, which is the frontier itself if there was none.
    """

    tiers: Sequence[str]
    order: Order = "lifo"
    on_finish: OnFinish = "restart"
    crawl_id: str = ""
    suspect_attempts: int = 2
    has_budgets: bool = False
    seen: SeenPolicy = SeenPolicy()
    seen_name: str | None = None


class Operator:
    """Works on one frontier.

    Args:
        link: to the server.
        name: of the frontier.
        lease_ttl_s: seconds for which a silent worker counts as alive.
    """

    def __init__(self, link: Link, name: str, *, lease_ttl_s: float = 60.0) -> None:
        self.name = name
        self.link = link
        self.keys = Keys(name)
        self.requests = Requests(link, self.keys)
        self._calls = ScriptCalls(link)
        self._client = f"operator:{token_hex(8)}"
        self._ttl_ms = int(lease_ttl_s * 1000)

    def open(self, plan: CrawlPlan) -> Sequence[str]:
        """Make the frontier ready for requests, and return the names of its tiers.

        Raises:
            LayoutMismatch: another release writes it.
            NotPermitted: an import into it was cut short, or another program has written one of its keys.
        """
        check_key_types_by(self.link, self.keys)
        has_cleared, until = False, time.monotonic() + _CLEARING_TIMEOUT_S
        # For the other modes, what is usual is good enough: workers begin most crawls.
        offers = offers_by(self.link, self.keys) if plan.seen.mode == "bloom" else Offers()
        while True:
            reply = self._call("open", self._plan_arguments(plan, offers, has_cleared=has_cleared))
            has_cleared = False
            if reply[0] == OK:
                return tuple(map(str, json.loads(reply[3])))
            if reply[0] == CLEAR:
                has_cleared = self._clear(reply[1].decode())
            elif reply[0] == WAIT and time.monotonic() < until:
                time.sleep(_WAIT_FOR_CLEARING_S)  # noqa: TID251 - no reactor runs in a program that uses this
            elif reply[0] == WAIT:
                raise FrontierUnavailable(self.link.address, f"frontier {self.name!r} is being cleared for too long")
            elif reply[0] == IMPORTING:
                raise cut_short(self.name)
            else:
                raise other_layout(self.name, reply[1], layout=LAYOUT)

    def _plan_arguments(self, plan: CrawlPlan, offers: Offers, *, has_cleared: bool) -> Sequence[Argument]:
        shape = shape_text(plan.seen, offers.limits, has_filters=offers.has_filters)
        return (
            *("", self._client, int(has_cleared), LAYOUT, json.dumps(list(plan.tiers))),
            *(plan.order, plan.on_finish, plan.crawl_id, plan.suspect_attempts),
            *(shape, "" if plan.seen.revisit_s is None else plan.seen.revisit_s, plan.seen_name or ""),
        )

    def push(self, pushes: Sequence[Push], plan: CrawlPlan) -> Sequence[int]:
        """Store requests, in calls of some dozens, and return the indexes of those that were seen before.

        They come after others of equal rank, in the order given, as start requests do.

        Raises:
            FrontierFull: the server has no memory for them; those of earlier calls are stored.
        """
        duplicates: list[int] = []
        firsts = list(range(0, len(pushes), ITEMS_PER_CALL))
        while firsts:
            trip, firsts = firsts[: self._calls.per_trip], firsts[self._calls.per_trip :]
            replies = self._run([("push", push_arguments(pushes[at : at + ITEMS_PER_CALL])) for at in trip])
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
        """How many requests `push` sends in one round trip."""
        return ITEMS_PER_CALL * self._calls.per_trip

    def tiers(self) -> Sequence[str]:
        """Return the names of the tiers, none if there is no such frontier."""
        found: Any = self.link.ask(lambda client: client.hget(self.keys.state, "tiers"))
        return tuple(map(str, json.loads(found or "[]")))

    def has_budgets(self) -> bool:
        """Return whether requests of this crawl carry budget keys."""
        return bool(self.link.ask(lambda client: client.hget(self.keys.state, "has_budgets")))

    def revisit_s(self) -> int | None:
        """Return after how many seconds what was seen is new again in this crawl; None where no times are kept."""
        found: Any = self.link.ask(lambda client: client.hget(self.keys.state, "revisit_s"))
        return None if found is None else int(found)

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
        """Tell the fleet what to do; None leaves things as they are. Workers hear of it with their next exchange.

        Args:
            paused: start no requests, or go on.
            drained: take in nothing that is found on pages, or do so again.
            stop_reason: close every worker that is there, with this reason.

        Returns:
            the workers that are there; None if there is no such frontier.
        """
        flags = ["" if flag is None else int(flag) for flag in (paused, drained)]
        reply = self._call("order", ("", *flags, stop_reason))
        return [worker.decode("utf-8", "replace") for worker in reply[1]] if reply[0] == OK else None

    def limit(self, pattern: str, limit: SlotLimit | None) -> SlotLimit | None:
        """Say what is wanted of a slot, or of all that a pattern names; return all that was said of it so far.

        Args:
            limit: what it doesn't say stays as it was said; None to take all of it back.

        Raises:
            NotPermitted: no crawl is under way.
        """
        said = {} if limit is None else {"delay": limit.delay_s, "concurrency": limit.concurrency, "burst": limit.burst}
        found = self._say("limit", pattern, None if limit is None else said)
        return found and SlotLimit(found.get("delay"), found.get("concurrency"), found.get("burst"))

    def reopen(self, slot: str) -> None:
        """Let a slot be served at once, whatever its rate says and whatever pause its site has asked for.

        Raises:
            NotPermitted: no crawl is under way.
        """
        self._change("reopen", slot)

    def budget(self, key: str, budget: Budget | None) -> Budget | None:
        """Say what a budget key, or `*` for all, is allowed; return all that was said of it so far.

        Args:
            budget: what it doesn't say stays as it was said; None to take all of it back.

        Raises:
            NotPermitted: no crawl is under way.
        """
        found = self._say("budget", key, None if budget is None else asdict(budget))
        return found and Budget(**found)

    def _say(self, script: str, name: str, entry: Mapping[str, float | None] | None) -> Any:
        text = ""
        if entry is not None:
            text = json.dumps({field: value for field, value in entry.items() if value is not None})
        reply = self._change(script, name, text)
        return json.loads(reply[1]) if reply[1] else None

    def _change(self, script: str, name: str, *arguments: Argument) -> Any:
        reply = self._call(script, ("", name.encode("utf-8", "surrogatepass"), *arguments))
        if reply[0] != OK:
            raise NotPermitted(
                f"no crawl of frontier {self.name!r} is under way, and the next one begins with what its settings say:"
                " wait until it has begun"
            )
        return reply

    def replay(self, letters: Sequence[tuple[Stored, bytes, bytes | None]], plan: CrawlPlan) -> int:
        """Put dead letters back into their queues, their attempts forgotten; return how many there still were.

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
        """Put what were no readable seeds back into their keys, to be read again; return how many letters that were.

        Args:
            letters: each behind the key that it came from.

        Raises:
            FrontierUnavailable: the server has refused some of them, which stay dead letters.
        """
        answers = put_back(self.link, letters)
        # Killed at this moment, we leave some of them in two places rather than in none.
        pairs = zip(letters, answers, strict=True)
        given_back = self.purge(letter for (_, letter), answer in pairs if not isinstance(answer, Exception))
        self.link.refuse(answers)
        return given_back

    def purge(self, letters: Iterable[Stored], progress: Progress | None = None) -> int:
        """Throw dead letters away; return how many there still were."""
        return _sum(self._each("purge", ((ID.pack(stored.lease_id),) for stored in letters)), progress)

    def remove(self, requests: Iterable[Stored], progress: Progress | None = None) -> int:
        """Take pending and delayed requests out of the crawl; return how many were still there.

        Args:
            requests: may be read from the frontier meanwhile.
            progress: called after each round trip with how many are removed.
        """
        return _sum(self._each("remove", (_pending_arguments(stored) for stored in requests)), progress)

    def move(self, requests: Iterable[tuple[Stored, int, bytes]], progress: Progress | None = None) -> int:
        """Give pending and delayed requests a new rank and payload; return how many were still there.

        Args:
            requests: may be read from the frontier meanwhile.
            progress: called after each round trip with how many are moved.
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
        """Do nothing where single fingerprints can be forgotten.

        Raises:
            NotPermitted: they are kept in a Bloom filter, whose bits belong to many of them.
        """
        if is_bloom(seen_shape(self.link, self.keys)):
            raise NotPermitted(
                "what was seen is kept in a Bloom filter (PRIOQUEUE_SEEN = 'bloom'), from which nothing can be taken"
                " out: push the request with dont_filter, or forget all of it"
                f" ({frontier_command('reset --seen', self.name)})"
            )

    def evict(self, worker: str, *, max_attempts: int) -> int:
        """Take all leases from a worker, in order of their ids, and forget it; return how many there were."""
        name = worker.encode()
        taken = self.take_leases(
            worker,
            (stored.lease_id for stored in self.requests.leased() if stored.worker == worker),
            max_attempts=max_attempts,
        )
        # By itself: where a call before it fails the worker isn't forgotten.
        self._call("evict", ("", name, max_attempts, 1, ""))
        return taken

    def take_leases(self, worker: str, lease_ids: Iterable[int], *, max_attempts: int) -> int:
        """Take these leases from a worker, in order of their ids, as their expiry would; return how many it held."""
        ids = sorted({ID.pack(lease_id) for lease_id in lease_ids})
        replies = self._each("evict", ((lease_id,) for lease_id in ids), worker.encode(), max_attempts, 0, "")
        return sum(reply[1] for reply in replies)

    def drop(self, progress: Callable[[int], object] | None = None) -> int:
        """Take everything that is pending or delayed out of the crawl; return how much there was.

        Args:
            progress: called now and then with how much is dropped.
        """
        dropped = 0
        while True:
            replies: list[tuple[int, int]] = self._run([("drop", ("", PLACES_PER_CALL))] * self._calls.per_trip)
            dropped += sum(count for count, _ in replies)
            if progress is not None:
                progress(dropped)
            if not replies[-1][1]:
                return dropped

    def forget_all(self, progress: Callable[[int], object] | None = None) -> None:
        """Forget all fingerprints, and that start requests were pushed; what is stored stays.

        Args:
            progress: called now and then with how many keys were dropped, or looked for.
        """
        home = seen_home(self.link, self.keys)
        (fields,) = self.link.pipe(("HMGET", home.state, *FIELDS))
        layout = fields[0]
        # The numbers first: without them a worker with other settings may say how fingerprints are kept from now on.
        # Who shares them has a copy of their shape, and gives it back.
        shared = () if home is self.keys and layout is not None else ("seen_shape",)
        numbers = ("seen", "seen_sets", "seen_moved", "seen_swept", "seen_levels", *shared)
        self.link.ask(lambda client: client.hdel(home.state, *numbers))
        parts: Iterator[Sequence[str | bytes]]
        if must_scan(fields):
            parts = ([key for key in found if home.noun(key) == "seen"] for found in scan(self.link, home))
        else:
            rest = seen_names(home, fields)
            parts = iter(lambda: list(islice(rest, KEYS_PER_CALL)), [])
        dropped = 0
        for names in parts:
            if names:
                self.link.pipe(("UNLINK", *names))
            dropped += len(names)
            if progress is not None:
                progress(dropped)
        self.link.pipe(("UNLINK", self.keys.of("marks")))

    def reset(self, progress: Callable[[int], object] | None = None) -> None:
        """Drop everything.

        Args:
            progress: called now and then with how many keys were dropped, or looked for.

        Raises:
            NotPermitted: workers are alive, or one has joined meanwhile.
        """
        reply = self._call("reset", ("", self._client, self._ttl_ms))
        if reply[0] != OK:
            names = ", ".join(sorted(worker.decode("utf-8", "replace") for worker in reply[1]))
            raise NotPermitted(
                f"frontier {self.name!r} has living workers ({names}): stop them first"
                f" ({frontier_command('stop', self.name)}), or wait {self._ttl_ms / 1000:g} s if they are gone"
            )
        if not self._clear("all", progress):
            raise NotPermitted(f"a worker has joined frontier {self.name!r} meanwhile")

    def _each(self, script: str, items: Iterable[Sequence[Argument]], *fixed: Argument) -> Iterator[Any]:
        """Yield the replies to the calls that all items take, some of which are made in one round trip.

        Each call is all or nothing, and none depends on another; where one is refused, which is raised, those of the
        same trip have been made all the same.

        Args:
            fixed: what each call begins with, behind the clock.
        """
        for calls in trips(items, self._calls.per_trip):
            yield from self._run([(script, ("", *fixed, *arguments)) for arguments in calls])

    def _clear(self, scope: str, progress: Progress | None = None) -> bool:
        """Drop what that scope names; return False if someone else has taken over."""
        return clear(self.link, self._calls, self.keys, self._client, scope, progress)

    def _call(self, name: str, arguments: Sequence[Argument]) -> Any:
        return self._run([(name, arguments)])[0]

    def _run(self, calls: Sequence[tuple[str, Sequence[Argument]]]) -> list[Any]:
        return self._calls.run([(name, self.keys.state, arguments) for name, arguments in calls])


def push_arguments(pushes: Sequence[Push]) -> Sequence[Argument]:
    """Return requests as `push` takes them, the clock in front."""
    arguments: list[Argument] = [""]
    for push in pushes:
        arguments += (push.rank, push.slot.encode("utf-8", "surrogatepass"), push.payload)
        arguments.append(seen_argument(push.fingerprint, push.revisit_s))
        arguments.append(f"{push.delay_ms},{push.not_before_ms}" if push.is_delayed else "")
    return arguments


def _sum(counts: Iterable[int], progress: Progress | None) -> int:
    total = 0
    for count in counts:
        total += count
        if progress is not None:
            progress(total)
    return total


def _pending_arguments(stored: Stored) -> Sequence[Argument]:
    slot = stored.slot.encode("utf-8", "surrogatepass")
    return (ID.pack(stored.lease_id), stored.attempts, stored.rank, slot, stored.payload)
