"""One crawl of the shop in a storm: its processes, from the first to the last, and the judgement from outside."""

from __future__ import annotations

import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from children import Children, DemoFailed, wait_until
from ledger import Ledger
from redis_server import RedisServer
from summary import NO_KILL, Crawl, Tally, judge

from shop_chaos.aof import AppendOnlyFile
from shop_chaos.faults import LEASE_TTL_S, REDIS_TIMEOUT_S, Scene
from shop_chaos.fleet import Fleet
from shop_chaos.proxy import FaultProxy
from shop_chaos.recovery import Death, Recoveries
from shop_chaos.storm import Storm
from shop_chaos.view import KEPT, BooksDoNotBalance, FrontierView

REPOSITORY = Path(__file__).resolve().parents[2]
NAME = "chaos"

OPENS_WITHIN_S = 20.0
ENDS_WITHIN_S = 60.0
"""Seconds that the rest of a crawl may take when nothing goes wrong any more."""

EXCHANGE_S = 1.0
"""Seconds that one exchange may take, and one look of this program at Redis, on a busy machine."""

SETTINGS: Mapping[str, object] = {
    "PRIOQUEUE_NAME": NAME,
    "PRIOQUEUE_CRAWL_ID": "the crawl",  # a worker that comes when all is done must not begin again
    "PRIOQUEUE_LEASE_TTL": LEASE_TTL_S,
    "PRIOQUEUE_REDIS_TIMEOUT": REDIS_TIMEOUT_S,
    "PRIOQUEUE_FALLBACK": "error",
    "PRIOQUEUE_MAX_ATTEMPTS": 100,  # what is lost again and again is so by chance
    "CONCURRENT_REQUESTS": 8,
    "CONCURRENT_ITEMS": 4,  # Scrapy starts so many tasks for each response
    "DOWNLOAD_DELAY": 0,
}

TROUBLE = re.compile(r"\] (?:ERROR|CRITICAL): |Traceback|Unhandled")
"""Marks a line that no worker's log should have."""

