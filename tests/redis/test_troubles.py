"""Errors of real servers: whether they pass by themselves, the advice in the message, and no password in it."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from scrapy_prioqueue.errors import FrontierRefused, FrontierUnavailable, WrongKeyType
from scrapy_prioqueue.frontier.base import Batch, Demand, FrontierConfig, Push
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.frontier import RedisFrontier
from scrapy_prioqueue.frontier.redis.troubles import ACL_RULES, explained, is_forbidden
from tests.docs.markdown import REFERENCE
from tests.support.coroutines import run
from tests.support.servers import RedisServer, StartServer, link_status, replica_of
from tests.support.waiting import wait_until

SECRET = "s3cret-of-the-tests"

COMMAND = re.compile(rb"(?:^|\r\n)\*\d+\r\n")
"""How a command begins in Redis's protocol."""

EVERYTHING = ("~*", "resetchannels", "&*", "+@all")


class Crawl:
    """A frontier named "x" as one worker sees it.

    Args:
        url: of its server.
    """

    def __init__(self, url: str) -> None:
        self.frontier = RedisFrontier(FrontierConfig("x", ("a",), "w1"), Connection(url, timeout_s=2))
        self._batches = 0

    async def live(self) -> None:
        """Join and make an exchange."""
        await self.frontier.join()
        self._batches = 0
        await self.exchange()

    async def exchange(self) -> None:
        """Push a request and ask for one."""
        self._batches += 1
        batch = Batch(self._batches, [Push(0, "slot", b"payload", bytes([self._batches]) * 20)])
        answer = await self.frontier.exchange([batch], Demand(1))
        assert answer.rejection is None

    def error(self, action: Callable[[], Awaitable[None]]) -> FrontierUnavailable:
        """Return the error that something ends in."""
        with pytest.raises(FrontierUnavailable) as caught:
            run(action())  # type: ignore[arg-type]
        assert SECRET not in str(caught.value)
        assert self.frontier.address in str(caught.value)
        return caught.value


@pytest.fixture
def crawl() -> Iterator[Callable[[str], Crawl]]:
    """Opens crawls whose connections are closed after the test."""
    crawls: list[Crawl] = []

    def open_crawl(url: str) -> Crawl:
        crawls.append(Crawl(url))
        return crawls[-1]

    yield open_crawl
    for one in crawls:
        run(one.frontier.close())


OpenCrawl = Callable[[str], Crawl]


def is_lasting(error: FrontierUnavailable) -> bool:
    return isinstance(error, FrontierRefused)


def url_of(server: RedisServer, user: str = "", *, database: int = 0) -> str:
    """Return the server's address, for a user with the password `SECRET`."""
    name = f"{user}:{SECRET}@" if user else ""
    return f"redis://{name}127.0.0.1:{server.port}/{database}"


def set_user(server: RedisServer, *rules: str) -> str:
    """Give a user these rights and return its address."""
    client: Any = server.client()
    client.execute_command("ACL", "SETUSER", "crawler", "reset", "on", f">{SECRET}", *rules)
    return url_of(server, "crawler")


# Waiting doesn't help


@pytest.mark.parametrize("user", ["stranger", ""])
def test_wrong_or_missing_password_names_the_setting(
    redis_server_factory: StartServer, crawl: OpenCrawl, user: str
) -> None:
    one = crawl(url_of(redis_server_factory(requirepass="another"), user))

    error = one.error(one.live)

    assert is_lasting(error)
    assert "set user and password in PRIOQUEUE_REDIS_URL" in error.why
    assert not error.was_sent or not user


def test_password_that_the_server_does_not_require_is_said(own_server: RedisServer, crawl: OpenCrawl) -> None:
    one = crawl(f"redis://:{SECRET}@127.0.0.1:{own_server.port}")

    error = one.error(one.live)

    assert is_lasting(error)
    assert "requires no password: remove it from PRIOQUEUE_REDIS_URL" in error.why


@pytest.mark.parametrize(
    ("rules", "missing"),
    [
        ((*EVERYTHING, "-evalsha"), "'evalsha'"),
        ((*EVERYTHING, "-script"), "'script"),
        (("~other:*", "&*", "+@all"), "key"),
        ((*EVERYTHING, "-zadd"), "script"),
        (("~{prioqueue:x}:s*", "resetchannels", "&*", "+@all"), "script"),
        ((*EVERYTHING, "-hgetall"), "script"),
    ],
)
def test_missing_right_is_named_together_with_the_rules_that_give_it(
    own_server: RedisServer, crawl: OpenCrawl, rules: Sequence[str], missing: str
) -> None:
    one = crawl(set_user(own_server, *rules))

    error = one.error(one.live)

    assert is_lasting(error)
    assert missing in error.why
    assert ACL_RULES in error.why


