"""Item pipelines that append items to a Redis list or stream; an item leaves the pipeline once the server has it."""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

from scrapy import Spider
from scrapy.exceptions import DropItem
from scrapy.utils.defer import maybe_deferred_to_future
from scrapy.utils.misc import load_object
from scrapy.utils.serialize import ScrapyJSONEncoder
from twisted.internet.defer import CancelledError, Deferred, inlineCallbacks

from scrapy_prioqueue.engine import HAS_ASYNC_ITEM_PROCESSING, Engine, StatCounter
from scrapy_prioqueue.frontier.redis.items import ItemData, ItemTooLarge, RedisItems
from scrapy_prioqueue.logs import CrawlLog, wrong_settings_named
from scrapy_prioqueue.printable import counted, in_a_line
from scrapy_prioqueue.runtime import Runner, pause, suitable_runner
from scrapy_prioqueue.settings import Config
from scrapy_prioqueue.settings.scrapy_redis import is_set, server_of
from scrapy_prioqueue.stats import ITEMS_FAILED_STAT, ITEMS_WRITTEN_STAT

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from typing_extensions import Self

logger = logging.getLogger(__name__)

BATCH_SIZE = 100
BATCH_BYTES = 2**20
"""Maximum number and total size of the items of one round trip; a single larger item goes alone."""

RETRY_S = 0.5
LONGEST_RETRY_S = 5.0
"""Seconds from a failure to the next attempt: doubled after each failure, up to the maximum, and reduced by up to half
at random so that a fleet doesn't retry in step.
"""


