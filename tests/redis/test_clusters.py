"""A frontier on a real cluster: where it is found, and what happens while its hash slot moves."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import pytest
from redis_server import HOST

from scrapy_prioqueue.client import FrontierClient
from scrapy_prioqueue.errors import FrontierRefused, FrontierUnavailable, NotPermitted
from scrapy_prioqueue.frontier import open_seeds
from scrapy_prioqueue.frontier.base import Batch, FrontierConfig
from scrapy_prioqueue.frontier.redis.connection import Connection, parse_version
from scrapy_prioqueue.frontier.redis.items import ItemData, RedisItems
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.doctor import server_findings
from scrapy_prioqueue.frontier.redis.operators.exporter import Exporter
from scrapy_prioqueue.frontier.redis.operators.frontiers import frontier_names, frontiers
from scrapy_prioqueue.frontier.redis.operators.importer import Importer
from scrapy_prioqueue.frontier.redis.operators.inspector import Inspector
from scrapy_prioqueue.frontier.redis.operators.operator import Operator
from scrapy_prioqueue.frontier.redis.troubles import ACL_RULES, CLUSTER_RULES
from tests.contract.backends import RedisBackend, Worker, ack, is_balanced, push
from tests.docs.markdown import REFERENCE
from tests.support.clusters import Cluster, call
from tests.support.coroutines import run
from tests.support.servers import RedisServer, StartServer
from tests.support.waiting import wait_until, wait_until_async


@pytest.fixture
def one(cluster: Cluster, frontier_name: str) -> Iterator[RedisBackend]:
    """Workers that know one node, which doesn't have the frontier."""
    elsewhere = cluster.other_primary(Keys(frontier_name).state)
    backend = RedisBackend(frontier_name, cluster.url_of(elsewhere))
    yield backend
    backend.close()


def dumps(node: RedisServer) -> dict[bytes, Any]:
    """Return all that a node has, also of a hash slot that is moving to it."""
    client: Any = node.client()
    found = {}
    for key in client.scan_iter(count=1000):
        client.execute_command("ASKING")
        found[key] = client.dump(key)
    return found


def on_each_node(cluster: Cluster, name: str, key_of: Callable[[str], str] = str) -> Sequence[str]:
    """Return names that begin so, one for each primary, the keys of which it has."""
    found: dict[int, str] = {}
    for number in count():
        found.setdefault(cluster.primary_of(key_of(f"{name}-{number}")).port, f"{name}-{number}")
        if len(found) == len(cluster.primaries()):
            break
    return list(found.values())


def state_of(name: str) -> str:
    return Keys(name).state


def test_worker_finds_the_node_of_its_frontier(cluster: Cluster, one: RedisBackend, keys: Keys) -> None:
    worker = one.join()
    worker.commit(push("a"))

    assert worker.lease_payloads() == ["a"]
    assert cluster.primary_of(keys.state).client().exists(keys.state)


def refused(worker: Worker) -> FrontierUnavailable:
    with pytest.raises(FrontierUnavailable) as caught:
        worker.send(push("new"), push("other", slot="new.example"), demand=None)
    return caught.value


@pytest.mark.parametrize("moved", [1, 3, 100])
def test_scripts_do_nothing_while_the_hash_slot_moves(
    cluster: Cluster, one: RedisBackend, keys: Keys, moved: int
) -> None:
    worker = one.join()
    worker.commit(*(push(f"{at}", slot=f"{at}.example") for at in range(5)))
    source, target = cluster.primary_of(keys.state), cluster.other_primary(keys.state)

    cluster.begin_move(keys.state, target)
    cluster.move_keys(keys.state, target, most=moved)
    before = dumps(source), dumps(target)
    error = refused(worker)

    assert not isinstance(error, FrontierRefused)
    assert "another node" in error.why
    assert (dumps(source), dumps(target)) == before


def test_worker_joins_although_it_is_led_to_a_node_that_lost_the_hash_slot(
    cluster: Cluster, one: RedisBackend, keys: Keys
) -> None:
    one.join("w1").commit(push("a"))
    late = one.worker("w2")
    late.run(late.frontier.pending("a.example", 0, 1))

    cluster.move(keys.state, cluster.other_primary(keys.state))
    late.join()

    assert late.lease_payloads() == ["a"]


