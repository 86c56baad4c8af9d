"""Why a URL is not being fetched now: a lookup of the URL, and one function for each possible cause.

To add a cause, add a function to `CAUSES`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import isfinite
from typing import Any
from urllib.parse import urlsplit

from scrapy import Request
from scrapy.utils.request import RequestFingerprinterProtocol

from scrapy_prioqueue.codec.detached import named_callback
from scrapy_prioqueue.codec.layouts import traces
from scrapy_prioqueue.codec.plain import PlainRequest, plain_or_none
from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.output import counted, duration, moment, name_text, number
from scrapy_prioqueue.commands.sharing import by, closing_text, delay_text, flood_text, share_text, use_text
from scrapy_prioqueue.dupefilter import ForeignFingerprinter
from scrapy_prioqueue.frontier.base import DEAD_BY_BUDGET
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.operators.findings import RequestState, State, Stored, WorkerFound
from scrapy_prioqueue.frontier.redis.operators.inspector import tier_name
from scrapy_prioqueue.frontier.redis.operators.seen_sets import identity_of
from scrapy_prioqueue.hints import frontier_command
from scrapy_prioqueue.queues.starts import once_mark, start_mark
from scrapy_prioqueue.rank import rank_of, tier_of

MAX_FOUND = 10
"""Requests for one URL that are reported; there may be more if duplicates were not filtered."""

SLOT_LIMIT = 2000
"""With more slots, only the URL's own slot is searched."""

READ_LIMIT = 20_000
"""With more requests waiting, they are not read one by one to find another spelling of the URL, or an id."""

_READ: Sequence[RequestState] = ("leased", "pending", "delayed")
"""States in which another spelling is searched for; dead letters only by the exact URL."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One finding about the URL.

    Args:
        kind: a word for programs.
        text: a sentence for people.
        facts: the values in the sentence, for programs.
    """

    kind: str
    text: str
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Situation:
    """The data that the functions in `CAUSES` read.

    Args:
        until_s: Unix time when the URL's fingerprint expires; infinity for never, None if the URL was never seen.
        found: its requests in the frontier.
        is_start: `start()` has yielded an unfiltered request for it in this crawl.
        is_fetched_once: a request with `prioqueue_dont_record` was pushed for it in this crawl.
        skips: the search was cut short: the URL may be there with another spelling or in another slot.
    """

    context: Context
    state: State
    workers: Sequence[WorkerFound]
    now_ms: int
    url: str
    until_s: float | None
    found: Sequence[Stored]
    is_start: bool = False
    is_fetched_once: bool = False
    skips: bool = False

    @property
    def is_seen(self) -> bool:
        """Whether its fingerprint is stored and has not expired."""
        return self.until_s is not None and self.until_s * 1000 > self.now_ms

    @property
    def is_known(self) -> bool:
        """Whether a request for it has been pushed, as far as the frontier can tell."""
        return self.is_seen or self.is_start or self.is_fetched_once or bool(self.found)

    @property
    def waits(self) -> bool:
        """Whether a request for it could be served but isn't."""
        return any(stored.state in ("pending", "delayed") for stored in self.found)


Cause = Callable[[Situation], Iterator[Reason]]


def situation_of(context: Context, state: State, request: Request, *, is_thorough: bool = False) -> Situation:
    """Search for the request: in its own slot, and in others too if that is cheap or `is_thorough` is set."""
    inspector, identity = context.inspector, identity_of(context.link, Keys(context.name))
    own = context.crawler().request_fingerprinter
    assert own is not None
    fingerprinter = ForeignFingerprinter(identity) if identity else own
    wanted, ids = fingerprinter.fingerprint(request), set[int]()
    is_start, is_fetched_once = inspector.knows_marks(start_mark(own.fingerprint(request)), once_mark(wanted))

    def is_it(stored: Stored) -> bool:
        if stored.lease_id in ids:
            return False
        plain = plain_or_none(stored.payload, stored.slot)
        is_found = plain is not None and (plain.url == request.url or _fingerprint(fingerprinter, plain) == wanted)
        if is_found:
            ids.add(stored.lease_id)
        return is_found

    until_s, each = inspector.seen_until(wanted), inspector.requests.each
    slot = None if is_thorough or inspector.lanes.count() <= SLOT_LIMIT else urlsplit(request.url).hostname or ""
    # The server can search for the exact URL. Other spellings of the same page need every request to be read.
    found = list(islice(filter(is_it, each(slot=slot, containing=traces(request.url))), MAX_FOUND))
    skips = slot is not None
    if not found:
        can_read = is_thorough or inspector.requests.count(("pending", "delayed"), slot=slot) <= READ_LIMIT
        skips = skips or not can_read
        found = list(islice(filter(is_it, each(_READ, slot=slot)), MAX_FOUND)) if can_read else []
    now_ms = inspector.now_ms()
    workers = inspector.workers(now_ms)
    return Situation(context, state, workers, now_ms, request.url, until_s, found, is_start, is_fetched_once, skips)


