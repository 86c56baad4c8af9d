"""TLS: certificates of servers and clients, and what errors say to do, with every supported redis-py."""

from __future__ import annotations

import re
import shutil
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from shop_chaos.proxy import FaultProxy

from scrapy_prioqueue.errors import FrontierRefused, FrontierUnavailable, SettingError
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.link import Link
from tests.support.certificates import LOOPBACK, Authority, Certificate
from tests.support.coroutines import run
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.any_server, pytest.mark.real_time]

TIMEOUT_S = 1.0

Ping = Callable[..., None]
Serve = Callable[..., str]


def ping_as_worker(url: str, **options: Any) -> None:
    connection = Connection(url, timeout_s=TIMEOUT_S, options=options)
    try:
        run(connection.open())
    finally:
        run(connection.close())


def ping_as_operator(url: str, **options: Any) -> None:
    link = Link(url, timeout_s=TIMEOUT_S, options=options)
    try:
        assert link.ask(lambda client: client.ping())
    finally:
        link.close()


pings = pytest.mark.parametrize("ping", [ping_as_worker, ping_as_operator])


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Signs the certificates that are trusted."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Signs certificates that nobody trusts."""
    return Authority(tmp_path_factory.mktemp("stranger"))


@pytest.fixture
def serve(redis_server: RedisServer, authority: Authority) -> Iterator[Serve]:
    """Starts a server with this certificate, which wants one of clients if `wants_own`; returns its URL."""
    with ExitStack() as proxies:

        def start(certificate: Certificate, *, wants_own: bool = False) -> str:
            context = certificate.server_context(client_authority=authority.file if wants_own else None)
            proxy = proxies.enter_context(FaultProxy(redis_server.port, tls=context))
            return f"rediss://{LOOPBACK}:{proxy.port}/0"

        yield start


def with_own(certificate: Certificate) -> Mapping[str, str]:
    return {"ssl_certfile": str(certificate.certificate), "ssl_keyfile": str(certificate.key)}


# The server's certificate


@pings
def test_certificate_of_the_host_is_accepted(serve: Serve, authority: Authority, ping: Ping) -> None:
    ping(serve(authority.sign(LOOPBACK)), ssl_ca_certs=str(authority.file))
    ping(f"{serve(authority.sign(LOOPBACK))}?ssl_ca_certs={authority.file}")


@pings
@pytest.mark.parametrize(
    ("hosts", "is_expired", "is_known", "advice"),
    [
        (("other.example",), False, True, "is for another host name: use one of its names"),
        ((LOOPBACK,), True, True, "renew the server's certificate"),
        ((LOOPBACK,), False, False, "set ssl_ca_certs in PRIOQUEUE_REDIS_OPTIONS to the file"),
    ],
)
def test_other_certificates_are_refused_with_advice(
    serve: Serve,
    authority: Authority,
    stranger: Authority,
    ping: Ping,
    hosts: tuple[str, ...],
    *,
    is_expired: bool,
    is_known: bool,
    advice: str,
) -> None:
    url = serve((authority if is_known else stranger).sign(*hosts, is_expired=is_expired))

    with pytest.raises(FrontierRefused, match=f"CERTIFICATE_VERIFY_FAILED.*; .*{advice}"):
        ping(url, ssl_ca_certs=str(authority.file))


@pings
def test_a_disabled_check_of_the_host_name_stays_disabled(serve: Serve, authority: Authority, ping: Ping) -> None:
    url = f"{serve(authority.sign('other.example'))}?ssl_ca_certs={authority.file}"

    ping(f"{url}&ssl_check_hostname=False")
    ping(url, ssl_check_hostname=False)
    ping(f"{url}&ssl_cert_reqs=none")
    ping(f"{url}&ssl_cert_reqs=none&ssl_check_hostname=True")


def test_comparison_does_not_depend_on_the_default_of_the_client() -> None:
    for client in (Connection("rediss://host.example/0").client, Link("rediss://host.example/0").client):
        assert client.connection_pool.connection_kwargs["ssl_check_hostname"] is True


# The client's certificate


@pings
def test_client_certificate_is_shown(serve: Serve, authority: Authority, ping: Ping, tmp_path: Path) -> None:
    url, own = serve(authority.sign(LOOPBACK), wants_own=True), authority.sign()
    in_one_file = tmp_path / "own.pem"
    in_one_file.write_bytes(own.key.read_bytes() + own.certificate.read_bytes())

    ping(url, ssl_ca_certs=str(authority.file), **with_own(own))
    ping(f"{url}?ssl_ca_certs={authority.file}&ssl_certfile={own.certificate}&ssl_keyfile={own.key}")
    ping(url, ssl_ca_certs=str(authority.file), ssl_certfile=str(in_one_file))


@pings
@pytest.mark.parametrize("kind", ["missing", "of a stranger", "expired"])
def test_a_missing_or_wrong_client_certificate_gets_advice(
    serve: Serve, authority: Authority, stranger: Authority, ping: Ping, kind: str
) -> None:
    url = serve(authority.sign(LOOPBACK), wants_own=True)
    own = {"missing": {}, "of a stranger": with_own(stranger.sign())}.get(
        kind, with_own(authority.sign(is_expired=True))
    )

    # The server closes the connection, and its reason may get lost.
    with pytest.raises(FrontierUnavailable, match="ssl_certfile"):
        ping(url, ssl_ca_certs=str(authority.file), **own)


