"""Delays and pauses that sites ask for, and their latency: read from this worker's responses, for all workers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from math import ceil, isfinite
from time import monotonic, time

from protego import Protego
from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.utils.httpobj import urlparse_cached

from scrapy_prioqueue.download_slots import DownloadSlots
from scrapy_prioqueue.frontier.policy import Closing, CrawlDelay, HeldUp, Latency, SlotNote
from scrapy_prioqueue.runtime import Alarm
from scrapy_prioqueue.settings import Config

RETRY_AFTER_CODES = frozenset({429, 503})
"""Status codes whose `Retry-After` is respected."""


def retry_after_s(response: Response, cap_s: float, now: Callable[[], float] = time) -> float:
    """Return the seconds of a `Retry-After`, at most `cap_s`; 0 without one.

    A date counts from the `Date` of the response if there is one, so the clocks need not agree.
    """
    if response.status not in RETRY_AFTER_CODES:
        return 0.0
    value = _header(response, "Retry-After")
    if value.isascii() and value.isdigit():
        wanted = float(value[:12])
    else:
        until = _date(value)
        wanted = 0.0 if until is None else until - (_date(_header(response, "Date")) or now())
    return min(max(wanted, 0.0), cap_s)


def _header(response: Response, name: str) -> str:
    return (response.headers.get(name) or b"").decode("latin-1").strip()


def _date(value: str) -> float | None:
    try:
        date: datetime = parsedate_to_datetime(value)
        # A date with the zone "-0000" is parsed without a time zone.
        return (date if date.tzinfo else date.replace(tzinfo=timezone.utc)).timestamp()
    except (TypeError, ValueError, OverflowError, IndexError):
        return None


ROBOTS_PATH = "/robots.txt"

AGAIN_S = 30.0
"""Seconds after which a `Crawl-delay` is reported again: a frontier with very many slots forgets those of which no page
was fetched for a minute."""

HELD_UP_S = 0.1
"""Interval of reports about a page that waits for its robots.txt.

