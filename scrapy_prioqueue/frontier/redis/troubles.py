"""Meanings of errors of a connection or a server: which pass by themselves, and what to do about the others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import Template
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, ResponseError

from scrapy_prioqueue.errors import FrontierFull, FrontierRefused, FrontierUnavailable
from scrapy_prioqueue.printable import counted, in_a_line

ACL_RULES = (
    "~{prioqueue:* resetchannels &{prioqueue:* +@read +@write +@scripting +@pubsub +@connection"
    " -@dangerous +multi +exec +client|setname +time +wait +info +config|get"
)
"""ACL rules that the Redis user of workers and operators needs."""

BLOOM_RULES = "+bf.insert +bf.exists +bf.reserve +bf.scandump +bf.loadchunk"
"""Further rules for filters of RedisBloom, since older releases put its commands in no category."""

CLUSTER_RULES = "+cluster|slots"
"""Further rules for a cluster, on all its nodes."""


SENTINEL_RULES = "allchannels +ping +psubscribe +sentinel|master +sentinel|masters +sentinel|get-master-addr-by-name"
"""ACL rules that a worker's user of Sentinels needs."""


_NOT_OFFERED = (
    r"(?i:unknown (sub)?command|unsupported command"
    r"|command( '[^']*')?( is)? (not (allowed|available|supported)|disabled))"
)
"""How servers, and proxies in front of them, refuse commands that they don't offer."""

_MOVED = r"MovedError|\bMOVED\b"

_MOVING = rf"non local key|TryAgainError|\bTRYAGAIN\b|AskError|\bASK \d|{_MOVED}"

_READ_ONLY = r"ReadOnlyError|\bREADONLY\b"

_TOO_LARGE = r"max request size exceeded|invalid bulk length|too big (m?bulk|inline)|invalid multibulk length"

