"""The data that the views show: readings of one frontier, shared by all viewers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from scrapy import Request

from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.letters import Replay
from scrapy_prioqueue.commands.listing import url_of
from scrapy_prioqueue.commands.output import number
from scrapy_prioqueue.commands.reporting.charts import FEWEST, Chart, depth_chart, rate_chart
from scrapy_prioqueue.commands.writing import operator_of
from scrapy_prioqueue.dashboard.health import Health, health_of
from scrapy_prioqueue.dashboard.life import Found, found_by_id, found_by_url
from scrapy_prioqueue.dashboard.samples import Seen, continued
from scrapy_prioqueue.frontier.base import DEAD_REASONS
from scrapy_prioqueue.frontier.redis.operators.budgets import BudgetSummary
from scrapy_prioqueue.frontier.redis.operators.findings import Letter, SlotsFound, Sorting, Status, Stored, WorkerFound
from scrapy_prioqueue.frontier.redis.operators.inspector import Inspector
from scrapy_prioqueue.frontier.runs import Run
from scrapy_prioqueue.monitoring.reading import FrontierReading, Reading

RUNS = 100
SLOTS = 100
BUDGETS = 100
LETTERS = 100
"""Maximum number of dead letters that are shown."""

LETTERS_READ = 20_000
"""Maximum number of dead letters that a filter searches."""

LETTERS_CHANGED = 10_000
"""Maximum number of dead letters that one form changes."""

LOOK_LIMIT = 2000
"""Maximum number of slots that are all read; of more, only some are read, unless the sorting requires all."""

SLOW_INTERVAL_S = 5.0
"""Seconds between two readings of a value that changes slowly."""

HISTORY_INTERVAL_S = 10.0

WAIT_S = 1.0
"""Seconds to wait for a value that is due; after that a view shows the value that was read last."""

SORTINGS: Sequence[Sorting] = ("pending", "leased", "name", "order")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Frame:
    """The part that every view shows.

    Args:
        status: None if there is no such frontier, or nothing was read yet.
        age_s: seconds since it was read; None if it never was.
        trouble: why it can't be read now; empty if it can.
        is_away: the reason is that the server doesn't answer.
        health: None without a status.
    """

    name: str
    address: str
    status: Status | None
    age_s: float | None
    trouble: str
    is_away: bool
    health: Health | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """A filter of dead letters.

    Args:
        reason: empty for all.
        text: what their URLs contain; empty for any.
        newer_s: seconds since they died, at most; None for any.
        older_s: seconds since they died, at least; None for any.
    """

    reason: str = ""
    text: str = ""
    newer_s: float | None = None
    older_s: float | None = None

    @property
    def is_all(self) -> bool:
        """Whether it selects all of them."""
        return self == Wanted()

    def has(self, stored: Stored, now_ms: int) -> bool:
        """Return whether a dead letter is selected."""
        age_s = (now_ms - stored.at_ms) / 1000
        if self.newer_s is not None and age_s > self.newer_s or self.older_s is not None and age_s < self.older_s:
            return False
        return not self.text or self.text in url_of(stored)


@dataclass(frozen=True, slots=True)
class Letters:
    """The newest of the selected dead letters.

    Args:
        rows: the first ones.
        count: number of those selected, if all letters were searched.
        looked_at: number of letters that were searched.
        is_cut: more letters are kept than were searched.
        reasons: number of letters by reason, of all that are kept.
        now_ms: time of the reading.
    """

    rows: Sequence[Stored]
    count: int
    looked_at: int
    is_cut: bool
    reasons: Mapping[str, int]
    now_ms: int


class Board:
    """The data of all views."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.reading = FrontierReading(context.inspector, first_wait_s=WAIT_S)
        self._seen = Seen()

    def frame(self) -> Frame:
        """Return the state of the crawl."""
        seeds_keys = self.context.config.seeds_keys
        read = self.reading.get("status", lambda inspector: inspector.status(seeds_keys))
        status = read.value
        if status is not None:
            self._seen.add(status)
        health = health_of(status) if status is not None else None
        return Frame(
            self.context.name, self.context.link.address, status, read.age_s, read.trouble, read.is_away, health
        )

    def charts(self, status: Status) -> tuple[Chart | None, Chart | None]:
        """Return the charts of the requests that wait, and of the rates; None without enough samples."""
        # Workers add a sample to the history every few seconds at most; the dashboard's own samples continue it.
        history = self.reading.get("history", lambda inspector: inspector.runs.history(), interval_s=HISTORY_INTERVAL_S)
        samples = continued(history.value.samples if history.value else (), self._seen.samples)
        if len(samples) < FEWEST:
            return None, None
        return depth_chart(samples, [tier.tier for tier in status.tiers]), rate_chart(samples)

    def runs(self) -> Reading[Sequence[Run]]:
        """Return the runs of workers, those that joined last first."""
        return self._slowly("runs", lambda inspector: inspector.runs.all(RUNS))

    def workers(self, status: Status) -> Sequence[WorkerFound]:
        """Return the workers with the number of their leases."""
        held = self.reading.get("held", lambda inspector: inspector.held_by_worker(), interval_s=2.0).value or {}
        return [replace(worker, leased=held.get(worker.name, 0)) for worker in status.workers]

    def slots(self, sort: Sorting | None) -> Reading[SlotsFound]:
        return self.reading.get(("slots", sort), lambda inspector: inspector.slots(SLOTS, sort, look_limit=LOOK_LIMIT))

    def budgets(self) -> Reading[BudgetSummary]:
        """Return the budget keys nearest to their caps."""
        return self._slowly("budgets", lambda inspector: inspector.budgets.summary(BUDGETS))

    def letters(self, wanted: Wanted) -> Reading[Letters]:
        """Return the newest of the selected dead letters."""

        def read(inspector: Inspector) -> Letters:
            now_ms = inspector.now_ms()
            looked_at, rows, count = 0, list[Stored](), 0
            letters = inspector.requests.dead(wanted.reason or None)
            for stored in islice(letters, LETTERS_READ):
                looked_at += 1
                if wanted.has(stored, now_ms):
                    count += 1
                    rows += [stored] if len(rows) < LETTERS else []
                if wanted.is_all and count > LETTERS:
                    break
            is_cut, by_reason = next(letters, None) is not None, inspector.letters_by_reason()
            # Reasons of other versions, which have the empty name, come last.
            reasons = {reason: by_reason[reason] for reason in (*DEAD_REASONS, "") if by_reason[reason]}
            return Letters(rows, count, looked_at, is_cut, reasons, now_ms)

        return self._slowly(("letters", wanted), read)

    def selected(self, wanted: Wanted, ids: Sequence[int]) -> Sequence[Stored]:
        """Return dead letters by ids, or those that a filter selects, as many as one form may change."""
        inspector = self.context.inspector
        if ids:
            found = (inspector.requests.by_id(each, searches=False) for each in ids[:LETTERS_CHANGED])
            return [stored for stored in found if stored is not None and stored.state == "dead"]
        now_ms = inspector.now_ms()
        letters = islice(inspector.requests.dead(wanted.reason or None), LETTERS_READ)
        return list(islice((stored for stored in letters if wanted.has(stored, now_ms)), LETTERS_CHANGED))

    def earlier(self, letters: Sequence[Stored]) -> int:
        """Return how many of these dead letters are of earlier crawls."""
        state = self.context.inspector.state()
        return 0 if state is None else sum(not state.has_letter(stored) for stored in letters)

    def replay(self, chosen: Sequence[Letter]) -> str:
        """Put dead letters back; return what was done."""
        replay = Replay(self.context)
        replay.put_back(self.context.inspector.requests.letters(chosen))
        self.reading.expire()
        return f"{replay}."

    def purge(self, chosen: Sequence[Letter]) -> str:
        """Delete dead letters; return what was done."""
        purged = operator_of(self.context).purge(self.context.inspector.requests.letters(chosen))
        self.reading.expire()
        return f"{number(purged)} deleted."

    def found(self, query: str) -> Reading[Found]:
        """Return what is known about a URL, or about a request by its id.

        Raises:
            ValueError: it is neither.
        """
        if query.isdecimal():
            lease_id = int(query[:20])
            if lease_id >= 2**64:
                raise ValueError("No request has this id: it is too large.")
            return self._slowly(("id", lease_id), lambda _: found_by_id(self.context, lease_id), 1.0)
        try:
            Request(query)
        except ValueError as error:
            what = "give a URL with its scheme, such as https://shop.example/, or the id of a request"
            raise ValueError(f"{query} can't be looked up ({error}): {what}.") from None
        return self._slowly(("url", query), lambda _: found_by_url(self.context, query), 1.0)

    def _slowly(
        self, name: object, question: Callable[[Inspector], T | None], interval_s: float = SLOW_INTERVAL_S
    ) -> Reading[T]:
        return self.reading.get(name, question, interval_s=interval_s, wait_s=WAIT_S)
