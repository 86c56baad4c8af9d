"""Some of a fleet's workers as one process, while their server goes away and comes back.

They have the connections of workers, and wait as workers do before they try again, but have no requests: a whole worker
takes several times as much of this process's time to come back, which would then set the pace, and not the server.

It prints "ready", goes on until its input ends, and prints when each of them was served again as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time

from scrapy_prioqueue.errors import FrontierUnavailable
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.servers import ServerChanged
from scrapy_prioqueue.pump.outage import Failures
from scrapy_prioqueue.pump.timing import BELL_RETRY_S, POLL_S
from scrapy_prioqueue.queues.recording import LAST_S

AT_ONCE = 50
"""Workers of a process that connect at the same time in the beginning."""

KEYS = Keys("bench")
CALL = ("renew", KEYS.state, ("", "1", "worker", "nonce", 0, 60_000))
"""A call that changes nothing."""


class Client:
    """The connections of one worker: of its exchanges, of its bell and of its records.

    Args:
        workers: how many there are in all.
    """

    def __init__(self, url: str, workers: int) -> None:
        self._exchanges, self._records = Connection(url), Connection(url)
        self._failures = Failures(time.monotonic, goes_on=True)
        self._workers = workers
        self._listening: asyncio.Future[None] | None = None
        self._bell_at = 0.0
        self.back_s = list[float]()
        """When each outage ended, by the monotonic clock."""

    async def open(self) -> None:
        """Connect."""
        await self._exchanges.run([CALL])
        self._listen()

    def _listen(self) -> None:
        if self._listening is not None and self._listening.done() and not self._listening.cancelled():
            self._listening.exception()
        if self._listening is None or self._listening.done():
            self._listening = asyncio.ensure_future(self._exchanges.listen(KEYS.bell, lambda: None))
            self._bell_at = time.monotonic() + BELL_RETRY_S * random.uniform(0.5, 1)

    async def exchange(self) -> None:
        """Exchange for ever, about as often as a worker that waits for work."""
        while True:
            now = time.monotonic()
            if self._failures.is_on:
                await asyncio.sleep(max(0.0, self._failures.retry_at - now))
            else:
                await asyncio.sleep(POLL_S * random.uniform(0.5, 1))
            try:
                await self._exchanges.run([CALL])
            except ServerChanged:
                continue
            except FrontierUnavailable as error:
                self._failures.begin(error, workers=self._workers)
                continue
            if self._failures.end(""):
                self.back_s.append(time.monotonic())
                self._listen()
            elif time.monotonic() > self._bell_at:
                self._listen()

    async def record(self) -> None:
        """Store records for ever."""
        while True:
            await asyncio.sleep(LAST_S * random.uniform(0.8, 1.2))
            try:
                await self._records.run([CALL])
            except FrontierUnavailable:
                continue


async def take_part(url: str, clients: int, workers: int) -> None:
    """Exchange until the input ends."""
    members = [Client(url, workers) for _ in range(clients)]
    for first in range(0, clients, AT_ONCE):
        await asyncio.gather(*(member.open() for member in members[first : first + AT_ONCE]))
    tasks = [asyncio.ensure_future(task) for member in members for task in (member.exchange(), member.record())]
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(json.dumps([at for member in members for at in member.back_s]), flush=True)
    for task in tasks:
        task.cancel()


def main() -> None:
    """Take part as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="of the Redis server")
    parser.add_argument("clients", type=int, help="how many workers are in this process")
    parser.add_argument("workers", type=int, help="how many there are in all")
    options = parser.parse_args()
    asyncio.run(take_part(options.url, options.clients, options.workers))


if __name__ == "__main__":
    main()
