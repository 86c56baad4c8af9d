"""A page on this test's frontier, and browsers of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from scrapy.settings import Settings
from starlette.testclient import TestClient

from scrapy_prioqueue.commands.context import Context, find_context
from scrapy_prioqueue.commands.output import Output
from scrapy_prioqueue.dashboard.access import Access
from scrapy_prioqueue.dashboard.app import Page
from scrapy_prioqueue.dashboard.board import Board
from tests.support.servers import RedisServer

TOKEN = "a token that is long enough"
HERE = "http://127.0.0.1:8765"

Browser = TestClient
Open = Callable[..., Browser]


@pytest.fixture
def context(redis_server: RedisServer, frontier_name: str) -> Iterator[Context]:
    settings = Settings({"PRIOQUEUE_REDIS_URL": redis_server.url})
    context = find_context(settings, Output(), name=frontier_name, spider=None, arguments={})
    yield context
    context.close()


def page_of(context: Context, host: str = "127.0.0.1", allowed_hosts: tuple[str, ...] = ()) -> Page:
    """Return a page whose values are always read anew."""
    board = Board(context)
    board.reading = type(board.reading)(context.inspector, interval_s=0.0, share=1.0)
    return Page(board, Access(TOKEN, host, allowed_hosts))


@pytest.fixture
def page(context: Context) -> Page:
    return page_of(context)


@pytest.fixture
def browser(page: Page) -> Browser:
    """A browser on the page's machine."""
    return TestClient(page.app(), HERE, follow_redirects=False)


@pytest.fixture
def user(browser: Browser) -> Browser:
    """A browser whose user has given the token."""
    assert browser.post("/login", data={"token": TOKEN, "next": "/dead"}).headers["location"] == "/dead"
    return browser


def form_key(browser: Browser) -> str:
    """Return what the forms of this user contain."""
    return field(browser.get("/dead").text, "form_key")


def field(text: str, name: str) -> str:
    """Return the value of a hidden field of a page, empty if it is missing."""
    return text.partition(f'name="{name}" value="')[2].partition('"')[0]