def test_seeds_stay_as_they_are_while_their_hash_slot_moves(cluster: Cluster, frontier_name: str) -> None:
    key = "seeds"
    source, target = cluster.primary_of(key), cluster.other_primary(key)
    source.client().rpush(key, *"abcd")
    seeds = open_seeds(FrontierConfig(frontier_name, ("a",), "w1"), cluster.url, [key])
    taken = run(seeds.exchange([], 2)).seeds

    cluster.begin_move(key, target)
    before = dumps(source)
    with pytest.raises(FrontierUnavailable, match="is moving"):
        run(seeds.exchange(taken, 2))
    assert dumps(source) == before
    cluster.move_keys(key, target)
    cluster.end_move(key, target)

    assert [seed.data for seed in run(seeds.exchange(taken, 2)).seeds] == [b"c", b"d"]
    run(seeds.close())


def test_operators_are_told_to_try_again_while_the_hash_slot_moves(
    cluster: Cluster, one: RedisBackend, keys: Keys, frontier_name: str
) -> None:
    worker = one.join()
    worker.commit(push("a"), push("b"))
    link = Link(cluster.url)
    operator, inspector = Operator(link, frontier_name), Inspector(link, frontier_name)
    operator.depth()

    cluster.begin_move(keys.state, target := cluster.other_primary(keys.state))
    with pytest.raises(FrontierUnavailable, match="moving.*try again"):
        operator.drop()
    cluster.move_keys(keys.state, target)
    with pytest.raises(FrontierUnavailable, match="moving.*try again"):
        inspector.status()
    assert [each.crawl for each in frontiers(link, [frontier_name], lease_ttl_s=10)] == ["moving"]
    cluster.end_move(keys.state, target)

    assert operator.drop() == 2
    link.close()


def test_worker_goes_on_where_its_hash_slot_has_moved(cluster: Cluster, one: RedisBackend, keys: Keys) -> None:
    worker = one.join()
    worker.commit(push("a"), push("b"))
    (first,) = worker.lease()

    cluster.begin_move(keys.state, target := cluster.other_primary(keys.state))
    cluster.move_keys(keys.state, target)
    refused(worker)
    cluster.end_move(keys.state, target)
    assert worker.exchange(worker.last_batch, demand=None).recall is not None
    worker.exchange(worker.last_batch, demand=None)

    worker.send(ack(first), demand=None)
    assert len(worker.lease_payloads()) == 3
    assert is_balanced(worker.depth())
    assert (worker.depth().done, worker.depth().accepted) == (1, 4)


def test_worker_finds_its_hash_slot_at_once_after_it_was_told_where_it_is(
    cluster: Cluster, one: RedisBackend, keys: Keys
) -> None:
    worker = one.join()
    for _ in range(3):
        cluster.move(keys.state, cluster.other_primary(keys.state))
        with pytest.raises(FrontierUnavailable, match="has moved"):
            worker.send(push("a"), demand=None)
        assert worker.exchange(worker.last_batch, demand=None).recall is not None
        worker.exchange(worker.last_batch, demand=None)

    assert worker.lease_payloads() == ["a", "a", "a"]


def test_operators_find_each_frontier_where_it_is(cluster: Cluster, frontier_name: str) -> None:
    names = on_each_node(cluster, frontier_name, state_of)
    link = Link(cluster.url_of(cluster.nodes[-1]))
    for name in names:
        with FrontierClient(cluster.url, name) as client:
            client.push_many(["https://a.example/1", "https://b.example/2"])

    found = list(frontiers(link, frontier_names(link), lease_ttl_s=10))
    assert [(each.name, each.pending) for each in found] == [(name, 2) for name in sorted(names)]
    for name in names:
        inspector, operator = Inspector(link, name), Operator(link, name)
        assert inspector.status(["seeds:a", "seeds:b"]) is not None
        assert operator.drop() == 2
    link.close()


def test_export_of_one_node_is_imported_into_another(cluster: Cluster, frontier_name: str) -> None:
    first, second, _ = on_each_node(cluster, frontier_name, state_of)
    link = Link(cluster.url)
    with FrontierClient(cluster.url, first) as client:
        client.push_many([f"https://a.example/{at}" for at in range(3)])

    imported = Importer(link, second).run(Exporter(link, first).records())

    assert (imported.pending, imported.seen) == (3, 3)
    link.close()


