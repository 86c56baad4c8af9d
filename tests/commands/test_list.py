"""`scrapy frontier list`, and what other verbs say if there is no frontier of that name."""

from __future__ import annotations

import re
import time
from typing import Any

from scrapy_prioqueue.frontier.redis.keys import LAYOUT, Keys
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.frontiers import frontier_names
from tests.commands.conftest import Run
from tests.commands.requests import TIERS, page
from tests.contract.backends import RedisBackend, ack, fail
from tests.support.servers import RedisServer


def listed(run: Run, name: str, *options: str) -> dict[str, Any]:
    (found,) = [each for each in run("list", "--json", *options).json if each["name"] == name]
    return dict(found)


def test_frontiers_are_listed_with_their_state_from_open_to_ended(
    run: Run, backend: RedisBackend, frontier_name: str
) -> None:
    states = []
    run("push", "https://a.example/1", "https://a.example/2")
    states.append(listed(run, frontier_name)["crawl"])
    worker = backend.join("w1", tiers=TIERS, clock=None)
    leases = worker.lease(2)
    worker.commit(fail(leases[0]))
    running = listed(run, frontier_name)
    for verb in ("pause", "resume"):
        run(verb)
        states.append(listed(run, frontier_name)["crawl"])
    table, narrow = run("list", columns=80), run("list", columns=60).out
    worker.commit(ack(leases[1]))
    assert worker.ask(0, is_idle=True).has_ended
    ended = listed(run, frontier_name)

    assert states == ["waiting", "paused", "running"]
    assert (running["crawl"], running["leased"], running["dead"], running["workers"]) == ("running", 1, 1, 1)
    assert (ended["crawl"], ended["done"]) == ("ended", 1)
    assert abs(ended["ended_ms"] - time.time() * 1000) < 600_000
    assert (table.code, table.err) == (0, "")
    assert all(len(line) <= 80 for line in table.out.splitlines())
    assert all(len(line) <= 60 for line in narrow.splitlines())
    assert all(re.search(rf"\b{column}\b", narrow) for column in ("pending", "delayed", "leased", "dead", "workers"))
    assert " ago" in run("list").out


def test_a_crawl_is_stopping_only_while_a_worker_lives_that_was_told_to(
    run: Run, backend: RedisBackend, frontier_name: str
) -> None:
    worker = backend.join("w1", clock=None)
    run("stop", "--yes")
    states = [listed(run, frontier_name)["crawl"]]
    shown = run("status").out
    worker.leave()
    backend.join("w2", clock=None)
    states.append(listed(run, frontier_name)["crawl"])

    assert states == ["stopping", "running"]
    assert ", stopping" in shown.splitlines()[0]
    assert ", stopping" not in run("status").out


def test_other_frontiers_are_listed_as_unreadable_or_not_at_all(
    run: Run, redis_server: RedisServer, frontier_name: str
) -> None:
    client: Any = redis_server.client()
    client.hset(Keys(frontier_name).state, "layout", "99")
    client.zadd(Keys(f"{frontier_name}-2").queue(b"x}:state"), {"a": 1})
    client.set(Keys(f"{frontier_name}-3").state, "text")
    client.hset(Keys(f"{frontier_name}-4").state, mapping={"seen": 7, "seen_shape": "exact"})
    client.hset(Keys(f"{frontier_name}-5").state, mapping={"epoch": 3, "phase": "importing"})
    # As a reset leaves it, and as it is before the reset has deleted everything.
    client.hset(Keys(f"{frontier_name}-6").state, mapping={"layout": LAYOUT, "phase": "ended", "is_clear": 1})
    client.hset(Keys(f"{frontier_name}-7").state, mapping={"layout": LAYOUT, "phase": "ended", "cleaner": "a"})

    found = {each["name"]: each["crawl"] for each in run("list", "--json").json if frontier_name in each["name"]}

    assert found == {
        frontier_name: "unreadable",
        f"{frontier_name}-3": "unreadable",
        f"{frontier_name}-4": "fingerprints",
        f"{frontier_name}-5": "importing",
        f"{frontier_name}-7": "clearing",
    }
    assert "there is no frontier" in run("status", "--name", f"{frontier_name}-6").err
    assert ": clearing" in run("status", "--name", f"{frontier_name}-7").out


def test_no_project_spider_or_argument_is_needed_for_the_list(run: Run, backend: RedisBackend) -> None:
    backend.join("w1")

    for name in ("%(spider)s", "%(spider)s-%(country)s"):
        assert run("list", settings={"PRIOQUEUE_NAME": name}).code == 0


def test_names_like_the_wrong_one_are_shown_first(run: Run, backend: RedisBackend, frontier_name: str) -> None:
    backend.join("w1").commit(page("https://a.example/"))

    ran = run("pause", "--name", f"{frontier_name[:-1]}")

    assert (ran.code, ran.out) == (1, "")
    assert f"no crawl has used this name, or it was reset; there are: {frontier_name}" in ran.err
    assert ran.err.endswith("('scrapy frontier list')\n")


def test_only_frontiers_that_are_listed_are_named_as_those_that_there_are(
    run: Run, backend: RedisBackend, redis_server: RedisServer, frontier_name: str
) -> None:
    backend.join("w1").commit(page("https://a.example/"))
    name = f"{frontier_name}-2"
    gone = RedisBackend(name, redis_server.url)
    worker = gone.join("w1")
    worker.commit(page("https://a.example/"))
    worker.leave()
    gone.close()
    assert run("reset", "--all", "--yes", "--name", name).code == 0

    for verb in ("status", "doctor"):
        ran = run(verb, "--name", f"{frontier_name}-3")
        assert frontier_name in ran.out + ran.err
        assert name not in ran.out + ran.err


def test_a_scan_for_names_ends_early_if_it_takes_long(redis_server: RedisServer, backend: RedisBackend) -> None:
    backend.join("w1")
    client: Any = redis_server.client()
    client.mset({f"other:{number}": 1 for number in range(5000)})
    looked_at: list[int] = []
    link = Link(redis_server.url)

    frontier_names(link, looked_at.append, within_s=0)
    link.close()
    client.delete(*(f"other:{number}" for number in range(5000)))

    assert looked_at == [1000]
