"""When seeds are taken, and the log lines about failures; in virtual time, with a list instead of Redis."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import pytest

from scrapy_prioqueue.errors import FrontierRefused, FrontierUnavailable
from scrapy_prioqueue.frontier.seeds import Seed, SeedStore, Taken
from scrapy_prioqueue.runtime import AsyncioRunner
from scrapy_prioqueue.seeds.reader import POLL_S, REFUSED_RETRY_S, Reader
from tests.unit.virtual_time import pass_time, run_in_virtual_time, until

BATCH_SIZE = 100


class ListStore(SeedStore):
    """Holds seeds in this process, and fails on demand."""

    def __init__(self, count: int = 0) -> None:
        self.left = [Seed("key", str(number), b"") for number in range(count)]
        self.settled: list[Seed] = []
        self.limits: list[int] = []
        self.error: Exception | None = None
        self.wrong_types: dict[str, str] = {}
        self.is_closed = False
        self.answers = asyncio.Event()
        self.answers.set()

    async def exchange(self, settled: Sequence[Seed], limit: int) -> Taken:
        self.limits.append(limit)
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        self.settled += settled
        taken, self.left = self.left[:limit], self.left[limit:]
        return Taken(taken, sees_more=bool(taken), wrong_types=self.wrong_types)

    async def leave(self, settled: Sequence[Seed]) -> int:
        await self.answers.wait()
        self.settled += settled
        return 0

    async def close(self) -> None:
        self.is_closed = True


class SeedDelegate:
    """Stores requests at once, or on demand."""

    def __init__(self, *, settles: bool = True) -> None:
        self.settles = settles
        self.taken: list[Seed] = []
        self.is_full = False
        self.plenty = False
        self.empties = 0
        self.reader: Reader

    def has_room(self) -> bool:
        return not self.is_full

    def has_plenty(self) -> bool:
        return self.plenty

    def take(self, seeds: Sequence[Seed]) -> None:
        self.taken.extend(seeds)
        if self.settles:
            for seed in seeds:
                self.reader.settle(seed)

    def note_seeds(self) -> None:
        """Do nothing."""

    def note_empty(self) -> None:
        self.empties += 1

    def count(self, stat: str, change: int = 1) -> None:
        """Count nothing."""


def reading(test: Callable[[ListStore, SeedDelegate, Reader], object], count: int = 0, *, settles: bool = True) -> None:
    """Run a test, a coroutine function, with a reader of so many seeds."""

    async def run() -> None:
        store, delegate = ListStore(count), SeedDelegate(settles=settles)
        reader = delegate.reader = Reader(
            store, AsyncioRunner, delegate, BATCH_SIZE, clock=asyncio.get_running_loop().time
        )
        await test(store, delegate, reader)  # type: ignore[misc]
        reader.stop()
        await reader.close(5.0).asFuture(asyncio.get_running_loop())
        assert store.is_closed

    run_in_virtual_time(run())


def logged(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return what the package has logged; asyncio logs at DEBUG where a test before has set that level."""
    return [record for record in caplog.records if record.name.startswith("scrapy_prioqueue")]


def test_an_idle_worker_looks_once_a_second() -> None:
    async def test(store: ListStore, delegate: SeedDelegate, reader: Reader) -> None:
        reader.start()
        await pass_time(10 * POLL_S + 0.5)

        assert store.limits == [BATCH_SIZE] * 11
        assert not reader.is_busy
        assert delegate.empties == 1

    reading(test)


def test_a_hungry_worker_takes_batch_after_batch_and_says_what_is_settled() -> None:
    async def test(store: ListStore, delegate: SeedDelegate, reader: Reader) -> None:
        reader.start()
        await until(lambda: len(store.settled) == 950, what="all are settled", within=3)

        await pass_time(3 * POLL_S)
        assert (len(delegate.taken), delegate.empties) == (950, 0)

    reading(test, 950)


def test_a_worker_with_plenty_takes_a_batch_a_second() -> None:
    async def test(store: ListStore, delegate: SeedDelegate, reader: Reader) -> None:
        delegate.plenty = True
        reader.start()
        await pass_time(2 * POLL_S + 0.5)
        assert len(delegate.taken) == 3 * BATCH_SIZE

        delegate.plenty = False
        await pass_time(0.5)
        assert len(delegate.taken) >= 4 * BATCH_SIZE

    reading(test, 5000)


