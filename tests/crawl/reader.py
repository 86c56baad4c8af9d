"""A spider for any tree of HTML pages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urldefrag
from zlib import crc32

from scrapy import Request, Spider
from scrapy.http import HtmlResponse, Response


class Reader(Spider):
    """Follows every link that stays on the site of its first page, or one in so many, always the same.

    Args:
        root: address of the site, with a slash at its end.
        one_in: of how many links one is followed.
    """

    name = "reader"

    def __init__(self, root: str, one_in: str = "1", **arguments: Any) -> None:
        super().__init__(**arguments)
        self.root = root
        self.one_in = int(one_in)

    async def start(self) -> AsyncIterator[Any]:
        yield Request(self.root)

    def parse(self, response: Response) -> Iterator[Request]:
        if not isinstance(response, HtmlResponse):
            return
        links = dict.fromkeys(urldefrag(response.urljoin(href)).url for href in response.css("a::attr(href)").getall())
        yield from (Request(link) for link in links if link.startswith(self.root) and self._is_followed(link))

    def _is_followed(self, link: str) -> bool:
        return crc32(link.removeprefix(self.root).encode()) % self.one_in == 0
