"""Requests that are escalated from one layer to the next."""

from __future__ import annotations

import inspect
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import scrapy
from scrapy import Request
from scrapy.http import Response
from scrapy.spidermiddlewares.depth import DepthMiddleware
from scrapy.spidermiddlewares.httperror import HttpError
from twisted.python.failure import Failure

from scrapy_prioqueue import escalate
from scrapy_prioqueue.frontier.redis.keys import Keys
from tests.crawl.spiders import Follower, path_of, pause
from tests.crawl.test_dead_letters import balanced, letters
from tests.support.crawls import WITHIN_S, Crawls
from tests.support.servers import RedisServer
from tests.support.site import Page, Site, in_turn, leaves, link, moved
from tests.support.waiting import wait_until

LAYERS = [
    "http",
    {"name": "cookies", "meta": {"cookiejar": 7, "hard": [1]}},
    {"name": "browser", "meta": {"playwright": True, "hard": [2]}},
]
SETTINGS = {"PRIOQUEUE_LAYERS": LAYERS}
WITH_RETRIES = {**SETTINGS, "ADDONS": {"scrapy_prioqueue.Addon": 500}, "PRIOQUEUE_RETRY_BACKOFF": None}

OVERWRITING = {
    "PRIOQUEUE_LAYERS": [
        "http",
        {"name": "cookies", "meta": {"mine": 2, "cookiejar": 7}},
        {"name": "browser", "meta": {"playwright": True}},
        {"name": "manual", "meta": {"mine": 4}},
        "end",
    ]
}
"""Layers that put in what requests have themselves."""

OWN = {"mine": 1, "playwright": False}
ON_OVERWRITING = [
    OWN,
    {**OWN, "mine": 2, "cookiejar": 7},
    {**OWN, "playwright": True},
    {**OWN, "mine": 4},
    OWN,
]

CAN_KEEP_DEPTH = "depth_reset" in inspect.getsource(DepthMiddleware)
"""Scrapy 2.18 has a way for requests to be no deeper than their page."""

DROPS_WHAT_ERRBACKS_YIELD = scrapy.__version__ == "2.13.0"
"""Scrapy then reads nothing of what an errback yields where the download has failed."""

TOLD = ("depth", "cookiejar", "hard", "playwright", "prioqueue_layer", "retry_times", "redirect_times", "mine")
OTHERS = ("prioqueue_escalation", "depth_reset", "referrer_policy", "is_start_request")


class Climber(Follower):
    """Sends requests on to the next layer."""

    name = "climber"

    def parse(self, response: Response) -> Iterator[Any]:
        yield from self.requests(response)

    def parse_up(self, response: Response, until: str = "browser", **arguments: Any) -> Iterator[Any]:
        """Escalate up to a layer, and yield the request's data on each."""
        assert response.request is not None
        meta = {key: response.meta[key] for key in (*TOLD, *OTHERS) if key in response.meta}
        lineage, referer = response.meta["prioqueue"], response.request.headers.get("Referer")
        yield {
            "page": path_of(response),
            "meta": meta,
            "priority": response.request.priority,
            "tier": lineage["tier"],
            "source": lineage["source"],
            "referer": referer and referer.decode(),
            "arguments": arguments,
        }
        if response.meta.get("prioqueue_layer", "http") != until:
            response.meta["hard"] = response.meta["left"] = "what a callback puts in"
            yield escalate(response, "captcha\n wall")

    async def parse_up_late(self, response: Response) -> AsyncIterator[Any]:
        """Do so after a pause, of a changed response."""
        await pause()
        yield escalate(response.replace(body=b"other"), "empty")
        yield {"page": path_of(response), "layer": response.meta.get("prioqueue_layer")}

    def parse_twice(self, response: Response) -> Iterator[Any]:
        """Have two checks that both fail."""
        yield {"page": path_of(response), "layer": response.meta.get("prioqueue_layer")}
        yield escalate(response, "captcha")
        yield escalate(response, "no price")

    def parse_twice_and_return(self, response: Response) -> list[Any]:
        """Do so before anything is scheduled, and leave out what is no request."""
        return [found for found in (escalate(response, "captcha"), escalate(response, "no price")) if found]

    def parse_and_forget(self, response: Response) -> None:
        """Forget to yield the request."""
        escalate(response, "forgotten")

    def parse_wrongly(self, response: Response) -> Iterator[Any]:
        """Escalate a request that is not in progress, and yield the error."""
        for wrong in (Response("http://other.test"), "no response", response):
            try:
                escalate(wrong, "reason")  # type: ignore[arg-type]
            except ValueError as error:
                yield {"page": path_of(response), "error": str(error)}

    def on_error(self, failure: Failure) -> Iterator[Any]:
        """Escalate what was answered with an error."""
        assert isinstance(failure.value, HttpError)
        response = failure.value.response
        yield {"page": path_of(response), "layer": response.meta.get("prioqueue_layer", "http")}
        yield escalate(response, str(response.status))

    def on_failure(self, failure: Failure) -> Iterator[Any]:
        """Escalate a failed request, twice."""
        request = failure.request  # type: ignore[attr-defined]
        meta = {key: request.meta[key] for key in (*TOLD, *OTHERS) if key in request.meta}
        kind = type(failure.value).__name__
        reason = next(word for word in ("HttpError", "Timeout", "Refused") if word in kind)
        yield {"page": urlsplit(request.url).path, "meta": meta, "source": request.meta["prioqueue"]["source"]}
        yield escalate(failure, reason)
        yield escalate(failure, "again")
        try:
            escalate(Failure(OSError("of something else")), reason)  # type: ignore[no-untyped-call]
        except ValueError as error:
            yield {"page": "wrong", "error": str(error)}


