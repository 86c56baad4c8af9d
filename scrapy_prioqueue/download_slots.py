"""The state of the downloader's slots and how many more requests they can use; the only use of its private state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scrapy import Request
from scrapy.core.downloader import Downloader
from scrapy.resolver import dnscache

from scrapy_prioqueue.runtime import Alarm, call_later

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

STARTS_LATE = hasattr(Downloader, "_wait_for_download")
"""Since 2.14 a download counts as running only when its coroutine begins, some turns of the loop after its start."""

SLOT_META = Downloader.DOWNLOAD_SLOT

WAITING_FOR_SLOT = "the download delay of its slot"
DOWNLOADING = "its download"
"""Stages of a request in the downloader, for messages."""

SOON_S = 0.25
"""A request that starts within this time may wait for it in the downloader, so that its slot has no gaps.

There it can't be released or yield to a better one, so requests with longer waits stay in the frontier.
"""

AFTER_S = 0.001
"""Seconds after which a request that was due to start has certainly started."""

_MEMORY = 8
"""Smoothing of the mean time that a slot's requests stay in the downloader: a new value counts one eighth."""

_MOST_REMEMBERED = 1000
"""Maximum number of slots whose mean times are kept, in addition to the downloader's own slots."""


class OwnSlot(str):
    """A download slot that the downloader has written into `meta`, because the user had set none.

    Redirects, and requests that copy their page's `meta`, inherit it although it may not be theirs.
    """

    __slots__ = ()


def names_slot(request: Request) -> bool:
    """Return whether the user has set the download slot of a request."""
    slot = request.meta.get(SLOT_META)
    return slot is not None and type(slot) is not OwnSlot


class _Active(set[Request]):
    """The downloader's set of requests, which reports additions and removals."""

    def __init__(
        self,
        requests: Iterable[Request],
        on_added: Callable[[Request], None],
        on_removed: Callable[[Request], None],
    ) -> None:
        super().__init__()
        self._on_added = on_added
        self._on_removed = on_removed
        for request in requests:
            self.add(request)

    def add(self, request: Request) -> None:
        if request not in self:
            set.add(self, request)
            self._on_added(request)

    def discard(self, request: Any) -> None:
        if request in self:
            self.remove(request)

    def remove(self, request: Request) -> None:
        # An abandoned request has been removed already and may still end.
        if request in self:
            set.remove(self, request)
            self._on_removed(request)


class _Stay:
    """One request in the downloader.

    Args:
        slot: its slot, or the expected one until it has arrived in a slot.
    """

    __slots__ = ("arrived_at", "slot")

    def __init__(self, slot: str) -> None:
        self.slot = slot
        self.arrived_at: float | None = None


