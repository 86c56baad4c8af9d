"""Data of a host is deleted when it has no effect any more, so it doesn't grow with the number of hosts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from scrapy_prioqueue.frontier.base import Push, Spent
from scrapy_prioqueue.frontier.labels import Label, labelled
from scrapy_prioqueue.frontier.policy import Budget, Closing, CrawlDelay, Latency, Note, Policy, SlotLimit, Throttle
from scrapy_prioqueue.frontier.redis.keys import Keys
from tests.contract.backends import RedisBackend, ack
from tests.lua.scripts import Scripts, leases_of
from tests.support.servers import RedisServer

HOSTS = 100
MOST_DELAYS = 20_000

POLICY = Policy(
    slots={"*": SlotLimit(delay=0.01, concurrency=2)},
    throttle=Throttle(),
    awaits_crawl_delay=True,
    weights=(1,),
    budgets={"*": Budget(pages=9)},
)


class Crawl(Scripts):
    """A crawl that has one page of each host, some hosts at a time."""

    def __init__(self, server: RedisServer, name: str) -> None:
        super().__init__(server, name)
        self.policy = POLICY
        self.join()
        self.batch, self.hosts = 0, 0
        self.client.hset(self.keys.of("delays"), mapping={f"cidle-{number}": 0 for number in range(MOST_DELAYS)})

    def visit(self) -> None:
        """Visit hosts that are new, in two minutes."""
        hosts = [f"host-{self.hosts + number}.example" for number in range(HOSTS)]
        self.hosts += HOSTS
        payloads = [labelled(b"page", Label(is_rendered=True, keys=[host])) for host in hosts]
        self.commit_next(*(("P", 0, host, 0, each, "", "", "") for host, each in zip(hosts, payloads, strict=True)))
        leases = leases_of(self.lease(HOSTS))
        assert len(leases) == HOSTS
        for kind, value in (("C", "10"), ("L", "500,1"), ("W", "1000")):
            self.call("note", self.epoch, *(part for host in hosts for part in (kind, host, value)))
        self.commit_next(*(("A", *lease, "1000,20") for lease in leases))
        self.now_ms += 120_000
        self.lease(0)

    def commit_next(self, *operations: Any) -> None:
        self.batch += 1
        self.commit(self.batch, *operations)

    def sizes(self) -> Mapping[str, int]:
        """Return how many members and fields there are, by the noun of their keys."""
        client: Any = self.client
        sizes: dict[str, int] = {}
        for key in client.scan_iter(self.keys.pattern(), count=1000):
            noun, kind = self.keys.noun(key), client.type(key)
            if noun == "served":
                # The server drops it by its own clock.
                assert 0 < client.ttl(key) <= 75
                continue
            count = {b"hash": "HLEN", b"zset": "ZCARD", b"set": "SCARD"}[kind]
            sizes[noun] = sizes.get(noun, 0) + client.execute_command(count, key)
        return sizes


def test_hosts_whose_pages_are_done_leave_nothing_but_what_they_have_used(
    redis_server: RedisServer, frontier_name: str
) -> None:
    crawl = Crawl(redis_server, frontier_name)
    found = []
    for _ in range(4):
        crawl.visit()
        found.append(dict(crawl.sizes()))

    used = [sizes.pop("used") for sizes in found]
    assert used == [4 * HOSTS * number for number in range(1, 5)]
    assert found[-1].pop("delays") <= MOST_DELAYS + HOSTS
    assert found[-1] == {noun: size for noun, size in found[-2].items() if noun != "delays"}
    assert sum(found[-1].values()) < 3 * HOSTS


def test_nothing_of_any_host_is_left_after_a_crawl(redis_server: RedisServer, frontier_name: str) -> None:
    with closing(RedisBackend(frontier_name, redis_server.url)) as backend:
        worker = backend.join("w1", policy=POLICY)
        page = labelled(b"page", Label(is_rendered=True, keys=["a.example"]))
        worker.commit(Push(0, "a.example", page))
        worker.commit(*(ack(lease, Spent(1000, 20)) for lease in worker.lease(1)))
        notes: list[Note] = [CrawlDelay("a.example", 10), Closing("a.example", 1000)]
        notes.append(Latency("a.example", 500, is_success=True))

        assert worker.ask(is_idle=True, notes=notes).has_ended
        worker.leave()

    keys = Keys(frontier_name)
    left = {keys.noun(key) for key in redis_server.client().scan_iter(keys.pattern(), count=1000)}
    assert left == {"state", "stats", "limits", "budgets"}
