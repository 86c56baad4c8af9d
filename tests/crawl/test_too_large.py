"""A request that is too large for the server stays in its worker; the others are shared."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from shop_chaos.proxy import FaultProxy

from scrapy_prioqueue.frontier.redis.troubles import ACL_RULES
from tests.support.crawls import Crawls
from tests.support.servers import StartServer
from tests.support.site import Page, Site, leaves, link

LIMIT = 1024 * 1024
LEAVES = [f"/{number}" for number in range(6)]


def exceeds_limit(data: bytes) -> bytes | None:
    """Refuse arguments as some hosted servers do."""
    is_too_large = any(int(size) > LIMIT for size in re.findall(rb"\$(\d+)\r\n", data))
    return b"-ERR max request size exceeded\r\n" if is_too_large else None


def known(start: StartServer) -> Iterator[str]:
    yield start(proto_max_bulk_len=LIMIT).url


def forbidden(start: StartServer) -> Iterator[str]:
    """The server doesn't report the limit."""
    server = start(proto_max_bulk_len=LIMIT)
    client: Any = server.client()
    client.execute_command("ACL", "SETUSER", "crawler", "on", ">secret", *ACL_RULES.replace("+config|get", "").split())
    yield server.url.replace("redis://", "redis://crawler:secret@")


def proxy(start: StartServer) -> Iterator[str]:
    """The server takes more than the proxy in front of it."""
    server = start()
    with FaultProxy(server.port, refuse=exceeds_limit) as proxy:
        yield server.url.replace(f":{server.port}/", f":{proxy.port}/")


@pytest.mark.parametrize("server", [known, forbidden, proxy])
def test_request_that_is_too_large_is_fetched_and_so_are_its_neighbours(
    server: Any, plain_crawls: Crawls, site: Site, redis_server_factory: StartServer
) -> None:
    large = link("/large", method="POST", body="x" * 2 * LIMIT)
    site.pages = {"/": Page([*LEAVES[:3], large, *LEAVES[3:]]), **leaves(*LEAVES, "/large")}
    urls = server(redis_server_factory)
    crawls = plain_crawls.having(PRIOQUEUE_REDIS_URL=next(urls), PRIOQUEUE_FALLBACK="error")

    crawl = crawls.run(troubles=server is not known)

    assert (crawl.reason, sorted(crawl.pages)) == ("finished", sorted(["/", "/large", *LEAVES]))
    assert len(crawl.items) == 8
    (warning,) = crawl.lines("it stays in the memory of this process")
    assert "/large" in warning and "proto-max-bulk-len" in warning
    assert crawl.stats["prioqueue/unserializable/(too large)"] == 1
    assert crawl.stats["scheduler/enqueued/redis"] == 7
    (left,) = crawl.lines("Left frontier")
    assert ": 0 pending, 0 delayed, 0 leased, 7 done, 0 dead" in left
    assert left.endswith("; also 1 done that only this worker had")
    next(urls, None)