def test_nothing_is_taken_where_there_is_no_room_and_soon_where_there_is_again() -> None:
    async def test(store: ListStore, delegate: SeedDelegate, reader: Reader) -> None:
        delegate.is_full = True
        reader.start()
        await pass_time(5)
        assert (store.limits, reader.is_busy) == ([], True)

        delegate.is_full = False
        await pass_time(0.3)
        assert len(delegate.taken) == 10

    reading(test, 10)


def test_entries_that_are_not_stored_are_not_deleted() -> None:
    async def test(store: ListStore, delegate: SeedDelegate, reader: Reader) -> None:
        reader.start()
        await pass_time(3)
        assert (len(delegate.taken), store.settled) == (3, [])

        reader.settle(delegate.taken[1])
        await pass_time(0.2)
        assert store.settled == [delegate.taken[1]]

    reading(test, 3, settles=False)


def test_ends_that_could_not_be_sent_are_sent_later() -> None:
    async def test(store: ListStore, delegate: SeedDelegate, reader: Reader) -> None:
        reader.start()
        await pass_time(0.05)
        store.error = FrontierUnavailable("here", "gone")
        await pass_time(10)
        store.error = None
        await pass_time(3)

        assert store.settled == delegate.taken
        assert len(delegate.taken) == 3

    reading(test, 3)


def test_an_outage_and_its_end_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test(store: ListStore, delegate: SeedDelegate, reader: Reader) -> None:
        store.error = FrontierUnavailable("here", "gone")
        reader.start()
        await pass_time(60)
        assert (reader.is_busy, reader.is_refused) == (True, False)
        store.error = None
        await pass_time(5)

    with caplog.at_level("INFO"):
        reading(test)

    assert [record.getMessage().partition(":")[0] for record in logged(caplog)] == [
        "Seeds are not read for now",
        "Seeds are read again",
    ]


def test_errors_that_do_not_pass_are_logged_once_and_seldom_retried(caplog: pytest.LogCaptureFixture) -> None:
    async def test(store: ListStore, delegate: SeedDelegate, reader: Reader) -> None:
        store.error = FrontierRefused("here", "no rights")
        reader.start()
        await pass_time(10 * REFUSED_RETRY_S + 1)

        assert len(store.limits) == 11
        assert (reader.is_busy, reader.is_refused) == (False, True)
        store.error = None
        await pass_time(REFUSED_RETRY_S)
        assert not reader.is_refused

    reading(test)

    assert len(logged(caplog)) == 1
    assert "no rights" in caplog.text


def test_an_unexpected_error_is_logged_once_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def test(store: ListStore, delegate: SeedDelegate, reader: Reader) -> None:
        store.error = ZeroDivisionError("bug")
        reader.start()
        await pass_time(10 * REFUSED_RETRY_S + 1)

    reading(test)

    assert caplog.text.count("Traceback") == 1


def test_a_key_of_another_type_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test(store: ListStore, delegate: SeedDelegate, reader: Reader) -> None:
        store.wrong_types = {"key": "stream"}
        reader.start()
        await pass_time(60)

        assert (reader.is_busy, reader.is_refused) == (False, True)

    reading(test)

    assert len(logged(caplog)) == 1
    assert "key is a stream" in caplog.text


def test_entries_that_arrive_after_the_stop_are_left_to_be_put_back() -> None:
    async def test(store: ListStore, delegate: SeedDelegate, reader: Reader) -> None:
        store.answers.clear()
        reader.start()
        await pass_time(0.1)
        reader.stop()
        store.answers.set()
        await pass_time(5)

        assert delegate.taken == []
        assert len(store.limits) == 1

    reading(test, 3)


@pytest.mark.parametrize("waited_s", [0.1, 5.0])
def test_a_server_that_does_not_answer_delays_the_end_for_so_long_only(
    caplog: pytest.LogCaptureFixture, waited_s: float
) -> None:
    async def test(store: ListStore, delegate: SeedDelegate, reader: Reader) -> None:
        reader.start()
        await pass_time(0.1)
        store.answers.clear()
        await pass_time(waited_s)

    with caplog.at_level("INFO"):
        reading(test)

    assert "are put back later (no answer within" in caplog.text
    assert "(PRIOQUEUE_CLOSE_TIMEOUT)" in caplog.text
