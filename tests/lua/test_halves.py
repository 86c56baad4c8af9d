"""A script that the server refuses in the middle has changed nothing: no request is lost, and the books balance.

The server refuses commands that the user may not run (any more) and keys that somebody has put something else into.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import redis

from scrapy_prioqueue.frontier.labels import Label, labelled
from scrapy_prioqueue.frontier.policy import Budget, Policy, SlotLimit, Throttle
from scrapy_prioqueue.frontier.redis.fingerprints import bucket_of, hashed, seen_argument
from scrapy_prioqueue.frontier.redis.scripts import Argument, joined_sources
from tests.lua.test_scripts import TTL_MS, Scripts, leases_of
from tests.support.servers import RedisServer

COMMANDS = sorted(set(re.findall(r'redis\.call\("([A-Z]+)"', "".join(joined_sources().values()))))

SIGNS_OF_LIFE = ("workers", "busy", "hungry", "paced")
"""Keys that may change in a call that is refused: of `paced` what has passed is dropped."""

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
        "marks",
    ),
    *("waiting", "paced", "running", "ready:0", "passes", "limits", "delays", "budgets", "used"),
    *("dead", "died", "workers", "busy", "hungry", "sessions", "claims", "work", "pace", "seen:0:1"),
)


QUEUES = ("queue:slot", "queue:other", "queue:third", "suspects")
STATES = ("pending", "delayed", "leased", "dead", "done")

POLICIES = {
    "none": Policy(),
    "all": Policy(
        slots={"*": SlotLimit(delay_s=0.001, concurrency=100, burst=50)},
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
            self.found = leases_of(self.lease(4))
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


CALLS: Mapping[str, Callable[[Busy], object]] = {
    "commit": Busy.commit_everything,
    "drop": Busy.drop,
    "lease": Busy.lease_some,
    "lease of nothing": Busy.reap,
    "recover": Busy.recover,
    "sort": Busy.sort,
}


def state_of(busy: Busy) -> Mapping[bytes, object]:
    prefix = busy.keys.prefix
    return {key: dump for key, dump in busy.dump().items() if key.decode().removeprefix(prefix) not in SIGNS_OF_LIFE}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_is_forbidden_leaves_everything_as_it_was(
    redis_server: RedisServer, frontier_name: str, name: str, command: str, policy: str
) -> None:
    busy = Busy(redis_server, frontier_name, POLICIES[policy])
    if name == "sort":
        busy.set_aside()
    before = state_of(busy)
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

    if is_refused and command == "SADD":
        # What came before is stored and counted.
        assert busy.stat("pending") == sum(busy.client.zcard(busy.keys.prefix + each) for each in QUEUES)
        assert busy.stat("accepted") == sum(busy.stat(name) for name in STATES)
    else:
        assert not is_refused or state_of(busy) == before


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("noun", NOUNS)
def test_a_key_of_another_type_leaves_everything_as_it_was(
    redis_server: RedisServer, frontier_name: str, name: str, noun: str, policy: str
) -> None:
    busy = Busy(redis_server, frontier_name, POLICIES[policy])
    if name == "sort":
        busy.set_aside()
    key = busy.keys.prefix + noun
    if noun == "seen:0:1":
        key = busy.keys.prefix + f"seen:0:{bucket_of(hashed(b'%020d' % 101), 18) // 64}"
    busy.client.set(key, "something else")
    before = state_of(busy)

    try:
        CALLS[name](busy)
        is_refused = False
    except redis.exceptions.ResponseError:
        is_refused = True

    if is_refused and (noun == "seen:0:1" or (noun == "queue:other" and name == "lease")):
        # What came before is stored, or reaped, and counted.
        queues = [busy.keys.prefix + each for each in QUEUES if each != noun]
        if noun == "queue:other":
            busy.client.delete(key)
        assert busy.stat("pending") == sum(busy.client.zcard(each) for each in queues) + (noun == "queue:other")
        assert busy.stat("accepted") == sum(busy.stat(name) for name in STATES)
    else:
        assert not is_refused or state_of(busy) == before


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
