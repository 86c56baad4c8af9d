"""Some of a fleet's workers as one process: simulated ones of ours, or clients that send plain commands.

It prints "ready", reads from when to when it is measured, and prints what it did in that time as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha1
from itertools import count, islice

from frontier import PAYLOAD, exchange_plainly
from redis.asyncio import Redis
from simulated import Page, SimulatedWorker

from scrapy_prioqueue.frontier.base import Batch, Demand, Exchanged, FrontierConfig, Lease, Push
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.frontier import RedisFrontier
from scrapy_prioqueue.rank import rank_of

CONCURRENCY = 16
SLOTS = 500
BACKLOG = 200
"""Requests per worker that are pending at the beginning; each page then brings one new request, so it stays so."""

TIMEOUT_S = 30.0
SAMPLES = 2000
"""The most times of exchanges that a process reports."""


@dataclass(frozen=True, slots=True)
class Done:
    """What a process did while it was measured.

    Args:
        requests: pushed, taken and done.
        exchanges: round trips.
        cpu_s: seconds of processor time.
        exchange_ms: how long round trips took, as the worker saw it; a sample of them.
    """

    requests: int
    exchanges: int
    cpu_s: float
    exchange_ms: Sequence[float]


def new_requests(process: int, priorities: int) -> Iterator[Push]:
    """Yield requests without end, different ones in each process, of so many priorities in turn."""
    for number in count():
        slot = f"www.site-{number * 7 % SLOTS}.example"
        url = f"https://{slot}/section-{number % 97}/an-ordinary-page-of-the-site-{process}-{number:010d}.html"
        yield Push(rank_of(0, number % priorities), slot, PAYLOAD % url.encode(), sha1(url.encode()).digest())


class TimedFrontier(RedisFrontier):
    """Notes how long each exchange takes."""

    def __init__(self, config: FrontierConfig, url: str) -> None:
        super().__init__(config, Connection(url, timeout_s=TIMEOUT_S))
        self.exchange_ms: list[float] = []

    async def exchange(self, batches: Sequence[Batch], demand: Demand | None) -> Exchanged:
        started_s = time.perf_counter()
        answer = await super().exchange(batches, demand)
        self.exchange_ms.append((time.perf_counter() - started_s) * 1000)
        return answer


class Pumps:
    """Workers with the real pump.

    Args:
        requests: that pages bring.
        page_s: seconds that a page takes on average, half as long at least and half as long again at most.
        places: requests at a time of each worker.
        known: how many further requests, which the server has, a page brings.
        wait_replicas: how many replicas must have what was sent.
    """

    def __init__(
        self,
        url: str,
        process: int,
        workers: int,
        requests: Iterator[Push],
        page_s: float,
        *,
        places: int,
        known: int,
        wait_replicas: int,
    ) -> None:
        self._requests = requests
        self._page_s = page_s
        self._newest: deque[Push] = deque(maxlen=known)
        self._started = 0
        self._frontiers: list[TimedFrontier] = []
        self._members: list[SimulatedWorker] = []
        for number in range(workers):
            config = FrontierConfig("bench", ("only",), f"worker-{process}-{number}", wait_replicas=wait_replicas)
            frontier = TimedFrontier(config, url)
            member = SimulatedWorker(config, frontier, self._fetch, concurrency=places)
            member.has_own_requests = member.starts_nothing = True
            self._frontiers.append(frontier)
            self._members.append(member)

    def _fetch(self, lease: Lease) -> Page:
        self._started += 1
        links = [*self._newest, next(self._requests)]
        self._newest.append(links[-1])
        return Page(random.uniform(0.5, 1.5) * self._page_s, links)

    async def open(self) -> None:
        """Connect, and store the backlog."""
        for member in self._members:
            await member.open()
            for request in islice(self._requests, BACKLOG):
                member.push(request)
        while any(member.pump.outbox for member in self._members):
            await asyncio.sleep(0.01)

    def start(self) -> None:
        """Begin to work."""
        for member in self._members:
            member.starts_nothing = False
            member.wake()

    def so_far(self) -> Done:
        """Return what was done, with the times of exchanges since the last call."""
        times = [ms for frontier in self._frontiers for ms in frontier.exchange_ms]
        exchanges = sum(member.stats["prioqueue/exchange/count"] for member in self._members)
        for frontier in self._frontiers:
            frontier.exchange_ms.clear()
        return Done(self._started, exchanges, time.process_time(), times)

    async def close(self) -> None:
        """Give back what is held and disconnect."""
        await asyncio.gather(*(member.close() for member in self._members))


class Clients:
    """Clients that push as many requests as they pop with each pipeline of `SADD`, `ZADD` and `ZPOPMIN`.

    Args:
        requests: that are pushed.
        size: requests per pipeline.
    """

    def __init__(self, url: str, workers: int, requests: Iterator[Push], size: int) -> None:
        self._requests = requests
        self._size = size
        self._is_over = False
        self._done = self._exchanges = 0
        self._times: list[float] = []
        self._clients = [Redis.from_url(url, socket_timeout=TIMEOUT_S) for _ in range(workers)]
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Connect, and store the backlog."""
        for client in self._clients:
            await self._exchange(client, BACKLOG, 0)

    async def _exchange(self, client: Redis, pushes: int, pops: int) -> None:
        started_s = time.perf_counter()
        await exchange_plainly(client, islice(self._requests, pushes), pops)
        self._times.append((time.perf_counter() - started_s) * 1000)

    async def _run(self, client: Redis) -> None:
        while not self._is_over:
            await self._exchange(client, self._size, self._size)
            self._done += self._size
            self._exchanges += 1

    def start(self) -> None:
        """Begin to work."""
        self._tasks = [asyncio.create_task(self._run(client)) for client in self._clients]

    def so_far(self) -> Done:
        """Return what was done, with the times of round trips since the last call."""
        times, self._times = self._times, []
        return Done(self._done, self._exchanges, time.process_time(), times)

    async def close(self) -> None:
        """Disconnect."""
        self._is_over = True
        await asyncio.gather(*self._tasks)
        for client in self._clients:
            await client.aclose()


