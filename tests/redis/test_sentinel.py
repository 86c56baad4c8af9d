"""The server is found through Sentinels, before and after a failover; on real ones."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import pytest
import redis
from redis.exceptions import RedisError
from scrapy.settings import Settings
from shop_chaos.proxy import FaultProxy

from scrapy_prioqueue import FrontierClient
from scrapy_prioqueue.address import HostPort, parse_address
from scrapy_prioqueue.errors import FrontierRefused, FrontierUnavailable, SettingError
from scrapy_prioqueue.frontier import open_frontier
from scrapy_prioqueue.frontier.base import Batch, Demand, Frontier, FrontierConfig, Push, Report
from scrapy_prioqueue.frontier.redis import locating, watch
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.locating import ClusterLocator, FixedLocator, SentinelLocator
from scrapy_prioqueue.frontier.redis.operators.doctor import server_findings
from scrapy_prioqueue.frontier.redis.options import sentinel_options
from scrapy_prioqueue.frontier.redis.troubles import SENTINEL_RULES
from scrapy_prioqueue.frontier.runs import Figures
from tests.commands.conftest import run_command
from tests.crawl import redis_spiders
from tests.docs.markdown import REFERENCE
from tests.support.coroutines import run
from tests.support.crawls import Crawls
from tests.support.sentinels import PRIMARY, SentinelServer, StartSentinels, Watched, order_failover, sentinel_fleet
from tests.support.servers import RedisServer, StartServer, replica_of
from tests.support.site import Site, leaves
from tests.support.waiting import wait_until, wait_until_async

pytestmark = [pytest.mark.server_faults, pytest.mark.any_server]

Info = Callable[..., Any]

PASSWORD = "p@ss/word"
FIRST, SECOND = (Batch(number, [Push(0, "slot", b"payload", bytes([number]) * 20)]) for number in (1, 2))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Sentinels and servers that the tests of this file leave as they are."""
    with sentinel_fleet(tmp_path_factory.mktemp("sentinels")) as start:
        yield start()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Likewise, with one password for servers and another one for Sentinels."""
    with sentinel_fleet(tmp_path_factory.mktemp("guarded")) as start:
        yield start(
            replicas=1,
            server_config={"requirepass": "server", "masterauth": "server"},
            sentinel_config={
                f"sentinel auth-pass {PRIMARY}": "server",
                "requirepass": PASSWORD,
                "sentinel sentinel-pass": PASSWORD,
            },
            server_options={"password": "server"},
            sentinel_options={"password": PASSWORD},
        )


@pytest.fixture
def start_one(redis_server_factory: StartServer, tmp_path: Any) -> Iterator[Callable[..., SentinelServer]]:
    """Starts single Sentinels: `start_one(host, port)` watches the server there."""
    started: list[SentinelServer] = []

    def start(host: str, port: int, **config: Any) -> SentinelServer:
        config[f"sentinel monitor {PRIMARY}"] = f"{host} {port} 1"
        started.append(SentinelServer(tmp_path / f"single-{len(started)}", **config))
        started[-1].start()
        return started[-1]

    yield start
    for sentinel in started:
        sentinel.kill()


def info_of_worker(url: str, **options: Any) -> Any:
    connection = Connection(url, timeout_s=2, options=options)
    try:
        return run(connection.info("server"))
    finally:
        run(connection.close())


def info_of_operator(url: str, **options: Any) -> Any:
    link = Link(url, timeout_s=2, options=options)
    try:
        return link.info("server")
    finally:
        link.close()


both = pytest.mark.parametrize("info", [info_of_worker, info_of_operator])


# Where the primary is


@both
@pytest.mark.parametrize("options", [{}, {"decode_responses": True}, {"protocol": 3}])
def test_primary_is_found(shared: Watched, info: Info, options: Mapping[str, Any]) -> None:
    assert info(shared.url, **options)["tcp_port"] == shared.primary.port


@both
@pytest.mark.parametrize("are_frozen", [True, False])
def test_one_sentinel_that_answers_is_enough(
    own_server: RedisServer, start_one: Callable[..., SentinelServer], info: Info, are_frozen: bool
) -> None:
    sentinels = [start_one("127.0.0.1", own_server.port) for _ in range(3)]

    for sentinel in sentinels[:2]:
        sentinel.freeze() if are_frozen else sentinel.kill()

    assert info(url_of(*sentinels))["tcp_port"] == own_server.port


def url_of(*sentinels: SentinelServer) -> str:
    return f"redis+sentinel://{','.join(f'127.0.0.1:{sentinel.port}' for sentinel in sentinels)}/{PRIMARY}"


def test_sentinel_that_missed_the_failover_is_not_believed(
    own_server: RedisServer, redis_server_factory: StartServer, start_one: Callable[..., SentinelServer]
) -> None:
    replica = replica_of(own_server, redis_server_factory)
    fresh = start_one("127.0.0.1", own_server.port)
    wait_until(lambda: "+slave slave" in fresh.log, what="the Sentinel knows the replica", within=20)
    # One that was cut off from the others before the failover says the same as one that begins with another server.
    stale = start_one("127.0.0.1", redis_server_factory().port)

    order_failover(redis.Redis(port=fresh.port))
    wait_until(lambda: "+promoted-slave" in fresh.log, what="the replica is promoted", within=20)

    for info in (info_of_worker, info_of_operator):
        for sentinels in ((fresh, stale), (stale, fresh)):
            assert info(url_of(*sentinels))["tcp_port"] == replica.port


def has_ipv6() -> bool:
    with suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


@both
@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
def test_sentinel_and_server_have_ipv6_addresses(
    redis_server_factory: StartServer, start_one: Callable[..., SentinelServer], info: Info
) -> None:
    server = redis_server_factory(bind="127.0.0.1 ::1")
    sentinel = start_one("::1", server.port, bind="::1")

    assert info(f"redis+sentinel://[::1]:{sentinel.port}/{PRIMARY}")["tcp_port"] == server.port


# Passwords, and what is wrong with an address


@both
def test_sentinels_have_a_password_of_their_own(guarded: Watched, info: Info) -> None:
    hosts, port = guarded.url.removeprefix("redis+sentinel://"), guarded.primary.port
    url = f"redis+sentinel://:server@{hosts}"

    assert info(f"{url}?sentinel_password=p%40ss%2Fword")["tcp_port"] == port
    assert info(url, sentinel_kwargs={"password": PASSWORD})["tcp_port"] == port
    assert info(f"redis+sentinel://{hosts}", password="server", sentinel_kwargs={"password": PASSWORD})


@both
@pytest.mark.parametrize("query", ["", "?sentinel_password=wrong", "?sentinel_username=no&sentinel_password=wrong"])
def test_wrong_password_of_sentinels_is_said(guarded: Watched, info: Info, query: str) -> None:
    with pytest.raises(FrontierRefused, match="Sentinels require.*sentinel_password in the query of") as caught:
        info(f"{guarded.url.replace('://', '://:server@')}{query}")

    assert not {"server@", "wrong"} & set(str(caught.value).split("/"))


def test_user_of_sentinels_needs_the_documented_rights(
    own_server: RedisServer, start_one: Callable[..., SentinelServer]
) -> None:
    sentinel = start_one("127.0.0.1", own_server.port, user=f"crawler on >{PASSWORD} -@all {SENTINEL_RULES}")
    connection = Connection(
        url_of(sentinel), options={"sentinel_kwargs": {"username": "crawler", "password": PASSWORD}}
    )
    client: Any = redis.Redis(port=sentinel.port, decode_responses=True)

    def is_subscribed() -> bool:
        return any(each["user"] == "crawler" and int(each["psub"]) >= 1 for each in client.client_list())

    assert run(connection.info("server"))
    wait_until(is_subscribed, what="the worker has subscribed", within=10)
    run(connection.close())
    assert SENTINEL_RULES in (REFERENCE.parent / "redis.md").read_text("utf-8")


@both
def test_wrong_password_of_the_server_is_said(guarded: Watched, info: Info) -> None:
    with pytest.raises(FrontierRefused, match="set user and password in PRIOQUEUE_REDIS_URL"):
        info(guarded.url, sentinel_kwargs={"password": PASSWORD})


@both
def test_password_for_sentinels_that_have_none_is_said(shared: Watched, info: Info) -> None:
    with pytest.raises(FrontierRefused, match="and nothing if they require none"):
        info(f"{shared.url}?sentinel_password=x")


@both
def test_unknown_name_is_refused_with_the_names_that_the_sentinels_know(shared: Watched, info: Info) -> None:
    with pytest.raises(FrontierRefused, match="know no primary 'mymaster', but 'books'; correct the name"):
        info(shared.url.replace(f"/{PRIMARY}/", "/mymaster/"))


@both
def test_servers_that_are_no_sentinels_are_refused(shared: Watched, info: Info) -> None:
    with pytest.raises(FrontierRefused, match=r"unknown command 'SENTINEL'\); these are not Sentinels"):
        info(f"redis+sentinel://127.0.0.1:{shared.primary.port}/{PRIMARY}")


def scan_of_operator(url: str) -> Any:
    link = Link(url, timeout_s=2)
    try:
        return [*link.scan()]
    finally:
        link.close()


def join_of_worker(url: str) -> None:
    frontier = open_frontier(FrontierConfig("x", ("a",), "w1"), url)
    try:
        run(frontier.join())
    finally:
        run(frontier.close())


def findings_of_doctor(url: str) -> Any:
    link = Link(url, timeout_s=2)
    try:
        return [*server_findings(link, "{x}:probe")]
    finally:
        link.close()


@pytest.mark.parametrize("ask", [scan_of_operator, findings_of_doctor, join_of_worker])
@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
@pytest.mark.parametrize("database", ["", "/0", "/1"])
def test_sentinel_in_place_of_a_server_is_named(
    shared: Watched, ask: Callable[[str], Any], scheme: str, database: str
) -> None:
    if scheme == "redis+cluster" and database == "/1":
        # Refused before anybody is asked.
        database = ""
    advice = r"this is a Sentinel; begin PRIOQUEUE_REDIS_URL with redis\+sentinel:// and end it with the name"

    with pytest.raises(FrontierRefused, match=advice):
        ask(f"{scheme}://127.0.0.1:{shared.sentinels[0].port}{database}")


@both
def test_no_sentinel_is_reachable(closed_port: int, info: Info) -> None:
    with pytest.raises(FrontierUnavailable, match=r"no Sentinel answers \(ConnectionError: Connection refused\)"):
        info(f"redis+sentinel://127.0.0.1:{closed_port}/{PRIMARY}")


@both
def test_primary_that_is_down_is_said(
    own_server: RedisServer, start_one: Callable[..., SentinelServer], info: Info
) -> None:
    about = {f"sentinel down-after-milliseconds {PRIMARY}": 100}
    sentinel = start_one("127.0.0.1", own_server.port, **about)
    own_server.kill()
    wait_until(lambda: "+odown" in sentinel.log, what="the Sentinel notices", within=20)

    with pytest.raises(FrontierUnavailable, match="the primary 'books', 127.0.0.1:.* is down.*promoted no replica"):
        info(f"redis+sentinel://127.0.0.1:{sentinel.port}/{PRIMARY}")


@both
def test_unknown_option_for_sentinels_is_refused(shared: Watched, info: Info) -> None:
    with pytest.raises(SettingError, match=r"PRIOQUEUE_REDIS_OPTIONS = \['sentinel_kwargs'\].*no_such"):
        info(shared.url, sentinel_kwargs={"no_such": 1})


# Failovers


def commit(frontier: Frontier, batch: Batch) -> Any:
    return run(frontier.exchange([batch], Demand(0)))


@pytest.fixture
def frontier(start_sentinels: StartSentinels) -> Iterator[tuple[Frontier, Watched]]:
    """A worker's frontier, and the Sentinels that it asks."""
    watched = start_sentinels(replicas=1)
    frontier = open_frontier(FrontierConfig("x", ("a",), "w1"), watched.url)
    run(frontier.join())
    yield frontier, watched
    run(frontier.close())


