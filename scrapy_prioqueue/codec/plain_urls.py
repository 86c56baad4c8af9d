"""Fast path for URLs that Scrapy doesn't change: payload, fingerprint and slot without building a request."""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import sha1

from scrapy import Request

from scrapy_prioqueue.codec import layouts
from scrapy_prioqueue.codec.requests import RequestCodec
from scrapy_prioqueue.codec.values import ValueWriter

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_WORD = r"[A-Za-z0-9_.~-]+"
_URL_AS_IT_IS = re.compile(
    rf"(?=[^/]*//[^/]*/)https?://(?P<host>{_LABEL}(?:\.{_LABEL})*)(?::(?:[1-5]\d{{0,4}}|[6-9]\d{{0,3}}))?(?:/[A-Za-z0-9_~-][A-Za-z0-9_.~-]*)*/?"
    rf"(?P<query>\?{_WORD}={_WORD}(?:&{_WORD}={_WORD})*)?"
)
_PROBE_HOST = "shop.example"
_PROBE = f"https://{_PROBE_HOST}/p/1?page=2"
_LONGEST_HOST = 200

Fingerprint = Callable[[Request], bytes | None]


class PlainUrls:
    """Encodes requests that differ only in their URL.

    Args:
        codec: encodes `model`.
        model: a request with all attributes but the URL.
        fingerprint: returns the fingerprint of a request.
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
            self.is_usable = self.is_usable and model.method == "GET" and found == _fingerprint(_PROBE)

    def make(self, url: str) -> tuple[bytes, bytes | None, str] | None:
        """Return payload, fingerprint and host of a URL, None if it needs a request to be built."""
        match = _URL_AS_IT_IS.fullmatch(url)
        if match is None or not is_sorted(match["query"]) or len(match["host"]) > _LONGEST_HOST:
            return None
        host = match["host"]
        form, text = layouts.url_form(url, host if self._slot is None else self._slot)
        payload = layouts.join(self._first, self._second | form, self._small, [text, *self._texts])
        return payload, _fingerprint(url) if self._is_filtered else None, host


def fingerprint_of(url: str) -> bytes | None:
    """Return Scrapy's fingerprint of a GET request for a URL that Scrapy doesn't change, None for any other URL."""
    match = _URL_AS_IT_IS.fullmatch(url)
    if match is None or not is_sorted(match["query"]) or len(match["host"]) > _LONGEST_HOST:
        return None
    return _fingerprint(url)


def is_sorted(query: str | None) -> bool:
    """Return whether the parameters of a query are sorted as in a canonical URL."""
    if query is None or "&" not in query:
        return True
    pairs = [tuple(pair.split("=")) for pair in query[1:].split("&")]
    return pairs == sorted(pairs)


def _fingerprint(url: str) -> bytes:
    """Return what `scrapy.utils.request.fingerprint` returns for a GET of such a URL."""
    text = f'{{"body": "", "headers": {{}}, "method": "GET", "url": "{url}"}}'
    return sha1(text.encode(), usedforsecurity=False).digest()
