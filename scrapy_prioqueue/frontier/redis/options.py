"""Keyword arguments of connections: those of the URL and the user's, for asyncio's clients and for those that block."""

from __future__ import annotations

import inspect
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

import redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.connection import SSLConnection as AsyncSSLConnection
from redis.backoff import NoBackoff
from redis.connection import SSLConnection, UnixDomainSocketConnection, parse_url
from redis.retry import Retry

from scrapy_prioqueue.address import Address, address_of
from scrapy_prioqueue.errors import SettingError
from scrapy_prioqueue.frontier.redis.tls import OPTIONS, AsyncTlsConnection, TlsConnection, plain_options, tls_options
from scrapy_prioqueue.hints import did_you_mean

URL = "PRIOQUEUE_REDIS_URL"

SENTINEL_OPTIONS = "sentinel_kwargs"
"""Option with further keyword arguments of connections to Sentinels; redis-py's own name."""

_ALSO_OF_SENTINELS = ("socket_", "ssl_")
"""Beginnings of the names of options that connections to Sentinels have, too."""

_OF_CLIENTS = {
    "connection_pool": "each worker and command has connections of its own",
    "single_connection_client": "a worker needs several connections",
    "auto_close_connection_pool": "connections are always closed at the end",
    "unix_socket_path": "for a socket file, PRIOQUEUE_REDIS_URL must begin with unix://",
    "cache": "a frontier can't be cached by its clients",
    "cache_config": "a frontier can't be cached by its clients",
}
"""Options of redis-py's clients that connections don't have, and why they can't be used."""

_OBJECTS = (
    "connection_class",
    "credential_provider",
    "encoder_class",
    "event_dispatcher",
    "parser_class",
    "redis_connect_func",
    "socket_keepalive_options",
)
"""Options whose values are no text or numbers."""

_SECONDS = (float, "must be a number of seconds")
_COUNT = (int, "must be a whole number")

_NUMBERS: Mapping[str, tuple[Callable[[Any], float], str]] = {
    **dict.fromkeys(("socket_timeout", "socket_connect_timeout", "health_check_interval"), _SECONDS),
    **dict.fromkeys(("port", "max_connections", "socket_read_size"), _COUNT),
    "db": (int, "must be the number of a database"),
    "protocol": (int, "must be 2 or 3"),
}
"""Options whose values are numbers, which may be given as text, and what to say of others."""

KEEPALIVE_S = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Seconds of silence before the first probe, by its names on Linux and macOS, seconds between probes, and the number of
probes without an answer after which a connection is lost: firewalls and NATs forget silent connections after minutes.
"""


def always() -> dict[str, Any]:
    """Return options that override the user's: replies are bytes, and the client repeats nothing by itself."""
    texts = {"encoding": "utf-8", "encoding_errors": "strict", "decode_responses": False}
    return {**texts, "protocol": 2, "retry": Retry(NoBackoff(), 0)}


