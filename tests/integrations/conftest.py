"""Fixtures of the tests with other packages: a bookshop and crawls of it on Redis.

`make test-integrations` runs these tests; it installs the packages, Debian's Chromium and an older Scrapy first.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integrations.bookshop import Bookshop
from tests.support.site import Site


@pytest.fixture
def shop(site: Site) -> Iterator[Bookshop]:
    """A bookshop whose gate is closed."""
    shop = Bookshop(site)
    yield shop
    shop.gate.set()
