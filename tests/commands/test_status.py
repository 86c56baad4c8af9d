"""`scrapy frontier status`."""

from __future__ import annotations

import re
import time
from collections import Counter
from typing import Any

import pytest

from scrapy_prioqueue.commands.verbs.status import sparkline
from scrapy_prioqueue.frontier.base import Demand
from scrapy_prioqueue.frontier.kept import Kept
from scrapy_prioqueue.frontier.policy import Closing, Policy, SlotLimit
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.operators import inspector
from scrapy_prioqueue.frontier.redis.operators.inspector import pace_of
from scrapy_prioqueue.frontier.seen import SeenPolicy
from scrapy_prioqueue.rank import rank_of
from tests.commands.conftest import Run
from tests.commands.requests import page
from tests.contract.backends import TTL_S, RedisBackend, Worker, ack, fail, push
from tests.support.servers import RedisServer

TIERS = ["urgent", "high", "normal", "low"]


def test_status_counts_requests_by_place_and_tier(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1")
    worker.commit(*(push(f"{number}", rank_of(0, number % 3), f"s{number % 4}") for number in range(8)))
    worker.commit(push("9", rank_of(1, 5)))
    leases = worker.lease(4)
    worker.commit(ack(leases[0]), ack(leases[1]), fail(leases[2]))

    found = run("status", "--json").json

    counts = {name: found["counts"][name] for name in ("accepted", "pending", "delayed", "leased", "done", "dead")}
    assert counts == {"accepted": 9, "pending": 5, "delayed": 0, "leased": 1, "done": 2, "dead": 1}
    assert [tier["pending"] for tier in found["tiers"]][:2] == [4, 1]
    assert (found["left"], found["is_sampled"]) == (6, False)
    assert [worker["worker"] for worker in found["workers"]] == ["w1"]


def test_a_worker_whose_engine_is_paused_is_not_idle(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1", clock=None)

    worker.ask(notes=[Kept(is_paused=True)])
    assert "paused (engine)" in run("status").out
    assert run("workers", "--json").json[0]["is_paused"]

    worker.ask(notes=[Kept()])
    assert "paused (engine)" not in run("status").out


def test_an_idle_worker_of_a_paused_crawl_is_paused_until_it_resumes(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1", clock=None)
    worker.commit(push("1"), push("2"))

    def states() -> list[str]:
        return [run(verb).out.splitlines()[-1].split()[-1] for verb in ("status", "workers")]

    (lease,) = worker.lease(1)
    run("pause")
    assert states() == ["busy", "busy"]

    worker.commit(ack(lease))
    worker.ask(is_idle=True)
    assert states() == ["paused", "paused"]

    run("resume")
    assert states() == ["idle", "idle"]


def test_status_and_doctor_show_the_losses_of_a_bloom_filter(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1", seen=SeenPolicy("bloom", 100, 0.1))
    worker.commit(*(push(f"{number}", fingerprint=b"%020d" % number) for number in range(300)))

    found = run("status", "--json").json["state"]
    assert found["seen_mode"] == "bloom"
    assert 2 < found["seen_lost"] < 40
    assert re.search(r"about \d+ of these were new", run("status").out)
    assert re.search(r"about \d+ new pages were taken for duplicates", " ".join(run("doctor").out.split()))


def test_status_estimates_tiers_where_there_are_many_slots(
    run: Run, backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspector, "SLOT_SAMPLE", 10)
    worker = backend.join("w1")
    worker.commit(*(push(f"{number}", rank_of(number % 2, 0), f"s{number // 2}") for number in range(80)))

    found = run("status", "--json").json

    assert found["is_sampled"]
    assert [tier["pending"] for tier in found["tiers"]][:2] == [40, 40]
    assert "≈40" in run("status").out


def test_status_fits_80_columns(run: Run, backend: RedisBackend) -> None:
    backend.join("a-machine-with-a-long-name.example.com:123456:abcdef").commit(push("1"))

    ran = run("status", columns=80)

    assert max(map(len, ran.out.splitlines())) <= 80
    assert "open" in ran.out


def test_pace_is_that_of_the_last_seconds() -> None:
    now_ms = 1_000_000_000_000 + 5_000
    bucket = now_ms // 10_000
    fast = {f"d{bucket - age}": "300" for age in range(2, 30)}
    fields = {f"d{bucket}": "15", f"d{bucket - 1}": "30", f"a{bucket}": "5", f"a{bucket - 1}": "10"}

    pace = pace_of(fast | fields, now_ms, created_ms=0, unfinished=100)
    stalled = pace_of(fast, now_ms, created_ms=0, unfinished=100)

    assert (pace.done_per_s, pace.accepted_per_s, pace.drain_per_s, pace.left_s) == (3, 1, 2, 50)
    assert (stalled.done_per_s, stalled.left_s) == (0, None)


def test_pace_of_a_slow_crawl_is_that_of_the_last_minute() -> None:
    now_ms = 1_000_000_000_000 + 5_000
    bucket = now_ms // 10_000

    assert pace_of({f"d{bucket - age}": "2" for age in (2, 4, 6)}, now_ms, 0, 60).left_s == 600


def test_pace_of_a_young_crawl_is_that_of_its_time() -> None:
    now_ms = 1_000_000_000_000 + 5_000
    bucket = now_ms // 10_000

    young = pace_of({f"d{bucket - 1}": "30"}, now_ms, created_ms=now_ms - 10_000, unfinished=1)
    newborn = pace_of({f"d{bucket}": "30"}, now_ms, created_ms=now_ms - 3_000, unfinished=0)

    assert young.done_per_s == 3
    assert (newborn.done_per_s, newborn.left_s) == (10, 0)


def test_pace_without_counters_is_not_known() -> None:
    assert pace_of({}, 1, 0, 5).done_per_s is None


def test_requests_given_up_or_removed_make_a_frontier_smaller() -> None:
    bucket = 170_000_000
    fields = {f"a{bucket - 1}": "60", f"d{bucket - 1}": "30", f"x{bucket - 1}": "90"}

    pace = pace_of(fields, bucket * 10_000, 0, 5)

    assert not pace.is_growing
    assert pace.drain_per_s == pytest.approx(6)
    assert pace.left_s == pytest.approx(5 / 6)


def test_pace_counts_dead_letters_and_what_operators_remove(
    run: Run, backend: RedisBackend, redis_server: RedisServer, keys: Keys
) -> None:
    worker = backend.join("w1", clock=None)
    worker.commit(*(page(f"https://a.example/{number}", slot="a") for number in range(5)))
    worker.commit(*(fail(lease) for lease in worker.lease(2)))
    assert run("remove", "https://a.example/*", "--yes").code == 0

    client: Any = redis_server.client()
    pace: Counter[str] = Counter()
    for name, count in client.hgetall(keys.of("pace")).items():
        pace[name.decode()[0]] += int(count)  # a new interval may have begun meanwhile

    assert pace == {"a": 5, "x": 5}


def test_how_long_slots_take_at_their_rates_is_reported(run: Run, backend: RedisBackend) -> None:
    limits = {"slow.example": SlotLimit(delay=60), "fast.example": SlotLimit(delay=0.1)}
    worker = backend.join("w1", policy=Policy(limits), clock=None)
    worker.commit(*(page(f"https://{slot}/{number}", slot=slot) for slot in limits for number in range(11)))

    assert "22 requests, at least 10 min" in run("status").out
    assert ", at the rates of their slots, and growing" in run("status").out


def test_rates_of_slots_are_those_of_the_time_there_was(
    run: Run, backend: RedisBackend, redis_server: RedisServer, keys: Keys
) -> None:
    client: Any = redis_server.client()
    backend.join("w1", clock=None).commit(page("https://a.example/1", slot="a"))
    bucket = int(time.time()) // 10
    client.hset(keys.state, "created_ms", (bucket - 2) * 10_000)
    for before in (1, 2):
        client.hset(keys.of(f"served:{bucket - before}"), "a", 20)

    (slot,) = run("slots", "--json").json["slots"]

    # Where ten seconds have ended meanwhile, nothing was done in them.
    assert slot["done_per_s"] in (pytest.approx(2), pytest.approx(40 / 30))


def test_a_closed_slot_does_not_wait_for_its_rate_as_well(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1", policy=Policy({"slow": SlotLimit(delay=100)}), clock=None)
    worker.commit(*(page(f"https://{slot}/{n}", slot=slot) for slot in ("slow", "closed") for n in range(2)))
    assert len(worker.lease(1, slot_room={"closed": 0})) == 1
    worker.ask(notes=[Closing("closed", 600_000), Closing("idle", 600_000)])

    found = run("status", "--json").json

    assert (found["waiting_for_rate"], found["closed_waiting"], found["closed_slots"]) == (1, 1, 2)
    assert "waiting: 1 slot for its rate; closed by Retry-After: 2 slots" in " ".join(run("status").out.split())


def test_pace_of_a_growing_frontier_gives_no_time_left() -> None:
    bucket = 100

    assert pace_of({f"a{bucket - 1}": "5"}, bucket * 10_000, 0, 5).left_s is None


def test_a_frontier_that_nothing_has_come_into_lately_does_not_grow() -> None:
    now_ms = 1_000_000
    bucket = now_ms // 10_000

    assert pace_of({f"a{bucket}": "5"}, now_ms, 0, 5).is_growing
    assert pace_of({f"a{bucket - 1}": "5", f"d{bucket}": "4"}, now_ms, 0, 5).is_growing
    assert not pace_of({f"a{bucket - 1}": "5", f"d{bucket}": "5"}, now_ms, 0, 5).is_growing
    early = pace_of({f"a{bucket - 2}": "5"}, now_ms, 0, 5)
    assert early.drain_per_s == -5 / 60
    assert not early.is_growing


def left(run: Run) -> str:
    """Return the line about the time left."""
    (line,) = [line for line in run("status").out.splitlines() if line.startswith("left")]
    return line.removeprefix("left").strip()


def close(worker: Worker, slot: str, seconds: int) -> None:
    """Have a site ask for a pause."""
    worker.exchange(demand=Demand(0, notes=[Closing(slot, seconds * 1000)]))


@pytest.fixture
def worker(backend: RedisBackend) -> Worker:
    return backend.join("w1", clock=None)


def test_remaining_requests_wait_for_closed_slots(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1", clock=None)
    worker.commit(*(push(f"{number}") for number in range(9)))
    assert left(run) == "9 requests, and growing"
    (lease,) = worker.lease(1)
    close(worker, "a.example", 3599)
    assert left(run) == "9 requests, and growing"
    worker.commit(ack(lease))

    assert left(run).startswith("8 requests, all waiting: the slot opens in 59 min 5")
    found = run("status", "--json").json
    assert 3_500_000 < found["idle_until_ms"] - found["now_ms"] < 3_600_000
    worker.commit(push("x", slot="b.example"))
    assert left(run) == "9 requests, and growing"
    assert run("status", "--json").json["idle_until_ms"] == 0
    close(worker, "b.example", 7200)
    assert re.fullmatch(r"9 requests, all waiting: 2 slots open in 59 min 5\d s to (1 h 59 min|2 h)", left(run))


def test_remaining_requests_wait_for_their_time(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1", clock=None)
    worker.commit(push("a", delay_ms=3_599_000))
    assert left(run).startswith("1 request, waiting: the first delayed one is due in 59 min 5")
    worker.commit(push("b", delay_ms=7_200_000), push("c"))
    close(worker, "a.example", 599)

    assert left(run).startswith("3 requests, all waiting: the slot opens in 9 min 5")
    assert left(run).split(", ")[-1].startswith("the first delayed one is due in 59 min 5")


def test_a_paused_crawl_is_not_growing(run: Run, worker: Worker, frontier_name: str) -> None:
    worker.commit(push("a"), push("b"))
    assert left(run) == "2 requests, and growing"

    assert run("pause").code == 0

    assert left(run) == f"2 requests, paused: scrapy frontier resume --name {frontier_name} continues"
    assert "accepted, paused" in run("status").out
    assert run("workers").out.splitlines()[-1].endswith("paused")
    worker.leave()
    run("resume")
    assert left(run) == "2 requests, but no worker is running"


def test_a_crawl_that_waits_for_requests_is_open(run: Run, worker: Worker) -> None:
    status = run("status")
    assert (status.code, "open, waiting for requests" in status.out) == (0, True)
    assert left(run) == "nothing now; 1 worker waiting for pushed requests or the end of PRIOQUEUE_MAX_IDLE"
    assert run("workers").out.splitlines()[-1].endswith("waiting")

    worker.ask(notes=[Kept(has_more_starts=True)])
    assert left(run) == "nothing now; 1 worker waiting for more requests of start()"
    assert run("workers").out.splitlines()[-1].endswith("reads start()")

    worker.ask(notes=[Kept(has_handlers=True)])
    handlers = "handlers of this package's signals in the project, which are still running"
    assert left(run) == f"nothing now; 1 worker waiting for {handlers}"
    assert run("workers").out.splitlines()[-1].endswith("runs handlers")
    assert handlers in run("doctor").out

    run("pause")
    assert "waiting" not in run("status").out
    assert left(run).startswith("nothing, paused: ")

    worker.ask(notes=[Kept()], is_idle=True)
    status = run("status")
    assert (status.code, left(run)) == (1, "nothing")
    assert re.search(": ended at 20[-0-9]+ [:0-9]+$", status.out.splitlines()[0])


def test_keys_of_seeds(run: Run, worker: Worker, redis_server: RedisServer, frontier_name: str) -> None:
    client: Any = redis_server.client()
    name = f"seeds:{frontier_name}"
    keys = [f"{name}:{kind}" for kind in ("none", "zset", "hash")]
    settings = {"PRIOQUEUE_SEEDS_KEY": keys[:1]}

    assert f"seeds    {keys[0]}: empty or missing\n" in run("status", settings=settings).out
    assert "waiting for seeds, pushed requests or the end of PRIOQUEUE_MAX_IDLE" in run("status", settings=settings).out
    settings = {"PRIOQUEUE_SEEDS_KEY": keys}
    client.zadd(keys[1], {"https://a.example/": 1})
    client.hset(keys[2], "a", "b")
    shown, found = run("status", settings=settings).out, run("status", "--json", settings=settings).json["seeds"]
    client.delete(*keys)

    assert f"{keys[1]}: 1 entry; {keys[2]}: a hash, not a list, set or sorted set\n" in shown
    assert [(key["kind"], key["entries"]) for key in found] == [("none", 0), ("zset", 1), ("hash", None)]


def test_requests_that_wait_for_a_short_time_do_not_count_as_waiting(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1", clock=None)
    worker.commit(push("a"))
    close(worker, "a.example", 9)

    assert left(run) == "1 request, and growing"


def test_suspects_do_not_wait_with_their_slots(
    run: Run, backend: RedisBackend, redis_server: RedisServer, frontier_name: str
) -> None:
    worker = backend.join("w1", clock=None)
    worker.commit(push("a"))
    close(worker, "a.example", 600)
    client: Any = redis_server.client()
    client.zadd(Keys(frontier_name).of("suspects"), {"anything": 0})

    assert "waiting" not in left(run)


def test_suspects_are_pending_and_counted_apart_from_slots(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1", max_attempts=4)
    worker.commit(push("a"))
    for _ in range(2):
        worker.lease()
        backend.clock.advance(TTL_S)
        assert worker.ask().reaped == 1

    def pending() -> str:
        return next(line for line in run("status").out.splitlines() if line.startswith("pending"))

    slots = run("slots")
    assert pending() == "pending  1 suspect, kept apart from its slot"
    assert (slots.code, slots.out) == (0, "1 suspect, kept apart from its slot\n")
    assert run("slots", "--json").json["suspects"] == 1

    worker.commit(push("b"))
    assert pending() == "pending  1 in 1 slot, and 1 suspect, kept apart from its slot"
    assert run("slots").out.endswith("and 1 suspect, kept apart from its slot\n")


def test_history_is_that_of_five_minutes_and_drawn_as_bars() -> None:
    bucket = 1000
    fields = {f"d{bucket - age}": str(age) for age in range(100)}

    pace = pace_of(fields, bucket * 10_000, 0, 5)

    assert list(pace.history) == [*range(29, -1, -1)]
    assert sparkline([0, 4, 8]) == "▁▅█"
    assert sparkline([0, 0]) == sparkline([]) == ""


def test_pace_is_shown(run: Run, backend: RedisBackend, redis_server: RedisServer, frontier_name: str) -> None:
    backend.join("w1", clock=None).commit(*(push(f"{number}") for number in range(100)))
    client: Any = redis_server.client()
    bucket = int(time.time()) // 10
    keys = Keys(frontier_name)
    client.hset(keys.state, "created_ms", (bucket - 20) * 10_000)
    client.delete(keys.of("pace"))
    client.hset(keys.of("pace"), mapping={f"d{bucket - age}": 20 for age in range(-1, 9)})

    shown = run("status", columns=80).out

    # The current ten seconds have not passed yet, though their requests are there.
    found = re.search(r"([234]\.\d)/s done, 0\.0/s accepted, drains by \1/s", shown)
    assert found
    assert re.search(r"left     100 requests, about \d\d s", shown)
    client.hset(keys.of("pace"), mapping={f"a{bucket - age}": 50 for age in range(-1, 9)})
    assert re.search(r"grows by [3-6]\.\d/s", run("status").out)
    assert "and growing" in run("status").out
