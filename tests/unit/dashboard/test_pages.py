"""What the pages show, for a frontier in any state."""

from __future__ import annotations

import re
from typing import Any

import pytest

from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.listing import dead_text
from scrapy_prioqueue.commands.reporting.document import gather
from scrapy_prioqueue.dashboard.app import PAGES, Page
from scrapy_prioqueue.dashboard.board import Board
from scrapy_prioqueue.frontier.base import Ack, Fail
from scrapy_prioqueue.frontier.policy import EVERY, Budget, Policy, SlotLimit
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.findings import Letter
from scrapy_prioqueue.frontier.redis.operators.operator import Operator
from scrapy_prioqueue.monitoring.reading import BUSY, Reading
from tests.commands.requests import page as request_for
from tests.contract.backends import RedisBackend
from tests.support.servers import RedisServer
from tests.unit.dashboard.conftest import Browser, field, form_key, page_of

ADDRESSES = [path for path, _, _ in PAGES]

HOSTILE = "https://shop.example/<script>alert(1)</script>?q=\"'&x=\u202etxt.exe\x1b[31m"
TRACEBACK = "Traceback\n  <img src=x onerror=alert(1)>\u2066\x07"


def fill(backend: RedisBackend, url: str = "https://shop.example/1", traceback: str = "Traceback") -> int:
    """Give the frontier a pending request, a leased one and a dead letter, whose id is returned."""
    worker = backend.join("w1", tiers=("urgent", "low"), policy=Policy(budgets={EVERY: Budget(pages=5)}))
    worker.commit(*(request_for(f"https://shop.example/{number}", tier=number % 2) for number in (7, 8)))
    worker.commit(request_for(url, priority=9))
    (lease,) = worker.lease(1)
    worker.commit(Fail(lease.lease_id, lease.attempt, "callback", f"failed at {url}", traceback))
    worker.lease(1)
    return lease.lease_id


def plain(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))


@pytest.mark.parametrize("address", ADDRESSES)
def test_pages_show_a_missing_frontier(browser: Browser, address: str) -> None:
    shown = browser.get(address)

    assert shown.status_code == 200
    assert "There is no crawl named" in shown.text


@pytest.mark.parametrize("address", ADDRESSES)
def test_pages_show_a_crawl(browser: Browser, backend: RedisBackend, address: str) -> None:
    fill(backend)

    shown = browser.get(address)

    assert shown.status_code == 200
    assert "dead letter" in shown.text.lower()


def test_overview_has_the_numbers(browser: Browser, backend: RedisBackend) -> None:
    fill(backend)

    shown = plain(browser.get("/").text)

    assert "Left 2 1 in progress, 0 delayed" in shown
    assert "Dead letters 1" in shown
    assert "1 dead letter, 100% of the requests done or given up." in shown


def test_a_suspect_without_slots_is_pending(
    browser: Browser, backend: RedisBackend, redis_server: RedisServer, frontier_name: str
) -> None:
    backend.join("w1", clock=None)
    client: Any = redis_server.client()
    client.zadd(Keys(frontier_name).of("suspects"), {"anything": 0})

    assert "1 suspect, kept apart from its slot." in plain(browser.get("/slots").text)


def test_workers_and_slots_are_listed(browser: Browser, backend: RedisBackend, context: Context) -> None:
    fill(backend)
    Operator(context.link, context.name).limit("shop.example", SlotLimit(delay=2.0, concurrency=1))

    assert "w1" in browser.get("/workers").text
    slots = plain(browser.get("/slots?sort=leased").text)
    assert "shop.example 1 1 of 1 0.0/s low 2 s operator full" in slots


def test_crawl_that_ended_says_so(browser: Browser, backend: RedisBackend) -> None:
    worker = backend.join("w1")
    worker.commit(request_for("https://shop.example/1"))
    (lease,) = worker.lease(1)
    worker.commit(Ack(lease.lease_id, lease.attempt))
    assert worker.ask(0, is_idle=True).has_ended

    shown = plain(browser.get("/").text)

    assert "The crawl has ended" in shown
    assert "took" in shown


@pytest.mark.parametrize("query", ["id", "url"])
def test_life_of_a_request_is_shown(browser: Browser, backend: RedisBackend, query: str) -> None:
    lease_id = fill(backend)
    wanted = str(lease_id) if query == "id" else "https://shop.example/1"

    shown = plain(browser.get("/request", params={"q": wanted}).text)

    assert "Given up: callback" in shown
    assert "Traceback" in shown
    assert ("dead since" in shown) == (query == "url")


@pytest.mark.parametrize("query", ["no-url", "9" * 30])
def test_nonsense_is_no_request(browser: Browser, backend: RedisBackend, query: str) -> None:
    fill(backend)

    shown = browser.get("/request", params={"q": query})

    assert shown.status_code == 200
    assert 'role="alert"' in shown.text
    assert "can&#39;t be read" not in shown.text