def test_seeds_and_items_are_on_nodes_of_their_own(cluster: Cluster, one: RedisBackend, frontier_name: str) -> None:
    worker = one.join()
    keys = on_each_node(cluster, "seeds")
    for key in keys:
        cluster.primary_of(key).client().rpush(key, f"https://{key}.example/")
    config = FrontierConfig(frontier_name, ("a",), "w1")
    seeds = open_seeds(config, cluster.url, keys)
    items = RedisItems(cluster.url, timeout_s=5, options={}, as_stream=False, spider="books")

    taken = run(seeds.exchange([], 10)).seeds
    assert {seed.key for seed in taken} == set(keys)
    assert not run(seeds.exchange(taken, 0)).seeds
    assert run(items.append([ItemData(f"items:{key}", b"item") for key in keys])) == [None] * len(keys)
    for key in keys:
        client = cluster.primary_of(f"items:{key}").client()
        assert client.lrange(f"items:{key}", 0, -1) == [b"item"]
    assert worker.depth().workers == 1
    run(seeds.close())
    run(items.close())


def test_seeds_of_another_node_than_the_one_in_the_address_are_named(cluster: Cluster, frontier_name: str) -> None:
    key = f"seeds:{frontier_name}"
    seeds = open_seeds(FrontierConfig(frontier_name, ("a",), "w1"), cluster.other_primary(key).url, [key])

    why = rf"the key of seeds {key}: .*another node: begin PRIOQUEUE_REDIS_URL with redis\+cluster://"
    with pytest.raises(FrontierRefused, match=why):
        run(seeds.exchange([], 1))
    run(seeds.close())


def test_client_of_a_spider_reaches_all_nodes(cluster: Cluster) -> None:
    client = Link(cluster.url_of(cluster.nodes[0])).client_of_all_keys()

    for key in on_each_node(cluster, "seeds"):
        client.lpush(key, key)
        assert cluster.primary_of(key).client().lrange(key, 0, -1) == [key.encode()]
    client.close()


def test_fingerprints_on_another_node_are_refused_with_the_reason(
    cluster: Cluster, one: RedisBackend, frontier_name: str
) -> None:
    seen_name = next(
        name
        for name in on_each_node(cluster, "shared", state_of)
        if cluster.primary_of(state_of(name)) is not cluster.primary_of(state_of(frontier_name))
    )

    with pytest.raises(NotPermitted, match=f"PRIOQUEUE_SEEN_NAME.*'{seen_name}', whose hash slot"):
        one.join(seen_name=seen_name)


def version_of(cluster: Cluster) -> tuple[int, ...]:
    info: Any = cluster.nodes[0].client().info("server")
    return parse_version(info["redis_version"])


@pytest.fixture
def announce(cluster: Cluster) -> Iterator[Callable[[str], None]]:
    """Makes nodes announce a host name, or an empty one, and prefer it to their address."""
    if version_of(cluster) < (7, 0):
        pytest.skip("nodes of Redis before 7.0 announce no host names")

    def announce(name: str, kind: str = "hostname") -> None:
        for node in cluster.nodes:
            node.client().config_set("cluster-announce-hostname", name, "cluster-preferred-endpoint-type", kind)

    yield announce
    announce("", "ip")


@pytest.mark.parametrize(("name", "host"), [("localhost", "localhost"), ("", HOST)])
def test_nodes_are_called_by_the_host_names_that_they_announce(
    cluster: Cluster, one: RedisBackend, keys: Keys, announce: Callable[[str], None], name: str, host: str
) -> None:
    announce(name)
    target = cluster.other_primary(keys.state)
    link = Link(cluster.url).at(keys.state)
    wait_until(lambda: link.place().startswith(host), what="all nodes know the names", within=30)
    worker = one.join()

    cluster.move(keys.state, target)
    refused(worker)
    worker.exchange(worker.last_batch, demand=None)

    assert link.place() == f"{host}:{target.port}"
    assert worker.depth().workers == 1


@pytest.fixture
def url_of_user(cluster: Cluster) -> Iterator[Callable[[str], str]]:
    """Makes a user with some rules on all nodes, and returns a URL with it."""

    def url_of(rules: str) -> str:
        for node in cluster.nodes:
            call(node, "ACL", "SETUSER", "crawler", "reset", "on", ">secret", *rules.split())
        return cluster.url.replace("//", "//crawler:secret@")

    yield url_of
    for node in cluster.nodes:
        call(node, "ACL", "DELUSER", "crawler")


def test_user_with_the_documented_rights_crawls_and_operates(
    url_of_user: Callable[[str], str], frontier_name: str
) -> None:
    backend = RedisBackend(frontier_name, url_of_user(f"{ACL_RULES} {CLUSTER_RULES}"))
    worker = backend.join()
    worker.commit(push("a"))

    assert worker.lease_payloads() == ["a"]
    link = Link(url_of_user(f"{ACL_RULES} {CLUSTER_RULES}"))
    assert frontier_names(link) == [frontier_name]
    assert Operator(link, frontier_name).drop() == 0
    link.close()
    backend.close()