def test_exchange_and_twin_of_the_heartbeat_follow_a_failover(frontier: tuple[Frontier, Watched]) -> None:
    worker, watched = frontier
    commit(worker, FIRST)
    leases = [(lease.lease_id, lease.attempt) for lease in run(worker.exchange([], Demand(1))).leases]
    old = watched.primary
    moves: list[bool] = []
    following = asyncio.run_coroutine_threadsafe(worker.follow(lambda: moves.append(True)), _loop_of_tests())

    watched.order_failover()
    new = watched.wait_for_promotion(old)
    wait_until(lambda: moves, what="the worker hears that the server has moved", within=10)
    answer = commit(worker, SECOND)

    # The first exchange with the new primary finds out what that has lost: nothing.
    assert answer.recall is not None and answer.recall.resent == 0
    assert commit(worker, SECOND).depth.accepted == 2
    assert watched.server_client(new).zcard("{prioqueue:x}:queue:slot") == 1
    assert renewed_by_twin(worker, leases) == []
    following.cancel()


def renewed_by_twin(worker: Frontier, leases: Sequence[tuple[int, int]]) -> Sequence[int]:
    """Do what the thread of the heartbeat does; return the ids of lost leases."""

    async def renew() -> Sequence[int]:
        twin = worker.twin()
        try:
            return await twin.renew(leases)
        finally:
            await twin.close()

    with ThreadPoolExecutor() as thread:
        return thread.submit(asyncio.run, renew()).result(20)


