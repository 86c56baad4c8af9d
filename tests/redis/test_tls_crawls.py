"""Whole crawls over TLS, on servers that want certificates of their clients."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from tests.support.crawls import Crawls
from tests.support.servers import StartServer
from tests.support.site import Site
from tests.support.tls import Tls
from tests.support.whole_crawl import WholeCrawl

pytestmark = pytest.mark.any_server


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    """Certificates."""
    return Tls(tmp_path / "tls")


@pytest.mark.parametrize("given_in", ["url", "options"])
def test_whole_crawl_with_client_certificates(
    plain_crawls: Crawls,
    site: Site,
    tls: Tls,
    redis_server_factory: StartServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    given_in: str,
) -> None:
    plain_url = redis_server_factory(**tls.config()).url
    url = tls.with_options(plain_url)
    shown, options = (url, {}) if given_in == "url" else (plain_url, tls.options)
    crawls = plain_crawls.having(PRIOQUEUE_REDIS_URL=shown, PRIOQUEUE_FALLBACK="error")

    WholeCrawl(crawls, site, redis.Redis.from_url(url), tmp_path, capsys, options).run()
