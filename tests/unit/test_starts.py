"""Which requests are start requests, and the start mark of the n-th occurrence of a request."""

from __future__ import annotations

from hashlib import sha1

import pytest
from scrapy import Request

from scrapy_prioqueue.queues import starts as starts_module
from scrapy_prioqueue.queues.starts import MARK_BYTES, StartRequests

URL = "https://shop.example/"


def fingerprint(request: Request) -> bytes:
    return request.url.encode().rjust(2 * MARK_BYTES, b".")[: 2 * MARK_BYTES]


def sha1_fingerprint(request: Request) -> bytes:
    return sha1(request.url.encode()).digest()


@pytest.fixture
def starts() -> StartRequests:
    return StartRequests(fingerprint)


def mark(starts: StartRequests, request: Request) -> bytes | None:
    starts.note(request)
    return starts.mark(request, is_filtered=False)


def test_request_that_did_not_come_from_start_has_no_mark(starts: StartRequests) -> None:
    assert starts.mark(Request(URL), is_filtered=False) is None


def test_filtered_start_request_needs_no_mark(starts: StartRequests) -> None:
    request = Request(URL)
    starts.note(request)

    assert starts.mark(request, is_filtered=True) is None


def test_nth_occurrence_has_the_same_mark_in_every_worker(starts: StartRequests) -> None:
    other = StartRequests(fingerprint)

    marks = [mark(starts, Request(URL)) for _ in range(3)]

    assert len(set(marks)) == 3
    assert marks == [mark(other, Request(URL)) for _ in range(3)]


def test_occurrences_of_other_requests_do_not_count(starts: StartRequests) -> None:
    other = StartRequests(fingerprint)
    for path in ("a", "b", "a"):
        mark(starts, Request(f"{URL}{path}"))

    assert mark(starts, Request(URL)) == mark(other, Request(URL))


def test_mark_is_a_piece_of_the_fingerprint_and_a_number(starts: StartRequests) -> None:
    assert mark(starts, Request(URL)) == fingerprint(Request(URL))[:MARK_BYTES] + b"\0\0\0\1"


def test_only_the_very_request_that_start_has_yielded_is_marked(starts: StartRequests) -> None:
    starts.note(Request(URL))
    assert starts.mark(Request(URL), is_filtered=False) is None


def test_request_is_a_start_request_once(starts: StartRequests) -> None:
    request = Request(URL)

    assert mark(starts, request) is not None
    assert starts.mark(request, is_filtered=False) is None


def test_item_that_start_yields_marks_nothing(starts: StartRequests) -> None:
    starts.note({"an": "item"})

    assert starts.mark(Request(URL), is_filtered=False) is None


def test_after_its_end_nothing_comes_and_nothing_is_marked(starts: StartRequests) -> None:
    request = Request(URL)
    assert starts.are_coming

    starts.note(request)
    starts.end(is_used_up=True)

    assert not starts.are_coming
    assert starts.mark(request, is_filtered=False) is None


def test_memory_is_bounded_and_marks_are_unique_and_the_same_in_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts_module, "MOST_OCCURRENCES", 50)
    urls = [f"{URL}{number}" for number in [*range(200), 3, 150, 150]]

    runs = []
    for _ in range(2):
        tested = StartRequests(sha1_fingerprint)
        runs.append([mark(tested, Request(url)) for url in urls])
        assert len(tested._occurrences) == 50  # noqa: SLF001

    assert runs[0] == runs[1]
    assert len(set(runs[0])) == len(urls)
