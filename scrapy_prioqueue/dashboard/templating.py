"""The functions that the dashboard's templates call."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from urllib.parse import urlsplit

from jinja2 import Environment

from scrapy_prioqueue.commands.listing import suspects_text, url_of
from scrapy_prioqueue.commands.output import counted, duration, moment, name_text, number, part, rate, size
from scrapy_prioqueue.commands.reporting.charts import brief
from scrapy_prioqueue.commands.reporting.templating import environment
from scrapy_prioqueue.commands.sharing import amount, delay_text
from scrapy_prioqueue.commands.verbs.runs import confidence_text, exchanges_text, shares
from scrapy_prioqueue.commands.verbs.slots import waits
from scrapy_prioqueue.commands.verbs.status import doing, sparkline
from scrapy_prioqueue.frontier.redis.operators.inspector import tier_name


@cache
def page_environment() -> Environment:
    """Return the environment of the dashboard's templates, which compiles each template once."""
    return environment(
        "scrapy_prioqueue.dashboard",
        *(amount, counted, delay_text, doing, duration, moment, name_text, number, part, rate, size),
        *(brief, confidence_text, exchanges_text, shares, sparkline),
        *(suspects_text, tier_name, time_zone, url_of, waits, web_address),
    )


def time_zone(ms: float) -> str:
    """Return the difference of this machine's time zone at a time: UTC+01:00."""
    offset = datetime.fromtimestamp(ms / 1000).astimezone().strftime("%z")
    return f"UTC{offset[:3]}:{offset[3:5]}"


def web_address(url: str) -> str:
    """Return a URL that a browser may open, empty for any other: a link to it must not run code here."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return url if parts.scheme in ("http", "https") and parts.hostname and url.isprintable() else ""
