"""HTML templates for the report and the dashboard: text from sites can neither be markup nor hide other text."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from scrapy_prioqueue.printable import clean


def environment(package: str, *functions: Callable[..., Any]) -> Environment:
    """Return the Jinja2 environment of a package's templates, which may call these functions by their names."""
    made = Environment(
        loader=PackageLoader(package),
        autoescape=True,
        # Templates aren't loaded again: after an upgrade in place they would not match the functions of this process.
        auto_reload=False,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {each.__name__: each for each in (clock, iso, *functions)}
    return made


def _shown(value: Any) -> Any:
    """Return a value as it is put into HTML: text that isn't markup has no control and bidirectional characters."""
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def clock(ms: float, other_ms: float) -> str:
    """Return the time at one end of a chart, with the date if it differs from that of the other end."""
    when, other = (datetime.fromtimestamp(each / 1000) for each in (ms, other_ms))
    return when.strftime("%H:%M:%S" if when.date() == other.date() else "%Y-%m-%d %H:%M")


def iso(ms: float) -> str:
    """Return a time in ISO 8601, for programs."""
    return datetime.fromtimestamp(ms / 1000, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