async def enter_in_promotion(watched: watch.Watch) -> None:
    """Call in a promotion whose end is never told."""
    watched.begin_promotion()
    async with watched:
        pass
    await watched.close()


async def enter_twice_in_promotions() -> None:
    """Do as if the Sentinel that leads a failover were lost in the middle of it, twice."""
    never_told = watch.Watch(FixedLocator(("127.0.0.1", 1)))
    for _ in range(2):
        await enter_in_promotion(never_told)


def test_promotion_whose_end_is_never_told_delays_calls_only_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PROMOTION_S", 0.1)

    run(enter_twice_in_promotions())


def _loop_of_tests() -> asyncio.AbstractEventLoop:
    async def running() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    return run(running())


def test_record_of_a_run_follows_a_failover_before_the_old_primary_is_demoted(
    frontier: tuple[Frontier, Watched],
) -> None:
    worker, watched = frontier
    run(worker.record(Report(Figures(pages=1))))
    old = watched.primary

    watched.order_failover()
    new = watched.wait_for_promotion(old)
    wait_until(lambda: follows(worker, new, watched), what="the worker uses the new primary", within=10)
    run(worker.record(Report(Figures(pages=2))))

    (record,) = watched.server_client(new).hvals("{prioqueue:x}:runs")
    assert b'"pages":2' in record.replace(b" ", b"")