def merged(parsed: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a connection.

    Args:
        parsed: those of the URL.
        options: the user's, which override them.

    Raises:
        SettingError: one of them can't be used.
    """
    found = {name: value for name, value in {**parsed, **options}.items() if _is_set(name, value)}
    found.pop(SENTINEL_OPTIONS, None)
    for name in _OBJECTS:
        if isinstance(found.get(name), str):
            raise _refused(name, options, "must be an object, which can't be given in a URL")
    found = _with_numbers(found, options)
    for name, why in _wrong_types(found):
        raise _refused(name, options, why)
    for name, why in _OF_CLIENTS.items():
        if found.pop(name, None):
            raise _refused(name, options, why)
    where = OPTIONS if any(name.startswith("ssl") for name in options) else URL
    kind = found.get("connection_class")
    if isinstance(kind, type) and issubclass(kind, (SSLConnection, AsyncSSLConnection)):
        if not found.pop("ssl", True):
            raise _refused("ssl", options, "without TLS, PRIOQUEUE_REDIS_URL must begin with redis")
        found = tls_options(found, where=where)
        ours = {AsyncSSLConnection: AsyncTlsConnection, SSLConnection: TlsConnection}
        found["connection_class"] = ours.get(kind, kind)
    elif kind is None:
        found = plain_options(found, where=where)
    return kept_alive(found)


def _with_numbers(found: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with numbers in place of those that were given as text, as redis-py reads them in URLs.

    Args:
        options: the user's.

    Raises:
        SettingError: one of them is no number.
    """
    numbers = dict(found)
    for name, (number, why) in _NUMBERS.items():
        if found.get(name) is not None:
            try:
                numbers[name] = number(found[name])
            except (TypeError, ValueError) as error:
                raise _refused(name, options, why) from error
    return numbers


def _wrong_types(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield options whose value can't be used, and what is right."""
    if found.get("protocol", 2) not in (2, 3):
        yield "protocol", "must be 2 or 3"
    if not isinstance(found.get("host", ""), str):
        yield "host", "must be text: the name or the address of the server"
    if "retry" in found and not hasattr(found["retry"], "call_with_retry"):
        yield "retry", "must be a redis.retry.Retry"
    keepalive = found.get("socket_keepalive_options", {})
    if not isinstance(keepalive, Mapping) or not all(
        isinstance(each, int) for pair in keepalive.items() for each in pair
    ):
        yield "socket_keepalive_options", "must be a dictionary of numbers, as in {socket.TCP_KEEPIDLE: 30}"


def _is_set(name: str, value: Any) -> bool:
    """Return whether an option isn't the client's default; None means something only for some of them."""
    return value is not None or name in ("socket_timeout", "socket_connect_timeout", "ssl_cert_reqs")


def unusable(options: Mapping[str, Any], error: Exception) -> SettingError:
    """Return our error for that of a client.

    Args:
        options: the user's.
    """
    unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    if unknown:
        what = "option" if unknown[1] in options else "parameter"
        question = did_you_mean(unknown[1], _known_options())
        why = f"connections of redis-py {redis.__version__} have no such {what}"
        return _refused(unknown[1], options, f"{why}; {question}" if question else why)
    return SettingError(OPTIONS, sorted(options), str(error))


def _refused(name: str, options: Mapping[str, Any], why: str) -> SettingError:
    """Return an error about an option of the user's, or else about a parameter of the URL, without its value."""
    return SettingError(OPTIONS, [name], why) if name in options else SettingError(URL, f"…?{name}=…", why)


def _known_options() -> set[str]:
    kinds = {base for kind in (SSLConnection, UnixDomainSocketConnection) for base in kind.__mro__}
    parameters = (inspect.signature(kind.__init__).parameters for kind in kinds if kind is not object)  # type: ignore[misc]
    return {"sentinel_username", "sentinel_password", *chain.from_iterable(parameters)} - {"self", "args", "kwargs"}


def blocking_options(address: Address, options: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    """Return the options of a connection that blocks; those that only an asyncio client can use are left out.

    Raises:
        SettingError: one of them can't be used.
    """
    own = {name: value for name, value in options.items() if name != "encoder_class" and not _is_asynchronous(value)}
    try:
        parsed = parse_url(address.url)  # type: ignore[no-untyped-call]
    except (TypeError, ValueError) as error:
        raise SettingError(URL, address_of(address.url), str(error)) from error
    times = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
    return {**times, **merged(parsed, own), **always()}


def sentinel_options(address: Address, options: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    """Return the options of a connection to a Sentinel, which has no host or port yet.

    Raises:
        SettingError: one of them can't be used.
    """
    where = f"{OPTIONS}[{SENTINEL_OPTIONS!r}]"
    chosen = options.get(SENTINEL_OPTIONS, {})
    if not isinstance(chosen, Mapping):
        raise SettingError(where, type(chosen).__name__, "must be a dictionary of options")
    server = blocking_options(address, options, timeout_s)
    shared = {name: value for name, value in server.items() if name.startswith(_ALSO_OF_SENTINELS)}
    uses_tls = address.url.startswith("rediss:")
    times = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
    own = {**shared, **times, "ssl": uses_tls, **address.sentinel_login, **chosen}
    if own["ssl"]:
        own = tls_options(own, where=where)
    elif any(name.startswith("ssl_") for name in chosen):
        raise SettingError(where, sorted(chosen), "for TLS to the Sentinels, ssl must be True in it")
    return {**own, **always(), "decode_responses": True}


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
