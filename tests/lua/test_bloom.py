"""Bloom filters in strings and in filters of the server, so small that subfilters become full."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import count
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from scrapy_prioqueue.frontier.redis.seen.bloom import read_subfilters, text_for
from scrapy_prioqueue.frontier.redis.seen.fingerprints import hashed
from scrapy_prioqueue.frontier.redis.seen.subfilters import Bits, Filters, Subfilter
from scrapy_prioqueue.frontier.seen import SeenPolicy
from tests.lua.test_seen import Frontier, fingerprint
from tests.support.halves import PLANTED
from tests.support.servers import RedisServer, StartServer


@pytest.fixture(params=["strings", "filters"])
def server(request: pytest.FixtureRequest, redis_server: RedisServer, bloom_server: RedisServer) -> RedisServer:
    """One that keeps Bloom filters in the way that is tested."""
    return bloom_server if request.param == "filters" else redis_server


def shape_for(server: RedisServer, capacity: int, rate: float) -> str:
    return text_for(SeenPolicy("bloom", capacity, rate), has_filters="loadmodule" in server.config)


def is_in(frontier: Frontier, subfilters: Iterable[Subfilter], digest: bytes) -> bool:
    """Look for a hash as programs that are no workers do."""
    client: Any = frontier.scripts.client
    return any(
        all(client.execute_command(*command) for command in subfilter.lookups(frontier.scripts.keys, level, digest))
        for level, subfilter in enumerate(subfilters)
    )


@pytest.mark.any_server
@settings(
    max_examples=50,
    phases=(Phase.generate,),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    batches=st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=60), max_size=8),
    capacity=st.sampled_from([1, 7, 20]),
    rate=st.sampled_from([0.1, 0.01, 1e-9]),
    has_filters=st.booleans(),
)
def test_pushed_fingerprints_are_never_new_again(
    redis_server: RedisServer,
    bloom_server: RedisServer,
    frontier_name: str,
    batches: list[list[int]],
    capacity: int,
    rate: float,
    has_filters: bool,
) -> None:
    server = bloom_server if has_filters else redis_server
    shape = shape_for(server, capacity, rate)
    frontier, known, lost = Frontier(server, frontier_name, shape), set[int](), 0
    for batch in batches:
        duplicates = set(frontier.push([(number, None) for number in batch]))
        for index, number in enumerate(batch):
            assert index in duplicates or number not in known
            lost += index in duplicates and number not in known
            known.add(number)
    assert len(frontier.known([(number, None) for number in known])) == len(known)

    assert frontier.count == len(known) - lost
    assert lost <= len(known) / 2 + 2 if rate == 0.1 else lost <= 10
    assert all(is_in(frontier, read_subfilters(shape), hashed(fingerprint(number))) for number in known)


def fill(frontier: Frontier, count: int) -> int:
    """Mark so many as seen; return how many new ones were taken for duplicates meanwhile."""
    numbers, lost = iter(range(10**6)), 0
    while frontier.count < count:
        batch = [(next(numbers), None) for _ in range(min(500, count - frontier.count))]
        lost += len(frontier.push(batch))
        # Then the batch is there.
        assert len(frontier.push(batch)) == len(batch)
    return lost


@pytest.mark.any_server
def test_the_rate_is_about_the_promised_one_when_the_first_layer_is_full(
    server: RedisServer, frontier_name: str
) -> None:
    shape = shape_for(server, 5_000, 0.02)
    frontier, (subfilter, *_) = Frontier(server, frontier_name, shape), read_subfilters(shape)

    lost = fill(frontier, 5_000)

    source = random.Random(6)
    found = sum(is_in(frontier, [subfilter], source.randbytes(12)) for _ in range(5_000))
    assert 60 <= found <= 140
    assert lost < 60
    assert 0.015 < subfilter.rate(5_000) < 0.0195


def test_strings_have_their_length_from_the_beginning(redis_server: RedisServer, frontier_name: str) -> None:
    shape = shape_for(redis_server, 5_000, 0.02)
    frontier, (subfilter, second, *_) = Frontier(redis_server, frontier_name, shape), read_subfilters(shape)
    assert isinstance(subfilter, Bits) and isinstance(second, Bits)
    client, keys = frontier.scripts.client, frontier.scripts.keys

    fill(frontier, 5_001)

    lengths = {client.strlen(keys.seen(0, chunk)) for chunk in range(subfilter.chunks)}
    assert lengths == {subfilter.chunk_bytes}
    assert client.strlen(keys.seen(1, 0)) in (0, second.chunk_bytes)


def test_filters_are_as_big_as_reckoned_and_only_the_last_layer_grows(
    bloom_server: RedisServer, frontier_name: str
) -> None:
    subfilters = [Filters(3, 500, 1_000, 0.01), Filters(2, 60, 100, 0.001), Filters(1, 50, 50, 0.0005)]
    shape = " ".join(["bloom", "0", "1000", "10000000", *(subfilter.text() for subfilter in subfilters)])
    frontier = Frontier(bloom_server, frontier_name, shape)
    client: Any = frontier.scripts.client

    fill(frontier, 1_400)

    places = [(level, chunk) for level, subfilter in enumerate(subfilters) for chunk in range(subfilter.chunks)]
    infos = [client.bf().info(frontier.scripts.keys.seen(*place)) for place in places]
    assert [info.capacity for info in infos[:5]] == [500, 500, 500, 60, 60]
    assert [info.filterNum for info in infos[:5]] == [1] * 5
    assert infos[5].filterNum > 1
    # Of a batch some are taken for each other, by their filter only.
    assert 1_390 < sum(info.insertedNum for info in infos) <= 1_400
    assert all(0 <= info.size - subfilters[0].chunk_bytes < 300 for info in infos[:3])


def test_a_batch_whose_filter_is_refused_stores_nothing_and_is_taken_later(
    redis_server_factory: StartServer, bloom_server: RedisServer, frontier_name: str
) -> None:
    server = redis_server_factory(loadmodule=bloom_server.config["loadmodule"])
    frontier = Frontier(server, frontier_name, shape_for(server, 20, 0.01))
    scripts = frontier.scripts
    frontier.push([(number, None) for number in range(30)])
    admin: Any = server.client()

    for command in ("bf.exists", "bf.reserve", "bf.insert"):
        admin.acl_setuser("default", commands=[f"-{command}"])
        before = scripts.counters()
        with pytest.raises(Exception, match=r"(?i)noperm|can't run this command|permissions"):
            # A subfilter that nothing is in yet, so that all of them are needed.
            frontier.push([(number, None) for number in range(1_000, 1_200)])
        assert scripts.counters() == before
        admin.acl_setuser("default", commands=[f"+{command}"])
        frontier.batches -= 1

    frontier.push([(number, None) for number in range(1_000, 1_200)])
    assert len(frontier.known([(number, None) for number in range(1_000, 1_200)])) == 200


def test_an_error_at_any_effect_marks_nothing(bloom_server: RedisServer, frontier_name: str) -> None:
    frontier = Frontier(bloom_server, frontier_name, "bloom 0 1000 10000000 f3:500:1000:0.01")
    scripts, pushes = frontier.scripts, [(number, None) for number in range(20)]

    for scripts.fails_at in count(1):
        try:
            duplicates = frontier.push(pushes)
            break
        except redis.exceptions.ResponseError as error:
            assert PLANTED in str(error)
            assert not frontier.known(pushes), f"after an error at effect {scripts.fails_at}"
            frontier.batches -= 1

    assert scripts.fails_at > 10
    assert (duplicates, scripts.stat("pending")) == ([], 20)