def follows(worker: Frontier, server: RedisServer, watched: Watched, batch: Batch = FIRST, requests: int = 1) -> bool:
    """Commit, and return whether a server has so many requests."""
    with suppress(FrontierUnavailable):
        commit(worker, batch)
    return bool(watched.server_client(server).zcard("{prioqueue:x}:queue:slot") == requests)


# Nobody knows where the primary is


def drop(server: Any, kind: str) -> None:
    """Close the connections of workers to a server."""
    server.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


def test_loss_of_all_sentinels_is_no_outage(
    frontier: tuple[Frontier, Watched], caplog: pytest.LogCaptureFixture
) -> None:
    worker, watched = frontier
    server = watched.server_client(watched.primary)
    commit(worker, FIRST)
    bell = asyncio.run_coroutine_threadsafe(worker.listen(lambda: None), _loop_of_tests())
    wait_until(lambda: hears(server), what="it listens", within=10)

    for sentinel in watched.sentinels:
        sentinel.kill()
    drop(server, "pubsub")
    with pytest.raises(FrontierUnavailable, match="closed by server"):
        bell.result(10)

    commit(worker, SECOND)
    drop(server, "normal")
    with suppress(FrontierUnavailable):
        # The loss may have been noticed by now, or not.
        commit(worker, SECOND)
    assert commit(worker, SECOND).depth.accepted == 2
    run(worker.leave(Report(Figures(reason="finished"))))
    port = server.connection_pool.connection_kwargs["port"]
    (said,) = [record.getMessage() for record in caplog.records if "no Sentinel answers" in record.getMessage()]
    assert said.endswith(f"connections go to the last known server, 127.0.0.1:{port}")