def test_renewed_certificates_are_used_without_a_restart(
    redis_server: RedisServer, authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    files = {"ssl_certfile": tmp_path / "own.crt", "ssl_keyfile": tmp_path / "own.key", "ssl_ca_certs": tmp_path / "ca"}

    def install(signed_by: Authority) -> FaultProxy:
        own = signed_by.sign()
        for source, target in zip((own.certificate, own.key, signed_by.file), files.values(), strict=True):
            shutil.copy(source, target)
        context = signed_by.sign(LOOPBACK).server_context(client_authority=signed_by.file)
        return FaultProxy(redis_server.port, tls=context, port=port)

    port = 0
    options = {name: str(file) for name, file in files.items()}
    with install(authority) as proxy:
        port = proxy.port
        url = f"rediss://{LOOPBACK}:{port}/0"
        connection, link = Connection(url, options=options), Link(url, options=options)
        for _ in range(2):
            assert run(connection.ask(lambda client: client.ping()))
            assert link.ask(lambda client: client.ping())
    with install(stranger):
        with suppress(FrontierUnavailable):
            # Newer clients notice only now that the connection is closed.
            run(connection.ask(lambda client: client.ping()))
        assert run(connection.ask(lambda client: client.ping()))
        link.close()
        assert link.ask(lambda client: client.ping())
    run(connection.close())
    link.close()


@pings
def test_authorities_of_the_system_are_read_once(
    serve: Serve, authority: Authority, ping: Ping, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{serve(authority.sign(LOOPBACK))}?ssl_ca_certs={authority.file}"
    ping(url)

    # It takes tens of milliseconds, and a failover makes a worker ask several Sentinels, and connect anew.
    monkeypatch.setattr(ssl, "create_default_context", None)
    ping(url)


# With and without TLS


@pings
def test_plain_server_behind_an_address_of_tls_gets_advice(redis_server: RedisServer, ping: Ping) -> None:
    with pytest.raises(FrontierUnavailable, match="use redis://|must begin with redis://"):
        ping(redis_server.url.replace("redis:", "rediss:"))


@pings
def test_server_with_tls_behind_a_plain_address_gets_advice(serve: Serve, authority: Authority, ping: Ping) -> None:
    with pytest.raises(FrontierUnavailable, match="use rediss://"):
        ping(serve(authority.sign(LOOPBACK)).replace("rediss:", "redis:"))


SCHEMES_BEHIND = [("+sentinel", "/books"), ("+cluster", "")]


@pings
@pytest.mark.parametrize(("kind", "path"), SCHEMES_BEHIND)
def test_advice_about_tls_keeps_the_kind_of_address(
    redis_server: RedisServer, serve: Serve, authority: Authority, ping: Ping, kind: str, path: str
) -> None:
    plain = f"redis{kind}://127.0.0.1:{redis_server.port}{path}"
    with_tls = f"rediss{kind}://127.0.0.1:{urlsplit(serve(authority.sign(LOOPBACK))).port}{path}"

    with pytest.raises(FrontierUnavailable, match=rf"(use|must begin with) {re.escape(f'redis{kind}')}://"):
        ping(plain.replace("redis", "rediss", 1))
    with pytest.raises(FrontierUnavailable, match=rf"use {re.escape(f'rediss{kind}')}://"):
        ping(with_tls.replace("rediss", "redis", 1))


@pings
@pytest.mark.parametrize("option", [{"ssl": True}, {"ssl_ca_certs": "/authority"}, {"ssl_certfile": "/own"}])
def test_options_of_tls_need_an_address_of_tls(redis_server: RedisServer, ping: Ping, option: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=rf"\['{next(iter(option))}'\]: for TLS, .* must begin with rediss"):
        ping(redis_server.url, **option)


# Files


@pings
def test_files_that_can_not_be_used_are_named(
    authority: Authority, stranger: Authority, tmp_path: Path, ping: Ping
) -> None:
    own, locked, other = authority.sign(), authority.sign(password="secret"), stranger.sign()
    rubbish = tmp_path / "rubbish"
    rubbish.write_text("no certificate")
    table: list[tuple[Mapping[str, Any], str]] = [
        ({"ssl_ca_certs": "/no/such"}, "'ssl_ca_certs'.* can't be read: No such file"),
        ({"ssl_ca_certs": str(rubbish)}, "'ssl_ca_certs'.* has no certificates in PEM format"),
        ({**with_own(own), "ssl_certfile": "/no/such"}, "'ssl_certfile'.* can't be read: No such file"),
        ({**with_own(own), "ssl_keyfile": "/no/such"}, "'ssl_keyfile'.* can't be read: No such file"),
        ({**with_own(own), "ssl_certfile": str(rubbish)}, "'ssl_certfile'.* is no certificate with its key"),
        ({"ssl_certfile": str(own.certificate)}, "'ssl_certfile'.* is no certificate with its key"),
        ({"ssl_keyfile": str(own.key)}, "'ssl_keyfile'.* must be a certificate to the key"),
        ({**with_own(own), "ssl_keyfile": str(other.key)}, "'ssl_keyfile'.* is not the key of the certificate"),
        (with_own(locked), "'ssl_keyfile'.* the key has a password: set ssl_password"),
        ({**with_own(locked), "ssl_password": "another"}, "ssl_password is not that of the key"),
        ({"ssl_cert_reqs": "maybe"}, "'ssl_cert_reqs'.* must be 'required', 'optional' or 'none'"),
        ({"ssl_ciphers": "none"}, "'ssl_ciphers'.* names no cipher"),
        ({"ssl_min_version": "1.2"}, "'ssl_min_version'.* must be a number"),
    ]

    for options, wrong in table:
        with pytest.raises(SettingError, match=wrong) as raised:
            ping("rediss://host.example/0", **options)
        assert "secret" not in str(raised.value) and "another" not in str(raised.value)
        assert str(raised.value).count("PRIOQUEUE_REDIS_OPTIONS") == 1
