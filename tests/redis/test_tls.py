"""TLS: the certificate of a server must match the host name, with every supported redis-py."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from shop_chaos.proxy import FaultProxy

from scrapy_prioqueue.errors import FrontierUnavailable
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.link import Link
from tests.support.coroutines import run
from tests.support.servers import RedisServer

Ping = Callable[..., None]


def write_certificate(folder: Path, *names: x509.GeneralName) -> Path:
    """Write a certificate for these names that vouches for itself, and its key; return the file."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(timezone.utc)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file = folder / "server.pem"
    file.write_bytes(
        key.private_bytes(*form) + builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    )
    return file


@pytest.fixture
def certified(tmp_path: Path, redis_server: RedisServer) -> Iterator[Callable[[x509.GeneralName], str]]:
    """Starts a server whose certificate is for that host, and returns its URL."""
    with ExitStack() as proxies:

        def start(name: x509.GeneralName) -> str:
            certificate = write_certificate(tmp_path, name)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            proxy = proxies.enter_context(FaultProxy(redis_server.port, tls=context))
            return f"rediss://127.0.0.1:{proxy.port}/0?ssl_ca_certs={certificate}"

        yield start


def ping_as_worker(url: str, **options: Any) -> None:
    connection = Connection(url, options=options)
    try:
        assert run(connection.ask(lambda client: client.ping()))
    finally:
        run(connection.close())


def ping_as_operator(url: str, **options: Any) -> None:
    link = Link(url, options=options)
    try:
        assert link.ask(lambda client: client.ping())
    finally:
        link.close()


pings = pytest.mark.parametrize("ping", [ping_as_worker, ping_as_operator])
OWN, OTHER = x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("other.example")


@pings
def test_certificate_of_another_host_is_refused(certified: Callable[[x509.GeneralName], str], ping: Ping) -> None:
    with pytest.raises(FrontierUnavailable, match=r"CERTIFICATE_VERIFY_FAILED.*host name"):
        ping(certified(OTHER))


@pings
def test_certificate_of_the_host_is_accepted(certified: Callable[[x509.GeneralName], str], ping: Ping) -> None:
    ping(certified(OWN))


@pings
def test_a_disabled_check_of_the_host_name_stays_disabled(
    certified: Callable[[x509.GeneralName], str], ping: Ping
) -> None:
    url = certified(OTHER)

    ping(f"{url}&ssl_check_hostname=False")
    ping(url, ssl_check_hostname=False)
    ping(f"{url}&ssl_cert_reqs=none")


def test_comparison_does_not_depend_on_the_default_of_the_client() -> None:
    for client in (Connection("rediss://host.example/0").client, Link("rediss://host.example/0").client):
        assert client.connection_pool.connection_kwargs["ssl_check_hostname"] is True
