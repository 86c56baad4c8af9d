"""Requests of one page that hold the same object are detected and logged once."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
from scrapy import Item, Request, Spider
from scrapy.http import Response

from scrapy_prioqueue.queues.siblings import Siblings

PAGE = Request("https://shop.example/", meta={"depth": 1, "shop": {"name": "a"}})


def look(caplog: pytest.LogCaptureFixture, *requests: Request, pages: tuple[Request, ...] = (PAGE,)) -> list[str]:
    """Return the log lines about requests found on these pages in turn."""
    siblings = Siblings(Spider("shop"))
    for page in pages:
        siblings.note_result(Response(page.url, request=page), page, 0.0)
    with caplog.at_level(logging.INFO):
        for at, request in enumerate(requests):
            siblings.look(request, pages[at % len(pages)])
    return [record.getMessage() for record in caplog.records]


def child(meta: Any = None, cb_kwargs: Any = None) -> Request:
    return Request("https://shop.example/p", meta=meta, cb_kwargs=cb_kwargs)


@pytest.mark.parametrize("value", [{"left": 3}, [], set(), Item()], ids=repr)
def test_one_object_in_two_requests_is_logged_once(caplog: pytest.LogCaptureFixture, value: Any) -> None:
    said = look(caplog, child({"group": value}), child(None, {"group": value}), child({"group": value}))

    assert len(said) == 1
    assert "<GET https://shop.example/> carry the same object in cb_kwargs['group']" in said[0]


@pytest.mark.parametrize("value", [None, 3, "a", date(2026, 1, 1), (1, 2)], ids=repr)
def test_objects_that_can_not_be_changed_do_not_count(caplog: pytest.LogCaptureFixture, value: Any) -> None:
    assert not look(caplog, child({"group": value}), child({"group": value}))


@dataclass(slots=True)
class Basket:
    number: int
    items: list[Any]


@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        (lambda group, number: {"g": group, "number": number}, "cb_kwargs['x']['g']"),
        (lambda group, number: Basket(number, group), "cb_kwargs['x'].items"),
        (lambda group, number: (number, [Basket(number, group)]), "cb_kwargs['x'][1][0].items"),
    ],
)
def test_an_object_is_found_inside_of_others(caplog: pytest.LogCaptureFixture, wrap: Any, path: str) -> None:
    group: list[int] = []

    said = look(caplog, *(child(None, {"x": wrap(group, number)}) for number in range(2)))

    assert f"carry the same object in {path}." in said[0]


def test_only_so_many_objects_of_a_request_are_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    group: list[int] = []

    assert not look(caplog, *(child({"x": [[] for _ in range(1000)] + [group]}) for _ in range(2)))


def test_an_object_that_the_callback_put_into_the_meta_of_its_page_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    page = PAGE.copy()
    siblings = Siblings(Spider("shop"))
    siblings.note_result(Response(page.url, request=page), page, 0.0)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            siblings.look(child(page.meta), page)
        assert not caplog.records

        page.meta["item"] = {"name": "a"}
        for _ in range(2):
            siblings.look(child(page.meta), page)

    assert "carry the same object in meta['item']." in caplog.text


def test_equal_objects_do_not_count(caplog: pytest.LogCaptureFixture) -> None:
    assert not look(caplog, child({"group": [1]}), child({"group": [1]}), child({"group": [1]}))


def test_a_single_request_does_not_count(caplog: pytest.LogCaptureFixture) -> None:
    group: list[int] = []

    assert not look(caplog, child({"a": group, "b": group}))


def test_objects_copied_from_the_page_and_lists_of_settings_do_not_count(caplog: pytest.LogCaptureFixture) -> None:
    meta = {**PAGE.meta, "handle_httpstatus_list": [404]}

    assert not look(caplog, child(meta), child(meta))


def test_requests_of_other_pages_do_not_matter(caplog: pytest.LogCaptureFixture) -> None:
    group: list[int] = []

    assert not look(caplog, child({"g": group}), child({"g": group}), pages=(PAGE, PAGE.copy()))
