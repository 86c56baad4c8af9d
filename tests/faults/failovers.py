"""Failovers during a crawl of two workers, in three ways, and how long they take."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

from scrapy_prioqueue.frontier.redis.keys import Keys
from tests.support.sentinels import Watched
from tests.support.servers import RedisServer
from tests.support.shop import WITHIN_S
from tests.support.waiting import wait_until

WORKERS = ("worker-1", "worker-2")

_PROMOTED = re.compile(r"^\S+ (\d+ \w+ \d{4} [\d:.]+) \* MASTER MODE enabled", re.MULTILINE)


def kill(watched: Watched) -> None:
    """Kill the primary."""
    watched.primary.kill()


def freeze(watched: Watched) -> None:
    """Stop the primary, which takes itself for the primary when it continues."""
    watched.primary.freeze()


def lose_machine(watched: Watched) -> None:
    """Stop the primary and a Sentinel, as if their machine were gone."""
    primary = watched.primary
    watched.sentinels[-1].freeze()
    primary.freeze()


def order(watched: Watched) -> None:
    """Let a Sentinel promote a replica, although nothing is wrong."""
    watched.order_failover()


Fault = Callable[[Watched], None]

FAULTS: Mapping[str, Fault] = {"kill": kill, "freeze": freeze, "machine": lose_machine, "order": order}


@dataclass(frozen=True, slots=True)
class Failover:
    """Times of a failover in seconds.

    Args:
        promoted_after_s: from the fault to the promotion.
        back_after_s: from the promotion to the first exchange that has succeeded, of each worker.
    """

    promoted_after_s: float
    back_after_s: Sequence[float]


class Failovers:
    """Replaces the primary of a crawl.

    Args:
        fault: what happens to it.
    """

    def __init__(self, watched: Watched, frontier_name: str, fault: Fault) -> None:
        self._watched = watched
        self._workers_key = Keys(frontier_name).workers
        self._fault = fault
        self.made: list[Failover] = []

    def __str__(self) -> str:
        return failovers_text(self.made)

    def make(self) -> None:
        """Cause a failover, wait until all workers are back, and let the old primary continue."""
        old = self._watched.primary
        others = [server for server in self._watched.servers if server is not old]
        promotions = {server: len(_promotions_ms(server)) for server in others}
        begun_ms = datetime.now().timestamp() * 1000
        self._fault(self._watched)

        def promoted() -> RedisServer | None:
            return next((server for server in others if len(_promotions_ms(server)) > promotions[server]), None)

        new = wait_until(promoted, what="a replica is promoted", within=WITHIN_S)
        assert new is not None
        promoted_ms = _promotions_ms(new)[-1]
        back = back_ms(self._watched.server_client(new), self._workers_key, promoted_ms)
        if not old.is_running:
            old.start()
        for process in (old, *self._watched.sentinels):
            process.thaw()
        back_after_s = [(at_ms - promoted_ms) / 1000 for at_ms in back.values()]
        self.made.append(Failover((promoted_ms - begun_ms) / 1000, back_after_s))


def failovers_text(made: Sequence[Failover]) -> str:
    """Return how long failovers took."""
    if not made:
        return "no failover"
    promoted = sorted(each.promoted_after_s for each in made)
    back = sorted(after_s for each in made for after_s in each.back_after_s)
    return f"{len(made)} failovers: promoted after {_spread(promoted)} s, each worker back {_spread(back)} s later"


def _spread(values: Sequence[float]) -> str:
    return f"{values[0]:.2f} to {values[-1]:.2f} (median {median(values):.2f})"


def _promotions_ms(server: RedisServer) -> list[float]:
    times = _PROMOTED.findall(server.log)
    return [datetime.strptime(time, "%d %b %Y %H:%M:%S.%f").timestamp() * 1000 for time in times]


def back_ms(client: Any, workers_key: str, promoted_ms: float) -> Mapping[str, float]:
    """Return when a server has first heard of each worker since its promotion."""
    back: dict[str, float] = {}

    def are_back() -> bool:
        for name, heard_ms in client.zrange(workers_key, 0, -1, withscores=True):
            if heard_ms > promoted_ms:
                back.setdefault(name.decode(), heard_ms)
        return len(back) == len(WORKERS)

    wait_until(are_back, what="all workers are back", within=WITHIN_S)
    return back
