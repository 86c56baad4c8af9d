"""Fingerprints in the scripts, in shapes so small that all levels are used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from scrapy_prioqueue.frontier.redis.seen.fingerprints import hashed, records_of, seen_argument
from scrapy_prioqueue.frontier.redis.seen.shapes import Shape, read_shape
from scrapy_prioqueue.frontier.seen import NEVER_S, SeenPolicy
from tests.lua.scripts import Scripts
from tests.support.servers import RedisServer

DEFAULT_S = 40

SHAPES = [
    "exact 0 2 16 p1:8 p2:8 s1:3 s2:3 s3:3",
    "exact 0 1 9 p1:9 p3:8",
    "exact 0 64 64 s0:2 s1:2 s2:2",
    "compact 0 4 12 p1:4 p3:4 p5:4",
    "exact 2 2 24 t0:8",
    "exact 2 4 64 t3:9",
    "compact 2 2 16 t1:4",
]


def fingerprint(number: int) -> bytes:
    return b"%020d" % number


numbers = st.integers(0, 40)
pushes = st.tuples(
    st.just("push"),
    st.lists(st.tuples(numbers, st.sampled_from([None, None, 0, 7, 90, NEVER_S])), min_size=1, max_size=30),
)
steps = st.lists(
    st.one_of(
        pushes,
        pushes,
        st.tuples(st.just("forget"), st.lists(numbers, unique=True, min_size=1, max_size=12)),
        st.tuples(st.just("wait"), st.integers(1, 50)),
    ),
    max_size=12,
)


@dataclass
class Model:
    """A dictionary of what was seen, and until when."""

    has_times: bool
    now_s: int
    until: dict[int, int] = field(default_factory=dict)

    def is_seen(self, number: int) -> bool:
        return self.until.get(number, 0) > self.now_s

    def push(self, number: int, revisit_s: int | None) -> bool:
        """Return whether it is new."""
        if self.is_seen(number):
            return False
        after_s = DEFAULT_S if revisit_s is None else revisit_s
        self.until[number] = self.now_s + after_s if self.has_times and after_s != NEVER_S else 2**40
        return True

    def forget(self, number: int) -> bool:
        was_seen = self.is_seen(number)
        self.until.pop(number, None)
        return was_seen


class Frontier:
    """A frontier with seen sets of some shape, in which the clock goes by the second."""

    def __init__(self, server: RedisServer, name: str, shape: str) -> None:
        self.scripts = Scripts(server, name)
        self.scripts.seen = SeenPolicy(revisit_s=DEFAULT_S if shape.split()[1] == "2" else None)
        for key in self.scripts.client.scan_iter(self.scripts.keys.pattern(), count=1000):
            self.scripts.client.unlink(key)
        self.scripts.join()
        self.scripts.client.hset(self.scripts.keys.state, "seen_shape", shape)
        self.batches = 0

    def push(self, pushes: Sequence[tuple[int, int | None]]) -> Sequence[int]:
        """Return the indexes of duplicates; what they are is known before."""
        self.batches += 1
        known = self.known(pushes)
        operations = [
            ("P", 0, "slot", 0, b"", seen_argument(fingerprint(number), revisit_s), "", "")
            for number, revisit_s in pushes
        ]
        duplicates: Sequence[int] = self.scripts.commit(self.batches, *operations)[1]
        assert set(known) <= set(duplicates)
        return duplicates

    def known(self, pushes: Sequence[tuple[int, int | None]]) -> Sequence[int]:
        """Return the indexes of those that would be duplicates."""
        arguments = [seen_argument(fingerprint(number), revisit_s) for number, revisit_s in pushes]
        found: Sequence[int] = self.scripts.call("known", *arguments)[1]
        return found

    def forget(self, numbers: Sequence[int]) -> Sequence[int]:
        """Return the indexes of those that were seen."""
        found: Sequence[int] = self.scripts.call("forget", *(hashed(fingerprint(number)) for number in numbers))
        return found

    @property
    def count(self) -> int:
        return int(self.scripts.client.hget(self.scripts.keys.state, "seen") or 0)

    def records(self, shape: Shape) -> Iterator[bytes | int]:
        """Yield what is kept of each fingerprint."""
        client: Any = self.scripts.client
        for key in client.scan_iter(self.scripts.keys.prefix + "seen:*", count=1000):
            level = shape.levels[int(key.split(b":")[-2])]
            if level.is_packed:
                for value in client.hvals(key):
                    yield from (record for record, _ in records_of(shape, level, value))
            else:
                yield from client.smembers(key)


FORGOTTEN = [("push", [(number, None) for number in range(41)]), ("forget", list(range(0, 41, 3)))] * 2
EXPIRED = [("push", [(number, 7) for number in range(41)]), ("wait", 8)] * 3


def with_examples(test: Any) -> Any:
    """Let a test begin with examples that use all levels of each shape."""
    for text in SHAPES:
        test = example(text=text, steps=EXPIRED)(example(text=text, steps=FORGOTTEN)(test))
    return test


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@with_examples
@given(text=st.sampled_from(SHAPES), steps=steps)
def test_seen_fingerprints_are_those_pushed_and_neither_forgotten_nor_expired(
    redis_server: RedisServer, frontier_name: str, text: str, steps: Sequence[tuple[str, Any]]
) -> None:
    frontier, shape = Frontier(redis_server, frontier_name, text), read_shape(text)
    model = Model(shape.has_times, frontier.scripts.now_ms // 1000)
    for kind, argument in steps:
        if kind == "push":
            assert frontier.known(argument) == [at for at, (number, _) in enumerate(argument) if model.is_seen(number)]
            is_new = [model.push(*each) for each in argument]
            assert frontier.push(argument) == [index for index, each in enumerate(is_new) if not each]
        elif kind == "forget":
            was_seen = [model.forget(number) for number in argument]
            assert frontier.forget(argument) == [index for index, each in enumerate(was_seen) if each]
        else:
            model.now_s += argument
            frontier.scripts.now_ms = model.now_s * 1000
    kept = list(frontier.records(shape))
    assert len(kept) == len(set(kept)) == frontier.count
    assert len(kept) <= len(model.until)
    if not shape.has_times:
        assert len(kept) == len(model.until)
