"""Requests as bytes and back; what callers may use is imported here.

``values`` knows plain Python values, ``names`` what a payload may name (callbacks, classes), ``requests`` the rest.
The format is written down in ``docs/reference/payload.md``.
"""

from __future__ import annotations

from scrapy_prioqueue.codec.requests import RequestCodec

__all__ = ["RequestCodec"]
