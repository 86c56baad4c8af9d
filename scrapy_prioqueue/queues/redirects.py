"""Which redirects are the same request still."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from scrapy import Request


def is_redirect_to_itself(
    request: Request, in_progress: Iterable[Request], fingerprint: Callable[[Request], bytes | None]
) -> bool:
    """Tell whether a page that is being fetched redirects to itself, having set a cookie for example.

    That is the same request still, and no duplicate; a child that copies `meta` has as many redirects behind it
    as its page, not one more.
    """
    redirects, urls = request.meta.get("redirect_times"), request.meta.get("redirect_urls")
    if not redirects or not urls:
        return False
    return any(
        original.url == urls[-1]
        and original.meta.get("redirect_times", 0) + 1 == redirects
        and fingerprint(original) == fingerprint(request)
        for original in in_progress
    )
