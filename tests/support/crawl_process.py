"""The program of one crawl process: it crawls as a file says, and records what can't be seen from outside."""

from __future__ import annotations

import gc
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from itemadapter import ItemAdapter
from scrapy import Request, signals
from scrapy import crawler as scrapy_crawler
from scrapy.crawler import Crawler
from scrapy.utils.misc import load_object

from scrapy_prioqueue import signals as prioqueue_signals

EVENTS_SETTING = "TESTS_EVENTS"

PRIOQUEUE_SIGNALS = [name for name in vars(prioqueue_signals) if not name.startswith("_")]


class Recorder:
    """An extension that appends a JSON line for each event: an item, a request scheduled or dropped, a signal, the end.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Recorder:
        """Connect to the signals."""
        recorder = cls(Path(crawler.settings[EVENTS_SETTING]))
        crawler.signals.connect(recorder.item_scraped, signals.item_scraped)
        crawler.signals.connect(recorder.request_scheduled, signals.request_scheduled)
        crawler.signals.connect(recorder.request_dropped, signals.request_dropped)
        crawler.signals.connect(recorder.spider_closed, signals.spider_closed)
        for name in PRIOQUEUE_SIGNALS:
            crawler.signals.connect(recorder.handler_of(name), getattr(prioqueue_signals, name), weak=False)
        return recorder

    def item_scraped(self, item: Any) -> None:
        self._write("item", ItemAdapter(item).asdict())

    def request_scheduled(self, request: Request) -> None:
        self._write("scheduled", request.url)

    def request_dropped(self, request: Request) -> None:
        self._write("dropped", request.url)

    def spider_closed(self, reason: str) -> None:
        self._write("closed", reason)

    def handler_of(self, name: str) -> Callable[..., None]:
        """Return a handler of one of this package's signals."""

        def handle(**arguments: Any) -> None:
            del arguments["signal"], arguments["sender"]
            self._write(name, arguments)

        return handle

    def _write(self, kind: str, value: Any) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps([kind, value], default=str) + "\n")


def main(order_path: Path) -> None:
    """Crawl; the exit code is 1 if the crawl could not begin, as that of `scrapy crawl` is."""
    # It looks for the list of public suffixes on the network once, says at length that there is none, and has its own.
    logging.getLogger("tldextract").setLevel(logging.CRITICAL)
    has_failed = _crawl(json.loads(order_path.read_text()))
    # Errors that nobody has asked for are logged when they are collected; at the end of a fork nothing else does that.
    gc.collect()
    sys.exit(int(has_failed))


def _crawl(order: Any) -> bool:
    process = getattr(scrapy_crawler, order["process"])(order["settings"])
    crawlers = [process.create_crawler(load_object(spider)) for spider in order["spiders"]]
    for crawler in crawlers:
        process.crawl(crawler, **order["arguments"])
    process.start()
    crawler = crawlers[0]
    assert crawler.stats is not None
    Path(order["stats"]).write_text(json.dumps(crawler.stats.get_stats(), default=str))
    return bool(process.bootstrap_failed)