def test_user_that_may_not_look_for_a_node_is_told_the_missing_right(
    url_of_user: Callable[[str], str], frontier_name: str
) -> None:
    url = url_of_user(ACL_RULES)
    backend = RedisBackend(frontier_name, url)

    with pytest.raises(FrontierRefused, match=re.escape(CLUSTER_RULES)):
        backend.join()
    with pytest.raises(FrontierRefused, match=re.escape(CLUSTER_RULES)):
        Inspector(Link(url), frontier_name).status()
    assert f"`{CLUSTER_RULES}`" in (REFERENCE.parent / "redis.md").read_text("utf-8")
    backend.close()


@pytest.mark.parametrize("login", ["", "crawler:wrong@"])
def test_wrong_password_of_a_cluster_gets_the_advice_that_one_server_gets(
    redis_server_factory: StartServer, frontier_name: str, login: str
) -> None:
    server = redis_server_factory(requirepass="right", cluster_enabled=True)
    url = f"redis+cluster://{login}{HOST}:{server.port}"
    backend = RedisBackend(frontier_name, url)
    advice = r"set user and password in PRIOQUEUE_REDIS_URL \(redis\+cluster://user:password@"

    for ask in (backend.join, Inspector(Link(url), frontier_name).status):
        with pytest.raises(FrontierRefused, match=advice) as caught:
            ask()
        assert "wrong" not in str(caught.value) and "no node" not in str(caught.value)
    backend.close()


def test_server_that_is_no_cluster_is_named(redis_server: RedisServer, frontier_name: str) -> None:
    backend = RedisBackend(frontier_name, redis_server.url.replace("redis:", "redis+cluster:"))

    with pytest.raises(FrontierRefused, match="this is no cluster"):
        backend.join()
    backend.close()


def test_bell_is_heard_at_the_node_of_the_frontier_until_that_moves(
    cluster: Cluster, one: RedisBackend, keys: Keys
) -> None:
    if version_of(cluster) < (7, 0):
        pytest.skip("Redis before 7.0 has no shard channels, and sends messages to all nodes")
    first, second = one.join("w1"), one.join("w2")
    rings: list[int] = []

    async def listen() -> str:
        bell = asyncio.ensure_future(first.frontier.listen(lambda: rings.append(1)))
        await wait_until_async(is_heard, what="the bell is heard", within=30)
        await second.frontier.exchange([Batch(1, [push("a")])], None)
        await wait_until_async(has_rung, what="the bell rings", within=30)
        await asyncio.to_thread(cluster.move, keys.state, cluster.other_primary(keys.state))
        (ended,) = await asyncio.gather(bell, return_exceptions=True)
        return str(ended)

    async def is_heard() -> bool:
        return bool(call(cluster.primary_of(keys.state), "PUBSUB", "SHARDNUMSUB", keys.bell)[1])

    async def has_rung() -> bool:
        return bool(rings)

    # It asks for more than there is.
    first.lease(1)
    assert "has moved to another node" in run(listen())


def test_bell_of_redis_before_7_is_heard_at_every_node(cluster: Cluster, keys: Keys) -> None:
    channel, node = keys.bell, cluster.primary_of(keys.state)
    connection = Connection(cluster.url, version=(6, 2))
    rings: list[int] = []

    async def listen() -> None:
        bell = asyncio.ensure_future(connection.listen(channel, lambda: rings.append(1)))

        async def has_rung() -> bool:
            call(node, "PUBLISH", channel, "")
            return bool(rings)

        await wait_until_async(has_rung, what="the bell rings", within=30)
        bell.cancel()
        await asyncio.gather(bell, return_exceptions=True)

    run(listen())
    run(connection.close())


def test_doctor_says_where_the_hash_slot_is(cluster: Cluster, frontier_name: str) -> None:
    probe, node = Keys(frontier_name).of("probe"), cluster.primary_of(state_of(frontier_name))
    link = Link(cluster.url)

    (found,) = [each for each in server_findings(link.at(probe), probe) if each.topic == "cluster"]
    (alone,) = [each for each in server_findings(Link(node.url), probe) if each.topic == "cluster"]

    assert (found.severity, found.text.endswith(f"is on {HOST}:{node.port}, replicas: 1")) == ("fine", True)
    assert (alone.severity, alone.remedy) == ("warning", "begin PRIOQUEUE_REDIS_URL with redis+cluster://")
    link.close()
