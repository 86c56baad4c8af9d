"""Keyword arguments of connections: those of the URL and the user's, for asyncio's clients and for those that block."""

from __future__ import annotations

import inspect
import socket
import ssl
from collections.abc import Mapping
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.asyncio.connection import SSLConnection as AsyncSSLConnection
from redis.backoff import NoBackoff
from redis.connection import SSLConnection, parse_url
from redis.retry import Retry

from scrapy_prioqueue.address import Address

SENTINEL_OPTIONS = "sentinel_kwargs"
"""Option with further keyword arguments of connections to Sentinels; redis-py's own name."""

_ALSO_OF_SENTINELS = ("socket_", "ssl_")
"""Beginnings of the names of options that connections to Sentinels have, too."""

KEEPALIVE_S = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Seconds of silence before the first probe, by its names on Linux and macOS, seconds between probes, and the number of
probes without an answer after which a connection is lost: firewalls and NATs forget silent connections after minutes.
"""


def always() -> dict[str, Any]:
    """Return options that override the user's: replies are bytes, and the client repeats nothing by itself."""
    return {"encoding": "utf-8", "decode_responses": False, "protocol": 2, "retry": Retry(NoBackoff(), 0)}


def blocking_options(address: Address, options: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    """Return the options of a connection that blocks; those that only an asyncio client can use are left out."""
    own = {name: value for name, value in options.items() if not _is_asynchronous(value)}
    own.pop(SENTINEL_OPTIONS, None)
    return {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        **kept_alive(checking_host({**parse_url(address.url), **own})),  # type: ignore[no-untyped-call]
        **always(),
    }


def sentinel_options(address: Address, options: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    """Return the options of a connection to a Sentinel, which has no host or port yet."""
    server = blocking_options(address, options, timeout_s)
    shared = {name: value for name, value in server.items() if name.startswith(_ALSO_OF_SENTINELS)}
    uses_tls = address.url.startswith("rediss:")
    times = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
    own = {**shared, **times, "ssl": uses_tls, **address.sentinel_login, **options.get(SENTINEL_OPTIONS, {})}
    return {**own, **always(), "decode_responses": True}


def checking_host(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a client that compares the server's certificate with the host's name.

    Before release 6, redis-py accepted the certificate of another host. A check that the user has disabled stays so.
    """
    kind = options.get("connection_class")
    uses_tls = isinstance(kind, type) and issubclass(kind, (SSLConnection, AsyncSSLConnection))
    if not uses_tls or options.get("ssl_cert_reqs", "required") in (None, "none", ssl.CERT_NONE):
        return dict(options)
    return {"ssl_check_hostname": True, **options}


def kept_alive(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with TCP keepalive, which redis-py uses by itself only since release 8, unless the user decides.

    A socket file needs none.
    """
    if "path" in options:
        return dict(options)
    known = {getattr(socket, name): value for name, value in KEEPALIVE_S.items() if hasattr(socket, name)}
    return {"socket_keepalive": True, "socket_keepalive_options": known, **options}


def _is_asynchronous(value: Any) -> bool:
    """Return whether an option is a function or a class that only an asyncio client can use."""
    if isinstance(value, type):
        return issubclass(value, AbstractConnection)
    return inspect.iscoroutinefunction(value)
