"""What a crawl says and does when a part of it is lost: the rest of `start()`, the server's data; and who stays out."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from tests.crawl.spiders import FailingStarter, Follower
from tests.support.crawls import WITHIN_S, Crawls
from tests.support.servers import RedisServer, StartServer
from tests.support.site import Page, Site, leaves
from tests.support.waiting import wait_until


def test_a_crawl_whose_start_raised_is_resumed_and_its_missing_start_requests_come(
    on_redis: Crawls, site: Site, frontier_name: str
) -> None:
    site.pages = leaves("/1", "/2")
    named = on_redis.having(PRIOQUEUE_NAME=frontier_name, PRIOQUEUE_CRAWL_ID="run")

    broken = named.run("/1", spider=FailingStarter, troubles=True)
    mended = named.run("/1", "/2", spider=Follower)

    assert broken.pages == ["/1"]
    assert mended.lines("Resumed crawl in frontier")
    assert mended.pages == ["/2"]
    assert mended.reason == "finished"


def test_a_server_that_is_emptied_is_an_error_with_a_reason_of_its_own(
    on_redis: Crawls, site: Site, redis_server_factory: StartServer
) -> None:
    server = redis_server_factory()
    gate = threading.Event()
    site.pages = {"/": ["/held", "/waiting"], "/held": Page(gate=gate), **leaves("/waiting")}

    crawl = on_redis.start(settings={"PRIOQUEUE_REDIS_URL": server.url, "CONCURRENT_REQUESTS": 1})
    crawl.wait_for("asked", "/")
    wait_until(lambda: crawl.pages[1:], what="the crawl goes on", within=WITHIN_S)
    server.client().flushall()
    gate.set()
    result = crawl.wait(troubles=True)

    assert result.reason == "prioqueue_frontier_lost"
    assert len([line for line in result.log.splitlines() if "has lost the frontier" in line]) == 1


def test_one_off_commands_of_scrapy_leave_the_shared_crawl_alone(
    on_redis: Crawls, site: Site, redis_server: RedisServer, frontier_name: str, tmp_path: Path
) -> None:
    numbers = [f"/{number}" for number in range(30)]
    site.pages = {"/": [*numbers], **leaves(*numbers)}
    named = on_redis.having(PRIOQUEUE_NAME=frontier_name)
    named.run(settings={"CLOSESPIDER_PAGECOUNT": 3, "CONCURRENT_REQUESTS": 1})
    client, key = redis_server.client(), f"{{prioqueue:{frontier_name}}}:stats"
    before = client.hgetall(key)
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = shop_settings\n")
    (tmp_path / "shop_settings.py").write_text(
        'SCHEDULER = "scrapy_prioqueue.Scheduler"\nTELNETCONSOLE_ENABLED = False\nREMOTE_CONTROL_ENABLED = False\n'
        f"PRIOQUEUE_REDIS_URL = {redis_server.url!r}\nPRIOQUEUE_NAME = {frontier_name!r}\n"
    )

    for command in (["fetch", "--nolog", site.url("/")], ["shell", "--nolog", "-c", "response.url", site.url("/")]):
        done = subprocess.run(
            [sys.executable, "-m", "scrapy", *command],
            cwd=tmp_path,
            env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": ""},
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=True,
        )
        assert "/1" in done.stdout

    assert client.hgetall(key) == before
    assert client.zcard(f"{{prioqueue:{frontier_name}}}:leases") == 0
