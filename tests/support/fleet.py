"""A supervisor that starts and stops workers as it is advised, as an autoscaler does."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from scrapy_prioqueue.monitoring.scaling import Advice
from tests.support.crawls import Crawl
from tests.support.waiting import wait_until

EVERY_S = 0.5


class Fleet:
    """Workers of one crawl.

    Args:
        start: starts a worker.
        advise: says how many are useful.
    """

    def __init__(self, start: Callable[[], Crawl], advise: Callable[[], Advice]) -> None:
        self._start = start
        self._advise = advise
        self._next_s = 0.0
        self.workers: list[Crawl] = []
        self.stopped: list[Crawl] = []
        self.advice: list[Advice] = []

    def follow_until(self, condition: Callable[[Advice], bool], *, what: str, within: float) -> list[Advice]:
        """Do as advised until a condition holds, and return the advice since then."""
        first = len(self.advice)

        def step() -> bool:
            if time.monotonic() < self._next_s:
                return False
            self._next_s = time.monotonic() + EVERY_S
            self.advice.append(self._advise())
            # Workers close by themselves at the end; SIGTERM would cut Scrapy's close short.
            if self.advice[-1].bound_by != "ended":
                self._follow(self.advice[-1].workers)
            return condition(self.advice[-1])

        wait_until(step, what=what, within=within)
        return self.advice[first:]

    def _follow(self, number: int) -> None:
        running = [worker for worker in self.workers if worker not in self.stopped and worker.process.is_running]
        for worker in running[number:]:
            worker.process.send(signal.SIGTERM)
            self.stopped.append(worker)
        self.workers += [self._start() for _ in range(number - len(running))]