@pytest.mark.parametrize(
    ("query", "is_found"),
    [
        ("reason=callback", True),
        ("reason=download", False),
        ("text=example/1", True),
        ("text=example/2", False),
        ("newer=2h", False),
        ("older=2h", True),
    ],
)
def test_dead_letters_are_filtered(browser: Browser, backend: RedisBackend, query: str, is_found: bool) -> None:
    fill(backend)

    assert ("https://shop.example/1" in browser.get(f"/dead?{query}").text) == is_found


@pytest.mark.parametrize("query", ["reason=nonsense", "newer=soon"])
def test_bad_filters_are_explained(browser: Browser, backend: RedisBackend, query: str) -> None:
    fill(backend)

    shown = browser.get(f"/dead?{query}").text

    assert 'role="alert"' in shown
    assert "https://shop.example/1" not in shown


@pytest.mark.parametrize("action", ["replay", "purge"])
def test_dead_letters_are_changed_after_a_question(
    user: Browser, backend: RedisBackend, context: Context, action: str
) -> None:
    lease_id = fill(backend)
    form = {"form_key": form_key(user), "action": action, "id": str(lease_id)}

    asked = user.post("/dead", data=form)
    assert asked.status_code == 200 and "1 dead letter?" in asked.text
    assert context.inspector.requests.count(["dead"]) == 1

    answer = confirm(user, asked.text)
    assert (answer.status_code, answer.headers["location"]) == (303, "/dead")
    assert context.inspector.requests.count(["dead"]) == 0
    assert context.inspector.requests.count(["pending"]) == (2 if action == "replay" else 1)
    shown = user.get("/dead").text
    assert ("1 put back" if action == "replay" else "1 deleted") in shown
    assert "There are no dead letters" in shown
    assert "deleted" not in user.get("/dead").text


def test_all_that_match_are_changed(user: Browser, backend: RedisBackend, context: Context) -> None:
    fill(backend)
    form = {"form_key": form_key(user), "action": "purge", "all": "yes"}

    assert user.post("/dead", data={**form, "reason": "download"}).status_code == 303
    assert "There are no such dead letters any more" in user.get("/dead").text

    answer = confirm(user, user.post("/dead", data={**form, "reason": "callback", "text": "shop"}).text)
    assert answer.headers["location"] == "/dead?reason=callback&text=shop"
    assert context.inspector.requests.count(["dead"]) == 0


@pytest.mark.parametrize("action", ["replay", "purge"])
def test_letters_that_nobody_was_shown_are_not_changed(
    user: Browser, backend: RedisBackend, context: Context, action: str
) -> None:
    """Neither those that match since the question, nor one whose request was put back and died again."""
    chosen = fill(backend)
    asked = user.post("/dead", data={"form_key": form_key(user), "action": action, "all": "yes"}).text
    worker = backend.join("w2", tiers=("urgent", "low"), policy=Policy(budgets={EVERY: Budget(pages=5)}))
    worker.commit(request_for("https://shop.example/later", priority=9))
    (lease,) = worker.lease(1)
    worker.commit(Fail(lease.lease_id, lease.attempt, "callback", "failed later", ""))

    confirm(user, asked)
    assert [stored.lease_id for stored in context.inspector.requests.dead()] == [lease.lease_id]

    assert confirm(user, asked).status_code == 303
    assert "Nothing was changed" in user.get("/dead").text
    again = Letter(lease.lease_id, 1)
    assert list(context.inspector.requests.letters([again, Letter(chosen, 1)])) == []


def confirm(user: Browser, asked: str) -> Any:
    """Send the form of a question."""
    names = ("form_key", "question", "reason", "text")
    return user.post("/dead", data={name: value for name in names if (value := field(asked, name))})


def test_nothing_is_changed_without_a_selection(user: Browser, backend: RedisBackend, context: Context) -> None:
    fill(backend)

    user.post("/dead", data={"form_key": form_key(user), "action": "purge"})

    assert "Select dead letters first" in user.get("/dead").text
    assert context.inspector.requests.count(["dead"]) == 1


def test_dead_letters_are_counted_alike_everywhere(user: Browser, backend: RedisBackend, context: Context) -> None:
    """Those that are deleted no longer warn, and those of an earlier crawl are named as such."""
    fill(backend)
    operator = Operator(context.link, context.name)
    operator.purge(list(context.inspector.requests.dead()))

    purged = plain(user.get("/").text)
    assert "Dead letters 0 of 1 given up" in purged
    assert "1 request given up, 100% of the requests done or given up; 0 of them kept" in purged
    assert 'class="warning"' not in user.get("/").text
    found = context.inspector.status()
    assert found is not None and "Requests given up: 1, 0 of them kept" in dict(gather(context.inspector, found).notes)
    assert dead_text(found) == "1, 0 of them kept"


