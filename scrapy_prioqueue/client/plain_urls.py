"""Fast path for URLs that Scrapy doesn't change: payload, fingerprint and slot without building a request."""

from __future__ import annotations

from collections.abc import Callable

from scrapy import Request

from scrapy_prioqueue.codec import layouts
from scrapy_prioqueue.codec.requests import RequestCodec
from scrapy_prioqueue.codec.values import ValueWriter
from scrapy_prioqueue.dupefilter import fingerprint_of_plain, host_of_plain

_PROBE_HOST = "shop.example"
_PROBE = f"https://{_PROBE_HOST}/p/1?page=2"

Fingerprint = Callable[[Request], bytes | None]
"""Returns the fingerprint of a request, None if it is not filtered."""


class PlainUrls:
    """Encodes requests that differ only in their URL.

    Args:
        model: a request with all attributes but the URL.
        slot: under which the requests are stored, None for their host.
    """

    def __init__(self, codec: RequestCodec, model: Request, fingerprint: Fingerprint, slot: str | None = None) -> None:
        probe = model.replace(url=_PROBE)
        self._first, second, self._small, (_, *self._texts) = layouts.split(
            codec.fields(probe), slot or _PROBE_HOST, ValueWriter().pack
        )
        self.is_usable = not layouts.depends_on_url(second)
        self._second = second & ~layouts.URL_FORM
        self._slot = slot
        found = None if model.dont_filter else fingerprint(probe)
        self._is_filtered = found is not None
        if found is not None:
            self.is_usable = self.is_usable and model.method == "GET" and found == fingerprint_of_plain(_PROBE)

    def make(self, url: str) -> tuple[bytes, bytes | None, str] | None:
        """Return payload, fingerprint and host of a URL, None if it needs a request to be built."""
        host = host_of_plain(url)
        if host is None:
            return None
        form, text = layouts.url_form(url, host if self._slot is None else self._slot)
        payload = layouts.join(self._first, self._second | form, self._small, [text, *self._texts])
        return payload, fingerprint_of_plain(url) if self._is_filtered else None, host
