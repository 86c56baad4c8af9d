"""The server is found through Sentinels, before and after a failover; on real ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scrapy_prioqueue.frontier.redis.link import Link
from tests.support.sentinels import StartSentinels, Watched, sentinel_fleet

pytestmark = pytest.mark.server_faults


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Sentinels and servers that the tests of this file leave as they are."""
    with sentinel_fleet(tmp_path_factory.mktemp("sentinels")) as start:
        yield start()


def port_of(link: Link) -> int:
    info = link.info("server")
    assert info is not None
    return int(info["tcp_port"])


def test_primary_is_found(shared: Watched) -> None:
    link = Link(shared.url)

    assert port_of(link) == shared.primary.port
    link.close()


def test_link_finds_the_new_primary_after_a_failover(start_sentinels: StartSentinels) -> None:
    watched = start_sentinels()
    link = Link(watched.url)
    old = watched.primary
    assert link.ask(lambda client: client.role())[0] == b"master"

    watched.order_failover()
    new = watched.wait_for_promotion(old)
    link.close()

    assert port_of(link) == new.port
    link.close()
