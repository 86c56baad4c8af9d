"""The page in Chromium: it is live, works by keyboard and on a phone, and axe finds nothing to complain about."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from scrapy_prioqueue.frontier.base import Fail
from scrapy_prioqueue.frontier.policy import EVERY, Budget, Policy, SlotLimit
from tests.commands.requests import page as request_for
from tests.contract.backends import RedisBackend
from tests.integrations.test_scrapy_playwright import SETTINGS
from tests.support.processes import StartProcess
from tests.support.servers import RedisServer, StartServer
from tests.support.waiting import wait_until

TOKEN = "a token that is long enough"

TIERS = ("urgent", "high", "normal", "low")

PATHS = ("/", "/workers", "/slots", "/dead", "/request?q=https://shop.example/1", "/budgets", "/runs", "/login")

SCREENS = [(scheme, width) for scheme in ("light", "dark") for width in (360, 1440)]

HOSTILE = "<img src=x onerror=alert(1)>\u202e"

Browse = Callable[[Callable[[Browser], object]], object]
"""Calls a function with the browser, in the thread that owns it: Playwright can't share one with a reactor."""


@pytest.fixture(scope="module")
def browse() -> Iterator[Browse]:
    with ThreadPoolExecutor(1) as thread:
        playwright = thread.submit(sync_playwright().start).result()
        options: dict[str, Any] = SETTINGS["PLAYWRIGHT_LAUNCH_OPTIONS"]
        browser = thread.submit(lambda: playwright.chromium.launch(**options)).result()
        yield lambda look: thread.submit(look, browser).result()
        thread.submit(lambda: (browser.close(), playwright.stop())).result()


@pytest.fixture
def serve(start_process: StartProcess, frontier_name: str, tmp_path: Path) -> Callable[[str], str]:
    """Serves the page of this test's frontier on a server, and returns its address."""

    def serve(url: str) -> str:
        command = ("scrapy", "frontier", "dashboard", "--url", url, "--name", frontier_name, "--port", "0")
        environment = {**os.environ, "PRIOQUEUE_DASHBOARD_TOKEN": TOKEN}
        child = start_process([sys.executable, "-m", *command], env=environment, cwd=tmp_path)
        wait_until(lambda: " is at " in child.log or not child.is_running, what="the dashboard is served", within=60)
        return str(re.findall(r"http://\S+", child.log)[0])

    return serve


@pytest.fixture
def address(serve: Callable[[str], str], redis_server: RedisServer, backend: RedisBackend) -> str:
    """Where the page of a crawl is served that has something of everything."""
    policy = Policy(budgets={EVERY: Budget(pages=5)}, slots={"s1.example": SlotLimit(delay=60.0)})
    worker = backend.join("worker-1", tiers=TIERS, policy=policy)
    worker.commit(*(request_for(f"https://shop.example/{number}", priority=9) for number in (1, 2)))
    for lease in worker.lease(2):
        worker.commit(Fail(lease.lease_id, lease.attempt, "callback", f"KeyError: {HOSTILE}", f"Traceback {HOSTILE}"))
    worker.commit(*(request_for(f"https://s{number}.example/", tier=number % 4) for number in range(40)))
    worker.lease(3)
    return serve(redis_server.url)


@contextmanager
def opened(browser: Browser, address: str, **options: Any) -> Iterator[Page]:
    """Open a page, on which errors, violations of its policy and scripts of others fail the test."""
    context, problems = browser.new_context(base_url=address, **options), list[str]()

    def note(message: ConsoleMessage) -> None:
        if message.type == "error":
            problems.append(message.text)

    page = context.new_page()
    page.on("console", note)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: problems.append(f"foreign text has run: {dialog.message}"))
    yield page
    assert not problems
    context.close()


def log_in(page: Page) -> None:
    page.goto("/login?next=/dead")
    page.fill("input[name=token]", TOKEN)
    page.keyboard.press("Enter")
    # Not a pattern, which the address of the form itself would match.
    page.wait_for_url("/dead")


@pytest.mark.parametrize(("scheme", "width"), SCREENS)
def test_pages_are_accessible_and_fit(browse: Browse, address: str, tmp_path: Path, scheme: str, width: int) -> None:
    """Screenshots are kept in the folder that the variable SCREENSHOTS names."""
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path))

    def look(browser: Browser) -> None:
        with opened(browser, address, color_scheme=scheme, viewport={"width": width, "height": 800}) as page:
            log_in(page)
            for path in PATHS:
                page.goto(path)
                name = re.sub(r"\W.*", "", path.strip("/")) or "overview"
                page.screenshot(path=folder / f"{name}-{scheme}-{width}.png", full_page=True)
                assert page.evaluate("document.documentElement.scrollWidth") <= width, path
                found = Axe().run(page)
                assert not found.violations_count, f"{path}: {found.generate_report()}"

    browse(look)


def test_page_follows_the_crawl(browse: Browse, address: str, backend: RedisBackend) -> None:
    def look(browser: Browser) -> None:
        with opened(browser, address) as page:
            page.goto("/")
            page.wait_for_function("() => document.body.innerText.includes('3 in progress')")
            page.evaluate("window.isSame = true")
            worker = backend.workers[0]
            worker.commit(*(request_for(f"https://new.example/{number}") for number in range(7)))

            page.wait_for_function("() => [...document.querySelectorAll('.tiles b')].some(b => b.innerText === '47')")
            assert page.evaluate("window.isSame")
            assert re.match(r"Read \d+ s ago", page.inner_text("#freshness"))

    browse(look)


def test_dead_letter_is_put_back_by_keyboard(browse: Browse, address: str) -> None:
    def look(browser: Browser) -> None:
        with opened(browser, address) as page:
            log_in(page)
            page.get_by_label(re.compile("Select request")).first.press("Space")
            button = page.get_by_role("button", name="Put the selected ones back")
            for _ in range(10):
                page.keyboard.press("Tab")
                if button.evaluate("button => button === document.activeElement"):
                    break
            page.keyboard.press("Enter")
            page.get_by_role("button", name="Put back 1 dead letter").press("Enter")
            page.wait_for_url("**/dead")

            assert "1 put back" in page.inner_text(".message")
            assert "1 dead letter." in page.inner_text("#letters")

    browse(look)


def test_foreign_text_is_only_text(browse: Browse, address: str) -> None:
    def look(browser: Browser) -> None:
        with opened(browser, address) as page:
            page.goto("/dead")
            assert "KeyError: <img src=x onerror=alert(1)>\\u202e" in page.inner_text("#letters")
            page.get_by_role("link", name="https://shop.example/1").click()
            assert page.inner_text("pre") == "Traceback <img src=x onerror=alert(1)>\\u202e"
            assert page.locator("main img").count() == 0

    browse(look)


def test_page_says_so_while_the_server_is_away_and_recovers(
    browse: Browse, redis_server_factory: StartServer, serve: Callable[[str], str], frontier_name: str
) -> None:
    server = redis_server_factory(appendonly=True)
    backend = RedisBackend(frontier_name, server.url)
    backend.join("w1").commit(request_for("https://shop.example/"))
    backend.close()

    def look(browser: Browser) -> None:
        with opened(browser, serve(server.url)) as page:
            page.goto("/")
            server.stop()
            page.wait_for_selector(".notice.wrong")
            assert "can't be read" in page.inner_text("[role=alert]")
            assert "Waiting requests by tier" in page.inner_text("main")

            server.start()
            page.wait_for_selector(".notice.wrong", state="detached")

    browse(look)