def on_layers(items: Any, page: str) -> list[dict[str, Any]]:
    """Return the items of the pages of a path, in order."""
    return [item for item in items if item["page"] == page]


def test_a_request_goes_through_the_layers_unchanged(crawls: Crawls, site: Site) -> None:
    arguments = {"callback": "parse_up", "priority": 5, "cb_kwargs": {"given": [1]}}
    site.pages = {"/": [link("/up", meta={"prioqueue_tier": "high", "mine": {"a": 1}}, **arguments)], "/up": []}

    result = crawls.run(spider=Climber, settings=SETTINGS)

    told = on_layers(result.items, "/up")
    own = {"depth": 1, "mine": {"a": 1}}
    assert [each["meta"] for each in told] == [
        own,
        {**own, "prioqueue_layer": "cookies", "cookiejar": 7, "hard": [1]},
        {**own, "prioqueue_layer": "browser", "playwright": True, "hard": [2]},
    ]
    assert [(each["priority"], each["tier"], each["arguments"]) for each in told] == [(5, "high", {"given": [1]})] * 3
    assert {each["source"] for each in told} == {site.url("/")} == {each["referer"] for each in told}
    assert result.pages == ["/", "/up", "/up", "/up"]
    assert result.stats_under("prioqueue/escalated") == {
        "prioqueue/escalated": 2,
        "prioqueue/escalated/cookies/captcha wall": 1,
        "prioqueue/escalated/browser/captcha wall": 1,
    }
    assert result.stats_under("dupefilter/") == {}
    assert result.reason == "finished"


def own_meta(items: Any) -> list[dict[str, Any]]:
    """Return the meta of `/up` on each layer, without the keys of the layer."""
    kept_out = {"depth", "prioqueue_layer"}
    return [{key: item["meta"][key] for key in item["meta"].keys() - kept_out} for item in on_layers(items, "/up")]


def test_values_overwritten_by_a_layer_are_restored_on_the_next(crawls: Crawls, site: Site) -> None:
    busy = Page(status=503)
    site.pages = {
        "/": [link("/up", callback="parse_up", cb_kwargs={"until": "end"}, meta=OWN)],
        "/up": in_turn(Page([]), busy, Page([]), busy, Page([])),
    }

    result = crawls.run(spider=Climber, settings={**WITH_RETRIES, **OVERWRITING})

    told = own_meta(result.items)
    assert [meta.pop("retry_times", 0) for meta in told] == [0, 1, 1, 0, 0]
    assert told == ON_OVERWRITING


def test_values_overwritten_by_a_layer_survive_a_kill(on_redis: Crawls, site: Site, client: Any, keys: Keys) -> None:
    gate = threading.Event()
    worker = on_redis.having(**OVERWRITING, PRIOQUEUE_WORKER_ID="me", PRIOQUEUE_LEASE_TTL=600)
    site.pages = {
        "/": [link("/up", callback="parse_up", cb_kwargs={"until": "end"}, meta=OWN)],
        "/up": in_turn(Page([]), Page(gate=gate)),
    }

    first = worker.start(spider=Climber)
    wait_until(lambda: site.count("/up") == 2, what="the page is fetched on the second layer", within=WITHIN_S)
    # Without its ack the page would be fetched on the first layer again.
    wait_until(lambda: client.hget(keys.of("stats"), "done") == b"2", what="the ack is stored", within=WITHIN_S)
    first.kill()
    first.process.wait(within=WITHIN_S)
    gate.set()
    second = worker.run(spider=Climber)

    assert own_meta(second.items) == ON_OVERWRITING[1:]


