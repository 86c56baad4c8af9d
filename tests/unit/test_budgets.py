"""Budget keys of requests, and the stats of their costs."""

from __future__ import annotations

from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.http import Response
from scrapy.signals import request_reached_downloader, response_downloaded
from scrapy.utils.test import get_crawler

from scrapy_prioqueue.codec import RequestCodec
from scrapy_prioqueue.codec.detached import without_counts
from scrapy_prioqueue.codec.plain import read_plain
from scrapy_prioqueue.domains import registered_domain
from scrapy_prioqueue.errors import DecodeError, RequestError
from scrapy_prioqueue.frontier.base import Lease
from scrapy_prioqueue.frontier.labels import Label, label_of, unlabelled
from scrapy_prioqueue.queues.budgets import MOST_KEYS, OTHERS, Costs, with_label

PAYLOAD = b"\x01payload"


class Bench:
    """Costs of a crawler that does nothing."""

    def __init__(self, *, is_on: bool = True, frontier: str | None = "shop") -> None:
        self.crawler = get_crawler(Spider)
        self.crawler.spider = Spider("budgets")
        self.budgets = Costs(self.crawler, frontier)
        if is_on:
            self.budgets.turn_on()

    def download(self, request: Request, body: bytes) -> None:
        self.crawler.signals.send_catch_log(request_reached_downloader, request=request, spider=self.crawler.spider)
        response = Response(request.url, body=body)
        self.crawler.signals.send_catch_log(
            response_downloaded, response=response, request=request, spider=self.crawler.spider
        )

    def lease(self, request: Request) -> Lease:
        return Lease(1, 1, 0, "shop.example", with_label(request, PAYLOAD))

    @property
    def stats(self) -> dict[str, Any]:
        assert self.crawler.stats is not None
        return dict(self.crawler.stats.get_stats())


def label(url: str = "https://www.shop.example.co.uk/1", /, **meta: Any) -> Label | None:
    return label_of(with_label(Request(url, meta=meta), PAYLOAD))


@pytest.mark.parametrize(
    ("host", "domain"),
    [
        ("example.com", "example.com"),
        ("a.b.example.com", "example.com"),
        ("www.example.co.uk", "example.co.uk"),
        ("co.uk", "co.uk"),
        ("localhost", "localhost"),
        ("192.168.0.1", "192.168.0.1"),
        ("::1", "::1"),
        ("a.shop.test", "a.shop.test"),
    ],
)
def test_registered_domain_is_the_key_and_the_host_where_there_is_none(host: str, domain: str) -> None:
    assert registered_domain(host) == domain


def test_keys_are_those_of_meta_or_the_registered_domain() -> None:
    assert label() == Label(is_rendered=False, keys=["example.co.uk"])
    assert label(prioqueue_budget="acme") == Label(is_rendered=False, keys=["acme"])
    assert label(prioqueue_budget=["job-1", "acme", "job-1"]) == Label(is_rendered=False, keys=["job-1", "acme"])
    assert label(prioqueue_budget=("job-1", "acme")) == Label(is_rendered=False, keys=["job-1", "acme"])
    assert label(prioqueue_budget=None) == Label(is_rendered=False, keys=["example.co.uk"])
    assert label("data:,nothing") is None


@pytest.mark.parametrize("key", ["playwright", "prioqueue_render"])
def test_requests_for_a_browser_count_as_rendered(key: str) -> None:
    assert label(**{key: True}) == Label(is_rendered=True, keys=["example.co.uk"])
    assert label(**{key: False}) == Label(is_rendered=False, keys=["example.co.uk"])


@pytest.mark.parametrize("said", ["", [], [""], ["a", 1], 5, {"a": 1}, b"a", "x" * 70_000])
def test_an_invalid_name_is_rejected(said: Any) -> None:
    with pytest.raises(RequestError, match="budget"):
        label(prioqueue_budget=said)


def test_without_budgets_nothing_is_measured() -> None:
    bench = Bench(is_on=False)
    request = Request("https://shop.example/", meta={"prioqueue_budget": 5})

    assert not bench.budgets.is_on
    assert bench.budgets.spent(request, Lease(1, 1, 0, "shop.example", PAYLOAD)) is None
    assert bench.stats == {}


def test_a_labelled_payload_is_read_as_the_request_that_it_is() -> None:
    codec = RequestCodec(Spider("budgets"))
    request = Request("https://shop.example/", meta={"page": 1})
    payload = with_label(request, codec.encode(request))

    assert unlabelled(payload) == codec.encode(request)
    assert codec.decode(payload).meta == {"page": 1}