Since leases are granted `HORIZON_S` ahead, this is short enough for delays of at least half a second.
"""

MOST_REPORTED = 20_000
"""Number of slots above which a worker forgets its older reports."""


class Politeness:
    """Follows the downloads of one spider.

    Args:
        config: says which pauses and delays to obey.
        note: called with what was learned about a slot.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        crawler: Crawler,
        config: Config,
        slots: DownloadSlots,
        note: Callable[[SlotNote], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._signals = crawler.signals
        self._slots = slots
        self._note = note
        self._obeys_retry_after = config.obey_retry_after
        self._longest_wait_s = config.retry_backoff.retry_after_cap_s
        self._follows_latency = config.policy.throttle is not None
        self._obeys_robots = crawler.settings.getbool("ROBOTSTXT_OBEY")
        self._follows_robots = config.policy.awaits_crawl_delay
        self._agent: str = crawler.settings["ROBOTSTXT_USER_AGENT"] or crawler.settings["USER_AGENT"] or "*"
        self._crawl_delays: dict[str, int] = {}
        self._hosts: dict[str, set[str]] = {}
        self._reported: dict[str, tuple[int, float]] = {}
        self._clock = clock
        self._reminder = Alarm(clock, self._note_held_up)
        self.held_up: set[str] = set()
        """Slots whose robots.txt is being fetched; their started requests wait for that inside Scrapy."""

    def watch(self) -> None:
        """Begin to follow downloads."""
        if self._obeys_robots:
            self._signals.connect(self._note_reached, signals.request_reached_downloader)
            self._signals.connect(self._note_left, signals.request_left_downloader)
        if self._obeys_retry_after:
            self._signals.connect(self._note_retry_after, signals.response_downloaded)
        if self._follows_latency:
            self._signals.connect(self._note_latency, signals.response_downloaded)
        if self._follows_robots:
            # Not `response_downloaded`, since that body may be compressed.
            self._signals.connect(self._note_robots, signals.response_received)
            self._signals.connect(self._reminder.cancel, signals.spider_closed)

    def _note_reached(self, request: Request) -> None:
        if request.url.endswith(ROBOTS_PATH):
            self.held_up.add(self._slots.slot_of(request))
            if self._follows_robots:
                self._reminder.set(self._clock() + HELD_UP_S)

    def _note_held_up(self) -> None:
        """Report slots whose robots.txt takes long, so that no worker fetches a page too soon after the waiting one."""
        for slot in self.held_up:
            self._note(HeldUp(slot))
        if self.held_up:
            self._reminder.set(self._clock() + HELD_UP_S)

    def _note_left(self, request: Request) -> None:
        if request.url.endswith(ROBOTS_PATH):
            self.held_up.discard(self._slots.slot_of(request))
        elif self._follows_robots:
            # Its robots.txt was read before, or doesn't exist.
            self._report_crawl_delay(request)

    def _note_retry_after(self, response: Response, request: Request) -> None:
        wait_s = retry_after_s(response, self._longest_wait_s)
        if wait_s > 0:
            self._note(Closing(self._slots.slot_of(request), ceil(wait_s * 1000)))

    def _note_latency(self, response: Response, request: Request) -> None:
        latency_s = request.meta.get("download_latency")
        # The same conditions as in Scrapy's AutoThrottle.
        if latency_s is None or request.meta.get("autothrottle_dont_adjust_delay", False) is True:
            return
        slot = self._slots.slot_of(request)
        self._note(Latency(slot, ceil(latency_s * 1000), is_success=response.status == 200))

    def _note_robots(self, response: Response, request: Request) -> None:
        if urlparse_cached(request).path != ROBOTS_PATH or response.status != 200:
            return
        delay_ms = crawl_delay_ms(response.body, self._agent, self._longest_wait_s)
        # For the final host and the one first asked for, as in Scrapy.
        for url in (request.url, *request.meta.get("redirect_urls", ())[:1]):
            asked = Request(url)
            self._crawl_delays.pop(_host_of(asked), None)
            if delay_ms:
                self._crawl_delays[_host_of(asked)] = delay_ms
            self._report_crawl_delay(asked, starts_now=True)

    def _report_crawl_delay(self, request: Request, *, starts_now: bool = False) -> None:
        """Report the delay of a slot if it has changed or was reported long ago; of several hosts the longest.

        Args:
            starts_now: the page that has waited for this robots.txt starts now, so the delay counts from now.
        """
        slot, host = self._slots.slot_of(request), _host_of(request)
        if host in self._crawl_delays:
            self._hosts.setdefault(slot, set()).add(host)
        delay_ms = max((self._crawl_delays.get(each, 0) for each in self._hosts.get(slot, ())), default=0)
        reported_ms, reported_at = self._reported.pop(slot, (None, 0.0))
        now = self._clock()
        if starts_now or delay_ms != reported_ms or now - reported_at >= AGAIN_S:
            reported_at = now
            self._note(CrawlDelay(slot, delay_ms, starts_now=starts_now))
        self._reported[slot] = delay_ms, reported_at
        self._forget_reported(now)

    def _forget_reported(self, now: float) -> None:
        """Forget old reports, which would be repeated anyway, if there are many."""
        while len(self._reported) > MOST_REPORTED:
            slot, (_, reported_at) = next(iter(self._reported.items()))
            if now - reported_at < AGAIN_S:
                return
            del self._reported[slot]


def _host_of(request: Request) -> str:
    return urlparse_cached(request).hostname or ""


def crawl_delay_ms(robots: bytes, agent: str, longest_s: float) -> int:
    """Return the `Crawl-delay` of a robots.txt, 0 without one."""
    delay_s = Protego.parse(robots.decode("utf-8", "ignore")).crawl_delay(agent)
    if delay_s is None or not isfinite(delay_s) or delay_s <= 0:
        return 0
    return ceil(min(delay_s, longest_s) * 1000)
