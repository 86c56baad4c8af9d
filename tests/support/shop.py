"""The example shop in fault tests: the site and the workers as processes, and what an outsider knows of their crawl."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgpack
import redis
from shop_site.catalogue import Page
from shop_site.records import Visit, read_pages, read_visits
from summary import Crawl, Kill, Verdict, judge

from scrapy_prioqueue.frontier.redis.keys import Keys
from tests.support.processes import ChildProcess, StartProcess
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

WITHIN_S = 60.0
"""Seconds that a crawl, or what is left of one, may take on a busy machine."""

CONCURRENT_REQUESTS = 16

REPOSITORY = Path(__file__).resolve().parents[2]
TROUBLE = re.compile(r"\] (?:ERROR|CRITICAL): |Traceback|Unhandled")
"""Marks a line that no worker's log should have, whatever happens to it."""

Lease = tuple[bytes, int]
"""Id and attempt."""

_CLOSED = re.compile(r"Spider closed \((\w+)\)")
_NOBODY = Kill(worker="", pid=0, time_s=0, fetched=0, returned_s=0)

_COUNTED = """
local pending = 0
for _, queue in ipairs(redis.call("KEYS", KEYS[1] .. "queue:*")) do pending = pending + redis.call("ZCARD", queue) end
pending = pending + redis.call("ZCARD", KEYS[1] .. "suspects")
local leased, expiries = redis.call("HLEN", KEYS[1] .. "leased"), redis.call("ZCARD", KEYS[1] .. "leases")
local stats = redis.call("HMGET", KEYS[1] .. "stats", "accepted", "pending", "leased", "dead", "done")
return {pending, leased, expiries, redis.call("HLEN", KEYS[1] .. "dead"), stats}
"""


class Worker:
    """A process of ``scrapy crawl``.

    Args:
        name: its worker id.
        process: made for it.
    """

    def __init__(self, name: str, process: ChildProcess) -> None:
        self.name = name
        self.process = process

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send(number)

    def has_logged(self, text: str) -> bool:
        """Tell whether its log holds a text."""
        return text in self.process.log

    def wait_for(self, text: str) -> None:
        """Wait until its log holds a text."""
        wait_until(lambda: self.has_logged(text), what=f"{self.name} logs {text!r}", within=WITHIN_S)

    @property
    def reason(self) -> str | None:
        """Why its spider was closed; None if it was not."""
        found = _CLOSED.search(self.process.log)
        return found and found[1]

    def stat(self, name: str) -> int:
        """Return one of the numbers that Scrapy logs at the end."""
        found = re.search(rf"'{re.escape(name)}': (\d+)", self.process.log)
        return int(found[1]) if found else 0

    def ends(self, reason: str = "finished", *, expects: str = "") -> None:
        """Wait for its end, for that reason and without an error in its log.

        Args:
            reason: why its spider is closed.
            expects: text of an error that may be there.
        """
        exit_code = self.process.wait(within=WITHIN_S)
        lines = self.process.log.splitlines()
        troubles = [line for line in lines if TROUBLE.search(line) and not (expects and expects in line)]
        assert (troubles, exit_code, self.reason) == ([], 0, reason), self.name


class FrontierView:
    """A frontier in Redis, as other tools read it; see docs/architecture.md for its keys.

    Args:
        client: of the server; it gives bytes.
        name: of the frontier.
    """

    def __init__(self, client: redis.Redis, name: str) -> None:
        self._client: Any = client
        self._keys = Keys(name)

    def counts(self) -> Mapping[str, int]:
        """Return the counters of the crawl."""
        stats = self._client.hgetall(self._keys.prefix + "stats")
        return {name.decode(): int(value) for name, value in stats.items()}

    def leases(self, worker: str) -> set[Lease]:
        """Return what a worker holds."""
        found = self._client.hgetall(self._keys.leased)
        leases = {lease_id: msgpack.unpackb(value, raw=True) for lease_id, value in found.items()}
        return {(lease_id, fields[0]) for lease_id, fields in leases.items() if fields[3] == worker.encode()}

    def expiries(self) -> Sequence[float]:
        """Return when each lease expires, in ms by the server's clock."""
        return [expiry_ms for _, expiry_ms in self._client.zrange(self._keys.prefix + "leases", 0, -1, withscores=True)]

    def unfinished(self) -> set[bytes]:
        """Return the ids of all that is pending or leased."""
        queues = [*self._client.keys(self._keys.prefix + "queue:*"), self._keys.prefix + "suspects"]
        pending = {member[:8] for queue in queues for member in self._client.zrange(queue, 0, -1)}
        return pending | set(self._client.hkeys(self._keys.leased))

    def dead_letters(self) -> Sequence[Sequence[Any]]:
        """Return all dead letters: reason, detail, attempts, rank, slot, worker, time in ms, payload."""
        return [msgpack.unpackb(value, raw=True) for value in self._client.hvals(self._keys.dead)]

    def nouns(self) -> set[str]:
        """Return what kinds of keys there are."""
        keys = self._client.keys(self._keys.pattern())
        return {key.decode().removeprefix(self._keys.prefix).partition(":")[0] for key in keys}

    def has_ended(self) -> bool:
        """Tell whether the first crawl of this frontier is over, and no other has begun."""
        return bool(self._client.hmget(self._keys.state, "epoch", "phase") == [b"1", b"ended"])

    def check_books(self) -> int:
        """Compare the counters with each other and with what is there, at one moment; return what was accepted."""
        pending, leased, expiries, dead, stats = self._client.eval(_COUNTED, 1, self._keys.prefix)
        accepted, *there, done = (int(each or 0) for each in stats)
        assert there == [pending, leased, dead]
        assert leased == expiries
        assert accepted == pending + leased + dead + done
        return accepted