def test_silence_of_all_sentinels_leaves_time_to_connect(
    own_server: RedisServer, start_one: Callable[..., SentinelServer]
) -> None:
    sentinel = start_one("127.0.0.1", own_server.port)

    async def connect_slowly(connection: Any) -> None:
        await asyncio.sleep(0.1)
        await connection.on_connect()

    connection = Connection(url_of(sentinel), timeout_s=1, options={"redis_connect_func": connect_slowly})
    run(connection.info("server"))

    def is_found() -> bool:
        with suppress(FrontierUnavailable):
            return bool(run(connection.info("server")))
        return False

    sentinel.freeze()
    drop(own_server.client(), "normal")
    wait_until(is_found, what="the server is found where it was", within=6)
    run(connection.close())


def hears(server: Any) -> bool:
    return bool(server.pubsub_channels("{prioqueue:x}:*"))


def test_worker_cut_off_with_the_old_primary_sends_its_journal_to_the_new_one(start_sentinels: StartSentinels) -> None:
    watched = start_sentinels(replicas=1)
    old = watched.primary
    with ExitStack() as proxies:
        between = [proxies.enter_context(FaultProxy(sentinel.port)) for sentinel in watched.sentinels]
        hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in between)
        worker = open_frontier(FrontierConfig("x", ("a",), "w1"), f"redis+sentinel://{hosts}/{PRIMARY}")
        run(worker.join())
        commit(worker, FIRST)

        for proxy in between:
            proxy.refuse(True)
            proxy.cut(reset=True)
        watched.order_failover()
        new = watched.wait_for_promotion(old)
        drop(watched.server_client(old), "normal")
        wait_until(lambda: follows(worker, old, watched, SECOND, 2), what="the old primary takes writes", within=5)
        watched.server_client(old).replicaof("127.0.0.1", new.port)
        with pytest.raises(FrontierUnavailable):
            commit(worker, SECOND)
        for proxy in between:
            proxy.refuse(False)

        wait_until(lambda: follows(worker, new, watched, SECOND, 2), what="the new primary has both", within=15)
        run(worker.close())


def test_primary_that_is_down_by_the_last_answer_is_not_taken_for_the_primary(
    own_server: RedisServer, start_one: Callable[..., SentinelServer]
) -> None:
    sentinel = start_one("127.0.0.1", own_server.port, **{f"sentinel down-after-milliseconds {PRIMARY}": 100})
    link = Link(url_of(sentinel))
    place = link.place()
    own_server.kill()
    wait_until(lambda: "+odown" in sentinel.log, what="the Sentinel notices", within=20)
    with pytest.raises(FrontierUnavailable, match="is down"):
        link.place()
    own_server.start()

    sentinel.kill()

    with pytest.raises(FrontierUnavailable, match="no Sentinel answers"):
        link.place()
    assert place == f"127.0.0.1:{own_server.port}"
    link.close()


