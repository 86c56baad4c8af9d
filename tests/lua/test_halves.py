"""A script that fails in the middle changes nothing: no request is lost, and the counters balance.

The server refuses commands that the user may not run (any more) and keys that somebody has put something else into.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import pytest
import redis

from scrapy_prioqueue.frontier.labels import Label, labelled
from scrapy_prioqueue.frontier.policy import Budget, Policy, SlotLimit, Throttle
from scrapy_prioqueue.frontier.redis.scripts import Argument
from scrapy_prioqueue.frontier.redis.seen.fingerprints import bucket_of, hashed, seen_argument
from tests.lua.scripts import TTL_MS, Scripts, leases_of
from tests.support.halves import PLANTED, commands_of
from tests.support.servers import RedisServer

PASSING = ("workers", "busy", "hungry", "paced", "turns", "passes", "pace", "work", "served")
"""Keys that may change in a call that is refused: signs of life, turns, rates; of `paced` what has passed."""

NUMBERS = ("turn", "sequence", "flood_ms", "flood_mark", "flood_width", "is_flooded", "unsorted")
"""Fields of the state that may change."""

NOUNS = (
    *(
        "stats",
        "queue:slot",
        "queue:other",
        "suspects",
        "delayed",
        "ready",
        "turns",
        "leases",
        "leased",
        "lost",
        "alone",
        "refused",
        "marks",
    ),
    *("waiting", "paced", "running", "ready:0", "passes", "limits", "delays", "budgets", "used"),
    *("dead", "died", "workers", "busy", "hungry", "sessions", "claims", "work", "pace", "seen:0:1"),
)


POLICIES = {
    "none": Policy(),
    "all": Policy(
        slots={"*": SlotLimit(delay=0.001, concurrency=100, burst=50)},
        throttle=Throttle(start_delay_s=0.001),
        weights=[3],
        budgets={"*": Budget(pages=15, bytes=10**6)},
        high_water=1000,
        low_water=2,
        discovery=[0],
    ),
}


def labelled_payload(payload: bytes) -> bytes:
    return labelled(payload, Label(is_rendered=True, keys=["narrow", "wide"]))


def push(
    payload: bytes, *, slot: str = "slot", number: int | None = None, mark: str = "", delay: str = ""
) -> Sequence[Argument]:
    fingerprint = None if number is None else b"%020d" % number
    return ("P", 0, slot, 0, labelled_payload(payload), seen_argument(fingerprint), mark, delay)


class Busy(Scripts):
    """A frontier in which something of everything is there."""

    def __init__(self, server: RedisServer, name: str, policy: Policy) -> None:
        super().__init__(server, name)
        self.server = server
        self.policy = policy
        self.join()
        self.commit(1, *(push(b"%d" % number, number=number) for number in range(9)), push(b"late", delay="90000,0"))
        self.lease(9)
        for _ in range(2):
            # Lost twice, some become suspects.
            self.now_ms += TTL_MS + 1
            self.reap()
            self.found = leases_of(self.lease(5))
        self.commit(2, push(b"x", slot="other", mark="mark"), self.end("F", 0, "", "decode", "why", ""))
        self.now_ms += 80_000

    def end(self, letter: str, which: int, *more: str) -> Sequence[Argument]:
        key, attempts = self.found[which]
        return (letter, key, attempts, *more)

    def recover(self) -> object:
        expiries: Any = self.client.zrange(self.keys.leases, 0, -1, withscores=True)
        pairs = [(key, int(at)) for key, at in expiries]
        return self.call("recover", *self.session, 2, *(part for pair in pairs for part in pair))

    def commit_everything(self) -> object:
        return self.commit(
            3,
            push(b"new", number=100),
            push(b"new", number=100),
            push(b"elsewhere", slot="third", number=101, mark="another"),
            push(b"later", delay="500,0"),
            ("C", *push(b"begun", number=102)[1:], "", 1),
            self.end("A", 1, ""),
            self.end("R", 2),
            self.end("F", 3, "", "decode", "why", "Traceback"),
            self.end("X", 4, "500"),
        )

    def drop(self) -> object:
        return self.call("drop", 100)

    def lease_some(self) -> object:
        return self.lease(5)

    def set_aside(self) -> None:
        """Do as a change of the policy does."""
        self.client.rename(self.keys.ready(0 if self.policy.weights else None), self.keys.unsorted(1))
        self.client.hset(self.keys.state, "unsorted", 1)
        for _ in range(64):
            # Each command lets the server go on with putting the hash into a larger table; until then its dump changes.
            self.client.hexists(self.keys.state, "unsorted")

    def sort(self) -> object:
        return self.call("sort", *self.session)

    def head_of(self, slot: bytes) -> float | None:
        """Return the best rank in the queue of a slot, None if that is no queue."""
        if self.client.type(self.keys.queue(slot)) == b"string":
            return None
        found: Any = self.client.zrange(self.keys.queue(slot), 0, 0, withscores=True)
        return float(found[0][1])

    def push_some(self) -> object:
        requests: list[Argument] = [
            *(0, "slot", 1, b"pushed", seen_argument(b"%020d" % 200), "", ""),
            *(0, "fourth", 1, b"pushed", seen_argument(b"%020d" % 201), "", "500,0"),
        ]
        return self.call("push", *requests)

    def evict(self) -> object:
        return self.call("evict", self.worker, 5, 0, "", *(key for key, _ in self.found[:2]))

    def pending(self) -> list[Sequence[Argument]]:
        """Return what `remove` wants to know of two pending requests and a delayed one."""
        queue: Any = self.client.zrange(self.keys.queue(b"slot"), 0, 1, withscores=True)
        delayed: Any = self.client.zrange(self.keys.prefix + "delayed", 0, 0)
        found = [(member[:8], member[8], int(rank), "slot", member[9:]) for member, rank in queue]
        return [*found, *((member[:8], member[8], 0, "slot", member[25:]) for member in delayed)]

    def remove(self) -> object:
        return self.call("remove", *(part for request in self.pending() for part in request))

    def move(self) -> object:
        return self.call("move", *(part for request in self.pending() for part in (*request, 7, request[-1])))

    def letters(self) -> list[bytes]:
        found: Any = self.client.hkeys(self.keys.prefix + "dead")
        return sorted(found)

    def replay(self) -> object:
        return self.call(
            "replay", *(part for key in self.letters() for part in (key, b"replayed", seen_argument(key * 3)))
        )

    def purge(self) -> object:
        return self.call("purge", *self.letters())

    def forget(self) -> object:
        return self.call("forget", *(seen_argument(b"%020d" % number) for number in range(5)))


CALLS: Mapping[str, Callable[[Busy], object]] = {
    "commit": Busy.commit_everything,
    "drop": Busy.drop,
    "lease": Busy.lease_some,
    "lease of nothing": Busy.reap,
    "recover": Busy.recover,
    "sort": Busy.sort,
}


WITH_EFFECTS: Mapping[str, Callable[[Busy], object]] = {
    **CALLS,
    "push": Busy.push_some,
    "evict": Busy.evict,
    "remove": Busy.remove,
    "move": Busy.move,
    "replay": Busy.replay,
    "purge": Busy.purge,
    "forget": Busy.forget,
}


def contents_of(busy: Busy) -> Mapping[str, object]:
    """Return what a script that fails must leave as it was: all but turns, numbers that were given out, and times."""
    found: dict[str, object] = {}
    in_line: set[bytes] = set()
    for key, dump in busy.dump().items():
        noun, _, rest = key.decode().removeprefix(busy.keys.prefix).partition(":")
        if noun in ("ready", "unsorted") and busy.client.type(key) == b"zset":
            # Whether a slot stands in its lane, or waits to find it.
            places: Any = busy.client.zrange(key, 0, -1, withscores=True)
            in_line.update(member[8:] for member, _ in places)
            if noun == "ready" and not rest:
                assert all(busy.head_of(member[8:]) in (rank, None) for member, rank in places)
        elif noun in ("delayed", "leases", "waiting") and busy.client.type(key) == b"zset":
            found[noun] = set(busy.client.zrange(key, 0, -1))
        elif noun in ("stats", "used", "running") and isinstance(dump, Mapping):
            found[noun] = {field: value for field, value in dump.items() if value != b"0"}
        elif noun == "state" and isinstance(dump, Mapping):
            found[noun] = {field: value for field, value in dump.items() if field.decode() not in NUMBERS}
        elif noun not in PASSING:
            found[f"{noun}:{rest}"] = dump
    found["in line"] = in_line
    return {name: value for name, value in found.items() if value}


@pytest.mark.parametrize(
    ("name", "command"), [(name, command) for name in CALLS for command in commands_of(name.partition(" ")[0])]
)
def test_a_command_that_is_forbidden_leaves_everything_as_it_was(
    redis_server: RedisServer, frontier_name: str, name: str, command: str
) -> None:
    busy = Busy(redis_server, frontier_name, POLICIES["all"])
    if name == "sort":
        busy.set_aside()
    before = contents_of(busy)
    everything: Any = busy.client
    everything.execute_command("ACL", "SETUSER", "limited", "reset", "on", "nopass", "~*", "&*", "+@all", f"-{command}")
    busy.client = redis.Redis(port=redis_server.port, username="limited", password="any")

    try:
        CALLS[name](busy)
        is_refused = False
    except redis.exceptions.ResponseError:
        is_refused = True
    busy.client.close()
    busy.client = everything

    assert not is_refused or contents_of(busy) == before


@pytest.mark.any_server
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("noun", NOUNS)
def test_a_key_of_another_type_leaves_everything_as_it_was(
    redis_server: RedisServer, frontier_name: str, name: str, noun: str
) -> None:
    busy = Busy(redis_server, frontier_name, POLICIES["all"])
    if name == "sort":
        busy.set_aside()
    if name == "lease":
        busy.reap()
    key = busy.keys.prefix + noun
    if noun == "seen:0:1":
        key = busy.keys.prefix + f"seen:0:{bucket_of(hashed(b'%020d' % 101), 18) // 64}"
    busy.client.set(key, "something else")
    before = contents_of(busy)

    try:
        CALLS[name](busy)
        is_refused = False
    except redis.exceptions.ResponseError:
        is_refused = True

    assert not is_refused or contents_of(busy) == before


@pytest.mark.any_server
@pytest.mark.parametrize(
    ("name", "policy"), [*((name, "none") for name in CALLS), *((name, "all") for name in WITH_EFFECTS)]
)
def test_an_error_at_any_effect_leaves_everything_as_it_was(
    redis_server: RedisServer, frontier_name: str, name: str, policy: str
) -> None:
    busy = Busy(redis_server, frontier_name, POLICIES[policy])
    if name == "sort":
        busy.set_aside()
    if name.startswith("lease"):
        # What time has brought is done first, and stays.
        busy.reap()
    before = contents_of(busy)

    for busy.fails_at in count(1):
        try:
            WITH_EFFECTS[name](busy)
            break
        except redis.exceptions.ResponseError as error:
            assert PLANTED in str(error)
            assert contents_of(busy) == before, f"after an error at effect {busy.fails_at}"

    assert busy.fails_at > 3
    assert (contents_of(busy) == before) == (name in ("lease of nothing", "sort"))


def test_text_that_is_no_limit_keeps_a_batch_out_whole(redis_server: RedisServer, frontier_name: str) -> None:
    frontier = Scripts(redis_server, frontier_name)
    frontier.policy = Policy(slots={"other": SlotLimit(concurrency=1)})
    frontier.join()
    frontier.client.hset(frontier.keys.of("limits"), "slot", "no JSON")
    batch = [push(b"one", number=1), push(b"two", number=2)]

    with pytest.raises(redis.exceptions.ResponseError):
        frontier.commit(1, *batch)
    assert frontier.counters() == {}
    frontier.client.hdel(frontier.keys.of("limits"), "slot")

    assert frontier.commit(1, *batch)[:2] == [0, []]
    assert len(leases_of(frontier.lease(5))) == 2


@pytest.mark.parametrize("tier", [-1, 3])
def test_a_rank_of_an_unknown_tier_is_served(redis_server: RedisServer, frontier_name: str, tier: int) -> None:
    frontier = Scripts(redis_server, frontier_name)
    frontier.policy = Policy(weights=[3])
    frontier.join()

    letter, _, *rest = push(b"elsewhere", number=1)
    assert frontier.commit(1, (letter, tier * 2**45, *rest))[:2] == [0, []]

    assert len(leases_of(frontier.lease(5))) == 1


def test_a_queue_of_another_type_behind_what_is_over_budget_is_refused_before_anything_is_given_up(
    redis_server: RedisServer, frontier_name: str
) -> None:
    frontier = Scripts(redis_server, frontier_name)
    frontier.policy = Policy(budgets={"*": Budget(pages=0)})
    frontier.join()
    frontier.commit(1, *(push(b"over", slot=f"slot-{number}") for number in range(9)))
    frontier.client.set(frontier.keys.prefix + "queue:slot-5", "something else")

    reply = frontier.lease(1)

    assert (reply[2], reply[3][3], len(reply[9])) == (0, 5, 5)
    assert [frontier.stat(name) for name in ("pending", "dead")] == [4, 5]
    with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE"):
        frontier.lease(1)
    assert [frontier.stat(name) for name in ("pending", "dead")] == [4, 5]