def test_a_request_on_scrapys_disk_queue_can_be_escalated(in_memory: Crawls, site: Site, tmp_path: Path) -> None:
    site.pages = {"/": [link("/up", callback="parse_up_late")], "/up": []}
    settings = {"PRIOQUEUE_LAYERS": "http,manual", "JOBDIR": str(tmp_path / "job")}

    result = in_memory.run(spider=Climber, settings=settings, troubles=True)

    assert [item["layer"] for item in result.items] == [None, "manual"]
    assert len(result.lines("the last layer, 'manual', failed: empty")) == 1


def test_a_request_that_can_not_be_stored_is_escalated_in_the_process(crawls: Crawls, site: Site) -> None:
    site.pages = {"/": [], "/kept": []}

    result = crawls.run(spider=Keeping, settings=SETTINGS)

    told = on_layers(result.items, "/kept")
    assert [each["meta"].get("prioqueue_layer") for each in told] == [None, "cookies", "browser"]
    assert [each["meta"].get("hard") for each in told] == [None, [1], [2]]
    assert [each["meta"]["depth"] for each in told] == [1, 1, 1]
    assert result.stats.get("scheduler/unserializable") == (3 if crawls.are_shared else None)


class Keeping(Climber):
    """Finds a page that can't be stored."""

    name = "keeping"

    def parse(self, response: Response) -> Iterator[Any]:
        yield response.follow("/kept", callback=partial(Climber.parse_up, self))


def test_past_the_last_layer_is_a_dead_letter(
    on_redis: Crawls, site: Site, redis_server: RedisServer, frontier_name: str
) -> None:
    site.pages = {"/": [link("/up", callback="parse_up", cb_kwargs={"until": "none"})], "/up": []}

    result = on_redis.run(spider=Climber, settings=SETTINGS, troubles=True)

    (letter,) = letters(redis_server, frontier_name)
    assert letter.reason == "escalation"
    assert letter.detail == "the last layer, 'browser', failed: captcha wall"
    assert len(result.lines("Gave up <GET")) == 1
    assert result.stats_under("prioqueue/dead/") == {"prioqueue/dead/escalation": 1}
    assert result.stats["prioqueue/escalated"] == 2
    assert result.reason == "finished"
    assert balanced(result, redis_server, frontier_name)


def test_retries_and_redirects_are_those_of_one_layer(crawls: Crawls, site: Site) -> None:
    busy = Page(status=503)
    site.pages = {
        "/": [link("/from", callback="parse_up")],
        "/from": moved("/up"),
        "/up": in_turn(busy, Page([]), busy, busy, Page([])),
    }

    result = crawls.run(spider=Climber, settings={**WITH_RETRIES, "RETRY_PRIORITY_ADJUST": 0})

    first, second, third = on_layers(result.items, "/up")
    assert (first["meta"].get("redirect_times"), first["meta"].get("retry_times")) == (1, 1)
    assert (second["meta"].get("redirect_times"), second["meta"].get("retry_times")) == (None, 2)
    assert (third["meta"].get("redirect_times"), third["meta"].get("retry_times")) == (None, None)
    assert {each["source"] for each in (first, second, third)} == {site.url("/")}


def test_a_redirect_to_another_host_is_escalated_in_the_slot_of_that_host(crawls: Crawls, site: Site) -> None:
    other = site.url("/up", host=site.hosts[1])
    site.pages = {
        "/": [link("/from", callback="parse_up"), link("/own", callback="parse_up", meta={"download_slot": "mine"})],
        "/from": moved(other),
        **leaves("/up", "/own"),
    }

    result = crawls.run(spider=Slots, settings=SETTINGS)

    assert [item["slot"] for item in on_layers(result.items, "/up")] == [site.hosts[1]] * 3
    assert [item["slot"] for item in on_layers(result.items, "/own")] == ["mine"] * 3


class Slots(Climber):
    """Records the download slots of requests."""

    name = "slots"

    def parse_up(self, response: Response, until: str = "browser", **arguments: Any) -> Iterator[Any]:
        for each in super().parse_up(response, until, **arguments):
            yield {**each, "slot": response.meta["download_slot"]} if isinstance(each, dict) else each