LASTING: Mapping[str, str] = {
    r"this is a Sentinel": (
        "begin PRIOQUEUE_REDIS_URL with $sentinel and end it with the name of the primary:"
        " ${sentinel}host:26379/mymaster"
    ),
    r"the Sentinels know no primary": (
        "correct the name behind the hosts in PRIOQUEUE_REDIS_URL (redis+sentinel://host:port/name/0)"
    ),
    r"no Sentinel answers.*(AuthenticationError|NoPermissionError|\bNOAUTH\b|\bWRONGPASS\b|\bNOPERM\b)": (
        "set what the Sentinels require, and nothing if they require none: sentinel_username and sentinel_password in"
        ' the query of PRIOQUEUE_REDIS_URL, or username and password in PRIOQUEUE_REDIS_OPTIONS["sentinel_kwargs"];'
        f" a user of theirs needs {SENTINEL_RULES}"
    ),
    r"no Sentinel answers.*unknown command": (
        "these are not Sentinels, whose port usually is 26379: name those in PRIOQUEUE_REDIS_URL, or one server with"
        " redis://"
    ),
    r"without any password configured": (
        "the server requires no password: remove it from PRIOQUEUE_REDIS_URL, or from PRIOQUEUE_REDIS_OPTIONS"
    ),
    r"AuthenticationError|\bNOAUTH\b|\bWRONGPASS\b": (
        "set user and password in PRIOQUEUE_REDIS_URL (${here}user:password@host:port, special characters"
        " percent-encoded) or as username and password in PRIOQUEUE_REDIS_OPTIONS"
    ),
    r"no permissions to run the 'cluster\b": (
        f"give the Redis user, on all nodes, what it needs to find the frontier: ACL SETUSER <user> {CLUSTER_RULES}"
    ),
    r"cluster support disabled": "this is no cluster: begin PRIOQUEUE_REDIS_URL with redis:// (rediss:// for TLS)",
    r"NoPermissionError|\bNOPERM\b|ACL failure in script|The user executing the script can't": (
        f"give the Redis user what it needs: ACL SETUSER <user> {ACL_RULES} (and {BLOOM_RULES} if fingerprints are in"
        " filters of RedisBloom)"
    ),
    r"\bWRONGTYPE\b": (
        "another program has written one of the frontier's keys, scrapy frontier doctor names it: rename or delete that"
        " key, or use another PRIOQUEUE_NAME"
    ),
    r"unknown command .?(EVALSHA|SCRIPT|EVAL)\b|Error compiling script": (
        "a frontier needs Lua scripts (EVALSHA, SCRIPT LOAD), which this server, or a proxy in front of it, doesn't"
        " offer: use another server"
    ),
    r"unknown command .?WAIT\b": (
        "the server doesn't say what its replicas have (WAIT): set PRIOQUEUE_WAIT_REPLICAS = 0, and"
        " PRIOQUEUE_JOURNAL_TIME to more than the lag of the replicas"
    ),
    r"unknown command .?BF\.": (
        "fingerprints are stored in filters of RedisBloom (BF.*), which the server no longer has: load that module"
    ),
    r"Unknown (?:Redis )?command called from": (
        "the server lacks a command that the frontier's scripts need. If one was renamed or disabled (rename-command in"
        " redis.conf, RENAME for example), give it its name back. If fingerprints are stored in filters of RedisBloom"
        " (BF.*), load that module again"
    ),
    r"undeclared key|keys that do not hash to the same slot": (
        "this server refuses scripts that use undeclared keys; make it allow them (Dragonfly:"
        " --default_lua_flags=allow-undeclared-keys), or use Redis or Valkey"
    ),
    _TOO_LARGE: (
        "a request exceeds the size limit of the server (proto-max-bulk-len) or of a proxy in front of it: raise that"
        " limit"
    ),
    _NOT_OFFERED: "the server, or a proxy in front of it, lacks a command that a frontier needs: use another server",
    r"DB index is out of range|invalid DB index|SELECT is not allowed": (
        "the server has no such database: correct the number at the end of PRIOQUEUE_REDIS_URL"
    ),
    r"CERTIFICATE_VERIFY_FAILED.*(Hostname|IP address) mismatch": (
        "the server's certificate is for another host name: use one of its names in PRIOQUEUE_REDIS_URL, or disable"
        " this check with ssl_check_hostname=False in PRIOQUEUE_REDIS_OPTIONS"
    ),
    r"CERTIFICATE_VERIFY_FAILED.*(has expired|not yet valid)": (
        "renew the server's certificate, or correct the clock of this machine"
    ),
    r"CERTIFICATE_VERIFY_FAILED": (
        "trust the authority that has signed the server's certificate: set ssl_ca_certs in PRIOQUEUE_REDIS_OPTIONS to"
        " the file of its certificate"
    ),
    r"ALERT_(CERTIFICATE_REQUIRED|HANDSHAKE_FAILURE)": (
        "the server requires a client certificate: set ssl_certfile and ssl_keyfile in PRIOQUEUE_REDIS_OPTIONS"
    ),
    r"ALERT_(UNKNOWN_CA|BAD_CERTIFICATE|CERTIFICATE_\w+|UNSUPPORTED_CERTIFICATE|ACCESS_DENIED)": (
        "the server rejects the client certificate (ssl_certfile in PRIOQUEUE_REDIS_OPTIONS): use a valid one that was"
        " signed by an authority that the server trusts"
    ),
    r"UNSUPPORTED_PROTOCOL|ALERT_PROTOCOL_VERSION|NO_PROTOCOLS_AVAILABLE|NO_CIPHERS_AVAILABLE": (
        "the server and this machine have no TLS version or cipher in common: change ssl_min_version or ssl_ciphers in"
        " PRIOQUEUE_REDIS_OPTIONS, or tls-protocols of the server"
    ),
    r"WRONG_VERSION_NUMBER": "that port doesn't speak TLS: PRIOQUEUE_REDIS_URL must begin with $plain, not $tls",
    r"InvalidResponse|Protocol error": (
        "this is not a Redis server, or it speaks TLS ($tls): correct PRIOQUEUE_REDIS_URL"
    ),
    _MOVED: (
        "this is one node of a Redis Cluster and the hash slot is on another node: begin PRIOQUEUE_REDIS_URL with"
        " $cluster"
    ),
    r"\bDENIED\b": "the server takes no connections from other machines: give it a password",
}
"""What to do about errors that don't pass by themselves, by regular expressions of their names and texts.

Advice may name addresses like the one in use: ``$here`` begins as that does, ``$plain`` without TLS, ``$tls`` with TLS,
``$sentinel`` for Sentinels, ``$cluster`` for a cluster.
"""