LEGITIMATE = re.compile(
    # With PRIOQUEUE_FALLBACK = "error" a worker that starts while there is no way to the server says so and ends.
    r"Closing the spider: the frontier at \S+ can't be used"
)
"""Marks those that a fault explains."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to happen to one crawl.

    Args:
        faults: names of those that may happen.
        seed: of the lottery and of the shop.
        storm_s: seconds after which the storm ends, if the crawl takes longer.
        workers: how many at a time.
        products: size of the shop.
        latency_s: usual seconds until a page answers.
        appendfsync: how the server writes; with anything but ``always`` a killed one forgets its last second.
    """

    faults: Sequence[str]
    seed: str
    storm_s: float
    workers: int = 4
    products: int = 600
    latency_s: float = 0.3
    appendfsync: str = "everysec"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came out of one crawl.

    Args:
        plan: as it was asked for.
        faults: how often each happened.
        pages: on the site's list.
        tally: of ledger and list.
        deaths: of workers, and how long their recovery took.
        replaced: workers that could not begin, and for which others were started.
        left: what Redis should not hold any more, in words.
        troubles: ends of workers, and lines of their logs, that no fault explains.
        seconds: from the first worker's start to the last one's end.
        failure: why it was given up, empty if it was not.
    """

    plan: Plan
    faults: Counter[str]
    pages: int
    tally: Tally
    deaths: Sequence[Death]
    replaced: int
    left: Collection[str]
    troubles: Collection[str]
    seconds: float
    failure: str

    @property
    def complaints(self) -> Sequence[str]:
        """Everything that should not be so; nothing if all is well."""
        tally = self.tally
        return [
            *([self.failure] if self.failure else []),
            *(f"lost: {url}" for url in tally.lost),
            *(f"not on the site's list: {url}" for url in tally.strays),
            *(f"without an item: {url}" for url in tally.without_item),
            *(f"left in Redis: {what}" for what in self.left),
            *(f"in a log: {line}" for line in self.troubles),
            *(f"late: leases of {death.worker} came back after {death.back_s:.1f} s" for death in self._late()),
        ]

    def _late(self) -> Sequence[Death]:
        """Deaths whose recovery took too long, where nothing else is to blame."""
        if set(self.plan.faults) != {"kill"}:
            return []
        return [death for death in self.deaths if (death.back_s or 0) > LEASE_TTL_S + EXCHANGE_S]


@dataclass(slots=True)
class ChaosCrawl:
    """A crawl in a storm, in a folder of its own.

    Args:
        directory: for the server, for logs, lists and items, and for ``events.log``.
        plan: what is to happen.
    """

    directory: Path
    plan: Plan
    _started_at: float = field(init=False, default_factory=time.monotonic)

    def run(self) -> Outcome:
        """Crawl, and judge what came out; all processes are gone afterwards."""
        plan = self.plan
        self.directory.mkdir(parents=True)
        with ExitStack() as stack:
            server = stack.enter_context(
                RedisServer(
                    self.directory / "redis",
                    appendonly=True,
                    appendfsync=plan.appendfsync,
                    auto_aof_rewrite_percentage=0,
                )
            )
            path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
            children = stack.enter_context(Children(self.directory, {"PYTHONPATH": path}))
            proxies = [stack.enter_context(FaultProxy(server.port)) for _ in range(plan.workers)]
            return self._crawl(server, children, proxies)

    def _crawl(self, server: RedisServer, children: Children, proxies: Sequence[FaultProxy]) -> Outcome:
        plan = self.plan
        ledger = Ledger(self.directory)
        children.start("site", *ledger.site_command(products=plan.products, latency=plan.latency_s))
        self._wait_until(ledger.page_list.exists, "the shop is open", OPENS_WITHIN_S)
        settings = {**SETTINGS, "SHOP_URL": ledger.pages[0].url, "SHOP_ITEMS": ledger.items_directory}
        fleet = Fleet(children, proxies, settings, self._say)
        aof = None if plan.appendfsync == "always" else AppendOnlyFile(server.directory)
        recoveries = Recoveries(server.url, NAME, self._say)
        scene = Scene(fleet, server, NAME, aof, recoveries, random.Random(plan.seed))
        storm = Storm(scene, plan.faults, self._say)
        failure = ""
        self._started_at = time.monotonic()
        try:
            fleet.open()
            self._weather(scene, storm)
        except DemoFailed as error:
            failure = str(error)
        finally:
            calm_s = storm.calm_s
            storm.calm()
        seconds = time.monotonic() - self._started_at
        crawl = Crawl(ledger.pages, ledger.visits, ledger.items, NO_KILL, 0, 0)
        with scene.client() as client:
            left = what_is_left(FrontierView(client, NAME), was_calm=calm_s > LEASE_TTL_S)
        return Outcome(
            plan=plan,
            faults=storm.counts,
            pages=len(ledger.pages),
            tally=judge(crawl),
            deaths=recoveries.deaths,
            replaced=fleet.replaced,
            left=left,
            troubles=[*fleet.deserters, *troubles(children, fleet.processes)],
            seconds=seconds,
            failure=failure,
        )

    def _weather(self, scene: Scene, storm: Storm) -> None:
        """Inject faults until the crawl is over or the time is up, and wait for the end of the crawl."""
        calm_at = time.monotonic() + self.plan.storm_s

        def look() -> bool:
            scene.fleet.supervise()
            if scene.aof:
                scene.aof.note()
            if scene.server_answers:
                scene.recoveries.look()
                scene.keep_data_limit()
            if scene.fleet.has_finished:
                return True
            if time.monotonic() < calm_at:
                storm.blow()
            else:
                storm.calm()
            return False

        self._wait_until(look, "all workers have ended", self.plan.storm_s + ENDS_WITHIN_S)

    @property
    def events(self) -> str:
        """What has happened, a line each."""
        return self._events.read_text() if self._events.exists() else ""

    @property
    def _events(self) -> Path:
        return self.directory / "events.log"

    def _say(self, what: str) -> None:
        with self._events.open("a") as log:
            log.write(f"{time.strftime('%H:%M:%S')} {time.monotonic() - self._started_at:7.2f} s  {what}\n")

    def _wait_until(self, condition: Callable[[], bool], what: str, within_s: float) -> None:
        wait_until(condition, what=what, deadline=time.monotonic() + within_s)


def what_is_left(view: FrontierView, *, was_calm: bool) -> Sequence[str]:
    """Return what a frontier holds that it should not hold after the end of its crawl.

    Args:
        view: of the frontier.
        was_calm: nothing has gone wrong in the time before the end for which a worker counts as alive. Otherwise one
            that can't take its leave may be waited for, and the fingerprints stay until the next crawl begins.
    """
    kept = KEPT if was_calm else KEPT | {"seen"}
    counts = view.counts()
    left = [f"{counts[name]} {name}" for name in ("pending", "leased", "dead") if counts.get(name)]
    left += [f"keys of the kind {noun}" for noun in sorted(view.nouns() - kept)]
    if not view.has_ended():
        left.append("a crawl that has not ended")
    try:
        view.check_books()
    except BooksDoNotBalance as error:
        left.append(f"books that don't balance: {error}")
    return left


def troubles(children: Children, processes: Sequence[str]) -> Sequence[str]:
    """Return the lines of workers' logs that no fault explains, each with the name of the process."""
    return [
        f"{process}: {line}"
        for process in processes
        for line in children.log(process).splitlines()
        if TROUBLE.search(line) and not LEGITIMATE.search(line)
    ]
