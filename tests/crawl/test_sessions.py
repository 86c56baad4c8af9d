"""Cookie sessions: requests of a jar stay in the worker that has its cookies."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import msgpack
import pytest
from scrapy.http import Response

from scrapy_prioqueue.frontier.redis.keys import Keys
from tests.crawl.spiders import Follower
from tests.support.crawls import WITHIN_S, Crawls
from tests.support.servers import RedisServer
from tests.support.site import Page, Site, Visit, in_turn, leaves, link, moved
from tests.support.waiting import wait_until

COOKIE = {"Set-Cookie": "sid=1"}
SESSIONS = 8
PAGES = 4


def login_page(number: int, gate: threading.Event) -> Callable[[Visit], Page]:
    """Return a page that sets a cookie which names the worker, and redirects to the links of a session."""

    def page(visit: Visit) -> Page:
        cookie = {"Set-Cookie": f"sid={number}.{visit.headers['user-agent']}"}
        return replace(moved(f"/{number}/home/{number}", **cookie), gate=gate)

    return page


def session_site(site: Site, logins: threading.Event, gate: threading.Event) -> None:
    """Give the site sessions: a login, a home page, pages that each lead to another."""
    for number in range(SESSIONS):
        jar = {"cookiejar": number}
        site.pages[f"/{number}/login"] = login_page(number, logins)
        site.pages[f"/{number}/home/{number}"] = [link(f"/{number}/page/{page}", meta=jar) for page in range(PAGES)] + [
            f"/{number}/public"
        ]
        for page in range(PAGES):
            site.pages[f"/{number}/page/{page}"] = Page([link(f"/{number}/next/{page}", meta=jar)], gate=gate)
        # Each leads to a page that is there already, too.
        next_page = Page([link(f"/{number}/page/0", meta=jar)])
        site.pages |= {f"/{number}/next/{page}": next_page for page in range(PAGES)}
        site.pages[f"/{number}/public"] = Page()


def of_sessions(site: Site) -> list[Visit]:
    return [visit for visit in site.visits if "/page/" in visit.path or "/next/" in visit.path]


@pytest.mark.parametrize("is_killed", [True, False])
def test_each_page_of_a_session_has_its_cookie(on_redis: Crawls, site: Site, is_killed: bool) -> None:
    may_log_in, gate = threading.Event(), threading.Event()
    session_site(site, may_log_in, gate)
    logins = [link(f"/{number}/login", meta={"cookiejar": number}) for number in range(SESSIONS)]
    settings = {"CONCURRENT_REQUESTS": 2, "PRIOQUEUE_LEASE_TTL": 2}

    crawls = [on_redis.start(*logins, settings=settings) for _ in range(2)]
    # Else the worker that starts first may log in to all of them.
    wait_until(lambda: all("/login" in str(crawl.pages) for crawl in crawls), what="both log in", within=WITHIN_S)
    may_log_in.set()
    wait_until(lambda: all("/page/" in str(crawl.pages) for crawl in crawls), what="both have one", within=WITHIN_S)
    if is_killed:
        crawls[0].kill()
        crawls[0].process.wait(within=WITHIN_S)
    gate.set()
    results = [crawl.wait() for crawl in crawls[is_killed:]]

    visits = of_sessions(site)
    assert len({visit.path for visit in visits}) == 2 * SESSIONS * PAGES
    cookies = {(visit.path, visit.headers.get("cookie")) for visit in visits}
    assert cookies == {(visit.path, f"sid={visit.path[1]}.{visit.headers['user-agent']}") for visit in visits}
    for result in results:
        assert result.reason == "finished"
        assert len(result.lines("continue a session")) == 1
        assert set(Counter(result.pages).values()) == {1}
    if not is_killed:
        assert len(visits) == len(cookies) == 2 * SESSIONS * PAGES
        assert all("/login" in str(result.pages) for result in results)


def test_sessions_are_shared_with_the_setting(on_redis: Crawls, site: Site) -> None:
    site.pages = {"/": [link("/a", meta={"cookiejar": 1})], "/a": [link("/b", meta={"cookiejar": 1})], **leaves("/b")}

    shared = on_redis.run(settings={"PRIOQUEUE_COOKIEJARS": "shared"})
    kept = on_redis.run()
    without = on_redis.run(settings={"COOKIES_ENABLED": False})

    kept_stats = [result.stats.get("prioqueue/cookiejar/kept") for result in (shared, kept, without)]
    assert kept_stats == [None, 1, None]
    assert [result.pages for result in (shared, kept, without)] == 3 * [["/", "/a", "/b"]]


def test_jars_that_each_worker_has_logged_in_to_are_shared(on_redis: Crawls, site: Site) -> None:
    jar = {"cookiejar": "me"}
    site.pages = {"/login": [link("/a", meta=jar)], "/a": [link("/b", meta=jar)], **leaves("/b")}

    result = on_redis.run(link("/login", meta=jar), settings={"PRIOQUEUE_HOLD_UNTIL_START": True})

    assert result.pages == ["/login", "/a", "/b"]
    assert "prioqueue/cookiejar/kept" not in result.stats


def test_a_page_of_a_session_that_is_given_up_is_a_dead_letter(
    on_redis: Crawls, site: Site, redis_server: RedisServer, frontier_name: str
) -> None:
    jar = {"cookiejar": 1}
    site.pages = {
        "/": [link("/login", meta=jar)],
        "/login": Page([link("/down", meta=jar), link("/bad", meta=jar, callback="parse_badly")], headers=COOKIE),
        "/down": in_turn(Page(status=503), Page(status=503), Page()),
        "/bad": Page(),
    }
    settings = {"ADDONS": {"scrapy_prioqueue.Addon": 500}, "PRIOQUEUE_RETRY_BACKOFF": {"base": 0.1}, "RETRY_TIMES": 1}

    result = on_redis.run(settings=settings, spider=Failing, troubles=True)

    # Its retry stays here, too.
    assert Counter(result.pages) == {"/": 1, "/login": 1, "/down": 2, "/bad": 1}
    assert result.stats["prioqueue/cookiejar/kept"] == 3
    assert (result.stats["prioqueue/dead/download"], result.stats["prioqueue/dead/callback"]) == (1, 1)
    assert ": 0 pending, 0 delayed, 0 leased, 2 done, 2 dead" in result.lines("Left frontier")[0]
    letters = [msgpack.unpackb(value, raw=True) for value in redis_server.client().hvals(Keys(frontier_name).dead)]
    assert sorted(letter[0] for letter in letters) == [b"callback", b"download"]
    # As it was scheduled: without the cookie that only this worker had. Scrapy's retries copy it.
    assert not [letter for letter in letters if letter[0] == b"callback" and b"sid=" in letter[7]]


class Failing(Follower):
    """Has a callback that raises."""

    name = "failing"

    def parse_badly(self, response: Response) -> None:
        raise ValueError(response.url)