PASSING: Mapping[str, str] = {
    _READ_ONLY: "this is a replica: if no failover is under way, name the primary in PRIOQUEUE_REDIS_URL",
    r"MasterDownError|\bMASTERDOWN\b": (
        "this is a replica that has lost its primary: start that, or name the primary in PRIOQUEUE_REDIS_URL"
    ),
    r"BusyLoadingError|\bLOADING\b": "it is loading its data from disk: wait until it is done",
    r"ClusterDownError|\bCLUSTERDOWN\b": "the cluster has no node for the hash slot now",
    _MOVING: "the hash slot is moving, or has moved, to another node of the cluster: try again",
    r"\bBUSY\b": "another script is taking too long: SCRIPT KILL ends it",
    r"\bMISCONF\b": (
        "its disk is full or the last snapshot failed, so it refuses writes: check its log, free disk space and"
        " run BGSAVE"
    ),
    r"\bNOREPLICAS\b": "it refuses writes without more replicas (min-replicas-to-write): start them",
    r"\bError (101|113) connecting|No route to host|Network is unreachable": (
        "there is no way to that address: check it, the network and firewalls"
    ),
    r"^TimeoutError: (no answer within|Timeout )": (
        "raise PRIOQUEUE_REDIS_TIMEOUT, or a timeout in PRIOQUEUE_REDIS_OPTIONS, if the server is that slow"
    ),
    r"max number of clients reached": "it has reached its maxclients: raise that, or stop other clients",
    r"MaxConnectionsError|Too many connections": (
        "all connections of this worker are in use: raise max_connections in PRIOQUEUE_REDIS_OPTIONS"
    ),
}
"""Likewise, of errors that may pass before the next attempt."""

_DISPLACED = re.compile(
    rf"\b(READONLY|MASTERDOWN|LOADING|CLUSTERDOWN)\b|ReadOnly|MasterDown|BusyLoading|ClusterDown|{_MOVING}"
)

_ARGUMENTS = re.compile(
    r",? with args beginning with:.*|Command # \d+ \(.*\) of pipeline caused error: (?=.)", re.DOTALL
)
"""Arguments, which may contain a password or a request: servers quote those of an unknown command, redis-py others."""

_PLACE_IN_SCRIPT = re.compile(r"Error running script \(call to \w+\): (@\w+: ?\d+: )*|,? script: \w+, on @\w+:\d+")
"""Position in a script, which is left out if the reason is known; the first form is that of Redis 6."""


def explained(
    error: BaseException, address: str, *, was_sent: bool = True, has_worked: bool = True
) -> FrontierUnavailable:
    """Return our error for an error of the client or the server, with advice.

    Args:
        address: of the server, for messages.
        was_sent: see `FrontierUnavailable`.
        has_worked: the server was usable before, so its address is right.
    """
    text = in_a_line(without_arguments(_named(error)).rstrip(": ."))
    reason = _PLACE_IN_SCRIPT.sub("", text)
    advice = _advice(LASTING, text, address)
    if advice and not (is_cluster(address) and re.search(_MOVED, text)):
        return FrontierRefused(address, f"{reason}; {advice}", was_sent=was_sent)
    advice = ("" if has_worked else _doubt_of_tls(text, address)) or _advice(PASSING, text, address)
    return FrontierUnavailable(address, f"{reason}; {advice}" if advice else text, was_sent=was_sent)


def without_arguments(text: str) -> str:
    """Return the text of an error without the arguments of the command, which may contain a password."""
    return _ARGUMENTS.sub("", text)


def is_cluster(address: str) -> bool:
    """Return whether an address names nodes of a cluster."""
    return address.partition(":")[0].endswith("+cluster")


def is_forbidden(error: BaseException | None) -> bool:
    """Return whether this user may not use a command, or the server doesn't offer it."""
    return isinstance(error, NoPermissionError) or is_not_offered(error)


def is_not_offered(error: BaseException | None) -> bool:
    """Return whether the server, or a proxy in front of it, doesn't offer a command."""
    return isinstance(error, ResponseError) and re.search(_NOT_OFFERED, str(error)) is not None


class NotAServer(ResponseError):
    """A Sentinel answers in place of a server."""