def test_missing_right_to_hear_the_bell_is_named(own_server: RedisServer, crawl: OpenCrawl) -> None:
    one = crawl(set_user(own_server, "~*", "+@all", "resetchannels"))
    run(one.live())

    error = one.error(lambda: one.frontier.listen(lambda: None))

    assert is_lasting(error)
    assert "channel" in error.why


def test_rules_of_the_message_and_the_reference_are_enough(own_server: RedisServer, crawl: OpenCrawl) -> None:
    one = crawl(set_user(own_server, *ACL_RULES.split()))
    rung = threading.Event()

    async def listen_until_rung() -> None:
        bell = asyncio.ensure_future(one.frontier.listen(rung.set))
        other: Any = own_server.client()
        while not rung.is_set() and not bell.done():
            other.publish("{prioqueue:x}:bell", "")
            await asyncio.wait([bell], timeout=0.05)
        bell.cancel()
        with suppress(asyncio.CancelledError):
            await bell

    run(one.live())
    run(listen_until_rung())
    run(one.frontier.leave())

    assert rung.is_set()
    assert ACL_RULES in (REFERENCE.parent / "redis.md").read_text("utf-8")


@pytest.mark.parametrize("noun", ["state", "stats", "leases", "sessions", "marks"])
def test_key_of_another_program_is_refused_by_name_at_join(
    own_server: RedisServer, crawl: OpenCrawl, noun: str
) -> None:
    client, key = own_server.client(), "{prioqueue:x}:" + noun
    client.rpush(key, "of another program")

    with pytest.raises(
        WrongKeyType, match=rf"{re.escape(key)} is a list and should be a \w+, .* another PRIOQUEUE_NAME"
    ):
        run(crawl(own_server.url).live())
    assert client.keys("*") == [key.encode()]


@pytest.mark.parametrize("noun", ["queue:slot", "stats", "turns"])
def test_key_of_another_program_is_refused_by_name_in_mid_crawl(
    own_server: RedisServer, crawl: OpenCrawl, noun: str
) -> None:
    one, client, key = crawl(own_server.url), own_server.client(), "{prioqueue:x}:" + noun
    run(one.frontier.join())
    client.delete(key)
    client.xadd(key, {"of": "another program"})

    with pytest.raises(WrongKeyType, match="is a stream and should be a (hash|zset), ") as caught:
        run(one.exchange())

    assert caught.value.key == key
    assert client.type(key) == b"stream"


@pytest.mark.parametrize("command", ["EVALSHA", "SCRIPT"])
def test_server_without_scripts_is_no_server_for_us(
    redis_server_factory: StartServer, crawl: OpenCrawl, command: str
) -> None:
    one = crawl(redis_server_factory(rename_command=f'{command} ""').url)

    error = one.error(one.live)

    assert is_lasting(error)
    assert "needs Lua scripts" in error.why


def test_arguments_that_a_server_quotes_are_not_passed_on(redis_server_factory: StartServer, crawl: OpenCrawl) -> None:
    one = crawl(url_of(redis_server_factory(rename_command='AUTH ""'), "crawler"))

    error = one.error(one.live)

    assert is_lasting(error)
    assert "unknown command" in error.why


def test_server_without_info_is_used_as_one_that_says_nothing(
    redis_server_factory: StartServer, crawl: OpenCrawl
) -> None:
    one = crawl(redis_server_factory(rename_command='INFO ""').url)

    (warning,) = run(one.frontier.join()).warnings

    assert "INFO" in warning


def test_database_that_does_not_exist_is_named(own_server: RedisServer, crawl: OpenCrawl) -> None:
    one = crawl(url_of(own_server, database=99))

    error = one.error(one.live)

    assert is_lasting(error)
    assert "correct the number at the end of PRIOQUEUE_REDIS_URL" in error.why
    assert not error.was_sent


def test_password_that_is_revoked_under_way_is_reported(own_server: RedisServer, crawl: OpenCrawl) -> None:
    url = set_user(own_server, *EVERYTHING)
    one = crawl(url)
    run(one.live())
    client: Any = own_server.client()

    client.execute_command("ACL", "SETUSER", "crawler", "resetpass", ">another")
    client.execute_command("CLIENT", "KILL", "USER", "crawler")

    error = one.error(one.exchange)
    assert is_lasting(error)
    assert "set user and password" in error.why


