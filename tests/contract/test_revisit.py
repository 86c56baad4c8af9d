"""Fingerprints that count as new again after a time."""

from __future__ import annotations

from typing import Any

from scrapy_prioqueue.frontier.base import Push
from scrapy_prioqueue.frontier.seen import NEVER_S, SeenPolicy
from tests.contract.backends import Backend, Worker

URL = b"u" * 20


def push(**fields: Any) -> Push:
    return Push(0, "a", b"payload", fingerprint=URL, **fields)


def is_new(worker: Worker, **fields: Any) -> bool:
    return not worker.commit(push(**fields)).duplicates


def test_a_seen_page_is_new_again_after_its_time_and_not_before(backend: Backend) -> None:
    worker = backend.join("w1", seen=SeenPolicy(revisit_s=60))

    assert is_new(worker)
    backend.clock.advance(59)
    assert worker.known(push()) == [0]
    assert not is_new(worker)
    backend.clock.advance(2)
    assert worker.known(push()) == []
    assert is_new(worker)
    assert not is_new(worker)


def test_a_duplicate_does_not_make_the_time_longer(backend: Backend) -> None:
    worker = backend.join("w1", seen=SeenPolicy(revisit_s=60))

    assert is_new(worker)
    for _ in range(3):
        backend.clock.advance(19)
        assert not is_new(worker)
    backend.clock.advance(5)
    assert is_new(worker)


def test_a_request_may_have_a_time_of_its_own(backend: Backend) -> None:
    worker = backend.join("w1", seen=SeenPolicy(revisit_s=60))

    assert is_new(worker, revisit_s=0)
    assert is_new(worker, revisit_s=5)
    backend.clock.advance(6)
    assert is_new(worker, revisit_s=NEVER_S)
    backend.clock.advance(10**7)
    assert not is_new(worker, revisit_s=0)


def test_never_applies_to_requests_without_their_own_time(backend: Backend) -> None:
    worker = backend.join("w1", seen=SeenPolicy(revisit_s=NEVER_S))

    assert is_new(worker)
    backend.clock.advance(10**7)
    assert not is_new(worker)


def test_times_are_of_no_account_where_none_are_kept(backend: Backend) -> None:
    worker = backend.join("w1")

    assert is_new(worker, revisit_s=0)
    assert not is_new(worker)
