"""Frontiers that store fingerprints in another way than a worker wants."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from scrapy_prioqueue.errors import LayoutMismatch
from scrapy_prioqueue.frontier.processes import process_info
from scrapy_prioqueue.frontier.seen import SeenPolicy
from tests.contract.backends import RedisBackend
from tests.contract.test_revisit import is_new, push


@pytest.mark.parametrize(
    ("others", "why"), [(SeenPolicy("compact"), "PRIOQUEUE_SEEN = 'compact'"), (SeenPolicy(revisit_s=60), "REVISIT")]
)
def test_a_worker_that_keeps_fingerprints_otherwise_is_refused_as_long_as_anyone_goes_by_them(
    backend: RedisBackend, others: SeenPolicy, why: str
) -> None:
    first = backend.join("w1")
    with pytest.raises(LayoutMismatch, match=why):
        backend.join("w2", seen=others)
    first.leave()
    second = backend.join("w2", seen=others)
    second.commit(push())
    second.leave()

    with pytest.raises(LayoutMismatch, match="reset --seen"):
        backend.join("w3")

    assert not is_new(backend.join("w4", seen=replace(others, expected=10**8)))


@pytest.mark.parametrize("has_seen", [True, False])
def test_a_refusal_names_the_workers_that_keep_fingerprints_otherwise_and_advises_what_helps(
    backend: RedisBackend, has_seen: bool
) -> None:
    first = backend.join("w1")
    if has_seen:
        first.commit(push())

    with pytest.raises(LayoutMismatch) as refused:
        backend.join("w2", seen=SeenPolicy("compact"))

    assert "stop the workers that are alive (w1)" in str(refused.value)
    assert "counts as alive for 10 s (PRIOQUEUE_LEASE_TTL), or until it is evicted" in str(refused.value)
    assert ("reset --seen" in str(refused.value)) is has_seen


def test_a_worker_whose_process_is_gone_stands_against_nothing(backend: RedisBackend) -> None:
    here = process_info("here")
    gone = subprocess.Popen(["true"])
    gone.wait()
    backend.join("gone", worker_info={**here, "pid": str(gone.pid)})

    worker = backend.worker("w2", seen=SeenPolicy("compact"), worker_info=here)

    assert worker.join().gone == ["gone"]


def test_a_crawl_that_forgets_what_was_seen_may_keep_it_otherwise(backend: RedisBackend) -> None:
    first = backend.join("w1")
    first.commit(push())
    first.leave()

    with pytest.raises(LayoutMismatch, match="PRIOQUEUE_SEEN"):
        backend.join("w1", seen=SeenPolicy("compact"))
    second = backend.join("w1", seen=SeenPolicy("compact"), flush=True)

    assert is_new(second)


def test_frontiers_that_share_what_was_seen_keep_it_in_one_way(backend: RedisBackend, frontier_name: str) -> None:
    home = f"{frontier_name}-shared"
    worker = backend.join("w1", seen_name=home, seen=SeenPolicy(revisit_s=60))
    assert is_new(worker)

    with pytest.raises(LayoutMismatch, match=f"PRIOQUEUE_REVISIT_AFTER = None: frontier '{home}'"):
        backend.join("w2", seen_name=home)

    backend.clock.advance(61)
    assert is_new(worker)
