"""Jinja's environment: everything is escaped, and control characters of foreign text are shown instead of obeyed."""

from __future__ import annotations

from datetime import datetime, timezone
from functools import cache
from math import log10
from typing import Any
from urllib.parse import urlsplit

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from scrapy_prioqueue.commands.listing import url_of
from scrapy_prioqueue.commands.output import counted, duration, moment, name_text, number, part, rate, size
from scrapy_prioqueue.commands.sharing import amount, delay_text
from scrapy_prioqueue.commands.verbs.runs import confidence_text, exchanges_text, shares
from scrapy_prioqueue.commands.verbs.slots import waits
from scrapy_prioqueue.commands.verbs.status import doing, sparkline
from scrapy_prioqueue.frontier.redis.operators.inspector import tier_name
from scrapy_prioqueue.printable import clean

BIG = 10_000
"""From here on tiles show rounded numbers."""


@cache
def environment() -> Environment:
    """Return the environment of the page's templates, which compiles each of them once."""
    made = Environment(
        loader=PackageLoader("scrapy_prioqueue.dashboard"),
        autoescape=True,
        # An upgrade in place must not mix new templates with the functions of the running process.
        auto_reload=False,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    texts = (amount, counted, delay_text, doing, duration, moment, name_text, number, part, rate, size)
    figures = (confidence_text, exchanges_text, shares, sparkline)
    others = (brief_number, clock, iso, tier_name, time_zone, url_of, waits, web_address)
    made.globals |= {text.__name__: text for text in (*texts, *figures, *others)}
    return made


def _shown(value: Any) -> Any:
    """Return what is put into a page: texts of others without control and bidirectional characters."""
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def brief_number(value: float) -> str:
    """Return 1234567 as 1.23 M, and small numbers exactly."""
    if abs(value) < BIG:
        return number(value) if value == int(value) else f"{value:,.1f}"
    for unit, factor in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= factor:
            digits = max(0, 2 - int(log10(abs(value) / factor)))
            return f"{value / factor:.{digits}f} {unit}"
    return number(value)


def clock(ms: float, other_ms: float) -> str:
    """Return a time at one end of a drawing, with the date unless it is the same at the other end."""
    when, other = (datetime.fromtimestamp(each / 1000) for each in (ms, other_ms))
    return when.strftime("%H:%M:%S" if when.date() == other.date() else "%Y-%m-%d %H:%M")


def time_zone(ms: float) -> str:
    """Return the difference of this machine's time zone at a time: UTC+01:00."""
    offset = datetime.fromtimestamp(ms / 1000).astimezone().strftime("%z")
    return f"UTC{offset[:3]}:{offset[3:5]}"


def iso(ms: float) -> str:
    """Return a time for programs."""
    return datetime.fromtimestamp(ms / 1000, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def web_address(url: str) -> str:
    """Return a URL that a browser may open, empty for any other: a link to it must not run code here."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return url if parts.scheme in ("http", "https") and parts.hostname and url.isprintable() else ""