async def work(fleet: Pumps | Clients) -> None:
    """Take part, and print what was done between the two moments of the monotonic clock that the input names."""
    await fleet.open()
    print("ready", flush=True)
    # The workers go on meanwhile.
    begin_s, end_s = map(float, (await asyncio.to_thread(sys.stdin.readline)).split())
    fleet.start()
    await asyncio.sleep(begin_s - time.monotonic())
    before = fleet.so_far()
    await asyncio.sleep(end_s - time.monotonic())
    after = fleet.so_far()
    times = random.sample(after.exchange_ms, min(SAMPLES, len(after.exchange_ms)))
    done = Done(after.requests - before.requests, after.exchanges - before.exchanges, after.cpu_s - before.cpu_s, times)
    print(json.dumps(asdict(done)), flush=True)
    await fleet.close()


def main() -> None:
    """Work as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="of the Redis server")
    parser.add_argument("process", type=int, help="number of this process")
    parser.add_argument("workers", type=int, help="how many are in this process")
    parser.add_argument("--page-s", type=float, default=0.0, help="seconds that a page takes")
    parser.add_argument("--places", type=int, default=CONCURRENCY, help="pages at a time of each worker")
    parser.add_argument("--known", type=int, default=0, help="known requests that a page brings besides a new one")
    parser.add_argument("--wait-replicas", type=int, default=0, help="replicas that must have what was sent")
    parser.add_argument("--plain", type=int, metavar="SIZE", help="plain commands, for that many requests at a time")
    parser.add_argument("--priorities", type=int, default=1, help="that new requests have in turn")
    options = parser.parse_args()
    requests = new_requests(options.process, options.priorities)
    if options.plain:
        fleet: Pumps | Clients = Clients(options.url, options.workers, requests, options.plain)
    else:
        fleet = Pumps(
            options.url,
            options.process,
            options.workers,
            requests,
            options.page_s,
            places=options.places,
            known=options.known,
            wait_replicas=options.wait_replicas,
        )
    asyncio.run(work(fleet))


if __name__ == "__main__":
    main()
