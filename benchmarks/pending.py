"""Measure what a pending request takes: bytes of Redis memory and processor time of its encoding, beside scrapy-redis.

The same requests are stored by both, on every server of this machine, in few slots and in many small ones. Memory is
``used_memory`` after the pushes less that before them, when scripts are loaded and connections made; nothing is
filtered, so that what was seen takes no room.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import redis
from program import Option, run_from_command_line, workplace
from redis_server import BINARY_VARIABLE, available_redis_servers, find_redis_server
from results import Cell, Measured, Report, Table
from scrapy import Request, Spider
from scrapy_redis.queue import PriorityQueue

from scrapy_prioqueue.codec import RequestCodec
from scrapy_prioqueue.codec.lineage import Found
from scrapy_prioqueue.frontier import open_frontier
from scrapy_prioqueue.frontier.base import Batch, FrontierConfig, Push
from scrapy_prioqueue.frontier.redis.servers import version_text
from scrapy_prioqueue.rank import rank_of

OURS, THEIRS = "scrapy-prioqueue", "scrapy-redis"
URL_LENGTH = 80
FIRST = 200
"""Requests that are pushed before measuring begins."""

BATCH = 200
SMALL_SLOT = 10
FOUND_S = 1_800_000_000

LINK, FULL = "URL, depth, callback", "and Referer, text of the link, slot"
KINDS = (LINK, FULL)
WORDS = [
    *("garden", "kitchen", "table", "wooden", "lamp", "classic", "summer", "travel", "guide", "city", "river", "music"),
    *("theatre", "review", "report", "market", "price", "daily", "local", "national", "sport", "science", "energy"),
    *("climate", "house", "rental", "vintage", "leather", "cotton", "jacket", "winter", "running", "shoes", "women"),
    *("children", "camera", "lens", "digital", "printer", "paper", "office", "chair", "outdoor", "tent", "coffee"),
]
CAPITALS = "ABCDEFGHJKLMNPQRSTUVWXYZ0123456789"


class Books(Spider):
    """Has the callback."""

    name = "books"

    def parse_book(self, response: Any) -> None:
        """Stand for a callback."""


@dataclass(frozen=True, slots=True)
class Link:
    """A request, the slot it goes to, and how it was found."""

    slot: str
    request: Request
    found: Found


def links(count: int, slots: int, kind: str, spider: Books) -> Iterator[Link]:
    """Yield requests for URLs of 80 characters in four styles, each slot in one of them; half have capitals."""
    rng = random.Random(7)
    for number in range(count):
        slot = f"www.site-{number % slots:05d}.example"
        url, page = (_url(rng, slot, number, number % slots % 4) for _ in range(2))
        meta: dict[str, Any] = {"depth": 3}
        if kind == LINK:
            yield Link(slot, Request(url, spider.parse_book, meta=meta), Found(None, FOUND_S + number))
            continue
        meta = {"link_text": _words(rng, 4, " ").capitalize(), "download_slot": slot} | meta
        page = page[: rng.randrange(45, URL_LENGTH)]
        request = Request(url, spider.parse_book, meta=meta, headers={"Referer": page})
        yield Link(slot, request, Found(page, FOUND_S + number))


def _url(rng: random.Random, host: str, number: int, style: int) -> str:
    word = rng.choice(WORDS)
    if style == 0:
        return _filled(rng, f"https://{host}/{word}/", "-", f"-{number:08d}.html")
    if style == 1:
        query = f"?id={rng.randrange(10**7)}&q="
        return _filled(rng, f"https://{host}/{word}{query}", "+", f"&page={rng.randrange(1, 50)}")
    if style == 2:
        return _filled(rng, f"https://{host}/wiki/", "_", f"_({word}_{number})").replace("/wiki/", "/Wiki/")
    code = "".join(rng.choice(CAPITALS) for _ in range(8))
    return _filled(rng, f"https://{host}/", "-", f"/dp/B0{code}/ref=sr_1_{number % 60}?n={number}")


def _filled(rng: random.Random, head: str, between: str, tail: str) -> str:
    room = URL_LENGTH - len(head) - len(tail)
    return head + _words(rng, 14, between)[:room] + tail


def _words(rng: random.Random, count: int, between: str) -> str:
    return between.join(rng.choice(WORDS) for _ in range(count))


class Ours:
    """The frontier, with the codec as the scheduler uses it."""

    def __init__(self, url: str, spider: Books) -> None:
        self._url = url
        self._codec = RequestCodec(spider)

    def measure(self, requests: Iterator[Link], client: redis.Redis) -> int:
        """Push all; return by how many bytes the server has grown since the first ones were in."""
        return asyncio.run(self._measure(requests, client))

    async def _measure(self, requests: Iterator[Link], client: redis.Redis) -> int:
        config = FrontierConfig(name="bench", tiers=("urgent", "high", "normal", "low"), worker="bench")
        frontier = open_frontier(config, self._url, timeout_s=60)
        await frontier.join()
        number, before = 0, 0
        while part := [self._push(link) for link in islice(requests, BATCH)]:
            number += 1
            await frontier.exchange([Batch(number, part)], None)
            before = before or used_memory(client)
        grown = used_memory(client) - before
        await frontier.close()
        return grown

    def _push(self, link: Link) -> Push:
        payload = self._codec.encode(link.request, link.slot, found=link.found)
        return Push(rank_of(2, link.request.priority), link.slot, payload)


class Theirs:
    """The priority queue of scrapy-redis."""

    def __init__(self, url: str, spider: Books) -> None:
        self._spider = spider

    def measure(self, requests: Iterator[Link], client: redis.Redis) -> int:
        """Push all; return by how many bytes the server has grown since the first ones were in."""
        pipeline = client.pipeline(transaction=False)
        queue = PriorityQueue(pipeline, self._spider, "%(spider)s:requests")
        before = 0
        while part := list(islice(requests, BATCH)):
            for link in part:
                queue.push(link.request)
            pipeline.execute()
            before = before or used_memory(client)
        return used_memory(client) - before


def used_memory(client: redis.Redis) -> int:
    """Return the bytes that the server has allocated."""
    memory: Any = client.info("memory")
    return int(memory["used_memory"])


def memory_rows(binary: Path, options: argparse.Namespace, spider: Books) -> Sequence[Sequence[Cell]]:
    """Return the rows of one server."""
    rows: list[Sequence[Cell]] = []
    count = options.requests
    os.environ[BINARY_VARIABLE] = str(binary)
    with workplace() as (_, server), redis.Redis.from_url(server.url) as client:
        info: Any = client.info("server")
        for kind in KINDS:
            for slots in (10, count // SMALL_SLOT):
                found = {}
                for name, contender in ((OURS, Ours), (THEIRS, Theirs)):
                    # Valkey would go on freeing in the background, and so would what is measured.
                    client.execute_command("FLUSHALL", "SYNC")
                    grown = contender(server.url, spider).measure(links(count, slots, kind, spider), client)
                    found[name] = grown / (count - FIRST)
                where = (version_text(info), kind, slots)
                rows += [(name, *where, round(each, 1), round(each / found[THEIRS], 3)) for name, each in found.items()]
    return rows


def time_rows(options: argparse.Namespace, spider: Books) -> Sequence[Sequence[Cell]]:
    """Return what encoding and decoding take, in microseconds, each round of new requests."""
    codec, queue = RequestCodec(spider), PriorityQueue(None, spider, "%(spider)s")
    rows: list[Sequence[Cell]] = []
    for kind in KINDS:
        spent: dict[tuple[str, str], list[float]] = {}
        lengths: dict[str, list[float]] = {}
        for _ in range(options.rounds):
            requests = list(links(2000, 10, kind, spider))
            calls = (
                (OURS, [lambda one=one: codec.encode(one.request, one.slot, found=one.found) for one in requests]),
                (THEIRS, [lambda one=one: queue._encode_request(one.request) for one in requests]),  # noqa: SLF001
            )
            for name, encoders in calls:
                payloads = _timed(spent.setdefault((name, "encode"), []), encoders)
                lengths[name] = [sum(map(len, payloads)) / len(payloads)]
                decoders = [
                    (lambda one=one, payload=payload: codec.decode_found(payload, one.slot))
                    if name == OURS
                    else (lambda payload=payload: queue._decode_request(payload))  # noqa: SLF001
                    for one, payload in zip(requests, payloads, strict=True)
                ]
                _timed(spent.setdefault((name, "decode"), []), decoders)
        rows += [
            (
                name,
                kind,
                round(lengths[name][0]),
                Measured(spent[name, "encode"], 1),
                Measured(spent[name, "decode"], 1),
            )
            for name in (OURS, THEIRS)
        ]
    return rows


def _timed(spent: list[float], calls: Sequence[Any]) -> Sequence[Any]:
    gc.collect()
    began = time.process_time()
    made = [call() for call in calls]
    spent.append((time.process_time() - began) / len(calls) * 1e6)
    return made


OPTIONS = (
    Option("--requests", 100_000, "how many are stored", quick=20_000),
    Option("--rounds", 5, "of encoding and decoding"),
)


def run_benchmark(options: argparse.Namespace) -> None:
    """Measure and print the tables."""
    binaries = [find_redis_server()] if os.environ.get(BINARY_VARIABLE) else available_redis_servers()
    spider = Books()
    with workplace() as (_, server):
        report = Report.begin("pending", options, server)
    rows = [row for binary in binaries for row in memory_rows(binary, options, spider)]
    columns = ("", "Redis server", "requests", "slots", "bytes per request", "ratio to scrapy-redis")
    report.add(Table("Bytes per pending request", columns, rows, f"{options.requests:,} requests."))
    headings = ("", "requests", "bytes encoded", "encode, µs", "decode, µs")
    report.add(Table("Encoding and decoding a request", headings, time_rows(options, spider)))


if __name__ == "__main__":
    sys.exit(run_from_command_line(run_benchmark, __doc__, *OPTIONS))
