"""No usable server at start: the crawl runs in process, on disk, or not at all; and no password is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.crawls import Crawls
from tests.support.servers import RedisServer, StartServer
from tests.support.site import Page, Site, leaves, link

PASSWORD = "s3cret-of-the-tests"

SOON = {"PRIOQUEUE_REDIS_TIMEOUT": 1}
"""What is no Redis server never answers."""


@pytest.fixture
def small_site(site: Site) -> Site:
    site.pages = {"/": ["/a", "/b", "/a"], **leaves("/a", "/b")}
    return site


@pytest.fixture(params=["closed", "wrong-password", "no-password", "not-redis"])
def unusable_url(
    request: pytest.FixtureRequest, closed_port: int, redis_server_factory: StartServer, site: Site
) -> str:
    """Address of something that is no server for us."""
    if request.param == "closed":
        return f"redis://user:{PASSWORD}@127.0.0.1:{closed_port}/0"
    if request.param == "not-redis":
        return site.url("/0").replace("http://", f"redis://:{PASSWORD}@")
    port = redis_server_factory(requirepass="another").port
    return (
        f"redis://:{PASSWORD}@127.0.0.1:{port}/0"
        if request.param == "wrong-password"
        else f"redis://127.0.0.1:{port}/0"
    )


def test_the_crawl_continues_in_process_and_says_why(plain_crawls: Crawls, small_site: Site, unusable_url: str) -> None:
    """Reports 85 and 87."""
    address = unusable_url.rpartition("@")[2].removeprefix("redis://")

    result = plain_crawls.run(settings={"PRIOQUEUE_REDIS_URL": unusable_url, **SOON})

    assert sorted(page for page in result.pages) == ["/", "/a", "/b"]
    assert result.stats["scheduler/dequeued/memory"] == 3
    (warning,) = result.lines("this worker crawls alone, in memory")
    assert f"redis://{address}" in warning
    assert "WARNING" in warning
    assert PASSWORD not in result.log


def test_the_spider_is_closed_where_that_is_preferred(
    plain_crawls: Crawls, small_site: Site, unusable_url: str
) -> None:
    settings = {"PRIOQUEUE_REDIS_URL": unusable_url, "PRIOQUEUE_FALLBACK": "error", **SOON}

    result = plain_crawls.run(settings=settings, troubles=True)

    assert result.pages == []
    assert result.reason == "prioqueue_unavailable"
    assert len(result.lines("Closing the spider: the frontier at redis://")) == 1
    assert "Traceback" not in result.log
    assert PASSWORD not in result.log


def test_a_right_password_is_used_and_not_shown(
    plain_crawls: Crawls, small_site: Site, redis_server_factory: StartServer
) -> None:
    """Report 85."""
    port = redis_server_factory(requirepass=PASSWORD).port

    by_url = plain_crawls.run(settings={"PRIOQUEUE_REDIS_URL": f"redis://:{PASSWORD}@127.0.0.1:{port}/1"})
    by_options = plain_crawls.run(
        settings={
            "REDIS_URL": f"redis://127.0.0.1:{port}/2",
            "PRIOQUEUE_REDIS_OPTIONS": {"password": PASSWORD, "decode_responses": True},
        }
    )

    for result, database in ((by_url, 1), (by_options, 2)):
        assert result.stats["scheduler/dequeued/redis"] == 3
        assert result.lines(f"at redis://127.0.0.1:{port}/{database} as worker")
        assert PASSWORD not in result.log


def test_with_jobdir_the_crawl_is_kept_on_disk_and_resumed(in_memory: Crawls, site: Site, tmp_path: Path) -> None:
    low = {"prioqueue_tier": "low"}
    site.pages = {
        "/": [
            link("/low", meta=low, priority=9),
            link("/urgent", meta={"prioqueue_tier": "urgent"}, priority=-9),
            "/plain",
            link("/low", meta=low),
        ],
        **leaves("/low", "/urgent", "/plain"),
    }
    directory = tmp_path / "job"
    settings = {"JOBDIR": str(directory), "CONCURRENT_REQUESTS": 1}

    first = in_memory.run(settings={"CLOSESPIDER_PAGECOUNT": 1, **settings})
    files = [path for path in (directory / "requests.queue").rglob("*") if path.is_file()]
    second = in_memory.run(settings=settings)

    assert first.lines(f"this worker crawls alone, on Scrapy's disk queue in {directory}")
    assert files
    assert [*first.pages, *second.pages] == ["/", "/urgent", "/plain", "/low"]
    assert len(first.pages) < 4
    assert second.reason == "finished"


def test_an_unknown_tier_is_refused_on_the_disk_queue_too(in_memory: Crawls, site: Site, tmp_path: Path) -> None:
    site.pages = {"/": [link("/a", meta={"prioqueue_tier": "best"}), "/b"], **leaves("/a", "/b")}

    result = in_memory.run(settings={"JOBDIR": str(tmp_path / "job")}, troubles=True)

    assert result.pages == ["/", "/b"]
    assert len(result.lines("'best' is not in PRIOQUEUE_TIERS")) == 1


def test_an_unreachable_server_of_one_frontier_is_no_business_of_another(
    on_redis: Crawls, in_memory: Crawls, site: Site, redis_server: RedisServer
) -> None:
    site.pages = {"/": Page()}

    assert on_redis.run().lines(f"at {redis_server.url} as worker")
    assert in_memory.run().lines("in this process as worker")
