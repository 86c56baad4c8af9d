"""Requests as bytes and back; what callers may use is imported here.

``values`` knows what requests hold, ``classes`` items and other data, ``names`` what a payload may name.
The format is written down in ``docs/reference/payload.md``.
"""

from __future__ import annotations

from scrapy_prioqueue.codec.requests import RequestCodec

__all__ = ["RequestCodec"]
