"""A mixin for spiders that read seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from scrapy import Request, Spider

from scrapy_prioqueue.seeds.parsing import request_from_seed
from scrapy_prioqueue.settings import SEEDS_KEY, SETTINGS

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings


class SeedsMixin(Spider):
    """Makes a spider read seeds: ``class Books(SeedsMixin, scrapy.Spider)``, or with any other class of spiders.

    `PRIOQUEUE_SEEDS_KEY` names the keys.
    With `PRIOQUEUE_MAX_IDLE = -1` the spider waits for new seeds for ever.
    """

    seeds_key: str | Sequence[str] | None = None
    """Key of the seeds, or several keys, best first; None to use the setting."""

    @classmethod
    def update_settings(cls, settings: BaseSettings) -> None:
        """Turn on the reading of seeds; the project and the command line may set other keys."""
        super().update_settings(settings)
        if cls.seeds_key is None:
            settings.set(SEEDS_KEY, settings.get("REDIS_START_URLS_KEY") or SETTINGS[SEEDS_KEY].default, "addon")
        else:
            settings.set(SEEDS_KEY, cls.seeds_key, "spider")

    def make_request_from_seed(self, data: bytes) -> Request | Iterable[Request] | None:
        """Return the request, or the requests, of an entry; None to drop it.

        If it raises an exception, the entry becomes a dead letter with the exception's text as the reason.

        Args:
            data: the entry, as it was pushed.
        """
        return request_from_seed(data, self)