def test_the_cost_of_a_request_is_reported_once_and_counted_for_each_key() -> None:
    bench = Bench()
    request = Request("https://shop.example/", meta={"prioqueue_budget": ["job-1", "acme"], "playwright": True})
    lease = bench.lease(request)
    bench.download(request, b"x" * 30)
    spent = bench.budgets.spent(request, lease)

    assert spent is not None
    assert spent.bytes == 30
    assert 0 <= spent.time_ms < 60_000
    for key in ("job-1", "acme"):
        assert bench.stats[f"prioqueue/budget/{key}/pages"] == 1
        assert bench.stats[f"prioqueue/budget/{key}/renders"] == 1
        assert bench.stats[f"prioqueue/budget/{key}/bytes"] == 30
        assert bench.stats[f"prioqueue/budget/{key}/seconds"] == pytest.approx(spent.time_ms / 1000)


def test_a_request_that_never_reached_the_downloader_has_cost_a_page_and_nothing_else() -> None:
    bench = Bench()
    request = Request("https://shop.example/")
    spent = bench.budgets.spent(request, bench.lease(request))

    assert spent is not None
    assert (spent.bytes, spent.time_ms) == (0, 0)
    assert bench.stats["prioqueue/budget/shop.example/pages"] == 1


def test_stats_are_bounded() -> None:
    bench = Bench()
    for number in range(MOST_KEYS + 5):
        request = Request("https://shop.example/", meta={"prioqueue_budget": f"job-{number}"})
        bench.budgets.spent(request, bench.lease(request))

    assert bench.stats[f"prioqueue/budget/{OTHERS}/pages"] == 5
    assert sum(name.endswith("/pages") for name in bench.stats) == MOST_KEYS + 1


def test_a_budget_that_is_used_up_is_reported_once_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.budgets.over({"acme": 3, "job-1": 1})
    bench.budgets.over({"acme": 2})

    assert bench.stats["prioqueue/dead/budget"] == 6
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert "scrapy frontier budget acme --pages N --name shop" in lines[0]
    assert "scrapy frontier dead replay --reason budget --name shop" in lines[0]


def test_a_budget_whose_name_would_break_the_line_is_shown_escaped(caplog: pytest.LogCaptureFixture) -> None:
    Bench().budgets.over({"a\nb\0\x1b[2Jé": 1})

    (line,) = [record.getMessage() for record in caplog.records]
    assert line.isprintable()
    assert r"The budget of a\nb\x00\x1b[2Jé is used up" in line


def test_log_lines_of_used_up_budgets_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    for number in range(3 * MOST_KEYS):
        bench.budgets.over({f"job-{number}": 1})

    assert len(caplog.records) == MOST_KEYS + 1
    assert bench.stats["prioqueue/dead/budget"] == 3 * MOST_KEYS


def test_a_labelled_payload_is_read_and_changed_without_a_spider_and_keeps_its_label() -> None:
    codec = RequestCodec(Spider("budgets"))
    slot = "shop.example"
    request = Request("https://shop.example/", meta={"retry_times": 2, "page": 1})
    payload = with_label(request, codec.encode(request, slot))

    assert read_plain(payload, slot).meta == {"retry_times": 2, "page": 1}
    changed = without_counts(payload, slot)
    assert codec.decode(changed, slot).meta == {"page": 1}
    assert codec.decode(changed, slot).url == request.url
    assert label_of(changed) == label_of(payload)


@pytest.mark.parametrize(
    "payload",
    [b"\x02", b"\x02\x00", b"\x02\x00\x05ab", b"\x02\x00\x01\xc1\x01", b"\x02\x00\x00", b"\x02\x00\x02\x92\x01\x05"],
)
def test_bytes_that_only_begin_like_a_label_have_none_and_are_no_request(payload: bytes) -> None:
    assert label_of(payload) is None
    with pytest.raises(DecodeError):
        RequestCodec(Spider("budgets")).decode(payload)
    with pytest.raises(DecodeError):
        read_plain(payload)


def test_in_process_no_command_is_advised(caplog: pytest.LogCaptureFixture) -> None:
    Bench(frontier=None).budgets.over({"shop": 1})

    assert "The budget of shop is used up" in caplog.text
    assert "raise PRIOQUEUE_BUDGETS" in caplog.text
    assert "scrapy frontier" not in caplog.text
