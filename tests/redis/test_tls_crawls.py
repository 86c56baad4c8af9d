"""Whole crawls over TLS, on servers that want certificates of their clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis

from scrapy_prioqueue.errors import FrontierUnavailable
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Link
from tests.support.certificates import LOOPBACK
from tests.support.clusters import StartCluster
from tests.support.coroutines import run
from tests.support.crawls import Crawls
from tests.support.sentinels import PRIMARY, StartSentinels
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


@pytest.mark.server_faults
def test_whole_crawl_through_sentinels_with_a_failover(
    plain_crawls: Crawls,
    site: Site,
    tls: Tls,
    start_sentinels: StartSentinels,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    clients: dict[str, Any] = {**tls.options, "ssl": True}
    watched = start_sentinels(
        replicas=1,
        server_config=tls.config(),
        # Longer than a busy machine holds a server up, since there is a failover in any case.
        sentinel_config={**tls.config(), f"sentinel down-after-milliseconds {PRIMARY}": 20_000},
        server_options=clients,
        sentinel_options=clients,
    )
    url = watched.url.replace("redis+", "rediss+")
    crawls = plain_crawls.having(PRIOQUEUE_REDIS_URL=url, PRIOQUEUE_FALLBACK="error")
    admin: Any = watched.client()
    whole = WholeCrawl(crawls, site, admin, tmp_path, capsys, tls.options)

    def fail_over() -> None:
        primary = watched.primary
        # Only a client that has written waits for what was written.
        admin.set("written-last", 1)
        assert admin.wait(1, 5000) == 1
        watched.order_failover()
        watched.wait_for_promotion(instead_of=primary)
        admin.connection_pool.disconnect()

    whole.run(fail_over, troubles=True)


@pytest.mark.server_faults
def test_whole_crawl_on_a_cluster_that_announces_host_names_with_a_failover(
    plain_crawls: Crawls,
    site: Site,
    tmp_path: Path,
    cluster_factory: StartCluster,
    frontier_name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tls = Tls(tmp_path / "tls", "localhost")
    names = {"cluster_announce_hostname": "localhost", "cluster_preferred_endpoint_type": "hostname"}
    cluster = cluster_factory(**tls.config(), **names, tls_cluster=True)
    port = cluster.nodes[0].port
    url = f"rediss+cluster://localhost:{port},localhost:{cluster.nodes[1].port}"
    crawls = plain_crawls.having(PRIOQUEUE_REDIS_URL=url, PRIOQUEUE_FALLBACK="error")
    # redis-py's client replaces the name localhost by its address.
    clients: dict[str, Any] = {**tls.options, "ssl": True, "ssl_check_hostname": False}
    admin = redis.RedisCluster("localhost", port, **clients)

    def fail_over() -> None:
        key = Keys(frontier_name).of("state")
        primary = cluster.primary_of(key)
        client: Any = primary.client()
        client.incr(last := f"{{prioqueue:{frontier_name}}}:written-last")
        client.delete(last)
        assert client.wait(1, 5000) == 1
        primary.kill()
        cluster.wait_for_failover(key, primary)

    WholeCrawl(crawls, site, admin, tmp_path, capsys, tls.options).run(fail_over, troubles=True)

    by_address = url.replace("localhost", LOOPBACK)
    with pytest.raises(FrontierUnavailable, match="is for another host name"):
        run(Connection(by_address, options=tls.options).open())
    with pytest.raises(FrontierUnavailable, match="is for another host name"):
        Link(by_address, options=tls.options).ask(lambda client: client.ping())
