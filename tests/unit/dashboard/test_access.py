"""Who may see the page, who may change something, and what browsers are told."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.dashboard.access import BODY_LIMIT, COOKIE, Access, Guard, is_loopback, local_path
from scrapy_prioqueue.dashboard.app import PAGES, Page
from scrapy_prioqueue.dashboard.board import Board
from tests.unit.dashboard.conftest import HERE, TOKEN, Browser, form_key, page_of

ADDRESSES = [*(path for path, _, _ in PAGES), "/events", "/api/v1/status", "/api/v1/scale", "/nothing"]

CHANGES = {"/dead": {"action": "purge", "all": "yes"}, "/logout": {}}
"""Forms that change something."""


@pytest.fixture
def elsewhere(context: Context) -> Browser:
    """A browser of a page that others can reach."""
    page = page_of(context, "0.0.0.0", ("crawl.example",))
    return TestClient(page.app(), "https://crawl.example", follow_redirects=False)


@pytest.mark.parametrize("name", ["127.0.0.1:8765", "localhost:8765", "[::1]:8765", "LOCALHOST"])
def test_loopback_may_read(browser: Browser, name: str) -> None:
    assert browser.get("/", headers={"Host": name}).status_code == 200


@pytest.mark.parametrize(
    "name", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "192.0.2.1", "", "a@b"]
)
def test_other_names_are_refused(browser: Browser, name: str) -> None:
    """A page whose name is made to point here must not read it."""
    assert browser.get("/", headers={"Host": name}).status_code == 421
    assert browser.post("/login", headers={"Host": name}, data={"token": TOKEN}).status_code == 421


def test_name_of_a_proxy_is_known_and_needs_the_token(context: Context) -> None:
    browser = TestClient(page_of(context, allowed_hosts=("crawl.example",)).app(), HERE, follow_redirects=False)

    assert browser.get("/", headers={"Host": "crawl.example"}).status_code == 401
    assert browser.get("/", headers={"Host": "127.0.0.1"}).status_code == 200


@pytest.mark.parametrize("address", ADDRESSES)
def test_others_need_the_token_to_read(elsewhere: Browser, address: str) -> None:
    assert elsewhere.get(address).status_code == 401
    answer = elsewhere.get(address, headers={"Accept": "text/html"})
    assert (answer.status_code, answer.headers["location"]) == (303, f"/login?next={address}")


def test_token_lets_in(elsewhere: Browser) -> None:
    assert elsewhere.get("/api/v1/status", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 404
    assert elsewhere.get("/api/v1/status", headers={"Authorization": "Bearer x"}).status_code == 401

    answer = elsewhere.post("/login", data={"token": TOKEN, "next": "/slots"})

    assert (answer.status_code, answer.headers["location"]) == (303, "/slots")
    assert re.search(
        f"{COOKIE}_[0-9a-f]+=.*HttpOnly; Max-Age=.*Path=/; SameSite=strict; Secure", answer.headers["set-cookie"]
    )
    assert elsewhere.get("/slots").status_code == 200


def test_names_that_cannot_be_rebound_are_known(elsewhere: Browser) -> None:
    assert elsewhere.get("/login", headers={"Host": "192.0.2.7:8765"}).status_code == 200
    assert elsewhere.get("/login", headers={"Host": "other.example"}).status_code == 421


def test_wrong_token_is_refused(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scrapy_prioqueue.dashboard.app.LOGIN_PAUSE_S", 0.0)

    answer = browser.post("/login", data={"token": TOKEN + "x"})

    assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
    assert "That is not the token" in answer.text


@pytest.mark.parametrize("address", CHANGES)
def test_changes_need_a_session_and_its_form(page: Page, browser: Browser, address: str) -> None:
    form = CHANGES[address]
    assert browser.post(address, data=form).status_code == 403
    assert browser.post(address, data={**form, "form_key": "x"}, headers={"Authorization": TOKEN}).status_code == 403
    browser.post("/login", data={"token": TOKEN})

    assert browser.post(address, data=form).status_code == 403
    assert browser.post(address, data={**form, "form_key": "guess"}).status_code == 403
    other = TestClient(page.app(), HERE, follow_redirects=False)
    other.post("/login", data={"token": TOKEN})
    assert browser.post(address, data={**form, "form_key": form_key(other)}).status_code == 403
    assert browser.post(address, data={**form, "form_key": form_key(browser)}).status_code == 303


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": f"{HERE}0"}],
)
def test_forms_of_other_sites_are_refused(user: Browser, headers: dict[str, str]) -> None:
    form = {**CHANGES["/dead"], "form_key": form_key(user)}

    assert user.post("/dead", data=form, headers=headers).status_code == 403
    assert user.post("/dead", data=form, headers={"Origin": HERE, "Sec-Fetch-Site": "same-origin"}).status_code == 303


def test_other_sites_may_link_but_not_read(browser: Browser) -> None:
    navigation = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}

    assert browser.get("/", headers=navigation).status_code == 200
    assert browser.get("/", headers={**navigation, "Sec-Fetch-Dest": "iframe"}).status_code == 403
    assert browser.get("/api/v1/status", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403


def test_large_forms_are_refused(browser: Browser) -> None:
    assert browser.post("/login", data={"token": "x" * BODY_LIMIT}).status_code == 413
    assert browser.post("/login", content=iter([b"token=x"])).status_code == 411


def test_forms_without_a_body_are_no_large_ones(browser: Browser) -> None:
    assert browser.post("/").status_code == 405
    assert browser.post("/dead").status_code == 403


@pytest.mark.parametrize("headers", [{"Origin": "https://crawl.example"}, {"X-Forwarded-Proto": "https"}])
def test_cookies_stay_encrypted_behind_a_proxy(context: Context, headers: dict[str, str]) -> None:
    proxied = TestClient(page_of(context, allowed_hosts=("crawl.example",)).app(), "http://crawl.example")

    answer = proxied.post("/login", data={"token": TOKEN}, headers=headers, follow_redirects=False)

    assert "; Secure" in answer.headers["set-cookie"]


def test_pages_on_one_machine_have_their_own_sessions(context: Context) -> None:
    """Browsers send the cookies of a name to all of its ports."""
    board = Board(context)
    browsers = [
        TestClient(Page(board, Access(TOKEN, "127.0.0.1", place=place)).app(), HERE, follow_redirects=False)
        for place in ("books at :8765", "books at :8766")
    ]
    for browser in browsers:
        browser.cookies = browsers[0].cookies
        browser.post("/login", data={"token": TOKEN})

    assert all(form_key(browser) for browser in browsers)


def test_requests_that_are_open_at_the_end_are_answered() -> None:
    """Else the server would log a traceback for each."""
    sent: list[Any] = []

    async def never(*_: Any) -> Any:
        await asyncio.sleep(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": [(b"host", b"localhost")]}

    answer = Guard(never, Access(TOKEN, "127.0.0.1"))(scope, never, send)
    answer.send(None)
    with pytest.raises(StopIteration):
        answer.throw(asyncio.CancelledError())

    assert sent[0]["status"] == 503


def test_logging_out_ends_the_session(user: Browser) -> None:
    (name,) = user.cookies
    key, cookie = form_key(user), user.cookies[name]

    assert user.post("/logout", data={"form_key": key}).status_code == 303
    user.cookies.set(name, cookie)
    assert user.post("/dead", data={**CHANGES["/dead"], "form_key": key}).status_code == 403


def test_sessions_end(clock: Any) -> None:
    access = Access(TOKEN, "127.0.0.1", clock=clock)
    request: Any = type("Request", (), {"cookies": {access.cookie: access.log_in()}})()
    assert access.session_of(request) is not None

    clock.advance(24 * 3600)
    assert access.session_of(request) is None


@pytest.mark.parametrize("address", [*ADDRESSES[:-4], "/login", "/static/page.js", "/nothing"])
def test_browsers_are_told_what_is_allowed(browser: Browser, address: str) -> None:
    headers = browser.get(address).headers

    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert ("no-store" in headers["cache-control"]) != ("/static/" in address)


def test_pages_work_under_their_policy(browser: Browser) -> None:
    for address, _, _ in PAGES:
        text = browser.get(address).text
        assert not re.search(r"<script(?! src=)|<style| style=| on\w+=|https?://(?!127)", text), address


@pytest.mark.parametrize(
    "given", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:x", "", "/\n/"]
)
def test_login_leads_nowhere_else(given: str) -> None:
    assert local_path(given) == "/"


def test_loopback_addresses() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.9.9.9", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.0.1", "crawl.example", "")))