# Waiting may help


def test_replica_asks_for_the_primary(redis_server_factory: StartServer, crawl: OpenCrawl) -> None:
    primary = redis_server_factory()
    one = crawl(replica_of(primary, redis_server_factory).url)

    error = one.error(one.live)

    assert not is_lasting(error)
    assert "name the primary in PRIOQUEUE_REDIS_URL" in error.why


def test_replica_without_its_primary_asks_for_the_primary(redis_server_factory: StartServer, crawl: OpenCrawl) -> None:
    primary = redis_server_factory()
    replica = replica_of(primary, redis_server_factory, replica_serve_stale_data=False)
    one = crawl(replica.url)

    primary.stop()
    wait_until(lambda: link_status(replica) == "down", what="the replica has lost its primary", within=10)

    error = one.error(one.live)
    assert not is_lasting(error)
    assert "name the primary in PRIOQUEUE_REDIS_URL" in error.why


def test_server_whose_snapshots_fail_asks_for_its_disk(redis_server_factory: StartServer, crawl: OpenCrawl) -> None:
    server = redis_server_factory(save="3600 1")
    one = crawl(server.url)
    run(one.live())
    client: Any = server.client()

    Path(server.directory, "dump.rdb").mkdir()
    client.bgsave()
    wait_until(
        lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", what="the snapshot failed", within=10
    )

    error = one.error(one.exchange)
    server.kill()
    assert not is_lasting(error)
    assert "disk is full or the last snapshot failed" in error.why


def test_server_that_wants_replicas_says_so(own_server: RedisServer, crawl: OpenCrawl) -> None:
    one = crawl(own_server.url)
    run(one.live())

    own_server.client().config_set("min-replicas-to-write", 1)

    error = one.error(one.exchange)
    assert not is_lasting(error)
    assert "min-replicas-to-write" in error.why


def test_server_that_runs_a_script_of_somebody_else_is_waited_for(
    redis_server_factory: StartServer, crawl: OpenCrawl
) -> None:
    server = redis_server_factory(lua_time_limit=10)
    one = crawl(server.url)
    run(one.live())
    client: Any = server.client()
    endless = threading.Thread(target=run_endless_script, args=(server,))
    endless.start()

    try:
        wait_until(lambda: is_busy(client), what="the script is running", within=10)
        error = one.error(one.exchange)
    finally:
        client.script_kill()
        endless.join()

    assert not is_lasting(error)
    assert "SCRIPT KILL" in error.why


@pytest.mark.server_faults
def test_server_that_is_loading_its_data_is_waited_for(redis_server_factory: StartServer, crawl: OpenCrawl) -> None:
    server = redis_server_factory()
    client: Any = server.client()
    for number in range(200):
        # Redis 6.2 looks up from loading every 2 MB.
        client.set(f"key-{number}", os.urandom(50_000))
    client.save()
    server.stop()
    server.config["key_load_delay"] = 15_000

    # The server would end with the thread that starts it.
    with ThreadPoolExecutor(1) as thread:
        starting = thread.submit(server.start)
        wait_until(lambda: "Loading RDB" in server.log, what="the server is loading", within=10)
        one = crawl(server.url)
        error = one.error(one.live)
        starting.result()

        assert not is_lasting(error)
        assert "loading its data from disk" in error.why
        run(one.live())


def test_server_with_too_many_clients_is_waited_for(redis_server_factory: StartServer, crawl: OpenCrawl) -> None:
    server = redis_server_factory(maxclients=1)
    client = server.client()
    client.ping()
    one = crawl(server.url)

    error = one.error(one.live)

    assert not is_lasting(error)
    assert not error.was_sent
    client.close()


