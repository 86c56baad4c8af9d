"""The keys from which a spider with the mixin reads seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from scrapy import Spider
from scrapy.settings import Settings
from scrapy.spiders import CrawlSpider

from scrapy_prioqueue import SeedsMixin
from scrapy_prioqueue.settings import SEEDS_KEY, Config


class Books(SeedsMixin, CrawlSpider):
    name = "books"


class Chosen(SeedsMixin, Spider):
    name = "chosen"
    seeds_key: str | Sequence[str] | None = ("%(name)s:urgent", "%(name)s:late")


class Custom(SeedsMixin, Spider):
    name = "custom"
    custom_settings = {SEEDS_KEY: "elsewhere"}


def keys_of(spider: type[Spider], **settings: Any) -> Sequence[str]:
    found = Settings()
    for priority, value in settings.items():
        found.set(SEEDS_KEY, value, priority)
    spider.update_settings(found)
    return Config.from_settings(found, spider.name).seeds_keys


@pytest.mark.parametrize(
    ("spider", "settings", "keys"),
    [
        (Books, {}, ("books:start_urls",)),
        (Books, {"project": "other"}, ("other",)),
        (Books, {"project": None}, ()),
        (Books, {"cmdline": "other"}, ("other",)),
        (Chosen, {}, ("chosen:urgent", "chosen:late")),
        (Chosen, {"project": "other"}, ("chosen:urgent", "chosen:late")),
        (Chosen, {"cmdline": "other"}, ("other",)),
        (Custom, {}, ("elsewhere",)),
    ],
)
def test_the_nearest_to_the_spider_counts(spider: type[Spider], settings: dict[str, Any], keys: Sequence[str]) -> None:
    assert keys_of(spider, **settings) == keys
