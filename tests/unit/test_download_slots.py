"""The slot of a request, and the free places of the downloader's slots when slots and delays change."""

from __future__ import annotations

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest
from scrapy import Request
from scrapy.core.downloader import Downloader
from scrapy.resolver import dnscache

from scrapy_prioqueue import download_slots
from scrapy_prioqueue.download_slots import SLOT_META, SOON_S, DownloadSlots, OwnSlot, names_slot
from tests.unit.pumping import in_loop_time
from tests.unit.virtual_time import in_virtual_time, pass_time

HOST = "shop.example"
PLACES = 8


class FakeDownloader:
    """Takes requests into slots, and ends downloads, as a test says.

    Args:
        delay: of slots that are made.
    """

    DOWNLOAD_SLOT = SLOT_META
    get_slot_key: Any = Downloader.get_slot_key

    def __init__(self, delay: float = 0.0) -> None:
        self.slots: dict[str, Any] = {}
        self.active: set[Request] = set()
        self.total_concurrency, self.domain_concurrency, self.ip_concurrency = 16, PLACES, 0
        self.per_slot_settings: dict[str, dict[str, Any]] = {}
        self._delay = delay

    def _get_slot(self, request: Request) -> tuple[str, Any]:
        key = self.get_slot_key(request)
        if key not in self.slots:
            concurrency = self.ip_concurrency or self.domain_concurrency
            slot = SimpleNamespace(concurrency=concurrency, delay=self._delay, latercall=None)
            slot.active, slot.transferring, slot.queue = set(), set(), deque()
            self.slots[key] = slot
        return key, self.slots[key]

    async def _wait_for_download(self, slot: Any, request: Request, answer: Any) -> None:
        """Has no effect here."""

    def enter(self, request: Request) -> None:
        """Begin to process a request: it goes through the middlewares."""
        self.active.add(request)

    def arrive(self, request: Request) -> None:
        """Put it into its slot, where it starts if it may."""
        key, slot = self._get_slot(request)
        request.meta[SLOT_META] = key
        slot.active.add(request)
        slot.queue.append((request, None))
        if slot.latercall is None and len(slot.transferring) < slot.concurrency:
            self.begin(slot)

    def begin(self, slot: Any) -> None:
        """Start what waits first in a slot."""
        request, answer = slot.queue.popleft()
        self._wait_for_download(slot, request, answer).close()
        slot.transferring.add(request)
        if slot.delay:
            slot.latercall = SimpleNamespace(
                _timer_handle=asyncio.get_running_loop().call_later(slot.delay, self._later, slot)
            )

    def _later(self, slot: Any) -> None:
        slot.latercall = None
        if slot.queue:
            self.begin(slot)

    def leave(self, request: Request) -> None:
        """End its download."""
        slot = self.slots[request.meta[SLOT_META]]
        slot.transferring.remove(request)
        slot.active.remove(request)
        self.active.remove(request)


class Bench:
    """Slots that are followed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, delay: float = 0.0) -> None:
        monkeypatch.setattr(download_slots, "monotonic", in_loop_time)
        self.downloader = FakeDownloader(delay)
        crawler = SimpleNamespace(engine=SimpleNamespace(downloader=self.downloader))
        self.slots = DownloadSlots(cast("Any", crawler))
        self.notices: list[float] = []
        self.slots.watch(self.slots.slot_of, lambda: self.notices.append(in_loop_time()))
        self._numbers = 0

    def download(self, count: int = 1, **meta: Any) -> list[Request]:
        """Bring requests into the downloader's slots."""
        requests = [self.request(**meta) for _ in range(count)]
        for request in requests:
            self.downloader.enter(request)
        for request in requests:
            self.downloader.arrive(request)
        return requests

    def request(self, **meta: Any) -> Request:
        """Make one."""
        self._numbers += 1
        return Request(f"https://{HOST}/{self._numbers}", meta=meta)

    def room(self, ahead: int = 0, **waiting: int) -> int:
        """Return how many requests of the host could be used."""
        default, room = self.slots.room({HOST: 0, **waiting}, ahead)
        return room.get(HOST, default)

    async def end(self, requests: list[Request], after_s: float) -> None:
        """End downloads that take so long."""
        await pass_time(after_s)
        for request in requests:
            self.downloader.leave(request)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_a_slot_takes_as_many_as_it_runs_and_none_to_wait_while_nothing_is_known_of_it(bench: Bench) -> None:
    bench.download(PLACES - 1)
    assert bench.slots.may_start(HOST)

    bench.download(1)
    assert not bench.slots.may_start(HOST)
    assert not bench.slots.may_wait(HOST)
    assert (bench.room(), bench.room(ahead=3)) == (0, 3)


@pytest.mark.parametrize(("page_s", "waiting"), [(0.04, PLACES), (1.0, 2), (10.0, 0)])
@in_virtual_time
async def test_as_many_wait_as_start_soon(bench: Bench, page_s: float, waiting: int) -> None:
    await bench.end(bench.download(PLACES), page_s)
    bench.download(PLACES)

    assert not bench.slots.may_start(HOST)
    assert bench.room() == waiting == min(PLACES, int(SOON_S * PLACES / page_s))