@pytest.mark.parametrize(
    ("reply", "lasting", "advice"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", True, "not a Redis server"),
        (b"-MOVED 3999 127.0.0.1:6381\r\n", True, "Redis Cluster"),
        (b"-DENIED Redis is running in protected mode\r\n", True, "give it a password"),
        (b"-CLUSTERDOWN The cluster is down\r\n", False, "cluster has no node"),
        (b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n", False, "another node"),
        (b"-ERR Script attempted to access a non local key in a cluster node\r\n", False, "another node"),
        (b"-ERR max number of clients reached\r\n", False, "maxclients"),
        (b"", False, "use rediss://"),
    ],
)
def test_replies_that_are_hard_to_provoke_are_understood(
    crawl: OpenCrawl, reply: bytes, lasting: bool, advice: str
) -> None:
    server = run(answering(reply))
    one = crawl(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0")

    error = one.error(one.live)

    run(closed(server))
    assert is_lasting(error) == lasting
    assert advice in error.why


def test_errors_end_in_one_sentence(own_server: RedisServer, crawl: OpenCrawl) -> None:
    one = crawl(url_of(own_server, "stranger"))

    assert not re.search(r"[.?];|\n", one.error(one.live).why)


def run_endless_script(server: RedisServer) -> None:
    client: Any = server.client()
    with suppress(Exception):
        client.eval("while true do end", 0)


def is_busy(client: Any) -> bool:
    try:
        client.ping()
    except Exception as error:
        return "BUSY" in str(error)
    return False


async def answering(reply: bytes) -> asyncio.Server:
    """Return a server that answers everything it gets with this, or hangs up if it is empty."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rest = b""
        with suppress(ConnectionError):
            while reply and (data := await reader.read(100_000)):
                # A command may come in two pieces.
                *commands, rest = COMMAND.split(rest + data)
                writer.write(reply * len(commands))
        writer.close()

    return await asyncio.start_server(answer, "127.0.0.1", 0)


async def closed(server: asyncio.Server) -> None:
    """Close a server in the loop that it runs in; another thread would get in the way of a connection's end."""
    server.close()


def test_command_that_was_renamed_gets_advice_that_fits(
    redis_server_factory: StartServer, crawl: Callable[[str], Crawl]
) -> None:
    server = redis_server_factory(**{"rename-command": "ZREM ''"})

    error = crawl(server.url).error(crawl(server.url).live)

    assert isinstance(error, FrontierRefused)
    assert "rename-command" in str(error)


@pytest.mark.parametrize(
    "answer, advice",
    [
        ("ERR Error running script: script tried accessing undeclared key", "allow-undeclared-keys"),
        ("ERR Script attempted to access keys that do not hash to the same slot", "use Redis or Valkey"),
        ("ERR max request size exceeded", "proto-max-bulk-len"),
        ("ERR Protocol error: invalid bulk length", "proto-max-bulk-len"),
    ],
)
def test_answers_of_other_servers_and_proxies_get_advice(answer: str, advice: str) -> None:
    error = explained(ResponseError(answer), "redis://example:6379/0")

    assert isinstance(error, FrontierRefused)
    assert advice in str(error)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("unknown command 'INFO', with args beginning with: 'server'", True),
        ("unknown subcommand 'LOAD'. Try SCRIPT HELP.", True),
        ("Command is not available: 'CONFIG'. See https://example.com/docs", True),
        ("This command is not allowed", True),
        ("command 'EVALSHA' is not supported in sharded clusters", True),
        ("MISCONF Redis can't persist to disk. Commands that may modify the data set are disabled", False),
        ("unsupported CONFIG parameter: save", False),
        ("wrong number of arguments for 'get' command", False),
    ],
)
def test_commands_that_are_not_offered_are_told_from_other_errors(answer: str, expected: bool) -> None:
    assert is_forbidden(ResponseError(answer)) == expected


@pytest.mark.parametrize(
    "answer",
    [
        "Error running script (call to f_0a1b): @user_script:7: @user_script: 7: -READONLY You can't write.",
        "READONLY You can't write. script: 0a1b, on @user_script:7.",
    ],
)
def test_a_place_in_a_script_is_left_out_where_the_reason_is_known(answer: str) -> None:
    error = str(explained(ResponseError(answer), "redis://example:6379/0"))

    assert "READONLY You can't write" in error
    assert "script" not in error


def test_commands_that_the_client_quotes_are_left_out() -> None:
    error = explained(
        ResponseError("Command # 1 (SCRIPT LOAD secret (x)) of pipeline caused error: NOPERM no"), "redis:"
    )

    assert error.why.startswith("ResponseError: NOPERM no; give the Redis user")


@pytest.mark.parametrize(
    "error",
    [asyncio.TimeoutError("no answer within 5 s"), RedisTimeoutError("Timeout reading from socket")],
    ids=["asyncio", "blocking"],
)
def test_error_of_a_timeout_names_the_setting(error: Exception) -> None:
    assert "raise PRIOQUEUE_REDIS_TIMEOUT" in str(explained(error, "redis://example:6379/0"))


def test_timeout_of_the_first_connection_by_tls_asks_whether_the_server_speaks_it() -> None:
    error = explained(RedisTimeoutError("Timeout reading"), "rediss://example:6379/0", has_worked=False)

    assert "if the server doesn't speak TLS, use redis:// in PRIOQUEUE_REDIS_URL" in str(error)