class RedisPipeline:
    """Appends each item to a Redis list, `<name of the spider>:items` by default.

    Has the settings and methods of scrapy-redis's class of that name: `REDIS_ITEMS_KEY`, `REDIS_ITEMS_SERIALIZER`,
    `item_key()` and `serialize()`.
    """

    as_stream = False

    def __init__(
        self, crawler: Crawler, writer: ItemWriter, *, key: str, serialize: Callable[[Any], Any], encoding: str
    ) -> None:
        self.key = key
        self.serialize = serialize
        self._crawler = crawler
        self._writer = writer
        self._encoding = encoding

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Read the settings.

        Raises:
            SettingError: a setting can't be used.
        """
        settings, spider = crawler.settings, crawler.spider
        assert spider is not None
        with wrong_settings_named(logger, crawler):
            config, theirs = Config.from_settings(settings, spider.name, str), server_of(settings)
        url, options, wait_replicas = config.redis_url, config.redis_options, config.wait_replicas
        if theirs.url is not None and is_set(settings, "PRIOQUEUE_REDIS_URL"):
            # The project has moved only the frontier to another server; the readers of its items use the old one.
            url, options, wait_replicas = theirs.url, theirs.options, 0
        items = RedisItems(
            url,
            timeout_s=config.redis_timeout_s,
            options=options,
            as_stream=cls.as_stream,
            spider=spider.name,
            wait_replicas=wait_replicas,
        )
        return cls(
            crawler,
            ItemWriter(
                crawler, items, is_closing=lambda: Engine(crawler).is_closing, patience_s=config.close_timeout_s
            ),
            key=settings.get("REDIS_ITEMS_KEY") or "%(spider)s:items",
            serialize=load_object(settings.get("REDIS_ITEMS_SERIALIZER") or ScrapyJSONEncoder().encode),
            encoding=settings.get("REDIS_ENCODING") or "utf-8",
        )

    async def process_item(self, item: Any, spider: Spider | None = None) -> Any:
        """Write the item, and return it when the server has it."""
        data = self.serialize(item)
        if not isinstance(data, bytes):
            data = str(data).encode(self._encoding)
        assert self._crawler.spider is not None
        await maybe_deferred_to_future(self._writer.write(ItemData(self.item_key(item, self._crawler.spider), data)))
        return item

    def item_key(self, item: Any, spider: Spider) -> str:
        """Return the key for an item; override it if the key depends on the item."""
        return self.key % {"spider": spider.name}

    def close_spider(self, spider: Spider | None = None) -> Deferred[None] | Coroutine[Any, Any, None]:
        """Write the remaining items, and close the connection."""
        closed = self._writer.close()
        return _as_coroutine(closed) if HAS_ASYNC_ITEM_PROCESSING else closed


async def _as_coroutine(deferred: Deferred[None]) -> None:
    await maybe_deferred_to_future(deferred)


class RedisStreamPipeline(RedisPipeline):
    """Appends each item to a Redis stream, in its field `item`."""

    as_stream = True


@dataclass(slots=True)
class _Waiting:
    """An item that is not written yet; `written` fires when it has been written."""

    entry: ItemData
    written: Deferred[None] = field(default_factory=Deferred)


class ItemWriter:
    """Writes items in batches, one batch at a time; repeats a batch until the server has accepted it.

    Scrapy limits the number of waiting items, since the page of an item is in progress until the item is written.

    Args:
        is_closing: returns whether the spider is closing.
        patience_s: seconds after which our scheduler, while it closes, releases pages without progress.
    """

    def __init__(
        self, crawler: Crawler, items: RedisItems, *, is_closing: Callable[[], bool], patience_s: float
    ) -> None:
        assert crawler.stats is not None
        self._crawler, self._stats = crawler, StatCounter(crawler.stats)
        self._log = CrawlLog(logger, crawler.spider)
        self._items = items
        self._is_closing = is_closing
        self._patience_s = patience_s
        self._runner: Runner | None = None
        self._waiting: deque[_Waiting] = deque()
        self._writing: Deferred[None] | None = None
        self._pause: Deferred[None] | None = None
        self._closing_since: float | None = None
        self._is_closed = False
        self._logged = ""

    def write(self, entry: ItemData) -> Deferred[None]:
        """Return a Deferred that fires when the item is written, or fails if it can't be."""
        waiting = _Waiting(entry)
        self._waiting.append(waiting)
        if self._writing is None:
            self._writing = Deferred()
            self._write_all()
        return waiting.written

    @inlineCallbacks
    def _write_all(self) -> Any:
        if self._runner is None:
            self._runner = suitable_runner(is_local=False)
        retry_s = RETRY_S
        while self._waiting:
            batch = list(self._batch())
            try:
                errors = yield self._runner.start(self._items.append([waiting.entry for waiting in batch]))
            except Exception as error:
                errors = [error] * len(batch)
            trouble = self._settle(batch, errors)
            self._note(trouble)
            if trouble is None:
                retry_s = RETRY_S
            elif self._may_wait():
                self._pause = pause(retry_s * random.uniform(0.5, 1))
                with suppress(CancelledError):
                    yield self._pause
                retry_s = min(2 * retry_s, LONGEST_RETRY_S)
            else:
                self._give_up(trouble)
        writing, self._writing = self._writing, None
        assert writing is not None
        writing.callback(None)

    def _batch(self) -> Iterator[_Waiting]:
        size = 0
        for number, waiting in enumerate(self._waiting):
            size += len(waiting.entry.data)
            if number and (number >= BATCH_SIZE or size > BATCH_BYTES):
                return
            yield waiting

    def _settle(self, batch: Sequence[_Waiting], errors: Sequence[Exception | None]) -> Exception | None:
        """Remove written and too large items from the waiting ones; return an error of the others, None without one."""
        again = []
        for waiting, error in zip(batch, errors, strict=True):
            self._waiting.popleft()
            if error is None:
                self._stats.count(ITEMS_WRITTEN_STAT)
                waiting.written.callback(None)
            elif isinstance(error, ItemTooLarge):
                self._stats.count(ITEMS_FAILED_STAT)
                waiting.written.errback(error)
            else:
                again.append((waiting, error))
        self._waiting.extendleft(waiting for waiting, _ in reversed(again))
        return again[0][1] if again else None

    def _note(self, trouble: Exception | None) -> None:
        text = "" if trouble is None else in_a_line(trouble)
        # While the server is away, each attempt may fail with a different error.
        trouble_text = "away" if isinstance(trouble, ConnectionError) else text
        if trouble_text == self._logged:
            return
        self._logged = trouble_text
        if text:
            self._log.error(
                "Items are not written to %s: %s. They wait, and their pages are not done", self._items.address, text
            )
        else:
            self._log.info("Items are written again")

    # Closing

    def _may_wait(self) -> bool:
        if self._is_closed:
            return False
        if not self._is_closing():
            return True
        # Our scheduler releases the pages before that, so they are fetched again.
        self._closing_since = self._closing_since or monotonic()
        return monotonic() - self._closing_since < 2 * self._patience_s

    def _give_up(self, trouble: Exception) -> None:
        self._log.error(
            "Closing without %s, which could not be written to %s in time (PRIOQUEUE_CLOSE_TIMEOUT)",
            counted(len(self._waiting), "item"),
            self._items.address,
        )
        self._stats.count(ITEMS_FAILED_STAT, len(self._waiting))
        # The line above speaks of all of them, so Scrapy needs no warning about each.
        why = f"could not be written: {in_a_line(trouble)}"
        while self._waiting:
            self._waiting.popleft().written.errback(DropItem(why, log_level="DEBUG"))

    @inlineCallbacks
    def close(self) -> Any:
        """Make a last attempt to write the waiting items, and close the connection."""
        self._is_closed = True
        if self._pause is not None:
            self._pause.cancel()
        if self._writing is not None:
            yield self._writing
        if self._runner is not None:
            yield self._runner.start(self._items.close())
            self._runner.close()
