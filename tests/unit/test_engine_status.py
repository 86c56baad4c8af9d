"""Telnet's `est()` shows how many requests wait, as for Scrapy's own scheduler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import Request
from scrapy.utils.engine import get_engine_status
from scrapy.utils.test import get_crawler

from scrapy_prioqueue.queues.base import ClosedQueue
from scrapy_prioqueue.scheduler import Scheduler


class FullQueue(ClosedQueue):
    """Some requests here, and some in the server."""

    outside = 5

    def next_request(self) -> Request | None:
        raise AssertionError("looking at it must take nothing")

    def __len__(self) -> int:
        return 7


@pytest.mark.parametrize(("queue", "counts"), [(FullQueue(), [5, 2]), (ClosedQueue(), [0, 0])], ids=["open", "closed"])
def test_waiting_requests_are_counted_in_the_status_of_the_engine(queue: ClosedQueue, counts: list[int]) -> None:
    unused: Any = None
    scheduler = Scheduler(get_crawler(), unused, unused)
    scheduler._queue = queue  # noqa: SLF001
    engine: Any = SimpleNamespace(scheduler=scheduler, _slot=SimpleNamespace(scheduler=scheduler))

    found = [value for test, value in get_engine_status(engine) if "dqs" in test or "mqs" in test]

    assert found == counts