def test_dead_letters_of_an_earlier_crawl_are_named_as_such(user: Browser, backend: RedisBackend) -> None:
    worker = backend.join("w1")
    worker.commit(request_for("https://shop.example/1"))
    (lease,) = worker.lease(1)
    worker.commit(Fail(lease.lease_id, lease.attempt, "callback", "failed", ""))
    assert worker.ask(0, is_idle=True).has_ended
    worker.leave()
    backend.join("w2")

    assert "Dead letters 0 nothing was given up; 1 from earlier crawls" in plain(user.get("/").text)
    listed = plain(user.get("/dead").text)
    assert "0 from this crawl, 1 from earlier crawls" in listed
    assert "from crawl 1, not this one (2)" in listed
    asked = user.post("/dead", data={"form_key": form_key(user), "action": "purge", "all": "yes"}).text
    assert "1 of them is from earlier crawls" in plain(asked)


def test_foreign_text_is_shown_and_not_obeyed(browser: Browser, backend: RedisBackend) -> None:
    lease_id = fill(backend, HOSTILE, TRACEBACK)
    backend.join("<b>worker\u202e</b>", tiers=("urgent", "low")).commit(
        request_for("https://shop.example/9", slot="<i>slot</i>\u2067")
    )

    for address in (*ADDRESSES, "/slots?sort=name", f"/request?q={lease_id}", "/dead?text=<script>"):
        text = browser.get(address).text
        assert not re.search(r"<script(?! src=\"/static)|<img|<b>worker|<i>slot", text), address
        assert text.isprintable() or not re.search(r"[\u202e\u2066\u2067\x1b\x07]", text), address
        assert "javascript:" not in text
    assert "&lt;img src=x onerror=alert(1)&gt;\\u2066\\x07" in browser.get(f"/request?q={lease_id}").text


def test_only_web_addresses_are_links(browser: Browser, backend: RedisBackend) -> None:
    worker = backend.join("w1")
    worker.commit(
        request_for("javascript://shop/%0aalert(1)", slot="shop"), request_for("https://shop.example/1", priority=1)
    )
    ids = [lease.lease_id for lease in worker.lease(2)]

    pages = [browser.get(f"/request?q={each}").text for each in ids]

    assert ["open the site" in page for page in pages] == [True, False]
    assert not any('href="javascript' in page for page in pages)


def test_server_that_is_away_leaves_the_last_reading(own_server: RedisServer, context: Context) -> None:
    backend = RedisBackend(context.name, own_server.url)
    fill(backend)
    backend.close()
    context.inspector.link.close()
    context.link = context.inspector.link = Link(own_server.url, timeout_s=1)
    page = page_of(context)
    browser = Browser(page.app(), "http://localhost")
    assert "dead letter" in browser.get("/").text

    own_server.stop()
    for address in ADDRESSES:
        shown = browser.get(address)
        assert shown.status_code == 200
        assert "Redis can't be read; what is shown is from 20" in shown.text
        assert "All is well" not in shown.text and "health fine" not in shown.text
    assert "1 dead letter" in browser.get("/").text
    assert browser.get("/api/v1/status").json()["error"]


def test_crawl_of_another_layout_is_no_server_that_is_away(
    browser: Browser, backend: RedisBackend, context: Context
) -> None:
    fill(backend)
    context.link.pipe(("HSET", context.inspector.keys.state, "layout", "0"))

    shown = browser.get("/").text

    assert "The crawl can't be read." in shown
    assert "has layout 0" in shown


def test_page_that_must_wait_loads_again(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Board, "runs", lambda _: Reading(None, None, BUSY))

    shown = browser.get("/runs")

    assert (shown.status_code, shown.headers["refresh"]) == (200, "3")
    assert "not read yet" in shown.text


def test_status_is_also_for_programs(browser: Browser, backend: RedisBackend) -> None:
    assert browser.get("/api/v1/status").status_code == 404
    fill(backend)

    found = browser.get("/api/v1/status").json()

    assert found["counts"]["dead"] == 1
    assert found["error"] == ""


def test_page_says_how_many_workers_are_useful(browser: Browser, backend: RedisBackend) -> None:
    fill(backend)

    assert browser.get("/api/v1/scale").json()["workers"] == 1


def test_live_parts_are_those_of_the_pages(page: Page, browser: Browser, backend: RedisBackend) -> None:
    fill(backend)
    for view, address in {"overview": "/", "workers": "/workers", "slots:leased": "/slots?sort=leased"}.items():
        assert set(page.fragments(view)) == {"live-frame", "live-view", "age"}
        assert f'data-view="{view}"' in browser.get(address).text
    assert set(page.fragments("frame")) == {"live-frame", "age"}