def test_old_primary_is_not_taken_for_the_primary_after_a_promotion_without_news(
    own_server: RedisServer, start_one: Callable[..., SentinelServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    sentinel = start_one("127.0.0.1", own_server.port)
    address = parse_address(url_of(sentinel))
    locator = SentinelLocator(address.hosts, address.primary, sentinel_options(address, {}, 1.0))
    where = locator.locate()
    sentinel.kill()
    assert locator.locate() == where

    monkeypatch.setattr(watch, "PROMOTION_S", 0.1)
    run(enter_in_promotion(watch.Watch(locator)))

    with pytest.raises(RedisError, match="no Sentinel answers"):
        locator.locate()


def test_node_of_a_cluster_is_where_it_was_while_no_node_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [[[0, 16383, [b"127.0.0.1", 7000]]]]

    def ask(host: HostPort, options: Mapping[str, Any]) -> Any:
        if not answers:
            raise redis.ConnectionError(f"Error 111 connecting to {host[0]}:{host[1]}. Connection refused.")
        return answers.pop()

    monkeypatch.setattr(locating, "_ask_for_slots", ask)
    locator = ClusterLocator([("127.0.0.1", 7001), ("127.0.0.1", 7002)], {}, slot=1)

    found = locator.locate()

    assert locator.locate() == found == ("127.0.0.1", 7000)
    answers.append([[2, 16383, [b"127.0.0.1", 7000]]])
    with pytest.raises(RedisError, match="no node has hash slot 1"):
        locator.locate()
    with pytest.raises(RedisError, match=r"no node of the cluster answers \(ConnectionError: Connection refused\)$"):
        locator.locate()


async def hear_after_failover(watched: Watched) -> None:
    """Listen to the bell before and after a failover."""
    connection = Connection(watched.url)
    rings: list[int] = []
    bell = asyncio.ensure_future(connection.listen("bell", lambda: rings.append(1)))
    # As in a worker, exchanges are made besides.
    await connection.info("server")
    old = watched.primary
    await wait_until_async(_hears(watched.server_client(old)), what="it listens", within=10)
    await asyncio.to_thread(watched.order_failover)
    with pytest.raises(FrontierUnavailable):
        await asyncio.wait_for(bell, 20)
    new = await asyncio.to_thread(watched.wait_for_promotion, old)
    rings.clear()
    bell = asyncio.ensure_future(connection.listen("bell", lambda: rings.append(1)))
    await wait_until_async(_hears(watched.server_client(new)), what="it listens to the new primary", within=10)
    await wait_until_async(_is_filled(rings), what="the bell has rung", within=10)
    bell.cancel()
    await asyncio.gather(bell, return_exceptions=True)
    await connection.close()


def _hears(client: Any) -> Callable[[], Any]:
    async def hears() -> bool:
        return bool(client.publish("bell", ""))

    return hears


def _is_filled(rings: list[int]) -> Callable[[], Any]:
    async def is_filled() -> bool:
        return bool(rings)

    return is_filled


def test_bell_is_heard_from_the_new_primary(start_sentinels: StartSentinels) -> None:
    run(hear_after_failover(start_sentinels(replicas=1)), within=60)


@pytest.mark.every_server
def test_link_and_client_find_the_new_primary(start_sentinels: StartSentinels) -> None:
    watched = start_sentinels(replicas=1)
    old = watched.primary
    with FrontierClient(watched.url, "x") as client:
        client.push("https://example.com/1")

        watched.order_failover()
        new = watched.wait_for_promotion(old)

        def is_pushed() -> bool:
            client.push_many(["https://example.com/1", "https://example.com/2"])
            return bool(watched.server_client(new).zcard("{prioqueue:x}:queue:example.com") == 2)

        wait_until(is_pushed, what="the client pushes to the new primary", within=5)


# What the doctor finds


def findings(url: str) -> Sequence[tuple[str, str]]:
    link = Link(url)
    try:
        return [(each.severity, each.text) for each in server_findings(link, "{x}:probe") if each.topic == "sentinels"]
    finally:
        link.close()


def test_doctor_counts_sentinels_and_replicas(shared: Watched) -> None:
    fine, note = findings(shared.url)

    where = f"3 of 3 name 127.0.0.1:{shared.primary.port}"
    assert fine == ("fine", f"{where}; Sentinels: 3, quorum: 2, replicas: 2, failover after 1 s")
    assert note[0] == "note" and note[1].startswith("min-replicas-to-write is 0")


def test_doctor_finds_what_prevents_a_failover(
    redis_server_factory: StartServer, start_one: Callable[..., SentinelServer]
) -> None:
    server = redis_server_factory(min_replicas_to_write=1)
    sentinels = [start_one("127.0.0.1", server.port) for _ in range(2)]
    sentinels[0].kill()

    missing, alone = findings(url_of(*sentinels))

    assert missing[0] == "warning" and missing[1].startswith(f"127.0.0.1:{sentinels[0].port} can't be asked")
    assert alone[0] == "warning" and "replicas: 0" in alone[1]


def test_doctor_finds_sentinels_that_disagree(
    start_one: Callable[..., SentinelServer], redis_server_factory: StartServer
) -> None:
    link = Link(url_of(*(start_one("127.0.0.1", redis_server_factory().port) for _ in range(2))))

    (found,) = [each for each in server_findings(link, "{x}:probe") if each.topic == "sentinels"]

    assert found.severity == "wrong" and "they name several primaries 'books'" in found.text
    link.close()


# Connections to Sentinels


def sentinels_connections(watched: Watched) -> int:
    """Return the number of connections of workers and operators to the first Sentinel; its own have names."""
    clients = watched.sentinel_client(0).client_list()
    return sum(not client["name"].startswith("sentinel-") for client in clients) - 1


def test_connections_to_sentinels_are_closed(shared: Watched) -> None:
    before = sentinels_connections(shared)
    link, connection = Link(shared.url), Connection(shared.url)

    link.info()
    wait_until(lambda: sentinels_connections(shared) == before, what="the blocking one is closed", within=10)
    run(connection.info("server"))
    subscribed = before + 1
    wait_until(lambda: sentinels_connections(shared) == subscribed, what="one subscription is left", within=10)

    run(connection.close())
    link.close()
    wait_until(lambda: sentinels_connections(shared) == before, what="it is closed", within=10)


# Everything that has an address


@pytest.mark.parametrize("reactor", ["asyncioreactor.AsyncioSelectorReactor", "selectreactor.SelectReactor"])
def test_crawl_with_seeds_and_items_goes_through_sentinels(
    shared: Watched, plain_crawls: Crawls, site: Site, reactor: str, frontier_name: str, capsys: Any
) -> None:
    paths = [f"/{number}" for number in range(10)]
    site.pages = leaves(*paths)
    client: Any = shared.client()
    key = f"{frontier_name}:urls"
    client.rpush(key, *(site.url(path) for path in paths))
    settings = {
        "PRIOQUEUE_REDIS_URL": shared.url,
        "PRIOQUEUE_MAX_IDLE": 0,
        "PRIOQUEUE_SEEDS_KEY": key,
        "REDIS_ITEMS_KEY": f"{key}:items",
        "ITEM_PIPELINES": {redis_spiders.PIPELINE: 300},
        "TWISTED_REACTOR": f"twisted.internet.{reactor}",
    }

    result = plain_crawls.start(spider=redis_spiders.Page, settings=settings).wait()

    assert sorted(result.pages) == sorted(paths)
    assert client.llen(f"{key}:items") == len(paths)
    assert client.exists(f"{{prioqueue:{frontier_name}}}:runs")
    named = {"PRIOQUEUE_NAME": frontier_name, "PRIOQUEUE_REDIS_URL": shared.url}
    for verb in (["push", "https://example.com/"], ["status"], ["runs"], ["list"], ["peek"]):
        assert run_command((*verb,), Settings(named)) == 0, capsys.readouterr()
    assert "https://example.com/" in capsys.readouterr().out
