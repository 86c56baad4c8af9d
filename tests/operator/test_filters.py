"""Fingerprints in filters of the server's module: begun by workers and programs, read, and moved to another server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

import pytest

from scrapy_prioqueue.errors import FrontierFull, FrontierRefused, FrontierUnavailable, NotPermitted, PrioQueueError
from scrapy_prioqueue.frontier.base import Batch, Push
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.checkup import frontier_findings
from scrapy_prioqueue.frontier.redis.operators.exporter import Exporter
from scrapy_prioqueue.frontier.redis.operators.importer import Importer
from scrapy_prioqueue.frontier.redis.operators.inspector import Inspector
from scrapy_prioqueue.frontier.redis.operators.operator import CrawlPlan, Operator
from scrapy_prioqueue.frontier.redis.operators.records import Record
from scrapy_prioqueue.frontier.redis.troubles import ACL_RULES, BLOOM_RULES
from scrapy_prioqueue.frontier.seen import SeenPolicy
from tests.contract.backends import RedisBackend
from tests.operator.conftest import assert_in_order, assert_is_bloom
from tests.support.servers import RedisServer, StartServer

SEEN = SeenPolicy("bloom", 500, 0.01)
URLS = [b"%020d" % number for number in range(1_000)]
PUSHES = [Push(0, "shop.example", b"page", fingerprint=url) for url in URLS]


@pytest.fixture
def redis_server(bloom_server: RedisServer) -> RedisServer:
    """What `operator` and `backend` work on."""
    return bloom_server


@pytest.fixture
def link(redis_server: RedisServer) -> Iterator[Link]:
    link = Link(redis_server.url)
    yield link
    link.close()


@pytest.fixture
def own_server(redis_server_factory: StartServer, bloom_server: RedisServer) -> RedisServer:
    """A server of this test alone that has filters, too."""
    return redis_server_factory(loadmodule=bloom_server.config["loadmodule"])


@pytest.fixture
def own_backend(own_server: RedisServer, frontier_name: str) -> Iterator[RedisBackend]:
    """Workers on that."""
    backend = RedisBackend(frontier_name, own_server.url)
    yield backend
    backend.close()


@contextmanager
def workers_of_user(server: RedisServer, name: str, *rights: str) -> Iterator[RedisBackend]:
    """Yield workers whose Redis user has these rights only."""
    server.client().acl_setuser(
        "scrapy", enabled=True, passwords=["+secret"], keys=["*"], channels=["*"], commands=["-@all", *rights]
    )
    backend = RedisBackend(name, server.url.replace("redis://", "redis://scrapy:secret@"))
    yield backend
    backend.close()


def shape_of(operator: Operator) -> str:
    found: bytes = operator.link.client.hget(operator.keys.state, "seen_shape")  # type: ignore[assignment]
    return found.decode()


def exported(operator: Operator) -> Sequence[Record]:
    return [json.loads(json.dumps(record)) for record in Exporter(operator.link, operator.name).records()]


def test_workers_begin_filters_where_the_server_has_them(operator: Operator, backend: RedisBackend) -> None:
    worker = backend.join("w1", seen=SEEN)

    lost = len(worker.commit(*PUSHES).duplicates)

    assert shape_of(operator).split()[4].startswith("f1:500:500:")
    assert 0 <= lost < 20
    assert len(worker.commit(*PUSHES).duplicates) == len(PUSHES)
    kinds = {operator.link.client.type(key) for key in operator.link.client.scan_iter(operator.keys.of("seen:*"))}
    assert kinds == {b"MBbloom--"}


def test_programs_that_are_no_workers_begin_them_too(operator: Operator) -> None:
    plan = CrawlPlan(["default"], seen=SEEN)

    assert len(operator.push(PUSHES, plan)) < 20
    assert len(operator.push(PUSHES, plan)) == len(PUSHES)
    assert " f1:500:500:" in shape_of(operator)


def test_a_user_without_the_right_to_them_keeps_bits(own_server: RedisServer, frontier_name: str) -> None:
    with workers_of_user(own_server, frontier_name, "+@all", "-bf.reserve") as backend:
        backend.join("w1", seen=SEEN).commit(*PUSHES)

    with closing(Link(own_server.url)) as link:
        assert " b7:1:" in shape_of(Operator(link, frontier_name))


def test_status_and_explain_read_them(operator: Operator, backend: RedisBackend, link: Link) -> None:
    worker = backend.join("w1", seen=SEEN)
    lost = len(worker.commit(*PUSHES).duplicates)

    inspector = Inspector(link, operator.name)
    assert_is_bloom(inspector, URLS, lost)
    operator.forget_all()
    assert inspector.seen_until(URLS[0]) is None
    assert len(worker.commit(*PUSHES).duplicates) < 20


def test_the_check_up_finds_nothing_wrong_with_them(operator: Operator, backend: RedisBackend, link: Link) -> None:
    worker = backend.join("w1", seen=SEEN)
    worker.commit(*PUSHES)

    findings = list(frontier_findings(Inspector(link, operator.name), ("urgent", "normal")))

    assert {finding.severity for finding in findings} == {"fine", "note"}
    assert any("Bloom filter" in finding.text for finding in findings)


def test_they_are_taken_along_to_a_server_that_has_them(
    operator: Operator, backend: RedisBackend, own_server: RedisServer, own_backend: RedisBackend
) -> None:
    backend.join("w1", seen=SEEN).commit(*PUSHES)

    records = exported(operator)
    with closing(Link(own_server.url)) as link:
        # An import of a truncated export deletes what it has written, so another one may follow.
        with pytest.raises(PrioQueueError, match="truncated"):
            Importer(link, operator.name).run(records[:-1])
        Importer(link, operator.name).run(records)
        assert_in_order(Operator(link, operator.name))

    assert len(own_backend.join("w1", seen=SEEN).commit(*PUSHES).duplicates) == len(PUSHES)


def test_a_server_without_them_refuses_an_import_before_it_begins(
    operator: Operator, backend: RedisBackend, redis_server_factory: StartServer
) -> None:
    backend.join("w1", seen=SEEN).commit(*PUSHES)
    link = Link(redis_server_factory().url)

    with pytest.raises(FrontierRefused, match=r"RedisBloom .* load that module"):
        Importer(link, operator.name).run(exported(operator))

    assert list(link.client.scan_iter("*")) == []
    link.close()


def test_a_full_server_takes_the_batch_again_once_there_is_room(
    own_server: RedisServer, own_backend: RedisBackend, frontier_name: str
) -> None:
    client = own_server.client()
    worker = own_backend.join("w1", seen=SeenPolicy("bloom", 20_000, 0.01))

    # So that the filter itself, of 24 kB, is what there is no room for.
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 12_000)
    with pytest.raises(FrontierFull):
        for stored in range(0, len(PUSHES), 10):
            worker.commit(*PUSHES[stored : stored + 10])
    client.config_set("maxmemory", 0)
    worker.last_batch = replace(worker.last_batch, number=worker.last_batch.number - 1)

    assert len(worker.commit(*PUSHES).duplicates) - stored < 20
    assert len(worker.commit(*PUSHES).duplicates) == len(PUSHES)
    with closing(Link(own_server.url)) as link:
        assert_in_order(Operator(link, frontier_name))


def test_a_worker_whose_server_comes_back_empty_and_without_them_continues_with_bits(
    redis_server_factory: StartServer, own_server: RedisServer, own_backend: RedisBackend, frontier_name: str
) -> None:
    worker = own_backend.join("w1", seen=SEEN)
    worker.commit(*PUSHES[:100])
    own_server.kill()
    other_server = redis_server_factory(port=own_server.port)

    batch = worker.last_batch = Batch(worker.last_batch.number + 1, PUSHES[100:200])
    # The first call finds its connection closed.
    with suppress(FrontierUnavailable):
        worker.exchange(batch, demand=None)
    answer = worker.exchange(batch, demand=None)

    assert answer.rejection is None
    assert len(worker.commit(*PUSHES).duplicates) >= 100
    assert len(worker.commit(*PUSHES).duplicates) == len(PUSHES)
    with closing(Link(other_server.url)) as link:
        assert " b7:1:" in shape_of(Operator(link, frontier_name))


def test_a_worker_that_may_not_use_them_is_rejected_with_the_missing_right(
    own_server: RedisServer, own_backend: RedisBackend, frontier_name: str
) -> None:
    own_backend.join("w1", seen=SEEN)
    of_workers = ACL_RULES.split()[3:]

    with (
        workers_of_user(own_server, frontier_name, *of_workers) as backend,
        pytest.raises(NotPermitted, match=r"RedisBloom.*\+bf\.insert"),
    ):
        backend.join("w2", seen=SEEN)
    with workers_of_user(own_server, frontier_name, *of_workers, *BLOOM_RULES.split()) as backend:
        worker = backend.join("w2", seen=SEEN)
        worker.commit(*PUSHES)
        assert len(worker.commit(*PUSHES).duplicates) == len(PUSHES)
