"""`scrapy frontier peek`, `show`, `find`, `slots` and `workers` on a frontier with workers."""

from __future__ import annotations

import random
import struct
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

import msgpack
import pytest
from scrapy import Request
from scrapy.link import Link

from scrapy_prioqueue.codec.detached import DetachedCodec, named_callback
from scrapy_prioqueue.commands.output import moment
from scrapy_prioqueue.frontier.base import Push
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.operators import requests as reading
from scrapy_prioqueue.frontier.waits import SlowPage
from scrapy_prioqueue.rank import rank_of
from tests.commands.conftest import Run
from tests.commands.requests import page
from tests.contract.backends import TTL_S, RedisBackend, ack, fail, push, release
from tests.support.servers import RedisServer


def urls(found: Any) -> list[str]:
    return [stored["request"]["url"] for stored in found]


@pytest.mark.parametrize("seed", range(6))
def test_peek_gives_the_order_in_which_leases_come(run: Run, backend: RedisBackend, seed: int) -> None:
    chance = random.Random(seed)
    worker = backend.join("w1")
    worker.commit(
        *(
            page(
                f"https://s{chance.randrange(7)}.example/{number}",
                tier=chance.randrange(2),
                priority=chance.randrange(2),
            )
            for number in range(150)
        )
    )
    # Turns that aren't the order of the names.
    for lease in worker.lease(chance.randrange(20)):
        worker.commit(ack(lease) if chance.randrange(2) else release(lease))

    peeked = [stored["id"] for stored in run("peek", "--json", "--limit", "90").json]
    leased = [lease.lease_id for _ in range(90) for lease in worker.lease(1)]

    assert peeked == leased


def test_peek_puts_suspects_where_they_would_be_served(run: Run, backend: RedisBackend) -> None:
    lost = backend.join("w1")
    for _ in range(2):
        lost.commit(page("https://a.example/poison", tier=1))
        lost.lease(1)
        backend.clock.advance(TTL_S + 1)
        lost = backend.join(f"w{backend.clock.now_ms}")
        lost.ask()
    lost.commit(page("https://a.example/1"), page("https://a.example/2", tier=1), page("https://a.example/3", tier=2))

    peeked = [stored["id"] for stored in run("peek", "--json").json]
    served = []
    while leases := lost.lease(1):
        served.append(leases[0].lease_id)
        lost.commit(ack(leases[0]))

    assert peeked == served
    assert len(served) == 4


