"""Requests as bytes and back; other packages import ``RequestCodec`` from here.

``values`` writes the values in a request, ``classes`` items and other data objects, ``names`` names of code.
``docs/reference/payload.md`` describes the format.
"""

from __future__ import annotations

from scrapy_prioqueue.codec.requests import RequestCodec

__all__ = ["RequestCodec"]
