"""Joining a crawl with a short time-out, as a worker does: again and again."""

from __future__ import annotations

from scrapy_prioqueue.errors import FrontierUnavailable
from scrapy_prioqueue.frontier.base import Frontier
from tests.support.coroutines import run
from tests.support.waiting import wait_until


def join_in_time(frontier: Frontier) -> None:
    """Join; a busy server may take longer to load the scripts than one call may last."""

    def has_joined() -> bool:
        try:
            run(frontier.join())
        except FrontierUnavailable:
            return False
        return True

    wait_until(has_joined, what="the worker has joined", within=20)
