"""A worker without a pump: it exchanges just what a benchmark tells it to."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from scrapy_prioqueue.frontier import open_frontier
from scrapy_prioqueue.frontier.base import Ack, Batch, Demand, Exchanged, Fail, FrontierConfig, Lease, Push
from scrapy_prioqueue.frontier.policy import Policy
from scrapy_prioqueue.pump.outbox import BATCH_SIZE

NAME = "bench"
TIERS = ("urgent", "high", "normal", "low")

TIMEOUT_S = 120.0
NO_POLICY = Policy()

Operations = Sequence[Push] | Sequence[Ack] | Sequence[Fail]


class Hand:
    """A worker of the frontier `NAME`.

    Args:
        url: of the Redis server.
        worker: its id.
    """

    def __init__(self, url: str, worker: str, *, policy: Policy = NO_POLICY, lease_ttl_s: float = 60.0) -> None:
        config = FrontierConfig(name=NAME, tiers=TIERS, worker=worker, policy=policy, lease_ttl_s=lease_ttl_s)
        self._frontier = open_frontier(config, url, timeout_s=TIMEOUT_S)
        self._numbers = count(1)

    async def join(self) -> None:
        """Enter the crawl."""
        await self._frontier.join()

    async def exchange(self, operations: Operations, demand: Demand | None = None) -> Exchanged:
        """Send operations, in as many batches as it takes, and return the answer."""
        pieces = [operations[first : first + BATCH_SIZE] for first in range(0, len(operations), BATCH_SIZE)]
        return await self._frontier.exchange([Batch(next(self._numbers), piece) for piece in pieces], demand)

    async def send(self, operations: Operations, size: int) -> None:
        """Send operations, so many with each exchange."""
        for first in range(0, len(operations), size):
            await self.exchange(operations[first : first + size])

    async def lease(self, number: int, demand: Demand) -> list[Lease]:
        """Lease until there are so many, or nothing is granted any more."""
        leases: list[Lease] = []
        while len(leases) < number and (granted := (await self.exchange((), demand)).leases):
            leases += granted
        return leases

    async def leave(self) -> None:
        """Give back what is held and disconnect."""
        await self._frontier.leave()
        await self.close()

    async def close(self) -> None:
        """Disconnect; what is held stays so until it expires."""
        await self._frontier.close()


def acks_of(leases: Sequence[Lease]) -> list[Ack]:
    """Return the acks of leases."""
    return [Ack(lease.lease_id, lease.attempt) for lease in leases]
