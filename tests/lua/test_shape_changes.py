"""Frontiers whose fingerprints are kept otherwise than a worker wants."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from scrapy_prioqueue.errors import LayoutMismatch
from scrapy_prioqueue.frontier.processes import process_info
from scrapy_prioqueue.frontier.seen import SeenPolicy
from tests.contract.backends import RedisBackend
from tests.contract.test_revisit import is_new, push
from tests.support.servers import RedisServer


@pytest.fixture
def redis_backend(redis_server: RedisServer, frontier_name: str) -> Iterator[RedisBackend]:
    backend = RedisBackend(frontier_name, redis_server.url)
    yield backend
    backend.close()


@pytest.mark.parametrize(
    ("others", "why"), [(SeenPolicy("compact"), "PRIOQUEUE_SEEN = 'compact'"), (SeenPolicy(revisit_s=60), "REVISIT")]
)
def test_a_worker_that_keeps_fingerprints_otherwise_is_refused_as_long_as_anyone_goes_by_them(
    redis_backend: RedisBackend, others: SeenPolicy, why: str
) -> None:
    first = redis_backend.join("w1")
    with pytest.raises(LayoutMismatch, match=why):
        redis_backend.join("w2", seen=others)
    first.leave()
    second = redis_backend.join("w2", seen=others)
    second.commit(push())
    second.leave()

    with pytest.raises(LayoutMismatch, match="reset --seen"):
        redis_backend.join("w3")

    assert not is_new(redis_backend.join("w4", seen=replace(others, expected=10**8)))


@pytest.mark.parametrize("has_seen", [True, False])
def test_a_refusal_names_the_workers_that_keep_fingerprints_otherwise_and_advises_what_helps(
    redis_backend: RedisBackend, has_seen: bool
) -> None:
    first = redis_backend.join("w1")
    if has_seen:
        first.commit(push())

    with pytest.raises(LayoutMismatch) as refused:
        redis_backend.join("w2", seen=SeenPolicy("compact"))

    assert "stop the workers that are alive (w1)" in str(refused.value)
    assert "counts as alive for 10 s (PRIOQUEUE_LEASE_TTL), or until it is evicted" in str(refused.value)
    assert ("reset --seen" in str(refused.value)) is has_seen


def test_a_worker_whose_process_is_gone_stands_against_nothing(redis_backend: RedisBackend) -> None:
    here = process_info("here")
    gone = subprocess.Popen(["true"])
    gone.wait()
    redis_backend.join("gone", worker_info={**here, "pid": str(gone.pid)})

    worker = redis_backend.worker("w2", seen=SeenPolicy("compact"), worker_info=here)

    assert worker.join().gone == ["gone"]


def test_a_crawl_that_forgets_what_was_seen_may_keep_it_otherwise(redis_backend: RedisBackend) -> None:
    first = redis_backend.join("w1")
    first.commit(push())
    first.leave()

    with pytest.raises(LayoutMismatch, match="PRIOQUEUE_SEEN"):
        redis_backend.join("w1", seen=SeenPolicy("compact"))
    second = redis_backend.join("w1", seen=SeenPolicy("compact"), flush=True)

    assert is_new(second)


def test_frontiers_that_share_what_was_seen_keep_it_in_one_way(redis_backend: RedisBackend, frontier_name: str) -> None:
    home = f"{frontier_name}-shared"
    worker = redis_backend.join("w1", seen_name=home, seen=SeenPolicy(revisit_s=60))
    assert is_new(worker)

    with pytest.raises(LayoutMismatch, match=f"PRIOQUEUE_REVISIT_AFTER = None: frontier '{home}'"):
        redis_backend.join("w2", seen_name=home)

    redis_backend.clock.advance(61)
    assert is_new(worker)