def refuse_sentinel(info: Mapping[str, Any]) -> None:
    """Refuse a Sentinel in place of a server, by its `INFO`.

    Raises:
        NotAServer: it is one.
    """
    # Valkey says server_mode.
    if "sentinel" in (info.get("redis_mode"), info.get("server_mode")):
        raise NotAServer("this is a Sentinel")


def is_displaced(error: BaseException) -> bool:
    """Return whether a server can't be written to, or not yet, so that another one may be at its address."""
    return _DISPLACED.search(_named(error)) is not None


def is_moved(error: BaseException | None) -> bool:
    """Return whether a node of a cluster refused a key because its hash slot is at another node."""
    return error is not None and re.search(_MOVED, _named(error)) is not None


def is_read_only(error: BaseException) -> bool:
    """Return whether a server refused a write because it is a replica, such as a primary that was demoted."""
    return re.search(_READ_ONLY, _named(error)) is not None


def is_moving(error: BaseException | None) -> bool:
    """Return whether a node of a cluster refused a key whose hash slot is moving, or has moved, to another node."""
    return error is not None and re.search(_MOVING, _named(error)) is not None


def is_too_large(error: object) -> bool:
    """Return whether the server, or a proxy in front of it, refused something as too large."""
    return isinstance(error, ResponseError) and re.search(_TOO_LARGE, str(error)) is not None


def is_cut_off(error: BaseException | None) -> bool:
    """Return whether the other end has closed the connection, as many do if a command is too large."""
    return isinstance(error, (RedisConnectionError, OSError)) and not isinstance(error, TimeoutError)


def is_of_wrong_type(error: BaseException | None) -> bool:
    """Return whether a command was refused because a key has another type than it needs."""
    return "WRONGTYPE" in str(error)


def full(address: str, advice: str = "") -> FrontierFull:
    """Return the error for a write that a server without free memory has refused; its own text says no more."""
    return FrontierFull(f"the server at {address} has reached its maxmemory" + (f": {advice}" if advice else ""))


def lacking_replicas(found: int, wanted: int, what: str) -> str:
    """Return why a write to too few replicas doesn't count.

    Args:
        what: was written, in the plural.
    """
    return (
        f"only {found} of {counted(wanted, 'replica')} (PRIOQUEUE_WAIT_REPLICAS) got the newest {what};"
        " start or repair the replicas, or lower that setting"
    )


def is_full(error: BaseException) -> bool:
    """Return whether a server refused a write for lack of memory; up to Redis 6.2 that is inside a script's error."""
    return type(error).__name__ == "OutOfMemoryError" or re.search(r"\bOOM\b", str(error)) is not None


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _advice(advices: Mapping[str, str], text: str, address: str) -> str:
    advice = next((advice for pattern, advice in advices.items() if re.search(pattern, text)), "")
    return Template(advice).substitute(_beginnings(address))


def _beginnings(address: str) -> Mapping[str, str]:
    """Return how URLs begin that differ from an address in one respect."""
    scheme = address.partition(":")[0]
    kind = scheme.partition("+")[1] + scheme.partition("+")[2]
    secure = "rediss" if scheme.startswith("rediss") else "redis"
    return {
        "here": f"{scheme}://",
        "plain": f"redis{kind}://",
        "tls": f"rediss{kind}://",
        "sentinel": f"{secure}+sentinel://",
        "cluster": f"{secure}+cluster://",
    }


_CUT_OFF = re.compile(r"closed by server|reset by peer|EOF occurred|Broken pipe|Connection lost")


def _doubt_of_tls(text: str, address: str) -> str:
    if address.startswith("rediss"):
        if "Timeout" in text:
            return f"if the server doesn't speak TLS, use {_beginnings(address)['plain']} in PRIOQUEUE_REDIS_URL"
        if _CUT_OFF.search(text):
            return (
                "if the server wants a client certificate, set ssl_certfile and ssl_keyfile in PRIOQUEUE_REDIS_OPTIONS,"
                " to one that was signed by an authority that the server trusts"
            )
    elif not address.startswith("unix") and _CUT_OFF.search(text):
        return f"if the server speaks TLS, use {_beginnings(address)['tls']} in PRIOQUEUE_REDIS_URL"
    return ""
