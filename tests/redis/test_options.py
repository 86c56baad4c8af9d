"""Options of redis-py, in `PRIOQUEUE_REDIS_OPTIONS` and in URLs: they do no harm, or are refused by name."""

from __future__ import annotations

import inspect
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.credentials import UsernamePasswordCredentialProvider
from redis.retry import Retry

from scrapy_prioqueue import FrontierClient
from scrapy_prioqueue.errors import SettingError
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.link import Link
from tests.support.coroutines import run
from tests.support.servers import RedisServer

pytestmark = pytest.mark.any_server

USER, PASSWORD = "test-options", "secret"

HARMLESS: Mapping[str, Any] = {
    "client_name": "mine",
    "connection_pool": None,
    "credential_provider": UsernamePasswordCredentialProvider(USER, PASSWORD),
    "decode_responses": True,
    "encoding": "utf-16",
    "encoding_errors": "ignore",
    "health_check_interval": 30,
    "max_connections": 1,
    "protocol": 3,
    "retry": Retry(NoBackoff(), 3),
    "retry_on_error": [redis.TimeoutError],
    "retry_on_timeout": True,
    "single_connection_client": False,
    "sentinel_kwargs": {"password": "of Sentinels"},
    "socket_connect_timeout": None,
    "socket_keepalive": True,
    "socket_keepalive_options": {socket.TCP_KEEPCNT: 3},
    "socket_timeout": 2,
    "ssl": False,
    "ssl_cert_reqs": "required",
    "ssl_check_hostname": True,
}
"""With a value that differs from redis-py's default, or that says nothing."""

IN_URLS = {
    name: HARMLESS[name]
    for name in ("client_name", "decode_responses", "encoding", "health_check_interval", "max_connections", "protocol")
}

REFUSED: Mapping[str, Any] = {
    "auto_close_connection_pool": True,
    "cache": object(),
    "cache_config": object(),
    "connection_class": "redis.Connection",
    "connection_pool": object(),
    "nonsense": 1,
    "parser_class": "hiredis",
    "single_connection_client": True,
    "socket_keepalive_options": "5",
    "ssl": True,
    "ssl_ca_certs": "/authority",
    "unix_socket_path": "/run/redis.sock",
}

Use = Callable[[str, Mapping[str, Any]], None]


def use_as_worker(url: str, options: Mapping[str, Any]) -> None:
    connection = Connection(url, options=options, name="worker")
    try:
        run(connection.run([("renew", "{prioqueue:x}:state", (1, "1", "w1", "n1", 0, 1000))]))
        assert run(connection.ask(lambda client: client.hgetall("some-hash"))) == {b"\xff": b"\xfe"}
        assert run(connection.pipe(("ZRANGE", "some-set", 0, -1, "WITHSCORES"))) == [[(b"a", 1.0)]]
    finally:
        run(connection.close())


def use_as_operator(url: str, options: Mapping[str, Any]) -> None:
    link = Link(url, options=options, name="operator")
    try:
        assert link.pipe(("HGETALL", "some-hash"), is_transaction=True) == [{b"\xff": b"\xfe"}]
        assert link.pipe(("ZRANGE", "some-set", 0, -1, "WITHSCORES")) == [[(b"a", 1.0)]]
        assert link.info("server")
    finally:
        link.close()


uses = pytest.mark.parametrize("use", [use_as_worker, use_as_operator])


@pytest.fixture
def url(redis_server: RedisServer) -> str:
    """Address of a server with some keys, for a user with a password."""
    client: Any = redis_server.client()
    client.execute_command("ACL", "SETUSER", USER, "on", f">{PASSWORD}", "~*", "&*", "+@all")
    client.hset("some-hash", b"\xff", b"\xfe")
    client.zadd("some-set", {"a": 1})
    return redis_server.url


@uses
def test_options_do_no_harm(url: str, use: Use) -> None:
    for name, value in HARMLESS.items():
        use(url, {name: value})
    use(url, {"username": USER, "password": PASSWORD})
    for name, value in IN_URLS.items():
        use(f"{url}?{urlencode({name: value})}", {})