def _fingerprint(fingerprinter: RequestFingerprinterProtocol, plain: PlainRequest) -> bytes | None:
    try:
        request = Request(
            plain.url,
            callback=named_callback(plain.callback),
            method=plain.method,
            body=plain.body,
            headers=dict(plain.headers),
            meta=dict(plain.meta),
        )
        return fingerprinter.fingerprint(request)
    except Exception:  # the user's fingerprinter may raise anything, as this request lacks parts of the original
        return None


def reasons(situation: Situation) -> list[Reason]:
    """Return all findings, the most important first."""
    return [reason for cause in CAUSES for reason in cause(situation)]


def _history(situation: Situation) -> Iterator[Reason]:
    if situation.found:
        return
    gone = "no longer in the frontier: it is done, an operator has removed it, or its dead letter was dropped"
    if situation.is_seen:
        yield Reason("done", f"seen, and {gone}")
        yield from _skipped(situation)
    elif situation.is_start or situation.is_fetched_once:
        what = "yielded by start()" if situation.is_start else "pushed with prioqueue_dont_record"
        yield Reason("done", f"{what} in this crawl, which leaves no fingerprint, and {gone}")
        yield from _skipped(situation)
    elif situation.until_s is not None:
        yield Reason("unseen", "seen long ago, and new again: no worker has pushed it since")
        yield from _unread(situation)
    elif situation.state.has_ended and not situation.state.seen:
        what = "its fingerprints were dropped at the end of the crawl"
        yield Reason("unknown", f'unknown: {what}; PRIOQUEUE_ON_FINISH = "keep" keeps them')
    else:
        yield Reason(
            "unseen",
            "the frontier has neither a request nor a fingerprint of it: no worker has pushed it, or it was pushed with"
            " dont_filter=True and is done, which leaves no trace",
        )
        yield from _unread(situation)
        yield from _skipped(situation)
        if "drained" in situation.state.orders:
            yield Reason("drained", "an operator is draining the crawl, so links to it are dropped")


def _ending(situation: Situation) -> Iterator[Reason]:
    if situation.state.has_ended:
        text = f"{situation.context.ending_of(situation.state)}, so nothing is fetched until a new one begins"
        yield Reason("ended", text, {"ended_ms": situation.state.ended_ms})


def _unread(situation: Situation) -> Iterator[Reason]:
    """Yield a finding if `start()`, a worker's memory or a seeds key may still contain the URL."""
    workers = [worker.name for worker in situation.workers if worker.is_alive and worker.has_more_starts]
    if workers:
        more = f" and {number(len(workers) - 1)} more" if len(workers) > 1 else ""
        text = f"start() may still yield it at worker {workers[0]}{more}"
        is_held = situation.state.policy.is_flooded
        text += f", which doesn't read start() further at present: {_flood_text(situation)}" if is_held else ""
        yield Reason("unread", text, {"workers": workers, "is_held": is_held})
    keepers = [worker.name for worker in situation.workers if worker.is_alive and worker.kept]
    if keepers:
        text = f"it may be one of the requests that stay in the memory of {' and '.join(keepers[:2])}"
        text += " and others" if len(keepers) > 2 else ""
        yield Reason("kept", text, {"workers": keepers})
    seeds = situation.context.inspector.seeds(situation.context.config.seeds_keys)
    keys = [found.key for found in seeds if found.entries]
    if keys:
        yield Reason("seeds", f"it may be a seed that is not taken yet: {', '.join(keys)}", {"keys": keys})


