"""A round trip on a real server: what was sent when it fails, whose reply is read, and which server answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, suppress
from threading import Event
from typing import Any

import pytest
from redis.asyncio.connection import Connection as RedisConnection
from redis.exceptions import ConnectionError as RedisConnectionError

from scrapy_prioqueue.errors import FrontierUnavailable
from scrapy_prioqueue.frontier.redis import connection as connection_module
from scrapy_prioqueue.frontier.redis.connection import Connection, packed
from scrapy_prioqueue.frontier.redis.keys import connection_name
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.scripts import NAMES
from scrapy_prioqueue.frontier.redis.servers import ServerChanged
from tests.support.coroutines import run
from tests.support.servers import RedisServer, StartServer
from tests.support.waiting import wait_until_async

pytestmark = [pytest.mark.any_server, pytest.mark.real_time]

TIMEOUT_S = 1.0
HELD_UP_S = 1.5

KEY = "{prioqueue:x}:state"
RENEW = ("renew", KEY, (1, "1", "w1", "n1", 0, 1000))
CLEAR = ("clear", KEY, (1, "w1", 0))

OpenConnection = Callable[..., Connection]


@pytest.fixture
def open_connection() -> Iterator[OpenConnection]:
    """Opens connections that are closed after the test."""
    opened: list[Connection] = []

    def connection(url: str, **options: Any) -> Connection:
        timeout_s, name = options.pop("timeout_s", 5.0), options.pop("name", "")
        opened.append(Connection(url, timeout_s=timeout_s, options=options, name=name))
        return opened[-1]

    yield connection
    for one in opened:
        run(one.close())


async def renew(connection: Connection, *, times: int = 1) -> list[Any]:
    """Make calls that change nothing on an empty frontier."""
    return await connection.run([RENEW] * times)


async def clear(connection: Connection) -> list[Any]:
    """Make a call whose reply is not that of `renew`."""
    return await connection.run([CLEAR])


def count_of_calls(server: RedisServer) -> int:
    stats: Any = server.client().info("commandstats")
    return int(stats.get("cmdstat_evalsha", {}).get("calls", 0))


def has_changed(connection: Connection) -> bool:
    """Make calls until they get through; return whether they were held back before."""
    try:
        run(renew(connection))
    except ServerChanged:
        run(renew(connection))
        return True
    return False


# What was sent


def test_commands_are_packed_as_the_client_packs_them() -> None:
    calls = [("EVALSHA", "0" * 40, 1, KEY, -5, 2**40, b"", "", b"\r\n\0", "ü", "a b"), ("WAIT", 1, 500)]

    assert packed(calls) == b"".join(RedisConnection().pack_commands(calls))


def test_nothing_was_sent_to_a_closed_port(open_connection: OpenConnection, closed_port: int) -> None:
    with pytest.raises(FrontierUnavailable) as caught:
        run(renew(open_connection(f"redis://127.0.0.1:{closed_port}/0")))

    assert not caught.value.was_sent


def test_nothing_was_sent_to_a_server_that_went_away_in_between(
    open_connection: OpenConnection, own_server: RedisServer
) -> None:
    connection = open_connection(own_server.url)
    run(renew(connection))

    own_server.kill()

    with pytest.raises(FrontierUnavailable) as caught:
        run(renew(connection))
    assert not caught.value.was_sent


def test_nothing_was_sent_if_the_scripts_could_not_be_loaded(
    open_connection: OpenConnection, redis_server_factory: StartServer
) -> None:
    server = redis_server_factory(rename_command='SCRIPT ""')

    with pytest.raises(FrontierUnavailable) as caught:
        run(renew(open_connection(server.url)))

    assert not caught.value.was_sent


def test_nothing_was_sent_if_a_health_check_fails(open_connection: OpenConnection, own_server: RedisServer) -> None:
    connection = open_connection(own_server.url, timeout_s=TIMEOUT_S, health_check_interval=TIMEOUT_S)
    run(renew(connection))

    run(asyncio.sleep(1.5 * TIMEOUT_S))
    own_server.freeze()

    with pytest.raises(FrontierUnavailable) as caught:
        run(renew(connection))
    assert not caught.value.was_sent


def test_calls_to_a_frozen_server_may_have_been_executed(
    open_connection: OpenConnection, own_server: RedisServer
) -> None:
    connection = open_connection(own_server.url, timeout_s=TIMEOUT_S)
    run(renew(connection))
    before = count_of_calls(own_server)

    own_server.freeze()
    with pytest.raises(FrontierUnavailable) as caught:
        run(renew(connection))
    own_server.thaw()

    assert caught.value.was_sent
    run(clear(connection))
    assert count_of_calls(own_server) == before + 2


def test_calls_in_progress_when_the_server_died_may_have_been_executed(
    open_connection: OpenConnection, own_server: RedisServer
) -> None:
    connection = open_connection(own_server.url)

    async def die() -> FrontierUnavailable:
        await renew(connection)
        own_server.freeze()
        call = asyncio.ensure_future(renew(connection))
        await asyncio.wait([call], timeout=TIMEOUT_S)
        own_server.kill()
        with pytest.raises(FrontierUnavailable) as caught:
            await call
        return caught.value

    assert run(die()).was_sent


# Whose reply is read


async def times_out(connection: Connection) -> None:
    with pytest.raises(FrontierUnavailable):
        await renew(connection, times=3)


async def is_cancelled(connection: Connection) -> None:
    call = asyncio.ensure_future(renew(connection, times=3))
    await asyncio.wait([call], timeout=TIMEOUT_S / 3)
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call


@pytest.mark.parametrize("fail", [times_out, is_cancelled])
def test_late_replies_are_not_read_as_answers_to_other_calls(
    open_connection: OpenConnection, own_server: RedisServer, fail: Callable[[Connection], Awaitable[None]]
) -> None:
    connection = open_connection(own_server.url, timeout_s=TIMEOUT_S)
    expected = run(clear(connection))
    assert expected != run(renew(connection))

    own_server.freeze()
    run(fail(connection))  # type: ignore[arg-type]
    own_server.thaw()

    assert run(clear(connection)) == expected


def test_calls_at_the_same_time_get_their_own_replies(
    open_connection: OpenConnection, redis_server: RedisServer
) -> None:
    connection = open_connection(redis_server.url)

    async def both() -> list[list[Any]]:
        return await asyncio.gather(*(call(connection) for call in (renew, clear) * 2))

    alone = [run(renew(connection)), run(clear(connection))]

    assert run(both()) == alone * 2


def test_only_what_a_forgetful_server_did_not_run_is_repeated(
    open_connection: OpenConnection, own_server: RedisServer
) -> None:
    connection = open_connection(own_server.url)
    expected = [*run(renew(connection)), *run(clear(connection))]
    client: Any = own_server.client()
    client.script_flush()
    client.script_load(connection._scripts["renew"].source)  # noqa: SLF001
    before = count_of_calls(own_server)

    assert run(connection.run([RENEW, CLEAR])) == expected
    assert count_of_calls(own_server) == before + 3


@pytest.mark.slow
@pytest.mark.parametrize("turns", range(5))
def test_a_loop_that_was_blocked_for_longer_than_the_limit_reads_its_answer(
    open_connection: OpenConnection, redis_server: RedisServer, turns: int
) -> None:
    connection = open_connection(redis_server.url, timeout_s=HELD_UP_S / 2)
    expected = run(renew(connection))

    async def held_up() -> list[Any]:
        call = asyncio.ensure_future(renew(connection))
        for _ in range(turns):
            await asyncio.sleep(0)
        Event().wait(HELD_UP_S)
        return await call

    assert run(held_up()) == expected


# Which server answers


def test_restart_between_two_exchanges_is_reported_once_before_anything_is_sent(
    open_connection: OpenConnection, own_server: RedisServer
) -> None:
    connection = open_connection(own_server.url)
    run(renew(connection))
    first = connection.identity

    own_server.restart()

    with pytest.raises(ServerChanged):
        run(renew(connection))
    assert count_of_calls(own_server) == 0
    run(renew(connection))
    assert count_of_calls(own_server) == 1
    assert first != connection.identity == server_info(own_server)["run_id"]


@pytest.mark.every_server
def test_every_restart_is_reported(open_connection: OpenConnection, own_server: RedisServer) -> None:
    connection = open_connection(own_server.url)
    assert not has_changed(connection)

    for _ in range(3):
        own_server.restart()

        assert has_changed(connection)
        assert not has_changed(connection)


def test_restart_during_a_call_is_reported_at_the_next_one(
    open_connection: OpenConnection, own_server: RedisServer
) -> None:
    connection = open_connection(own_server.url, timeout_s=TIMEOUT_S)
    run(renew(connection))

    own_server.freeze()
    run(times_out(connection))
    own_server.restart()

    assert has_changed(connection)


def test_restart_is_reported_even_if_other_commands_came_first(
    open_connection: OpenConnection, own_server: RedisServer
) -> None:
    connection = open_connection(own_server.url)
    run(renew(connection))

    own_server.restart()
    run(connection.info("memory"))

    assert has_changed(connection)


def test_another_server_at_the_same_address_is_a_change(
    open_connection: OpenConnection, redis_server_factory: StartServer
) -> None:
    first, other = redis_server_factory(), redis_server_factory()
    connection = open_connection(first.url)
    run(renew(connection))

    first.stop()
    other.stop()
    other.port = first.port
    other.start()

    assert has_changed(connection)
    assert not has_changed(connection)


def test_lost_connection_to_the_same_server_is_no_change(
    open_connection: OpenConnection, own_server: RedisServer
) -> None:
    connection = open_connection(own_server.url)
    run(renew(connection))

    drop_clients(own_server)

    assert not has_changed(connection)


def test_server_without_an_id_may_have_changed_with_each_new_connection(
    open_connection: OpenConnection, own_server: RedisServer
) -> None:
    connection = open_connection(url_without_info(own_server))
    assert not has_changed(connection)
    assert not has_changed(connection)

    drop_clients(own_server)

    assert has_changed(connection)
    assert not has_changed(connection)


def test_connections_that_are_used_in_turns_are_no_change_for_ever(
    open_connection: OpenConnection, own_server: RedisServer
) -> None:
    connection = open_connection(url_without_info(own_server))

    async def two() -> Any:
        return await asyncio.gather(renew(connection), renew(connection), return_exceptions=True)

    async def are_both_through() -> bool:
        return not any(isinstance(reply, ServerChanged) for reply in await two())

    run(wait_until_async(are_both_through, what="both connections are known", within=5))

    assert all(run(are_both_through()) for _ in range(5))


def test_hook_of_the_user_sets_up_the_connection(open_connection: OpenConnection, own_server: RedisServer) -> None:
    async def set_up(connection: Any) -> None:
        await connection.on_connect()
        await connection.send_command("CLIENT", "SETNAME", "by-the-hook")
        await connection.read_response()

    connection = open_connection(own_server.url, redis_connect_func=set_up)
    run(renew(connection))

    clients: Any = own_server.client().client_list()
    assert "by-the-hook" in [client["name"] for client in clients]
    own_server.restart()
    assert has_changed(connection)


def test_scripts_that_the_server_has_are_not_sent_again(
    open_connection: OpenConnection, own_server: RedisServer
) -> None:
    def sent() -> int:
        client: Any = own_server.client()
        before = int(client.info("stats")["total_net_input_bytes"])
        run(renew(open_connection(own_server.url)))
        return int(client.info("stats")["total_net_input_bytes"]) - before

    assert sent() > 100_000
    assert sent() < 10_000


def test_few_of_many_workers_load_the_scripts_of_a_server_that_was_restarted(
    open_connection: OpenConnection, own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "LOADING_SPREAD_S", 1.0)
    connections = [open_connection(own_server.url) for _ in range(20)]

    async def renew_all() -> Sequence[Any]:
        calls = [renew(connection) for connection in connections]
        replies: Sequence[Any] = await asyncio.gather(*calls, return_exceptions=True)
        return replies

    run(renew_all())
    own_server.restart()
    assert all(isinstance(reply, ServerChanged) for reply in run(renew_all()))
    assert not any(isinstance(reply, Exception) for reply in run(renew_all()))

    stats: Any = own_server.client().info("commandstats")
    loads = [stats[name]["calls"] for name in ("cmdstat_script|load", "cmdstat_script") if name in stats]
    assert loads[0] < len(connections) * len(NAMES) / 2


NAMED = connection_name("books", "wörker 1")


def names_of(server: RedisServer) -> list[str]:
    client: Any = server.client()
    return [found["name"] for found in client.client_list() if found["name"]]


def test_operators_see_whose_connections_there_are(own_server: RedisServer) -> None:
    async def are_both_named() -> bool:
        return len(names_of(own_server)) == 2

    async def exchange_and_listen() -> list[str]:
        connection = Connection(own_server.url, name=NAMED)
        listening = asyncio.ensure_future(connection.listen("{prioqueue:books}:bell", lambda: None))
        await renew(connection)
        await wait_until_async(are_both_named, what="both are there", within=5)
        found = names_of(own_server)
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await connection.close()
        return found

    assert run(exchange_and_listen()) == [NAMED, NAMED]
    with closing(Link(own_server.url, name=connection_name("books", "operator"))) as link:
        link.pipe(("PING",))
        assert names_of(own_server) == ["prioqueue:books:operator"]


@pytest.mark.parametrize("options", [{"client_name": "mine"}, {}])
def test_names_of_connections_are_the_users_or_none_where_that_is_forbidden(
    open_connection: OpenConnection, own_server: RedisServer, options: dict[str, str]
) -> None:
    client: Any = own_server.client()
    forbidden = [] if options else ["-client"]
    client.acl_setuser("u", enabled=True, nopass=True, categories=["+@all"], commands=forbidden, keys=["*"])
    url = f"redis://u:x@127.0.0.1:{own_server.port}/0"

    connection = open_connection(url, name=NAMED, **options)
    run(renew(connection))
    with closing(Link(url, name=NAMED, options=options)) as link:
        link.pipe(("PING",))
        assert names_of(own_server) == ["mine"] * 2 if options else not names_of(own_server)


class Cut:
    """Lets a client connect until it `is_on`."""

    is_on = False

    async def connect(self, connection: Any) -> None:
        if self.is_on:
            raise RedisConnectionError("nobody knows where the server is")
        await connection.on_connect()


async def lose_bell(connection: Connection, server: RedisServer, cut: Cut) -> None:
    """Lose the connection of the bell, after an exchange beside it."""

    async def listens() -> bool:
        return bool(server.client().pubsub_numsub("bell")[0][1])

    listening = asyncio.ensure_future(connection.listen("bell", lambda: None))
    await wait_until_async(listens, what="it listens", within=5)
    await renew(connection)
    cut.is_on = True
    server.client().client_kill_filter(_type="pubsub")
    with pytest.raises(FrontierUnavailable):
        await listening


async def lose_used_last(connection: Connection, server: RedisServer, cut: Cut) -> None:
    """Lose the connection that was used last of two."""
    await asyncio.gather(renew(connection), renew(connection))
    cut.is_on = True
    client: Any = server.client()
    last = await connection.ask(lambda client: client.client_id())

    async def is_lost() -> bool:
        # In a thread, so that the loop turns and hears of it, too.
        return all(int(found["id"]) != last for found in await asyncio.to_thread(client.client_list))

    client.client_kill_filter(_id=last)
    await wait_until_async(is_lost, what="the connection is lost", within=5)


@pytest.mark.parametrize("lose", [lose_bell, lose_used_last])
def test_open_connection_is_used_while_nobody_can_connect(own_server: RedisServer, lose: Callable[..., Any]) -> None:
    async def exchange_after_a_loss() -> None:
        cut = Cut()
        connection = Connection(own_server.url, options={"redis_connect_func": cut.connect})
        await lose(connection, own_server, cut)
        for _ in range(3):
            await renew(connection)
            await connection.ask(lambda client: client.ping())
        await connection.close()

    run(exchange_after_a_loss())


def url_without_info(server: RedisServer) -> str:
    """Return an address for a user who may do everything except INFO."""
    client: Any = server.client()
    client.acl_setuser("blind", enabled=True, nopass=True, categories=["+@all"], commands=["-info"], keys=["*"])
    client.execute_command("ACL", "SETUSER", "blind", "allchannels")
    return f"redis://blind:x@127.0.0.1:{server.port}/0"


def drop_clients(server: RedisServer) -> None:
    client: Any = server.client()
    client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def server_info(server: RedisServer) -> Any:
    return server.client().info("server")