@uses
def test_defaults_of_the_client_do_no_harm(url: str, use: Use) -> None:
    parameters = inspect.signature(redis.asyncio.Redis.__init__).parameters.values()
    plain = {each.name: each.default for each in parameters if each.default in (None, False, True)}
    assert len(plain) > 20

    use(url, plain)


@uses
def test_other_options_are_refused_by_name(url: str, use: Use) -> None:
    for name, value in REFUSED.items():
        with pytest.raises(SettingError, match=rf"^PRIOQUEUE_REDIS_OPTIONS = \['{name}'\]: "):
            use(url, {name: value})
    for name in ("nonsense", "connection_class", "single_connection_client", "unix_socket_path"):
        with pytest.raises(SettingError, match=rf"^PRIOQUEUE_REDIS_URL = '…\?{name}=…': "):
            use(f"{url}?{name}=secret", {"client_name": "mine"})
    with pytest.raises(SettingError, match=r"^PRIOQUEUE_REDIS_URL = .*'health_check_interval'"):
        use(f"{url}?health_check_interval=often", {})


WRONG_TYPES: Sequence[tuple[str, Any, str]] = [
    ("db", "zero", "must be the number of a database"),
    ("health_check_interval", "often", "must be a number of seconds"),
    ("host", 5, "must be text"),
    ("port", "x", "must be a whole number"),
    ("protocol", 4, "must be 2 or 3"),
    ("retry", 5, "must be a redis.retry.Retry"),
    ("socket_keepalive_options", {"TCP_KEEPIDLE": 3}, "must be a dictionary of numbers"),
    ("socket_timeout", [3], "must be a number of seconds"),
]


@uses
def test_values_of_a_wrong_type_are_refused_with_what_is_right(url: str, use: Use) -> None:
    for name, value, why in WRONG_TYPES:
        with pytest.raises(SettingError, match=rf"^PRIOQUEUE_REDIS_OPTIONS = \['{name}'\]: {why}"):
            use(url, {name: value})


@uses
def test_numbers_may_be_given_as_text(url: str, use: Use) -> None:
    names = ("socket_timeout", "socket_connect_timeout", "health_check_interval", "max_connections")
    use(url, {**dict.fromkeys(names, "5"), "db": "0", "protocol": "3"})


@uses
@pytest.mark.parametrize(
    ("wrong", "meant"), [("health_check_intervall", "health_check_interval"), ("sentinel_pasword", "sentinel_password")]
)
def test_misspelt_option_is_refused_with_what_was_meant(url: str, use: Use, wrong: str, meant: str) -> None:
    why = rf"no such parameter; did you mean {meant}\?"
    with pytest.raises(SettingError, match=rf"^PRIOQUEUE_REDIS_URL .* {why}") as raised:
        use(f"{url}?{wrong}=secret", {})
    assert "secret" not in str(raised.value)
    with pytest.raises(SettingError, match=rf"^PRIOQUEUE_REDIS_OPTIONS .* no such option; did you mean {meant}\?"):
        use(url, {wrong: 1})


@uses
def test_options_of_tls_in_a_url_are_refused_as_such(url: str, use: Use) -> None:
    with pytest.raises(SettingError, match=r"^PRIOQUEUE_REDIS_URL = \['ssl_ca_certs'\]: for TLS"):
        use(f"{url}?ssl_ca_certs=/authority", {})
    with pytest.raises(SettingError, match=r"^PRIOQUEUE_REDIS_URL\['ssl_ca_certs'\] = '/authority'"):
        use(f"{url.replace('redis', 'rediss', 1)}?ssl_ca_certs=/authority", {})


@uses
def test_options_for_sentinels_are_refused_by_name(use: Use) -> None:
    url = "redis+sentinel://127.0.0.1:1/books"
    for options in ({"nonsense": 1}, {"ssl_ca_certs": "/authority"}, "password"):
        with pytest.raises(SettingError, match="sentinel_kwargs"):
            use(url, {"sentinel_kwargs": options})


def test_client_of_programs_is_not_harmed(url: str, frontier_name: str) -> None:
    options = {"decode_responses": True, "encoding": "utf-16", "protocol": 3, "max_connections": 1}

    with FrontierClient(url, frontier_name, options=options) as client:
        assert client.push("https://example.com/ü")
        assert client.depth().pending == 1
