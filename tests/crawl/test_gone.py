"""Workers of the same machine that have ended or are stopped, as seen by a worker that joins."""

from __future__ import annotations

import signal
import threading

from tests.support.crawls import Crawls
from tests.support.site import Page, Site, leaves


def test_requests_of_a_killed_process_go_to_the_next_at_once_and_a_stopped_one_keeps_its_own(
    on_redis: Crawls, site: Site
) -> None:
    first, second = threading.Event(), threading.Event()
    site.pages = {"/1": Page(["/3"], gate=first), "/2": Page(["/4"], gate=second), **leaves("/3", "/4")}
    # Longer than the test may take: nothing is given back because it expires.
    crawls = on_redis.having(PRIOQUEUE_LEASE_TTL=600)

    killed = crawls.start("/1", settings={"PRIOQUEUE_WORKER_ID": "killed"})
    killed.wait_for("asked", "/1")
    stopped = crawls.start("/2", settings={"PRIOQUEUE_WORKER_ID": "stopped"})
    stopped.wait_for("asked", "/2")
    killed.kill()
    stopped.process.send(signal.SIGSTOP)
    first.set()
    last = crawls.start("/1", settings={"PRIOQUEUE_WORKER_ID": "last"})
    last.wait_for("item", "/1", "/3")
    stopped.process.send(signal.SIGCONT)
    second.set()
    results = [last.wait(), stopped.wait()]

    assert [result.reason for result in results] == ["finished", "finished"]
    assert len(results[0].lines("whose processes are gone: killed;")) == 1
    assert all(len(result.lines("Joined crawl in frontier")) == 1 for result in results)
    (held,) = results[0].lines("Requests held by other workers: ")
    assert "1 request leased by worker stopped at " in held
    assert results[0].stats["prioqueue/lease/reaped"] == 1
    assert (site.count("/1"), site.count("/2"), site.count("/3"), site.count("/4")) == (2, 1, 1, 1)