def test_requests_in_middlewares_count_for_the_slot_that_they_were_stored_under(bench: Bench) -> None:
    entering = [bench.request() for _ in range(PLACES)]
    for request in entering:
        bench.downloader.enter(request)
    assert not bench.slots.may_start(HOST)

    for number, request in enumerate(entering):
        request.meta[SLOT_META] = f"proxy-{number}"
        bench.downloader.arrive(request)

    assert bench.slots.may_start(HOST)
    assert bench.room() == PLACES
    assert len(bench.notices) == 1
    assert not names_slot(bench.request()) and names_slot(entering[0])


def test_a_request_that_a_middleware_answers_takes_no_place_any_more(bench: Bench) -> None:
    for request in [bench.request() for _ in range(PLACES)]:
        bench.downloader.enter(request)
        bench.downloader.active.remove(request)

    assert bench.room() == PLACES


def test_concurrency_is_read_each_time(bench: Bench) -> None:
    bench.download(2)
    slot = bench.downloader.slots[HOST]
    slot.concurrency = 2
    assert not bench.slots.may_start(HOST)

    slot.concurrency = 3
    assert bench.slots.may_start(HOST)
    bench.downloader.domain_concurrency = 5
    assert (bench.slots.concurrency(HOST), bench.slots.concurrency("new.example")) == (3, 5)


@in_virtual_time
async def test_a_download_counts_from_the_moment_that_it_is_started(bench: Bench) -> None:
    (request,) = bench.download()
    slot = bench.downloader.slots[HOST]
    slot.transferring.clear()

    bench.downloader._wait_for_download(slot, request, None).close()  # noqa: SLF001

    assert slot.transferring == ({request} if download_slots.STARTS_LATE else set())


@in_virtual_time
async def test_of_a_slot_with_a_long_delay_one_is_taken_when_it_may_start_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch, delay=60)
    assert bench.room() == 1
    bench.downloader.enter(first := bench.request())
    assert not bench.slots.may_start(HOST)
    bench.downloader.arrive(first)
    await pass_time(0.01)
    assert bench.notices == []
    assert (bench.slots.may_start(HOST), bench.slots.may_wait(HOST), bench.room(ahead=9)) == (False, False, 0)

    await pass_time(70)
    assert bench.notices == [pytest.approx(60 - SOON_S)]
    assert bench.room() == 1


@in_virtual_time
async def test_when_it_may_start_soon_a_request_waits_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, delay=60)
    bench.download()
    await pass_time(60 - SOON_S / 2)
    assert bench.slots.may_start(HOST)
    bench.download()
    assert not bench.slots.may_start(HOST)
    bench.notices.clear()

    await pass_time(SOON_S)
    assert len(bench.downloader.slots[HOST].transferring) == 2
    assert len(bench.notices) == 1
    assert bench.room() == 0


@in_virtual_time
async def test_with_short_delays_as_many_wait_as_start_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, delay=0.05)
    bench.download()

    assert bench.room() == 1 + round((SOON_S - 0.05) / 0.05)


@in_virtual_time
async def test_a_slot_of_long_pages_lets_none_wait_for_its_delay_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, delay=0.05)
    bench.downloader.domain_concurrency = 2
    bench.download(2)
    await pass_time(1)
    bench.notices.clear()

    assert (len(bench.downloader.slots[HOST].transferring), bench.room()) == (2, 0)
    await pass_time(1)
    assert bench.notices == []


@in_virtual_time
async def test_a_delay_that_is_raised_while_running_is_followed(bench: Bench) -> None:
    await bench.end(bench.download(PLACES), 0.04)
    bench.download(PLACES - 1)
    bench.downloader.slots[HOST].delay = 60
    assert bench.room() == 1

    bench.download()
    assert bench.room() == 0


def test_delays_of_slots_that_the_downloader_does_not_have_yet_are_those_of_settings(bench: Bench) -> None:
    bench.downloader.per_slot_settings = {"slow.example": {"delay": 60}, "few.example": {"concurrency": 2}}

    default, room = bench.slots.room({}, 5)

    assert default == PLACES + 5
    assert room == {"slow.example": 1, "few.example": 2 + 5}


# Which slot


def test_the_slot_that_the_downloader_has_chosen_is_not_one_that_the_user_has_named(bench: Bench) -> None:
    (request,) = bench.download()
    assert request.meta[SLOT_META] == HOST and type(request.meta[SLOT_META]) is OwnSlot

    copied = Request("https://other.example/", meta=request.meta)
    assert not names_slot(copied)
    assert bench.slots.slot_of(copied) == "other.example"
    assert copied.meta[SLOT_META] == HOST
    bench.downloader.arrive(copied)
    assert copied.meta[SLOT_META] == "other.example"


def test_a_slot_that_the_user_has_named_stays(bench: Bench) -> None:
    (request,) = bench.download(download_slot="own")

    copied = Request("https://other.example/", meta=request.meta)
    assert names_slot(copied)
    assert bench.slots.slot_of(copied) == "own"


def test_a_request_without_a_host_has_a_slot(bench: Bench) -> None:
    assert bench.slots.slot_of(Request("data:,")) == ""
    assert bench.slots.slot_of(Request("data:,", meta={SLOT_META: OwnSlot(HOST)})) == ""


def test_slots_by_address_are_those_of_the_hosts_that_requests_were_stored_under(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.downloader.ip_concurrency = 1
    monkeypatch.setitem(dnscache, HOST, "192.0.2.1")
    bench.download()

    assert list(bench.downloader.slots) == ["192.0.2.1"]
    assert not bench.slots.may_start(HOST)
    assert not bench.slots.may_start("192.0.2.1")
    assert bench.slots.may_start("other.example")
