"""The spiders of scrapy-redis, based on our seeds: same attributes and methods, but a killed worker loses no entry."""

from __future__ import annotations

import codecs
import json
import logging
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from scrapy import FormRequest, Request, Spider
from scrapy.spiders import CrawlSpider

from scrapy_prioqueue.errors import SeedError
from scrapy_prioqueue.queues.meta import rejection_of_meta
from scrapy_prioqueue.seeds.mixin import SeedsMixin
from scrapy_prioqueue.seeds.parsing import checked_url
from scrapy_prioqueue.settings import SEEDS_KEY, Config
from scrapy_prioqueue.settings.readers import FOREVER, MOST_SEEDS_AT_ONCE

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings
    from typing_extensions import Self

logger = logging.getLogger(__name__)

MAX_IDLE = "PRIOQUEUE_MAX_IDLE"

_NOT_CALLED = ("next_requests", "schedule_next_requests", "fetch_data")
"""Methods of scrapy-redis's mixin that projects override but that are never called here."""


class RedisMixin(SeedsMixin):
    """Makes a spider read start URLs from Redis; has the attributes of scrapy-redis's class of that name.

    An attribute overrides the setting, wherever it is set: in the class, in `__init__()`, or as an argument.
    """

    redis_key: str | Sequence[str] | None = None
    """Key of the start URLs, or several, best first; by default `REDIS_START_URLS_KEY`."""

    redis_batch_size: int | str | None = None
    """Entries taken at once; by default `REDIS_START_URLS_BATCH_SIZE`."""

    redis_encoding: str | None = None
    """Encoding of the entries; by default `REDIS_ENCODING`."""

    max_idle_time: int | str | None = None
    """Seconds without work after which the spider closes, 0 for never; by default `MAX_IDLE_TIME_BEFORE_CLOSE`."""

    @classmethod
    def update_settings(cls, settings: BaseSettings) -> None:
        """Apply the attributes of the class, and the defaults of scrapy-redis's spiders."""
        super().update_settings(settings)
        # Without the server there are no seeds; a fallback would close the spider as finished and hide the problem.
        settings.set("PRIOQUEUE_FALLBACK", "error", "addon")
        if settings.get("MAX_IDLE_TIME_BEFORE_CLOSE") is None:
            settings.set(MAX_IDLE, FOREVER, "addon")
        _set_attributes(settings, cls)

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Self:
        """Apply the attributes of the spider; Scrapy freezes the settings after this."""
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.setup_redis(crawler)
        return spider

    def setup_redis(self, crawler: Crawler | None = None) -> None:
        """Apply the attributes; `from_crawler()` calls this."""
        settings = (crawler or self.crawler).settings
        if not settings.frozen:
            _set_attributes(settings, self)
        self.redis_key = self._filled(settings.get(SEEDS_KEY))
        self.redis_encoding = codecs.lookup(self.redis_encoding or settings.get("REDIS_ENCODING") or "utf-8").name
        for name in _NOT_CALLED:
            if hasattr(self, name):
                logger.warning(
                    "%s() of spider %s is never called: make requests in make_request_from_data(), or keep the spider"
                    " class of scrapy-redis, which works with this scheduler, too",
                    name,
                    self.name,
                    extra={"spider": self},
                )

    def _filled(self, key: Any) -> Any:
        is_plain = isinstance(key, str) and not key.lstrip().startswith("[")
        return key.replace("%(name)s", self.name).replace("%(spider)s", self.name) if is_plain else key

    @cached_property
    def server(self) -> Any:
        """A client of the server, or of all nodes of a cluster, made at first use; its calls block the event loop."""
        from scrapy_prioqueue.frontier.redis.link import Link

        config = Config.from_settings(self.settings, self.name, str)
        link = Link(config.redis_url, timeout_s=config.redis_timeout_s, options=config.redis_options)
        return link.client_of_all_keys()

    def make_request_from_seed(self, data: bytes) -> Request | Iterable[Request] | None:
        """Return what `make_request_from_data()` returns."""
        return self.make_request_from_data(data)

    def make_request_from_data(self, data: bytes) -> Request | Iterable[Request] | None:
        """Return the request or requests for an entry; None to drop the entry.

        An entry is a URL, or a JSON object with `url` and optionally `method` and `meta`; other fields are form data.

        Raises:
            SeedError: the entry is neither; it becomes a dead letter.
        """
        text = data.decode(self.redis_encoding or "utf-8").strip()
        if not text.startswith("{"):
            return FormRequest(checked_url("url", text), dont_filter=True)
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SeedError(f"begins like a JSON object, but is not one: {error}") from None
        url, method, meta = (fields.pop(name, None) for name in ("url", "method", "meta"))
        try:
            rejection = rejection_of_meta(meta or {})
            if rejection is not None:
                raise SeedError(rejection)
            return FormRequest(
                checked_url("url", url),
                method=(method or "GET").upper(),
                meta=meta,
                formdata=fields,
                dont_filter=True,
            )
        except SeedError:
            raise
        except (AttributeError, TypeError, ValueError) as error:
            raise SeedError(f"can't be made into a request: {error}") from None


class RedisSpider(RedisMixin, Spider):
    """A spider that reads its start URLs from Redis."""


class RedisCrawlSpider(RedisMixin, CrawlSpider):
    """A spider that reads its start URLs from Redis and follows links by its rules."""


def _set_attributes(settings: BaseSettings, spider: RedisMixin | type[RedisMixin]) -> None:
    if spider.redis_key is not None:
        settings.set(SEEDS_KEY, spider.redis_key, "spider")
    if spider.redis_batch_size is not None:
        size = min(int(spider.redis_batch_size), MOST_SEEDS_AT_ONCE)
        settings.set("PRIOQUEUE_SEEDS_BATCH_SIZE", size, "spider")
    if spider.max_idle_time is not None:
        settings.set(MAX_IDLE, int(spider.max_idle_time) or FOREVER, "spider")
