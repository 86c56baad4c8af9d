"""`scrapy frontier doctor` finds problems of servers and frontiers."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from scrapy_prioqueue.frontier.base import Push
from scrapy_prioqueue.frontier.kept import Kept
from scrapy_prioqueue.frontier.labels import Label, labelled
from scrapy_prioqueue.frontier.policy import Budget, Closing, Policy, SlotLimit
from scrapy_prioqueue.frontier.redis.key_types import TYPES
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.operators import audit
from tests.commands.conftest import Run
from tests.commands.requests import page
from tests.contract.backends import TTL_S, RedisBackend, ack, fail, push
from tests.docs.markdown import REFERENCE, rows
from tests.support.servers import RedisServer, StartServer, replica_of

TIERS = ("-s", 'PRIOQUEUE_TIERS=["a", "b"]', "-s", "PRIOQUEUE_DEFAULT_TIER=a")


def findings(run: Run, *args: str, level: str = "") -> dict[str, str]:
    """Return the findings by topic, of one level if it is given."""
    found = run("doctor", "--json", *args).json["findings"]
    return {one["topic"]: one["text"] for one in found if level in ("", one["level"])}


def test_sound_frontier_is_found_sound(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1")
    worker.commit(*(page(f"https://s{number % 3}.example/{number}") for number in range(20)))
    worker.commit(page("https://a.example/"), page("https://late.example/", slot="late"))
    leases = worker.lease(3)
    worker.commit(ack(leases[0]), fail(leases[1]))

    ran = run("doctor")

    assert ran.code == 0
    assert findings(run, level="wrong") == {}
    assert findings(run)["counters"] == "22 accepted, all accounted for"


def test_name_without_a_frontier_is_wrong(run: Run) -> None:
    ran = run("doctor")

    assert ran.code == 1
    assert "there is no frontier" in ran.out


def test_server_that_may_drop_or_lose_everything(run: Run, redis_server_factory: StartServer) -> None:
    server = redis_server_factory(maxmemory="100mb", maxmemory_policy="allkeys-lru", set_max_intset_entries=16)

    wrong = findings(run, "--url", server.url, level="wrong")
    warnings = findings(run, "--url", server.url, level="warning")

    assert "deletes requests" in wrong["memory policy"]
    assert {"persistence", "seen sets"} <= set(warnings)
    assert run("doctor", "--url", server.url).code == 1


def test_server_that_is_nearly_full(run: Run, redis_server_factory: StartServer) -> None:
    server = redis_server_factory()
    client: Any = server.client()
    # Next to it, the buffers of connections are small.
    client.set("ballast", bytes(10_000_000))
    client.config_set("maxmemory", int(client.info("memory")["used_memory"] * 1.1))

    assert "%" in findings(run, "--url", server.url, level="warning")["memory"]


def test_frontier_of_a_full_server_is_checked(run: Run, own_server: RedisServer, frontier_name: str) -> None:
    backend = RedisBackend(frontier_name, own_server.url)
    backend.join("w1").commit(page("https://a.example/"))
    client: Any = own_server.client()
    client.config_set("maxmemory", 1)

    found, wrong = (findings(run, "--url", own_server.url, level=level) for level in ("", "wrong"))
    code = run("doctor", "--url", own_server.url).code
    client.config_set("maxmemory", 0)
    backend.close()

    assert wrong["memory"].endswith("%, so the server refuses new requests")
    assert (code, list(wrong)) == (1, ["memory"])
    assert found["counters"] == "1 accepted, all accounted for"


def test_server_that_keeps_its_data(run: Run, redis_server_factory: StartServer) -> None:
    server = redis_server_factory(appendonly=True)

    assert findings(run, "--url", server.url, level="fine")["persistence"] == "append-only file"


def test_replica(run: Run, redis_server_factory: StartServer) -> None:
    replica = replica_of(redis_server_factory(), redis_server_factory)

    (role,) = (one for one in run("doctor", "--json", "--url", replica.url).json["findings"] if one["topic"] == "role")

    assert role["level"] == "wrong" and "a replica of" in role["text"]
    assert role["remedy"] == "name the primary in --url"
    by_settings = run("doctor", settings={"PRIOQUEUE_REDIS_URL": replica.url})
    assert "name the primary in PRIOQUEUE_REDIS_URL" in by_settings.out


def test_user_who_may_not_ask(run: Run, redis_server: RedisServer, client: Any, frontier_name: str) -> None:
    user = f"user-{frontier_name[-8:]}"
    client.execute_command("ACL", "SETUSER", user, "on", ">secret", "~*", "+@all", "-info", "-@scripting")
    url = redis_server.url.replace("//", f"//{user}:secret@")

    found = findings(run, "--url", url)
    client.execute_command("ACL", "DELUSER", user)

    assert "this user may not use it, or the service has disabled it" in found["server"]
    assert "scripts" in found


def test_other_layout_and_other_tiers(run: Run, backend: RedisBackend, client: Any, keys: Keys) -> None:
    backend.join("w1")

    assert "but PRIOQUEUE_TIERS is a, b" in findings(run, *TIERS, level="warning")["tiers"]
    client.hset(keys.state, "layout", "99")
    assert "version 99" in findings(run, level="wrong")["layout"]


def test_half_cleared_frontier_and_paused_fleet(run: Run, backend: RedisBackend, client: Any, keys: Keys) -> None:
    backend.join("w1")
    client.hset(keys.state, "paused", 1)

    assert findings(run, level="note")["crawl"] == "the crawl is paused"
    client.hset(keys.state, mapping={"phase": "clearing", "cleaning_ms": 1})
    assert "cleared an earlier crawl only in part" in findings(run, level="warning")["phase"]
    client.hset(keys.state, mapping={"phase": "ended", "ended_ms": 1_000_000_000_000})
    assert findings(run)["phase"] == "ended at 2001-09-09 01:46:40 UTC, crawl 1"


def test_requests_of_workers_that_are_gone(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1")
    worker.commit(push("1"))
    worker.lease(1)
    backend.clock.advance(TTL_S)

    assert "1 request is leased to workers that are gone" in findings(run, level="warning")["workers"]


def test_silent_and_living_workers(run: Run, backend: RedisBackend, client: Any, keys: Keys) -> None:
    backend.join("w1")
    now_ms = int(time.time() * 1000)
    client.zadd(keys.of("workers"), {"w2": now_ms})

    assert findings(run, level="note")["workers"] == "1 alive, silent: w1"
    client.zrem(keys.of("workers"), "w1")
    assert findings(run, level="fine")["workers"] == "1 alive"


@pytest.mark.parametrize(
    ("change", "topic", "text"),
    [
        pytest.param(("HINCRBY", "stats", "done", 1), "counters", "10 accepted, but 11", id="counters"),
        pytest.param(("DEL", "queue:a.example"), "slots", "1 slot in a lane without requests: a", id="queue-gone"),
        pytest.param(("HDEL", "turns", "a.example"), "slots", "with requests, but in no lane: a", id="turn-gone"),
        pytest.param(("ZADD", "leases", 1, "x"), "keys", "1 expiry without a lease", id="expiry-alone"),
        pytest.param(("HSET", "leased", "x", "y"), "keys", "1 lease without an expiry", id="lease-alone"),
        pytest.param(("ZADD", "died", 1, "x"), "keys", "1 time of death", id="death-alone"),
        pytest.param(("HSET", "dead", "x", "y"), "keys", "1 dead letter without", id="letter-alone"),
    ],
)
def test_damage_is_found(
    run: Run, backend: RedisBackend, client: Any, keys: Keys, change: tuple[Any, ...], topic: str, text: str
) -> None:
    backend.join("w1").commit(*(page(f"https://a.example/{number}") for number in range(10)))
    command, noun, *rest = change
    client.execute_command(command, keys.of(noun), *rest)

    assert text in findings(run, level="wrong")[topic]
    assert run("doctor").code == 1


POLICIES = {
    "limits": Policy(slots={"*": SlotLimit(concurrency=4)}, budgets={}),
    "lines": Policy(slots={"b.example": SlotLimit(delay=100)}, weights=[1, 2], budgets={"*": Budget(pages=9)}),
}


def labelled_page(url: str, **fields: Any) -> Push:
    """Return a push of a request with a budget key."""
    made = page(url, **fields)
    return replace(made, payload=labelled(made.payload, Label(is_rendered=False, keys=["key"])))


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_frontier_with_policies_is_found_sound(run: Run, backend: RedisBackend, policy: Policy) -> None:
    worker = backend.join("w1", policy=policy)
    worker.commit(*(labelled_page(f"https://{'ab'[n % 2]}.example/{n}", tier=n % 2) for n in range(20)))
    assert 3 < len(worker.lease(7)) < 8

    assert run("doctor").code == 0


@pytest.mark.parametrize(
    ("change", "topic", "text"),
    [
        pytest.param(("ZADD", "waiting", 1, "a.example"), "slots", "1 slot waiting for", id="waits-and-stands"),
        pytest.param(("ZREM", "waiting", "b.example"), "slots", "in no lane: b", id="wait-gone"),
        pytest.param(("HINCRBY", "running", "a.example", 1), "limits", "than leases: a.example", id="running"),
        pytest.param(("HSET", "used", "pages:key", 0), "budgets", "has a use below that of the leases: key", id="used"),
        pytest.param(("DEL", "ready:1"), "slots", "in no lane: a.example", id="line-gone"),
    ],
)
def test_damage_to_policies_is_found(
    run: Run, backend: RedisBackend, client: Any, keys: Keys, change: tuple[Any, ...], topic: str, text: str
) -> None:
    worker = backend.join("w1", policy=POLICIES["lines"])
    worker.commit(*(labelled_page(f"https://{'ab'[n % 2]}.example/{n}", tier=n % 3 % 2) for n in range(20)))
    worker.lease(3)
    command, noun, *rest = change
    client.execute_command(command, keys.of(noun), *rest)

    assert text in findings(run, level="wrong")[topic]


def test_key_of_another_program(run: Run, backend: RedisBackend, client: Any, keys: Keys) -> None:
    backend.join("w1")
    client.set(keys.of("mystery:1"), 1)

    assert "mystery" in findings(run, level="warning")["keys"]


def test_pending_requests_are_not_counted_in_too_many_slots(
    run: Run, backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "SLOT_LIMIT", 3)
    backend.join("w1").commit(*(page(f"https://s{number}.example/") for number in range(10)))

    assert findings(run)["counters"] == "10 accepted, all accounted for"


@pytest.mark.parametrize("has_more", [True, False])
def test_fleet_that_idles_with_work_unread(run: Run, backend: RedisBackend, client: Any, has_more: bool) -> None:
    backend.clock.now_ms = int(time.time() * 1000)
    worker = backend.join("w1", policy=Policy(pending_limit=2))
    worker.commit(page("https://a.example/1"), page("https://a.example/2"))
    worker.ask(notes=[Closing("a.example", 3_600_000), Kept(has_more_starts=has_more)])
    seeds = f"seeds:{worker.frontier.config.name}"
    assert ("idle fleet" in findings(run, level="warning")) == has_more

    client.rpush(seeds, "https://b.example/")
    found = findings(run, "-s", f"PRIOQUEUE_SEEDS_KEY={seeds}", level="warning")
    client.delete(seeds)

    assert "all 2 requests of the frontier must wait" in found["idle fleet"]
    assert ("the rest of start() at w1" in found["idle fleet"]) == has_more
    assert seeds in found["idle fleet"]


def test_fleet_that_waits_with_room_for_more_is_well(run: Run, backend: RedisBackend) -> None:
    backend.clock.now_ms = int(time.time() * 1000)
    worker = backend.join("w1", policy=Policy(pending_limit=3))
    worker.commit(page("https://a.example/1"), page("https://a.example/2"))
    worker.ask(notes=[Closing("a.example", 3_600_000), Kept(has_more_starts=True)])

    assert "idle fleet" not in findings(run)


def test_requests_that_stay_in_workers_are_wrong(run: Run, backend: RedisBackend) -> None:
    backend.clock.now_ms = int(time.time() * 1000)
    backend.join("w1").ask(notes=[Kept(unstorable=3)])
    backend.join("w2").ask(notes=[Kept(5)])

    ran = run("doctor")

    assert "3 requests could not be stored and stayed in w1" in findings(run, level="wrong")["local requests"]
    assert "scrapy frontier check SPIDER" in ran.out
    assert ran.code == 1


def test_every_documented_key_is_known() -> None:
    documented = {cells[0].strip("`").partition(":")[0]: cells[1] for cells in rows(REFERENCE / "keys.md", "key")}

    assert documented.items() <= TYPES.items()


def test_doctor_fits_80_columns(run: Run, backend: RedisBackend) -> None:
    backend.join("w1")

    assert max(map(len, run("doctor", columns=80).out.splitlines())) <= 80


@pytest.mark.parametrize("noun", ["stats", "busy", "queue:a.example", "leased"])
def test_a_key_of_another_type_is_named_and_nothing_else_is_looked_at(
    run: Run, backend: RedisBackend, client: Any, keys: Keys, noun: str
) -> None:
    backend.join("w1").commit(push("1"))
    key = keys.of(noun)
    client.set(key, "something else")

    ran = run("doctor", "--json")

    assert ran.code == 1
    (found,) = [finding for finding in ran.json["findings"] if finding["level"] == "wrong"]
    assert found["text"] == f"{key} is a string, which no worker can use"


def test_of_many_keys_of_other_types_only_some_are_named(
    run: Run, backend: RedisBackend, client: Any, keys: Keys
) -> None:
    backend.join("w1")
    client.mset({keys.queue(b"%d" % number): "something else" for number in range(30)})

    found = [finding["text"] for finding in run("doctor", "--json").json["findings"] if finding["level"] == "wrong"]

    assert len(found) == 11
    assert "20 more keys" in found[-1]
