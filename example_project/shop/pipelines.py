"""Where the items go."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from itemadapter import ItemAdapter

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from typing_extensions import Self


class DurableLines:
    """Appends each item to the worker's own file, one JSON line, on disk before the item counts as done.

    A page is acked only after its items have passed here, so a worker killed at any moment leaves no page done
    without its items; at worst an item is written twice.

    Args:
        path: the file; it is created or continued.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(Path(crawler.settings["SHOP_ITEMS"]) / f"{crawler.settings['PRIOQUEUE_WORKER_ID']}.jsonl")

    def open_spider(self, spider: Spider | None = None) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def close_spider(self, spider: Spider | None = None) -> None:
        os.close(self._file)

    async def process_item(self, item: Any, spider: Spider | None = None) -> Any:
        line = json.dumps(ItemAdapter(item).asdict()).encode() + b"\n"
        await asyncio.to_thread(self._append, line)  # fsync takes milliseconds, the reactor has other work
        return item

    def _append(self, line: bytes) -> None:
        # One write, so that a kill leaves a whole line or none.
        written = os.write(self._file, line)
        if written != len(line):
            raise OSError(f"only {written} of {len(line)} bytes fitted into {self._path}")
        os.fsync(self._file)