def _skipped(situation: Situation) -> Iterator[Reason]:
    if situation.skips:
        text = "in a frontier of this size other spellings of the URL, and slots other than its host, are not searched"
        yield Reason("skipped", f"{text}: use --thorough, which takes a while")


def _revisit(situation: Situation) -> Iterator[Reason]:
    if situation.is_seen and situation.until_s is not None and isfinite(situation.until_s):
        new_ms = int(situation.until_s * 1000)
        left = duration((new_ms - situation.now_ms) / 1000)
        text = f"counts as new again at {moment(new_ms)}, in {left} (PRIOQUEUE_REVISIT_AFTER or its meta)"
        yield Reason("revisit", text, {"new_again_ms": new_ms})


def _states(situation: Situation) -> Iterator[Reason]:
    for stored in situation.found:
        yield {"pending": _pending, "delayed": _delayed, "leased": _leased, "dead": _dead}[stored.state](
            situation, stored
        )
        yield from _origin(stored)


def _pending(situation: Situation, stored: Stored) -> Reason:
    ahead, is_exact = situation.context.inspector.ahead_of(stored)
    where = f"slot {stored.slot}, tier {tier_name(situation.state.tiers, stored.rank)}"
    if stored.is_suspect:
        where += ", as a suspect (workers were lost while they held it), handed out with few others"
    behind = "next to be served" if not ahead else f"behind {'' if is_exact else 'about '}{counted(ahead, 'request')}"
    if situation.state.policy.weights and not stored.is_suspect:
        behind += f" of its tier, {share_text(situation.state, tier_of(stored.rank))}"
    facts = {"id": stored.lease_id, "ahead": ahead, "is_exact": is_exact}
    return Reason("pending", f"pending in {where}: {behind} (id {stored.lease_id})", facts)


def _delayed(situation: Situation, stored: Stored) -> Reason:
    wait_s = (stored.at_ms - situation.now_ms) / 1000
    when = f"until {moment(stored.at_ms)}, for {duration(wait_s)} more" if wait_s > 0 else "and due now"
    return Reason("delayed", f"delayed {when} (id {stored.lease_id})", {"id": stored.lease_id, "due_ms": stored.at_ms})


def _leased(situation: Situation, stored: Stored) -> Reason:
    left_s = (stored.at_ms - situation.now_ms) / 1000
    until = (
        f"until {moment(stored.at_ms)}"
        if left_s > 0
        else "but the lease has expired, and the request will return to its queue"
    )
    text = f"leased by {stored.worker} {until}, attempt {stored.attempts} (id {stored.lease_id})"
    facts = {"id": stored.lease_id, "worker": stored.worker, "expires_ms": stored.at_ms, "attempt": stored.attempts}
    worker = next((worker for worker in situation.workers if worker.name == stored.worker), None)
    if worker is not None and worker.blocked is not None:
        text += f"; the event loop of that worker has been blocked for {duration(worker.blocked.age_s)},"
        text += f" {worker.blocked.where}"
    for page in worker.slow if worker is not None else ():
        if page.lease_id == stored.lease_id:
            text += f"; it has been in progress for {duration(page.age_s)}, is in {page.stage}, and may never end:"
            text += f" {_command(situation, f'release {page.lease_id}')} gives it to other workers"
            facts["slow_s"] = page.age_s
    kept = situation.context.inspector.kept_of(stored)
    if kept:
        facts["kept"] = kept
        text += "; its page is done, and " + (f"{number(kept)} requests" if kept > 1 else "a request")
        text += f" that it led to {'stay' if kept > 1 else 'stays'} in the memory of that worker: if the"
        text += " worker is lost, the page is fetched again"
    return Reason("leased", text, facts)


def _dead(situation: Situation, stored: Stored) -> Reason:
    detail = stored.detail.strip().splitlines()
    text = f"dead since {moment(stored.at_ms)} because of {stored.reason}: {detail[-1] if detail else 'no detail'}"
    facts = {"id": stored.lease_id, "reason": stored.reason, "died_ms": stored.at_ms}
    return Reason("dead", f"{text} (id {stored.lease_id})", facts)


