"""Which requests are left out while an operator drains the crawl."""

from __future__ import annotations

from scrapy import Request


def is_discovery(request: Request, page: Request) -> bool:
    """Tell whether a page has led to something else, and not to itself once more, as a retry of a callback does."""
    return (request.url, request.method, request.body) != (page.url, page.method, page.body)
