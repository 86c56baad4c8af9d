"""Addresses of servers: what a URL says, what is wrong with one, and its form for messages, without secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlencode

Kind = Literal["server", "sentinel", "cluster"]

HostPort = tuple[str, int]
"""Name or IP address, port."""

SCHEMES: Mapping[str, Kind] = {
    "redis": "server",
    "rediss": "server",
    "unix": "server",
    "redis+sentinel": "sentinel",
    "rediss+sentinel": "sentinel",
    "redis+cluster": "cluster",
    "rediss+cluster": "cluster",
}
"""Schemes of URLs, and who is at such an address; `rediss` is TLS."""

FIRST_PORTS: Mapping[Kind, int] = {"server": 6379, "sentinel": 26379, "cluster": 6379}

_URL = re.compile(r"([^:/?#]*)://([^/?#]*)([^?#]*)(?:\?([^#]*))?(?:#.*)?", re.DOTALL)
_HOST = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:@;|\s]*))(?::(\d*))?")
_BARE_IPV6 = re.compile(r"(?=(?:[^:]*:){2})[\da-fA-F:.]+(?:%\w+)?(?::\d*)?")
_PRIMARY = re.compile(r"/+([^/]*[^/\d][^/]*)(?:/+(\d+))?/*")
_SENTINEL_PART = re.compile(r"sentinel_(username|password)")

_LONGEST_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Address:
    """The parts of a URL.

    Args:
        kind: who is there: the server itself, or Sentinels or nodes of a cluster, which know where it is.
        url: for the client of one server; its host is only the first one.
        hosts: all of them; none for a socket file.
        primary: name under which the Sentinels know the server.
        sentinel_login: user name and password for the Sentinels.
    """

    kind: Kind
    url: str = field(repr=False)
    hosts: Sequence[HostPort]
    primary: str = ""
    sentinel_login: Mapping[str, str] = field(default_factory=dict, repr=False)


def parse_address(url: str) -> Address:
    """Read a URL.

    Raises:
        ValueError: with what is wrong with it; the message doesn't contain what may be a secret.
    """
    parts = _URL.fullmatch(url)
    if parts is None or parts[1] not in SCHEMES:
        *others, last = (f"{scheme}://" for scheme in SCHEMES)
        raise ValueError(f"must be a URL that begins with {', '.join(others)} or {last}")
    scheme, place, path, query = parts[1], parts[2], parts[3], parts[4] or ""
    login, at_sign, names = place.rpartition("@")
    rest = url[parts.end(2) :]
    if "@" in rest.partition("#")[2] or ("@" in rest and not at_sign):
        raise ValueError("has a character before the @ that must be percent-encoded: / as %2F, ? as %3F, # as %23")
    if scheme == "unix":
        if not path.strip("/") or names:
            raise ValueError("must have the path of the socket after three slashes: unix:///run/redis/redis.sock")
        return Address("server", url, ())
    kind = SCHEMES[scheme]
    if kind != "server":
        _check_list(names)
    # Without an @, what looks like a host may be a password; so may what comes before an @ that has no encoding.
    is_open = bool(at_sign or "," in names) and "@" not in rest
    hosts = [_host(name, FIRST_PORTS[kind], is_open=is_open) for name in names.split(",")]
    if kind == "server":
        _check_one_server(hosts, path)
        return Address(kind, url, hosts)
    primary, database = _primary_and_database(kind, path)
    parameters = parse_qsl(query, keep_blank_values=True)
    sentinel_login = {name.partition("_")[2]: value for name, value in parameters if _SENTINEL_PART.fullmatch(name)}
    if sentinel_login and kind != "sentinel":
        raise ValueError("has a user name or a password for Sentinels, but is not an address of Sentinels")
    rest = urlencode([(name, value) for name, value in parameters if not _SENTINEL_PART.fullmatch(name)])
    first = _shown_host(hosts[0])
    plain = f"{scheme.partition('+')[0]}://{login}{at_sign}{first}/{database}?{rest}"
    return Address(kind, plain, hosts, primary, sentinel_login)


def _host(text: str, first_port: int, *, is_open: bool) -> HostPort:
    """Read a host and its port.

    Args:
        is_open: it can't hold a secret, so an error may show it.
    """
    found = _HOST.fullmatch(text)
    if found is None:
        raise ValueError(f"{_why_no_host(text)}{_shown(text, is_open)}")
    name, port = found[1] or found[2], int(found[3] or first_port)
    if not 1 <= port <= 65535:
        raise ValueError(f"must have a port from 1 to 65535{_shown(text, is_open)}")
    return unquote(name) or "localhost", port


def _why_no_host(text: str) -> str:
    if _BARE_IPV6.fullmatch(text):
        return "has an IPv6 address without brackets: write [2001:db8::1]:6379"
    if re.search(r"[;|\s]", text):
        return "must have commas, and nothing else, between hosts: host1:port1,host2:port2"
    return (
        "must have a host and a port from 1 to 65535, with special characters of a user name or a password"
        " percent-encoded"
    )


def _shown(text: str, is_open: bool) -> str:
    return f" (this part is wrong: {text[:_LONGEST_SHOWN]!r})" if is_open else ""


def _check_list(names: str) -> None:
    """Refuse a list of hosts one of which is empty."""
    if not names:
        raise ValueError("must have a host")
    if any(re.fullmatch(r"(?::\d*)?", name) for name in names.split(",")):
        raise ValueError("has an empty host: remove the comma too many, or add what is missing")


def _check_one_server(hosts: Sequence[HostPort], path: str) -> None:
    if len(hosts) > 1:
        raise ValueError("has several hosts: begin it with redis+sentinel:// or redis+cluster://, or name one")
    if not re.fullmatch(r"/*\d*/*", path):
        raise ValueError("must end with the number of a database, as in redis://localhost:6379/0")


def _primary_and_database(kind: Kind, path: str) -> tuple[str, str]:
    if kind == "cluster":
        if path.strip("/") not in ("", "0"):
            raise ValueError("must not name a database but 0, since a cluster has no other")
        return "", "0"
    found = _PRIMARY.fullmatch(path)
    if found is None:
        raise ValueError(
            "must end with the name of the primary, and perhaps the number of a database:"
            " redis+sentinel://host1:26379,host2:26379/mymaster/0"
        )
    return unquote(found[1]), found[2] or "0"


def _shown_host(host: HostPort) -> str:
    name, port = host
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def address_of(url: str) -> str:
    """Return a URL without user, password and query.

    Raises:
        ValueError: it is not a URL.
    """
    parts = _URL.fullmatch(url)
    host = parts[2].rpartition("@")[2] if parts else "["
    if parts is None or host.count("[") != host.count("]"):
        raise ValueError("not a URL")
    return f"{parts[1]}://{host}{parts[3]}"