def test_a_start_request_is_escalated_unchanged(crawls: Crawls, site: Site) -> None:
    site.pages = leaves("/up")

    result = crawls.run(link("/up", callback="parse_up"), spider=Climber, settings=SETTINGS)

    told = on_layers(result.items, "/up")
    assert [each["referer"] for each in told] == [None] * 3
    assert [each["meta"].get("depth") for each in told] == [0, 0, 0]
    assert [set(each["meta"]) & set(OTHERS) for each in told] == [{"is_start_request"}, set(), set()]


def test_tier_by_rule_and_priority_by_depth_stay(crawls: Crawls, site: Site) -> None:
    site.pages = {
        "/": ["/deep"],
        "/deep": [link("/high/from", callback="parse_up", priority=9)],
        "/high/from": moved("/up"),
        "/up": [],
    }
    rules = [{"tier": "high", "url": "/high/"}]
    settings = {**SETTINGS, "PRIOQUEUE_TIER_RULES": rules, "DEPTH_PRIORITY": 2, "REDIRECT_PRIORITY_ADJUST": 0}

    result = crawls.run(spider=Climber, settings=settings)

    told = on_layers(result.items, "/up")
    assert [each["tier"] for each in told] == ["high"] * 3
    assert [each["priority"] for each in told] == [5, 5, 5]


def test_a_page_at_the_depth_limit_is_escalated_if_scrapy_allows_it(crawls: Crawls, site: Site) -> None:
    site.pages = {"/": [link("/up", callback="parse_up")], "/up": []}

    result = crawls.run(spider=Climber, settings={**SETTINGS, "DEPTH_LIMIT": 1})

    assert result.pages == ["/", *["/up"] * (3 if CAN_KEEP_DEPTH else 1)]
    assert len(result.lines("was not escalated")) == (0 if CAN_KEEP_DEPTH else 1)


def test_callbacks_that_wait_and_errbacks_escalate(crawls: Crawls, site: Site) -> None:
    site.pages = {
        "/": [link("/late", callback="parse_up_late"), link("/error", callback="parse_up", errback="on_error")],
        "/late": [],
        "/error": in_turn(Page(status=403), Page([])),
    }

    result = crawls.run(spider=Climber, settings=SETTINGS, troubles=True)

    assert Counter(result.pages) == {"/": 1, "/late": 3, "/error": 3}
    assert result.stats["prioqueue/escalated/cookies/403"] == 1
    assert result.stats["prioqueue/escalated/browser/empty"] == 1
    assert result.stats["prioqueue/dead/escalation"] == 1


def test_a_page_is_escalated_once_however_often_it_is_called(crawls: Crawls, site: Site) -> None:
    site.pages = {"/": [link("/up", callback="parse_twice"), link("/list", callback="parse_twice_and_return")]}
    site.pages |= leaves("/up", "/list")

    result = crawls.run(spider=Climber, settings=SETTINGS, troubles=True)

    assert [item["layer"] for item in on_layers(result.items, "/up")] == [None, "cookies", "browser"]
    assert Counter(result.pages) == {"/": 1, "/up": 3, "/list": 3}
    assert result.stats_under("prioqueue/escalated") == {
        "prioqueue/escalated": 4,
        "prioqueue/escalated/cookies/captcha": 2,
        "prioqueue/escalated/browser/captcha": 2,
    }
    assert len(result.lines("Gave up <GET")) == 2
    assert not result.lines("was not escalated")