def _origin(stored: Stored) -> Iterator[Reason]:
    plain = plain_or_none(stored.payload, stored.slot)
    if plain is None:
        return
    at = f" at {moment(plain.found_s * 1000)}" if plain.found_s else ""
    if plain.source:
        yield Reason("found", f"found on {plain.source}{at}", {"source": plain.source, "found_s": plain.found_s})
    elif plain.found_s:
        yield Reason("found", f"found{at}", {"source": None, "found_s": plain.found_s})


def _command(situation: Situation, verb: str) -> str:
    return frontier_command(verb, situation.context.name)


def _orders(situation: Situation) -> Iterator[Reason]:
    if "paused" in situation.state.orders and situation.waits:
        yield Reason("paused", f"an operator has paused the crawl: {_command(situation, 'resume')} resumes it")


def _limits(situation: Situation) -> Iterator[Reason]:
    slots = list(dict.fromkeys(stored.slot for stored in situation.found if stored.state == "pending"))
    for slot, clock in zip(slots, situation.context.inspector.limits.of(slots), strict=True):
        limit = clock.limit
        if clock.is_full:
            running = f"{number(clock.running)} of {counted(limit.concurrency, 'request')}"
            text = f"slot {slot} is at its concurrency: {running} leased"
            yield Reason("concurrency", text, {"slot": slot, "running": clock.running, "most": limit.concurrency})
        if clock.closed_until_ms > situation.now_ms:
            text = f"slot {slot} is {closing_text(clock.closed_until_ms, situation.now_ms)}"
            text += f": {_command(situation, f'limit {shlex.quote(slot)} --open')} opens it"
            yield Reason("closed", text, {"slot": slot, "until_ms": clock.closed_until_ms})
        if clock.opens_ms > max(situation.now_ms, clock.closed_until_ms + 1000):
            left_s = (clock.opens_ms - situation.now_ms) / 1000
            text = f"slot {slot} waits for its rate, {duration(left_s)} more"
            text += f" (a request every {delay_text(limit.delay)}, {by(limit.delay_by)})" if limit.delay_by else ""
            yield Reason("rate", text, {"slot": slot, "until_ms": int(clock.opens_ms), "delay_s": limit.delay})


def _flood(situation: Situation) -> Iterator[Reason]:
    policy = situation.state.policy
    found = {tier_of(stored.rank) for stored in situation.found if stored.state == "pending"}
    for tier in sorted(found & set(policy.discovery) if policy.is_flooded else ()):
        name = tier_name(situation.state.tiers, rank_of(tier, 0))
        text = f"tier {name} is a discovery tier, and waits while others can be served: {_flood_text(situation)}"
        yield Reason("flooded", text, {"tier": name, "low_water": policy.low_water})


def _flood_text(situation: Situation) -> str:
    return flood_text(situation.state.policy, situation.context.inspector.requests.count(["pending"]))


def _budgets(situation: Situation) -> Iterator[Reason]:
    for stored in situation.found:
        budgets, is_rendered = situation.context.inspector.budgets.of_payload(stored.payload)
        for budget in budgets if stored.state != "leased" else ():
            what = budget.exceeded(is_rendered=is_rendered)
            if what is None:
                continue
            facts = {"id": stored.lease_id, "key": budget.key, "what": what}
            fate = "" if stored.state == "dead" else ", so it becomes a dead letter when its turn comes"
            text = f"over budget {name_text(budget.key)} ({use_text(budget, what)}){fate}"
            text += f": {_command(situation, f'budget {shlex.quote(budget.key)}')} raises it"
            yield Reason("budget", text, facts)
        if stored.state == "dead" and stored.reason == DEAD_BY_BUDGET:
            replay = _command(situation, f"dead replay {stored.lease_id}")
            text = f"once its budgets have room, {replay} puts it back"
            yield Reason("replay", text, {"id": stored.lease_id})


def _fleet(situation: Situation) -> Iterator[Reason]:
    if situation.waits and not any(worker.is_alive and not worker.stop for worker in situation.workers):
        yield Reason("nobody", "no worker is alive to take it: start one")


CAUSES: list[Cause] = [_ending, _history, _states, _revisit, _orders, _limits, _flood, _budgets, _fleet]
"""Each function yields its findings; they are shown in this order."""