def test_peek_changes_nothing_and_fits_80_columns(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1")
    worker.commit(*(page(f"https://a.example/{'long-' * 40}{number}") for number in range(5)))

    shown = run("peek", columns=80)

    assert max(map(len, shown.out.splitlines())) <= 80
    assert run("peek").out == run("peek").out
    assert worker.depth().pending == 5


def test_peek_at_nothing_is_exit_code_1(run: Run, backend: RedisBackend) -> None:
    backend.join("w1")

    assert run("peek").code == 1
    assert run("peek", "--json").json == []


def test_peek_shows_what_cannot_be_read(run: Run, backend: RedisBackend) -> None:
    backend.join("w1").commit(push("no payload"))

    assert "can't be read" in run("peek").out
    assert run("peek", "--json").json[0]["payload_hex"] == b"no payload".hex()


def test_data_of_a_project_is_shown_without_the_project(run: Run, backend: RedisBackend) -> None:
    class_name = f"{Link.__module__}:Link"
    tally = defaultdict(list, {HTTPStatus.OK: [deque([1])]})
    meta = {"link": Link("https://b.example/", "text"), "tally": tally, "proxy": MappingProxyType({"a": 1})}
    backend.join("w1").commit(page("https://a.example/", meta=meta))
    (found,) = run("peek", "--json").json

    shown = run("show", str(found["id"])).out

    request = found["request"]
    assert request["meta"]["link"]["class"] == class_name
    assert request["meta"]["link"]["text"] == "text"
    assert request["meta"]["tally"] == {"http:HTTPStatus.OK": [[1]]}
    assert request["meta"]["proxy"] == {"a": 1}
    assert f"link: {class_name}(" in shown
    assert "url='https://b.example/'" in shown


def test_show_finds_a_request_wherever_it_is(
    run: Run, backend: RedisBackend, redis_server: RedisServer, frontier_name: str
) -> None:
    worker = backend.join("w1")
    worker.commit(*(page(f"https://a.example/{number}", meta={"depth": number}) for number in range(4)))
    leases = worker.lease(2)
    worker.commit(fail(leases[1], detail="bad"))
    (pending, *_) = run("peek", "--json").json
    delayed_id = 12345
    # As the layout has it; workers of this version may not write it yet.
    client: Any = redis_server.client()
    member = struct.pack(">QBdI", delayed_id, 1, float(rank_of(2, 1)), 9) + b"b.example" + leases[0].payload
    client.zadd(Keys(frontier_name).of("delayed"), {member: 1_800_000_000_000})

    shown = {
        "leased": run("show", str(leases[0].lease_id)).out,
        "dead": run("show", str(leases[1].lease_id)).out,
        "pending": run("show", str(pending["id"])).out,
        "delayed": run("show", str(delayed_id)).out,
    }

    for state, text in shown.items():
        assert f"is        {state}" in text or f"is            {state}" in text
    assert "leased until" in shown["leased"]
    assert "bad" in shown["dead"]
    found = run("show", str(delayed_id), "--json").json
    assert (found["tier"], found["priority"], found["slot"], found["attempts"]) == ("tier 2", 1, "b.example", 1)
    assert found["at_ms"] == 1_800_000_000_000


def test_show_of_an_unknown_id_is_exit_code_1(run: Run, backend: RedisBackend) -> None:
    backend.join("w1")

    assert run("show", "7").code == 1
    assert run("show", str(2**70)).code == 1
    assert run("show", "x").code == 2


def test_dead_letter_with_all_its_fields_is_shown(
    run: Run, backend: RedisBackend, redis_server: RedisServer, frontier_name: str
) -> None:
    backend.join("w1")
    payload = page("https://a.example/1").payload
    fields = [
        "callback",
        "ValueError('x')",
        2,
        0,
        "a.example",
        "w1",
        1_700_000_000_000,
        payload,
        "Traceback: x",
        "w0, w1",
        "3",
    ]
    client: Any = redis_server.client()
    keys, key = Keys(frontier_name), (5).to_bytes(8, "big")
    client.hset(keys.dead, key, msgpack.packb(fields))
    client.zadd(keys.died, {key: 1_700_000_000_000})

    found = run("show", "5", "--json").json

    assert (found["reason"], found["lost_by"], found["traceback"], found["epoch"]) == (
        "callback",
        "w0, w1",
        "Traceback: x",
        "3",
    )
    assert "Traceback: x" in run("show", "5").out


def test_find_looks_everywhere_and_says_where(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1")
    worker.commit(*(page(f"https://s{number % 3}.example/product/{number}") for number in range(30)))
    worker.commit(page("https://s1.example/list/1", tier=1))
    leases = worker.lease(4)
    worker.commit(fail(leases[0]))

    everything = run("find", "/product/", "--json").json
    pending = run("find", "/product/", "--in", "pending", "--json").json
    one_slot = run("find", r"product/\d$", "--slot", "s1.example", "--json").json

    states = [stored["state"] for stored in everything]
    assert (states.count("leased"), states.count("pending"), states.count("dead")) == (3, 26, 1)
    assert not any("list" in url for url in urls(everything))
    assert {stored["state"] for stored in pending} == {"pending"}
    assert sorted(urls(one_slot)) == [f"https://s1.example/product/{number}" for number in (1, 4, 7)]


def test_find_selects_by_callback(run: Run, backend: RedisBackend) -> None:
    slot = "a.example"
    old = DetachedCodec().encode(Request("https://a.example/2", named_callback("parse_old")), slot)
    backend.join("w1").commit(page("https://a.example/1"), Push(0, slot, old))

    assert urls(run("find", ".", "--callback", "parse_old", "--json").json) == ["https://a.example/2"]
    assert urls(run("find", ".", "--callback", "parse", "--json").json) == ["https://a.example/1"]


def test_find_says_who_holds_a_request(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("host-a:4711:9f3c21", clock=None)
    url = "https://shop.example/catalogue/garden/furniture/chairs/folding-chairs/product-471112.html?ref=list"
    worker.commit(page(url), page(f"{url}2"))
    (lease,) = worker.lease(1)

    wide, narrow = run("find", "product").out, run("find", "product", columns=80).out
    (found,) = run("find", "product", "--in", "leased", "--json").json

    holder = f"host-a:4711:9f3c21 until {moment(found['at_ms'])}"
    assert [line.endswith(holder) for line in wide.splitlines()[2:]] == [True, False]
    assert max(map(len, narrow.splitlines())) <= 80
    assert f"held by: {holder}" in " ".join(narrow.split())
    assert (found["id"], found["worker"]) == (lease.lease_id, "host-a:4711:9f3c21")
    assert found["at_ms"] > time.time() * 1000


def test_ids_have_one_name(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1", clock=None)
    worker.commit(page("https://a.example/1"), page("https://a.example/2"), page("https://a.example/3"))
    leases = worker.lease(2)
    worker.commit(fail(leases[0], "download", "bad"))
    slow = SlowPage(leases[1].lease_id, "https://a.example/2", "parse", "its callback", 60)
    worker.run(worker.frontier.report_slow([slow]))
    verbs = [["peek"], ["find", "a"], ["show", str(leases[1].lease_id)], ["dead"], ["workers"], ["status"], ["slots"]]
    verbs += [["explain", f"https://a.example/{number}"] for number in (1, 2, 3)]
    found = [run(*verb, "--json").json for verb in verbs]

    def dicts(value: Any) -> Iterator[dict[str, Any]]:
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from dicts(item)
        if isinstance(value, dict):
            yield value

    every = [each for document in found for each in dicts(document)]
    assert not [each for each in every if "lease_id" in each]
    requests = [each for each in every if {"attempts", "slot"} <= set(each)]
    assert all(isinstance(each["id"], int) for each in requests)
    assert len(requests) == 9
    assert {each["worker"] for each in every if "pid" in each} == {"w1"}
    assert found[6]["slots"][0]["slot"] == "a.example"
    assert found[4][0]["slow"][0]["id"] == leases[1].lease_id


def test_find_goes_through_long_queues_and_many_slots(
    run: Run, backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "SCAN_COUNT", 20)
    monkeypatch.setattr(reading, "SLOTS_PER_CALL", 3)
    worker = backend.join("w1")
    wanted = [page(f"https://a.example/{number}") for number in range(700)]
    worker.commit(*wanted, *(page(f"https://s{number}.example/{number}") for number in range(40)))
    worker.lease(60)

    found = run("find", r"/\d+$", "--limit", "10000", "--json").json

    assert len({stored["id"] for stored in found}) == len(found) == 740
    assert sum(stored["state"] == "leased" for stored in found) == 60


def test_find_shows_so_many_and_says_that_there_are_more(run: Run, backend: RedisBackend) -> None:
    backend.join("w1").commit(*(page(f"https://a.example/{number}") for number in range(9)))

    shown = run("find", "example", "--limit", "3", columns=80)

    assert "and more" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80
    assert run("find", "nowhere").code == 1
    assert run("find", "(").code == 2


def test_terminal_is_safe_from_texts_of_pages(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1")
    worker.commit(page("https://a.example/1", slot="\x1b[31mred\u202e", meta={"x": "\x1b]0;title\x07", "y": "[bold]"}))
    stored = run("peek", "--json").json[0]

    shown = run("show", str(stored["id"])).out + run("slots").out

    assert not any(letter in shown for letter in "\x1b\x07\u202e")
    assert "[bold]" in shown


def test_slots_are_counted(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1")
    worker.commit(*(page(f"https://s{number % 3}.example/{number}", tier=number % 3) for number in range(20)))
    worker.commit(page("https://gone.example/", priority=9))
    worker.lease(3)

    found = run("slots", "--json").json
    by_name = {slot["slot"]: (slot["pending"], slot["leased"]) for slot in found["slots"]}

    assert found["count"] == 4
    assert by_name == {"s0.example": (5, 2), "s1.example": (7, 0), "s2.example": (6, 0), "gone.example": (0, 1)}
    assert [slot["slot"] for slot in found["slots"]] == ["s1.example", "s2.example", "s0.example", "gone.example"]
    ordered = run("slots", "--sort", "order", "--json").json["slots"]
    assert [slot["slot"] for slot in ordered] == ["s0.example", "s1.example", "s2.example", "gone.example"]
    assert "… and 2 more slots" in run("slots", "-n", "2").out


def test_slots_have_the_rate_of_the_last_minute(run: Run, backend: RedisBackend, redis_server: RedisServer) -> None:
    worker = backend.join("w1", clock=None)
    worker.commit(*(page(f"https://a.example/{number}") for number in range(4)))
    worker.commit(*map(ack, worker.lease(3)))
    client: Any = redis_server.client()
    (counted,) = client.keys(f"{{prioqueue:{worker.frontier.config.name}}}:served:*")
    assert client.hgetall(counted) == {b"a.example": b"3"}
    assert 0 < client.ttl(counted) <= 75
    # As if it had been half a minute ago, in a crawl that is older than a minute.
    client.hset(Keys(worker.frontier.config.name).state, "created_ms", 0)
    prefix, _, number = counted.rpartition(b":")
    client.rename(counted, b"%s:%d" % (prefix, int(number) - 3))

    (slot,) = run("slots", "--json").json["slots"]

    assert (slot["slot"], slot["done_per_s"]) == ("a.example", pytest.approx(0.05))
    assert "done/s" in run("slots").out


def test_workers_are_listed_with_what_they_hold(
    run: Run, backend: RedisBackend, redis_server: RedisServer, frontier_name: str
) -> None:
    worker = backend.join("w1")
    backend.join("w2")
    worker.commit(*(push(f"{number}") for number in range(5)))
    worker.lease(3)
    client: Any = redis_server.client()
    client.hset(Keys(frontier_name).of("work"), "w1", 42)

    found = {one["worker"]: one for one in run("workers", "--json").json}

    assert {name: one["leased"] for name, one in found.items()} == {"w1": 3, "w2": 0}
    assert (found["w1"]["done"], found["w2"]["done"]) == (42, None)
