"""Crawls of the real scrapy-redis, moved by `scrapy frontier migrate-from-scrapy-redis`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from redis import Redis
from scrapy import FormRequest, Request, Spider

from scrapy_prioqueue.codec.detached import DetachedCodec
from tests.commands.conftest import Run
from tests.contract.backends import RedisBackend, ack
from tests.support.servers import RedisServer

queue = pytest.importorskip("scrapy_redis.queue")
dupefilter = pytest.importorskip("scrapy_redis.dupefilter")

TIERS = ("urgent", "high", "normal", "low")
VERB = "migrate-from-scrapy-redis"


class Shop(Spider):
    """Whose requests are moved."""

    name = "shop"

    def parse_product(self, response: Any) -> None:
        """Do nothing."""


def page(number: int, **parts: Any) -> Request:
    return Request(f"http://shop.example/{number}?b=2&a=1#top", **parts)


class Theirs:
    """A crawl of scrapy-redis."""

    def __init__(self, client: Redis, name: str) -> None:
        self.client, self.name = client, name
        self.filter = dupefilter.RFPDupeFilter(client, f"{name}:dupefilter")

    def fill(self, requests: Sequence[Request], kind: Any = queue.PriorityQueue, serializer: Any = None) -> None:
        """Schedule requests as scrapy-redis's scheduler does."""
        theirs = kind(self.client, Shop(), f"{self.name}:requests", serializer)
        for request in requests:
            if request.dont_filter or not self.filter.request_seen(request):
                theirs.push(request)

    def stored(self) -> dict[str, Any]:
        """Return everything that there is of it."""
        return {key: self.client.dump(key) for key in (f"{self.name}:requests", f"{self.name}:dupefilter")}


@pytest.fixture
def theirs(redis_server: RedisServer, frontier_name: str) -> Iterator[Theirs]:
    theirs = Theirs(redis_server.client(), frontier_name)
    yield theirs
    theirs.client.delete(*theirs.stored())


def served(backend: RedisBackend) -> list[Request]:
    """Return all requests of the frontier in the order in which they are served."""
    worker, codec = backend.join("w1", clock=None, max_attempts=9, tiers=TIERS), DetachedCodec()
    found: list[Request] = []
    while leases := worker.lease(1):
        found += [codec.decode(lease.payload, lease.slot) for lease in leases]
        worker.send(*map(ack, leases), demand=None)
    return found


def test_a_sorted_set_of_pickles_goes_on_in_the_same_order(theirs: Theirs, run: Run, backend: RedisBackend) -> None:
    requests = [page(number, priority=number % 5, meta={"depth": number}) for number in range(120)]
    requests.append(FormRequest("http://shop.example/form", formdata={"q": "1"}, priority=99))
    theirs.fill([*requests, page(3), page(119, dont_filter=True)])
    before = theirs.stored()

    done = run(VERB, "--allow-pickle")

    assert done.code == 0, done.err
    assert "122 of 122 pending requests and 121 of 121 fingerprints" in done.out
    assert theirs.stored() == before
    ours, expected = served(backend), []
    theirs_queue = queue.PriorityQueue(theirs.client, Shop(), f"{theirs.name}:requests")
    while (request := theirs_queue.pop()) is not None:
        expected.append(request)
    assert [request.to_dict() for request in ours] == [request.to_dict() for request in expected]
