"""The Redis servers of tests, demo and benchmarks; `example_project/redis_server.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import redis
from redis_server import (
    BINARY_VARIABLE,
    RedisServerError,
    available_redis_servers,
    ends_with_this_process,
    find_redis_server,
)

from tests.support.scrapy_command import PROJECT
from tests.support.servers import RedisServer, StartServer
from tests.support.waiting import wait_until

KILLED = """
import os, signal, sys
from redis_server import RedisServer
server = RedisServer(sys.argv[1])
server.start()
print(server.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_server_persists_nothing_and_refuses_writes_when_full_by_default(
    redis_server_factory: StartServer,
) -> None:
    config = redis_server_factory(maxmemory="8mb").client().config_get("*")

    assert (config["save"], config["appendonly"]) == ("", "no")
    assert (config["maxmemory-policy"], config["maxmemory"]) == ("noeviction", str(8 * 2**20))


def test_restarted_server_has_the_same_address_and_what_it_persisted(redis_server_factory: StartServer) -> None:
    server = redis_server_factory(appendonly=True, appendfsync="always")
    url, pid = server.url, server.pid
    server.client().set("kept", 1)

    server.kill()
    assert not server.is_running
    server.start()

    assert (server.url, server.client().get("kept")) == (url, b"1")
    assert server.pid != pid


def test_frozen_server_answers_after_the_thaw(redis_server_factory: StartServer) -> None:
    server = redis_server_factory()
    impatient = redis.Redis.from_url(server.url, socket_timeout=0.1, retry=None)

    server.freeze()
    with pytest.raises(redis.TimeoutError):
        impatient.ping()
    server.thaw()

    assert server.client().ping()


def test_frozen_server_can_be_stopped(redis_server_factory: StartServer) -> None:
    server = redis_server_factory()
    pid = server.pid

    server.freeze()
    server.stop()

    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.skipif(not ends_with_this_process(), reason="the system can't end a process with its parent")
def test_server_ends_with_a_program_that_is_killed(tmp_path: Path) -> None:
    program = [sys.executable, "-c", KILLED, str(tmp_path)]
    ended = subprocess.run(program, cwd=PROJECT, capture_output=True, text=True, check=False)
    server = Path(f"/proc/{ended.stdout.strip()}/status")

    # Where nobody waits for orphans, it stays a zombie.
    wait_until(lambda: not server.exists() or "(zombie)" in server.read_text(), what="it has ended", within=20)


def test_two_servers_do_not_share_a_port(redis_server_factory: StartServer) -> None:
    assert redis_server_factory().port != redis_server_factory().port


def test_server_that_does_not_start_says_what_it_logged(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, no_such_directive=1)

    with pytest.raises(RedisServerError, match="no-such-directive"):
        server.start()

    assert not server.is_running


def test_server_on_a_port_that_is_taken_says_so(redis_server: RedisServer, tmp_path: Path) -> None:
    with pytest.raises(RedisServerError, match="Address already in use"):
        RedisServer(tmp_path, redis_server.port).start()


def test_variable_names_the_binary(monkeypatch: pytest.MonkeyPatch) -> None:
    last = available_redis_servers()[-1]

    monkeypatch.setenv(BINARY_VARIABLE, os.fspath(last))

    assert find_redis_server() == last


def test_variable_that_names_no_program_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BINARY_VARIABLE, "/no/such/redis-server")

    with pytest.raises(RedisServerError, match=r"PRIOQUEUE_TEST_REDIS = '/no/such/redis-server' is not a program"):
        find_redis_server()


def test_log_shows_each_start(redis_server_factory: StartServer) -> None:
    server = redis_server_factory()

    server.restart()

    wait_until(lambda: server.log.count("Ready to accept connections") >= 2, what="two starts in the log", within=5)
