"""Spider arguments: a warning if workers differ, and separate frontiers by argument."""

from __future__ import annotations

from tests.crawl.spiders import Follower, Mannered
from tests.support.crawls import Crawls
from tests.support.site import Page, Site, leaves


def test_workers_and_runs_with_other_arguments_are_warned_by_name(on_redis: Crawls, site: Site) -> None:
    site.pages = {"/": Page(delay_s=30)}
    workers = on_redis.having(PRIOQUEUE_LEASE_TTL=2)

    first = workers.start(country="fr", api_key="one", _job="1")
    first.wait_for("asked", "/")
    same = workers.start(country="fr", api_key="one", _job="2", settings={"CLOSESPIDER_TIMEOUT": 1}).wait()
    other = workers.start(country="de", api_key="two", _job="3", settings={"CLOSESPIDER_TIMEOUT": 1}).wait()
    first.kill()
    site.pages = leaves("/")
    resumed = workers.run(spider=Mannered, country="fr", api_key="one")

    assert not same.lines("was begun by another spider")
    (line,) = other.lines("was begun by another spider")
    assert "api_key has one value here and another there; country is 'de' here and 'fr' there." in line
    assert "PRIOQUEUE_NAME = '%(spider)s-%(country)s'" in line
    (line,) = resumed.lines("was begun by another spider")
    assert f"its class is {Mannered.__module__}:Mannered here and {Follower.__module__}:Follower there." in line


def test_each_set_of_arguments_has_a_frontier_where_the_name_holds_them(on_redis: Crawls, site: Site) -> None:
    site.pages = leaves("/")
    by_country = on_redis.having(PRIOQUEUE_NAME=f"{on_redis.settings['PRIOQUEUE_NAME']}-%(country)s")

    french, german = by_country.run(country="fr"), by_country.run(country="de")
    missing = by_country.run(troubles=True)

    assert (french.pages, german.pages) == (["/"], ["/"])
    assert not german.lines("was begun by another spider")
    assert missing.pages == []
    assert "no argument 'country'; give it one (-a country=…)" in missing.log