def test_a_request_without_a_response_is_escalated_from_its_errback(crawls: Crawls, site: Site) -> None:
    failing = {"callback": "parse_up", "errback": "on_failure", "priority": 3, "meta": {"mine": 1}}
    unreachable = {**failing, "cb_kwargs": {"until": "none"}}
    slow = {**failing, "meta": {"mine": 1, "download_timeout": 0.3}}
    site.pages = {
        "/": [link("/slow", **slow), link("/error", **failing), link("http://127.0.0.1:1/refused", **unreachable)],
        "/slow": in_turn(Page(delay_s=3), Page([])),
        "/error": in_turn(Page(status=404), Page([])),
    }

    result = crawls.run(spider=Climber, settings={**SETTINGS, "RETRY_ENABLED": False}, troubles=True)

    if DROPS_WHAT_ERRBACKS_YIELD:
        # Only the page that was answered goes on.
        layers = ("cookies/HttpError", "browser/captcha wall")
        assert result.stats_under("prioqueue/escalated/") == {f"prioqueue/escalated/{each}": 1 for each in layers}
        return
    on_cookies = {"depth": 1, "mine": 1, "prioqueue_layer": "cookies", "cookiejar": 7, "hard": [1]}
    for page in ("/slow", "/error", "/refused"):
        told = on_layers(result.items, page)
        assert [each["meta"].get("prioqueue_layer") for each in told] == [None, "cookies", "browser"]
        assert told[1]["meta"] == on_cookies
        assert {each["source"] for each in told} == {site.url("/")}
    assert {each["priority"] for each in result.items if "priority" in each} == {3}
    assert result.stats_under("prioqueue/escalated/") == {
        "prioqueue/escalated/cookies/HttpError": 1,
        "prioqueue/escalated/cookies/Timeout": 1,
        "prioqueue/escalated/cookies/Refused": 1,
        "prioqueue/escalated/browser/Refused": 1,
        "prioqueue/escalated/browser/captcha wall": 2,
    }
    assert len(result.lines("Gave up <GET http://127.0.0.1:1/refused>: the last layer, 'browser', failed")) == 1
    assert all("it belongs to no request in progress" in each["error"] for each in on_layers(result.items, "wrong"))
    assert len(on_layers(result.items, "wrong")) == 5


@pytest.mark.parametrize(("until", "dead"), [("browser", {}), ("none", {"prioqueue/dead/escalation": 1})])
def test_exhausted_retries_of_an_escalated_request_make_no_dead_letter(
    crawls: Crawls, site: Site, until: str, dead: Any
) -> None:
    site.pages = {
        "/": [link("/up", callback="parse_up", errback="on_failure", cb_kwargs={"until": until})],
        "/up": in_turn(*[Page(status=503)] * 4, Page(status=200 if until == "browser" else 503)),
    }

    result = crawls.run(spider=Climber, settings={**WITH_RETRIES, "RETRY_TIMES": 1}, troubles=True)

    assert result.pages == ["/", *["/up"] * (5 if until == "browser" else 6)]
    assert result.stats["prioqueue/escalated"] == 2
    assert result.stats_under("prioqueue/dead/") == dead


def test_an_escalated_request_that_is_not_yielded_is_logged(crawls: Crawls, site: Site) -> None:
    site.pages = {"/": [link("/up", callback="parse_and_forget")], "/up": []}

    result = crawls.run(spider=Climber, settings=SETTINGS)

    assert result.pages == ["/", "/up"]
    assert len(result.lines("was not escalated")) == 1
    assert result.stats_under("prioqueue/escalated") == {}


def test_invalid_escalations_are_rejected_with_the_reason(crawls: Crawls, site: Site) -> None:
    site.pages = {"/": [link("/wrong", callback="parse_wrongly")], "/wrong": []}

    result = crawls.run(spider=Climber)

    errors = [item["error"] for item in result.items]
    assert "it belongs to no request in progress" in errors[0]
    assert "it takes the response of a callback, or the failure of an errback" in errors[1]
    assert errors[2] == "escalate() needs the setting PRIOQUEUE_LAYERS"


@pytest.mark.parametrize("layer", ["proxy", ["http"]])
def test_an_unknown_layer_is_refused_with_the_known_ones(crawls: Crawls, site: Site, layer: Any) -> None:
    site.pages = {"/": [link("/wrong", callback="parse_wrongly", meta={"prioqueue_layer": layer})], "/wrong": []}

    result = crawls.run(spider=Climber, settings=SETTINGS)

    error = result.items[-1]["error"]
    assert f"meta['prioqueue_layer'] = {layer!r} is not in PRIOQUEUE_LAYERS" in error
    assert json.dumps(["http", "cookies", "browser"]).replace('"', "'") in error


def test_a_request_that_middlewares_changed_is_escalated(crawls: Crawls, site: Site) -> None:
    site.pages = {"/": [link("/up", callback="parse_up")], "/up": [], "/other": []}

    result = crawls.run(spider=Changing, settings=SETTINGS)

    assert result.pages == ["/", "/up", "/other", "/other"]
    assert [item["meta"].get("prioqueue_layer") for item in result.items] == [None, "cookies", "browser"]
    assert not result.lines("was not escalated")


class Changing(Climber):
    """Asks for another page on the next layer."""

    name = "changing"

    def parse_up(self, response: Response, until: str = "browser", **arguments: Any) -> Iterator[Any]:
        for each in super().parse_up(response, until, **arguments):
            yield each.replace(url=response.urljoin("/other")) if isinstance(each, Request) else each
