"""A worker that was suspended for so long that the server has forgotten it."""

from __future__ import annotations

from scrapy_prioqueue.errors import CrawlEnded
from scrapy_prioqueue.frontier.base import Batch, Demand
from tests.contract.backends import TTL_S, RedisBackend, push

SILENCE_S = 11 * TTL_S


def test_it_hears_that_its_crawl_has_ended(backend: RedisBackend) -> None:
    worker, silent = backend.join("w1", crawl_id="c1"), backend.join("w2", crawl_id="c1")
    backend.clock.advance(SILENCE_S)
    assert worker.ask(1, is_idle=True).has_ended
    worker.leave()

    assert silent.ask(1).has_ended
    answer = silent.exchange(Batch(1, [push("late")]), demand=Demand(1))

    assert answer.has_ended
    assert isinstance(answer.rejection, CrawlEnded)