class Shop:
    """A shop that is open, and the crawl of it; the site's log and the pipelines' files are the ledger.

    Args:
        directory: for its log and the items.
        start_process: starts site and workers.
        server: holds the frontier.
        frontier_name: of this test.
        options: of ``python -m shop_site``.
    """

    def __init__(
        self,
        directory: Path,
        start_process: StartProcess,
        server: RedisServer,
        frontier_name: str,
        **options: float,
    ) -> None:
        self.server = server
        self.page_list = directory / "pages.jsonl"
        self.frontier = FrontierView(server.client(), frontier_name)
        self._frontier_name = frontier_name
        self._access_log = directory / "access.jsonl"
        self._items = directory / "items"
        self._start_process = start_process
        self._lost: set[Lease] = set()
        self._read = 0
        self._final: set[tuple[str, str]] = set()
        self._open(**options)
        self.pages: Sequence[Page] = read_pages(self.page_list)

    def start(self, worker: str, settings: Mapping[str, Any] | None = None, *, spider: str = "shop") -> Worker:
        """Start a worker.

        Args:
            worker: its id.
            settings: above those that all workers have.
            spider: what it runs; see `tests.faults.components`.
        """
        options = {
            "SHOP_URL": self.pages[0].url,
            "SHOP_ITEMS": self._items,
            "SPIDER_MODULES": "shop.spiders,tests.faults.components",
            "CONCURRENT_REQUESTS": CONCURRENT_REQUESTS,
            "CONCURRENT_REQUESTS_PER_DOMAIN": CONCURRENT_REQUESTS,
            "DOWNLOAD_DELAY": 0,
            "PRIOQUEUE_NAME": self._frontier_name,
            "PRIOQUEUE_REDIS_URL": self.server.url,
            "PRIOQUEUE_FALLBACK": "error",
            "PRIOQUEUE_WORKER_ID": worker,
            "PRIOQUEUE_CRAWL_ID": "the crawl",  # one that comes when all is done must not begin again
            "PRIOQUEUE_LEASE_TTL": 30,
            **(settings or {}),
        }
        words = [word for name, value in options.items() for word in ("-s", f"{name}={value}")]
        return Worker(worker, self._run("scrapy", "crawl", spider, *words))

    def kill(self, worker: Worker) -> set[Lease]:
        """End a worker with SIGKILL and return what it held; no more than that may be fetched again."""
        worker.process.kill()
        held = self.frontier.leases(worker.name)
        self._lost |= held
        return held

    @property
    def fetched(self) -> int:
        """How many pages have been answered to the end."""
        if self._access_log.exists():
            with self._access_log.open("rb") as log:
                log.seek(self._read)
                for line in log:
                    self._note(line)
        return len(self._final)

    def wait_until_fetched(self, pages: float) -> None:
        """Wait for a number of pages, or a share of them if it is below 1."""
        wanted = pages * len(self.pages) if pages < 1 else pages
        wait_until(lambda: self.fetched >= wanted, what=f"{wanted:.0f} pages are fetched", within=WITHIN_S)

    @property
    def visits(self) -> Sequence[Visit]:
        """What the site has seen, without the questions for robots.txt."""
        return [visit for visit in read_visits(self._access_log) if visit.path != "/robots.txt"]

    def judge(self) -> Verdict:
        """Compare the ledger with the site's list of its pages."""
        items = [json.loads(line) for path in self._items.glob("*.jsonl") for line in path.read_bytes().splitlines()]
        return judge(Crawl(self.pages, self.visits, items, _NOBODY, started_s=0, ended_s=0))

    def check_complete(self, *, repeated_at_most: int | None = None) -> None:
        """Check that nothing is missing, and that no more was repeated than what the killed workers held.

        Args:
            repeated_at_most: pages that may have been fetched again instead.
        """
        verdict, bound = self.judge(), len(self._lost) if repeated_at_most is None else repeated_at_most
        repeated = sum(verdict.repeated.values())
        print(f"{len(self.pages)} pages, {repeated} fetched again, at most {bound} expected")
        assert (verdict.lost, verdict.strays, verdict.without_item) == ([], [], [])
        assert repeated <= bound, verdict.repeated

    def _open(self, **options: float) -> None:
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        paths = ("--log", str(self._access_log), "--pages", str(self.page_list))
        self._run("shop_site", "--port", "0", *paths, *words)
        wait_until(self.page_list.exists, what="the shop is open", within=WITHIN_S)

    def _run(self, module: str, *words: str) -> ChildProcess:
        path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
        command = [sys.executable, "-m", module, *words]
        return self._start_process(command, env={**os.environ, "PYTHONPATH": path}, cwd=REPOSITORY / "example_project")

    def _note(self, line: bytes) -> None:
        if line.endswith(b"\n"):
            self._read += len(line)
            visit = Visit(**json.loads(line))
            if visit.is_final and visit.path != "/robots.txt":
                self._final.add((visit.host, visit.path))


def let_pass(seconds: float) -> None:
    """Wait for a moment that nothing marks, such as one drawn by lot."""
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= end, what=f"{seconds} s have passed", within=seconds + 10)
