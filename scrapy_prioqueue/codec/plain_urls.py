"""A short way for URLs that Scrapy leaves as they are: payload, fingerprint and slot without a request."""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import sha1

from scrapy import Request

from scrapy_prioqueue.codec.requests import _FORMAT, _URL, RequestCodec
from scrapy_prioqueue.codec.values import new_packer

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_WORD = r"[A-Za-z0-9_.~-]+"
_URL_AS_IT_IS = re.compile(
    rf"(?=[^/]*//[^/]*/)https?://(?P<host>{_LABEL}(?:\.{_LABEL})*)(?::[1-9]\d{{0,4}})?(?:/[A-Za-z0-9_~-][A-Za-z0-9_.~-]*)*/?"
    rf"(?P<query>\?{_WORD}={_WORD}(?:&{_WORD}={_WORD})*)?"
)
_PROBE = "https://shop.example/p/1?page=2"
_LONGEST_HOST = 200

Fingerprint = Callable[[Request], bytes | None]


class PlainUrls:
    """Makes what is stored of requests that differ by their URL only.

    Args:
        codec: writes `model`.
        model: a request with everything but the URL.
        fingerprint: of a request.
    """

    def __init__(self, codec: RequestCodec, model: Request, fingerprint: Fingerprint) -> None:
        payload = codec.encode(model.replace(url=_PROBE))
        packer = new_packer()
        head = payload[1:2] + bytes([_URL.number]) + packer.pack(_PROBE)
        # A map of up to 15 fields, of which the URL is the first, as the codec writes it.
        self.is_usable = payload.startswith(_FORMAT + head) and payload[1] & 0xF0 == 0x80
        self._head, self._tail = payload[:2] + bytes([_URL.number]), payload[1 + len(head) :]
        self._pack = packer.pack
        found = None if model.dont_filter else fingerprint(model.replace(url=_PROBE))
        self._is_filtered = found is not None
        if found is not None:
            self.is_usable = self.is_usable and model.method == "GET" and found == _fingerprint(_PROBE)

    def make(self, url: str) -> tuple[bytes, bytes | None, str] | None:
        """Return payload, fingerprint and host of a URL, None for one that takes the long way."""
        match = _URL_AS_IT_IS.fullmatch(url)
        if match is None or not is_sorted(match["query"]) or len(match["host"]) > _LONGEST_HOST:
            return None
        payload = self._head + self._pack(url) + self._tail
        return payload, _fingerprint(url) if self._is_filtered else None, match["host"]


def is_sorted(query: str | None) -> bool:
    """Tell whether a query is in the order of canonical URLs."""
    if query is None or "&" not in query:
        return True
    pairs = [tuple(pair.split("=")) for pair in query[1:].split("&")]
    return pairs == sorted(pairs)


def _fingerprint(url: str) -> bytes:
    """Return what `scrapy.utils.request.fingerprint` returns for a GET of such a URL."""
    text = f'{{"body": "", "headers": {{}}, "method": "GET", "url": "{url}"}}'
    return sha1(text.encode(), usedforsecurity=False).digest()