class DownloadSlots:
    """Tracks Scrapy's download slots.

    A request counts for the slot under which it was stored until it has passed the downloader middlewares. From then on
    it counts for its actual slot, since a middleware may have set another one.
    """

    def __init__(self, crawler: Crawler) -> None:
        assert crawler.engine is not None
        self._crawler = crawler
        self._downloader: Any = crawler.engine.downloader
        self._is_by_host = type(self._downloader).get_slot_key is Downloader.get_slot_key
        self._stays: dict[Request, _Stay] = {}
        self._entering: dict[str, int] = {}
        self._paced: set[str] = set()
        self._stay_s: dict[str, float] = {}
        self._slot_of: Callable[[Request], str] = self.slot_of
        self._on_room: Callable[[], object] = lambda: None
        self._alarm = Alarm(lambda: monotonic(), lambda: self._on_room())

    def watch(self, slot_of: Callable[[Request], str], on_room: Callable[[], object]) -> None:
        """Begin to track requests.

        Args:
            slot_of: returns the slot under which a request was stored.
            on_room: called when a slot may have room although no download has ended.
        """
        downloader = self._downloader
        self._slot_of, self._on_room = slot_of, on_room
        downloader.active = _Active(downloader.active, self._added, self._removed)
        get_slot = downloader._get_slot

        def followed(request: Request, *others: Any) -> tuple[str, Any]:
            is_given = names_slot(request)
            if not is_given:
                request.meta.pop(SLOT_META, None)
            key, slot = get_slot(request, *others)
            self._arrived(request, key, slot)
            # The downloader writes the key into `meta`.
            return (key if is_given else OwnSlot(key)), slot

        downloader._get_slot = followed
        if STARTS_LATE:
            self._count_at_once()

    def _count_at_once(self) -> None:
        # Otherwise the first download that ends would start all waiting requests of its slot, since none counts yet.
        wait_for_download = self._downloader._wait_for_download

        def counted(slot: Any, request: Request, *others: Any) -> Any:
            slot.transferring.add(request)
            return wait_for_download(slot, request, *others)

        self._downloader._wait_for_download = counted

    def _added(self, request: Request) -> None:
        slot = self._key_of(self._slot_of(request))
        self._stays[request] = _Stay(slot)
        self._entering[slot] = self._entering.get(slot, 0) + 1

    def _arrived(self, request: Request, key: str, slot: Any) -> None:
        stay = self._stays.get(request)
        if stay is None or stay.arrived_at is not None:
            return
        makes_room = stay.slot != key and not self.may_start(stay.slot)
        self._has_entered(stay.slot)
        stay.slot, stay.arrived_at = key, monotonic()
        if makes_room:
            self._on_room()
        if slot.delay > 0:
            self._paced.add(key)
            # When it has started, the delay of the next one is known.
            call_later(0, lambda: self._room(key, slot, is_patient=False))

    def _removed(self, request: Request) -> None:
        stay = self._stays.pop(request)
        slot, arrived_at = stay.slot, stay.arrived_at
        if arrived_at is None:
            self._has_entered(slot)
            return
        seconds = monotonic() - arrived_at
        mean_s = self._stay_s.get(slot)
        self._stay_s[slot] = seconds if mean_s is None else mean_s + (seconds - mean_s) / _MEMORY
        if mean_s is None and len(self._stay_s) > _MOST_REMEMBERED + 2 * len(self._downloader.slots):
            self._stay_s = {name: mean for name, mean in self._stay_s.items() if name in self._downloader.slots}

    def _has_entered(self, slot: str) -> None:
        left = self._entering[slot] - 1
        if left:
            self._entering[slot] = left
        else:
            del self._entering[slot]

    # Choosing a slot

    def slot_of(self, request: Request) -> str:
        """Return the slot of a request: the one that the user has set, or its host."""
        meta = request.meta
        if not names_slot(request):
            end = request.url.find("/", 8)
            if end > 0 and self._is_by_host and not self._downloader.ip_concurrency:
                return _host_of(request.url[:end])
            if SLOT_META in meta:
                own = meta.pop(SLOT_META)
                try:
                    return str(self._downloader.get_slot_key(request))
                finally:
                    meta[SLOT_META] = own
        return str(self._downloader.get_slot_key(request))

    def _key_of(self, slot: str) -> str:
        """Return the downloader's slot for requests that are stored under another slot."""
        if not self._downloader.ip_concurrency:
            return slot
        # Requests are stored by host; once its address is known, the downloader uses that.
        return str(dnscache.get(slot, slot))

    def stage_of(self, request: Request) -> str | None:
        """Return the stage of a request in the downloader, for messages; None if it isn't there."""
        if request not in self._downloader.active:
            return None
        for slot in self._downloader.slots.values():
            if any(waiting is request for waiting, *_ in slot.queue):
                return WAITING_FOR_SLOT
            if request in slot.transferring:
                return DOWNLOADING
        return "a downloader middleware"

    # Room in slots

    @property
    def default_concurrency(self) -> int:
        """Number of requests of a slot that run at a time if nothing else is set."""
        return int(self._downloader.ip_concurrency or self._downloader.domain_concurrency)

    @property
    def _default_delay(self) -> float:
        delay: float | None = getattr(self._downloader, "_delay", None)  # since 2.18
        if delay is None:
            set_delay = self._crawler.settings.getfloat("DOWNLOAD_DELAY")
            delay = float(getattr(self._crawler.spider, "download_delay", set_delay))
        return delay

    def concurrency(self, slot: str) -> int:
        """Return the number of requests of a slot that the downloader runs at a time."""
        found = self._downloader.slots.get(slot)
        if found is not None:
            return int(found.concurrency)
        return int(self._downloader.per_slot_settings.get(slot, {}).get("concurrency", self.default_concurrency))

    def may_start(self, slot: str) -> bool:
        """Return whether one more request of a slot can start now, or as soon as its delay is over."""
        key = self._key_of(slot)
        found = self._downloader.slots.get(key)
        if found is None or found.delay > 0:
            return self._room(key, found, is_patient=False) > 0
        used = len(found.transferring) + len(found.queue) + self._entering.get(key, 0)
        return bool(used < found.concurrency)

    def may_wait(self, slot: str) -> bool:
        """Return whether one more request of a slot can start soon, and wait in the downloader until then."""
        key = self._key_of(slot)
        return self._room(key, self._downloader.slots.get(key), is_patient=True) > 0

    def room(self, waiting: Mapping[str, int], ahead: int) -> tuple[int, dict[str, int]]:
        """Return how many more requests of a slot could be used: the default, and by slot.

        Args:
            waiting: number of requests that wait to be started, by slot.
            ahead: number of requests that may wait in a slot without room.
        """
        room = {}
        slots = self._downloader.slots
        names = {stay.slot for stay in self._stays.values()}
        for slot in names.union(waiting, self._downloader.per_slot_settings, self._due_later()):
            key = self._key_of(slot)
            found = slots.get(key)
            # None for a slot with a delay, since an exchange is made in time before it opens.
            spare = 0 if self._delay_of(key, found) > 0 else ahead
            room[slot] = max(0, self._room(key, found, is_patient=True) + spare - waiting.get(slot, 0))
        delay, default = self._default_delay, self.default_concurrency
        return (min(default, _starts_within(SOON_S, delay)) if delay > 0 else default + ahead), room

    def _due_later(self) -> set[str]:
        """Return the slots whose next request has to wait for its delay."""
        slots = self._downloader.slots
        for name in list(self._paced):
            found = slots.get(name)
            if found is None or (not found.queue and _remaining_s(found.latercall) is None):
                self._paced.discard(name)
        return self._paced

    def _delay_of(self, slot: str, found: Any) -> float:
        if found is not None:
            return float(found.delay)
        return float(self._downloader.per_slot_settings.get(slot, {}).get("delay", self._default_delay))

    def _room(self, slot: str, found: Any, *, is_patient: bool) -> int:
        """Return how many more requests of a slot the downloader can take; negative if it has too many.

        Args:
            found: the downloader's slot, None if it has none of that name.
            is_patient: count also those that will start soon, when others have ended.
        """
        delay, waiting = self._delay_of(slot, found), self._entering.get(slot, 0)
        if found is None:
            places, remaining_s = self.concurrency(slot), None
        else:
            waiting += len(found.queue)
            places = found.concurrency - len(found.transferring) + (self._soon(slot, found) if is_patient else 0)
            remaining_s = _remaining_s(found.latercall)
        if delay <= 0:
            return int(places - waiting)
        by_delay = _starts_within(SOON_S - (remaining_s or 0.0), delay)
        if by_delay <= waiting and remaining_s is not None:
            wait_s = remaining_s - SOON_S if remaining_s > SOON_S else remaining_s + AFTER_S
            self._alarm.set(monotonic() + wait_s)
        return int(min(places, by_delay) - waiting)

    def _soon(self, slot: str, found: Any) -> int:
        """Return how many requests of a slot will start within `SOON_S` as others end, at most its concurrency."""
        stay_s = self._stay_s.get(slot)
        if stay_s is None:
            return 0
        return int(min(found.concurrency, SOON_S * len(found.active) / max(stay_s, 1e-3)))

    def close(self) -> None:
        """Stop calling `on_room`."""
        self._alarm.cancel()
        self._on_room = lambda: None


@lru_cache(maxsize=10_000)
def _host_of(start: str) -> str:
    """Return the host of the part of a URL before its path."""
    return urlsplit(start).hostname or ""


def _starts_within(seconds: float, delay: float) -> int:
    """Return how many requests of a slot start within that time, if the first may start at once."""
    return 1 + int(seconds / delay) if seconds >= 0 else 0


def _remaining_s(call: Any) -> float | None:
    """Return the seconds until the downloader looks at a slot again, None if it won't."""
    if call is None:
        return None
    handle = getattr(call, "_timer_handle", None)
    if handle is not None:
        return float(max(0.0, handle.when() - asyncio.get_running_loop().time()))
    delayed = getattr(call, "_delayed_call", call)  # Twisted's own until 2.14
    if delayed is None or not delayed.active():
        return None
    return float(max(0.0, delayed.getTime() - delayed.seconds()))
