"""Items are written to a server in order and in batches; errors of the server, and closing with unwritten items."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.exceptions import DropItem
from scrapy.utils.test import get_crawler
from twisted.internet.defer import Deferred

from scrapy_prioqueue.compat import pipelines
from scrapy_prioqueue.compat.pipelines import BATCH_SIZE, ItemWriter
from scrapy_prioqueue.frontier.redis.items import ItemData, ItemTooLarge, RedisItems
from tests.support.coroutines import run
from tests.support.servers import RedisServer, StartServer
from tests.support.waiting import wait_until_async

WITHIN_S = 20.0


class Counted(RedisItems):
    """Notes how many items each round trip takes."""

    def __init__(self, url: str, *, as_stream: bool = False) -> None:
        super().__init__(url, timeout_s=0.5, options={}, as_stream=as_stream, spider="books")
        self.sizes: list[int] = []

    async def append(self, entries: Sequence[ItemData]) -> Sequence[Exception | None]:
        self.sizes.append(len(entries))
        return await super().append(entries)


class Bench:
    """A writer, what it was given and what became of it."""

    def __init__(self, items: Counted) -> None:
        self.items = items
        self.crawler: Crawler = get_crawler(Spider)
        self.is_closing = False
        self.writer = ItemWriter(self.crawler, items, is_closing=lambda: self.is_closing, patience_s=0.2)
        self.settled: list[object] = []

    def write(self, *texts: str, key: str = "items") -> None:
        for text in texts:
            written = self.writer.write(ItemData(key, text.encode()))
            written.addCallbacks(lambda _, text=text: text, lambda failure: failure.value)
            written.addCallback(self.settled.append)

    async def until_settled(self, count: int) -> None:
        async def are() -> bool:
            return len(self.settled) == count

        await wait_until_async(are, what=f"{count} items are settled", within=WITHIN_S)

    async def until_failed(self, attempts: int = 2) -> None:
        async def has() -> bool:
            return len(self.items.sizes) >= attempts

        await wait_until_async(has, what=f"{attempts} attempts", within=WITHIN_S)

    async def close(self) -> None:
        closed: Deferred[Any] = self.writer.close()
        await closed.asFuture(asyncio.get_running_loop())

    def stat(self, name: str) -> Any:
        assert self.crawler.stats is not None
        return self.crawler.stats.get_value(f"prioqueue/items/{name}", 0)


def writing(test: Callable[[Bench], Awaitable[None]], server: RedisServer, *, as_stream: bool = False) -> None:
    """Run a test with a writer to a server."""

    async def all_of_it() -> None:
        bench = Bench(Counted(server.url, as_stream=as_stream))
        await test(bench)
        await bench.close()

    run(all_of_it(), within=40)


@pytest.fixture(autouse=True)
def attempts_are_frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "RETRY_S", 0.05)


@pytest.fixture
def server(redis_server_factory: StartServer) -> RedisServer:
    """A server that this test may trouble."""
    return redis_server_factory()


def listed(server: RedisServer, key: str = "items") -> list[str]:
    found: Any = server.client().lrange(key, 0, -1)
    return [each.decode() for each in found]


TEXTS = [str(number) for number in range(3 * BATCH_SIZE)]


def test_items_are_written_in_order_and_in_batches(server: RedisServer) -> None:
    async def test(bench: Bench) -> None:
        bench.write(*TEXTS)
        bench.write("other", key="others")
        await bench.until_settled(len(TEXTS) + 1)

        assert bench.settled == [*TEXTS, "other"]
        assert bench.items.sizes == [1, BATCH_SIZE, BATCH_SIZE, BATCH_SIZE]
        assert bench.stat("written") == len(TEXTS) + 1

    writing(test, server)

    assert listed(server) == TEXTS
    assert listed(server, "others") == ["other"]


def test_bytes_bound_a_batch_too(server: RedisServer) -> None:
    async def test(bench: Bench) -> None:
        bench.write("first", *["x" * 2**19] * 4, "y" * 2**21)
        await bench.until_settled(6)

        assert bench.items.sizes == [1, 2, 2, 1]

    writing(test, server)


def test_items_are_written_to_a_stream(server: RedisServer) -> None:
    async def test(bench: Bench) -> None:
        bench.write(*TEXTS)
        await bench.until_settled(len(TEXTS))

    writing(test, server, as_stream=True)

    entries: Any = server.client().xrange("items")
    assert [fields for _, fields in entries] == [{b"item": text.encode()} for text in TEXTS]


def test_items_wait_for_a_server_that_is_away(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    async def test(bench: Bench) -> None:
        bench.write("0")
        await bench.until_settled(1)
        server.kill()
        bench.write(*TEXTS[1:])
        await bench.until_failed(3)
        assert bench.settled == ["0"]

        server.start()
        await bench.until_settled(len(TEXTS))

    with caplog.at_level(logging.INFO):
        writing(test, server)

    assert listed(server) == TEXTS[1:]
    assert caplog.text.count("Items are not written to redis://") == 1
    assert "Items are written again" in caplog.text


def test_items_wait_for_a_key_of_another_type_and_others_do_not(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    client: Any = server.client()
    client.set("items", "something else")

    async def test(bench: Bench) -> None:
        bench.write("0")
        bench.write("other", key="others")
        bench.write("1")
        await bench.until_settled(1)
        assert bench.settled == ["other"]

        client.delete("items")
        await bench.until_settled(3)

    writing(test, server)

    assert listed(server) == ["0", "1"]
    assert "the key items is no list: rename or delete it, or set REDIS_ITEMS_KEY" in caplog.text


def test_items_wait_for_a_full_server(server: RedisServer) -> None:
    client: Any = server.client()
    client.config_set("maxmemory", 1)

    async def test(bench: Bench) -> None:
        bench.write("0")
        await bench.until_failed()
        client.config_set("maxmemory", 0)
        await bench.until_settled(1)

    writing(test, server)

    assert listed(server) == ["0"]


def test_an_item_that_the_server_never_takes_fails_alone(server: RedisServer) -> None:
    client: Any = server.client()
    client.config_set("proto-max-bulk-len", 2**20)

    async def test(bench: Bench) -> None:
        bench.write("0", "x" * (2**20 + 1), "1")
        await bench.until_settled(3)

        assert sorted(str(type(each).__name__) for each in bench.settled) == ["ItemTooLarge", "str", "str"]
        assert any(isinstance(each, ItemTooLarge) for each in bench.settled)
        assert (bench.stat("written"), bench.stat("failed")) == (2, 1)

    writing(test, server)

    assert listed(server) == ["0", "1"]


def test_waiting_items_are_written_at_the_end(server: RedisServer) -> None:
    async def test(bench: Bench) -> None:
        bench.write(*TEXTS)
        await bench.close()

        assert bench.settled == TEXTS

    writing(test, server)


def test_items_that_can_not_be_written_at_the_end_fail(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    async def test(bench: Bench) -> None:
        server.kill()
        bench.write("0", "1")
        await bench.until_failed()
        await bench.close()

        assert [type(each) for each in bench.settled] == [DropItem, DropItem]
        assert [each.log_level for each in bench.settled if isinstance(each, DropItem)] == ["DEBUG", "DEBUG"]
        assert bench.stat("failed") == 2

    writing(test, server)

    assert "Closing without 2 items, which could not be written to redis://" in caplog.text


def test_a_spider_that_is_being_closed_does_not_wait_for_ever(server: RedisServer) -> None:
    async def test(bench: Bench) -> None:
        server.kill()
        bench.write("0")
        bench.is_closing = True
        await bench.until_settled(1)

        assert isinstance(bench.settled[0], DropItem)

    writing(test, server)
