"""Finds problems of a server, with remedies; nothing is changed here."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from redis.crc import key_slot

from scrapy_prioqueue.errors import FrontierRefused, FrontierUnavailable
from scrapy_prioqueue.frontier.redis.checks import evicts
from scrapy_prioqueue.frontier.redis.connection import OLDEST_VERSION, parse_version
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.locating import SentinelLocator, SentinelView
from scrapy_prioqueue.frontier.redis.scripts import FIRST_VERSION_WITH_FLAGS
from scrapy_prioqueue.frontier.redis.seen.offers import config_texts
from scrapy_prioqueue.frontier.redis.seen.shapes import (
    FIELD_BYTES,
    FIELDS_PER_HASH,
    NAMES_OF_LIMITS,
    USUAL,
    EncodingLimits,
    limits_of,
)
from scrapy_prioqueue.frontier.redis.servers import VALKEY, is_node_of_cluster, version_text
from scrapy_prioqueue.frontier.redis.troubles import ACL_RULES, NotAServer, refuse_sentinel

Severity = Literal["fine", "note", "warning", "wrong"]

SEVERITIES: Sequence[Severity] = ("fine", "note", "warning", "wrong")

PINGS = 20
SLOW_PING_S = 0.1
CLOCK_TOLERANCE_S = 5
NEARLY_FULL = 0.8

NO_EVICTION = "noeviction"
"""The policy with which a full server refuses writes that need memory."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check.

    Args:
        topic: what was checked, in a word or two.
        severity: fine, note (good to know), warning (it will cause trouble later), wrong (fix it).
        text: what was found.
        remedy: what to do, empty if nothing is to be done.
    """

    topic: str
    severity: Severity
    text: str
    remedy: str = ""


def server_findings(link: Link, probe: str) -> Iterator[Finding]:
    """Check the server.

    Args:
        probe: a key of the frontier that never exists.

    Raises:
        FrontierUnavailable: it can't be used at all.
    """
    info = link.info()
    _refuse_sentinel(link, info)
    yield _latency(link)
    if link.sentinels is not None:
        yield from _sentinels(link, link.sentinels)
    yield from _permission(link, probe)
    if info is None:
        yield Finding(
            "server",
            "warning",
            "its version, memory policy and persistence are unknown, since it refuses INFO: this user may not use it,"
            " or the service has disabled it",
            f"if it is this user, grant +info and +config|get, as in: {ACL_RULES}",
        )
        return
    yield _version(info)
    yield from _role(info)
    yield from _cluster(link, info, key_slot(probe.encode()))
    yield from _memory(info)
    yield from _persistence(link, info)
    yield from _clock(link)
    yield from _compact_limits(link)


def _refuse_sentinel(link: Link, info: Mapping[str, Any] | None) -> None:
    try:
        refuse_sentinel(info or {})
    except NotAServer as error:
        link.refuse([error])


def _latency(link: Link) -> Finding:
    link.ask(lambda client: client.ping())
    times = []
    for _ in range(PINGS):
        begun = time.perf_counter()
        link.ask(lambda client: client.ping())
        times.append(time.perf_counter() - begun)
    middle = median(times)
    text = f"a round trip takes {middle * 1000:.1f} ms, {max(times) * 1000:.1f} ms at most of {PINGS}"
    if middle > SLOW_PING_S:
        return Finding("connection", "warning", text, "move workers and server closer together")
    return Finding("connection", "fine", f"{link.address}: {text}")


_PROBING = "redis.call('TIME') return redis.call('EXISTS', KEYS[1] .. '-undeclared')"
"""Does what some servers refuse to scripts, with one declared key as all scripts of a frontier."""


def _permission(link: Link, probe: str) -> Iterator[Finding]:
    try:
        digest = link.ask(lambda client: client.script_load(_PROBING))
        link.ask(lambda client: client.evalsha(digest, 1, probe))
    except FrontierRefused as error:
        yield Finding("scripts", "wrong", error.why, "allow Lua scripts, which every frontier needs")


def _config(link: Link, pattern: str) -> Mapping[str, str]:
    """Return settings of the server, none if they can't be read."""
    try:
        return config_texts(link.ask(lambda client: client.config_get(pattern)))
    except FrontierUnavailable:
        return {}


def _version(info: dict[str, Any]) -> Finding:
    text, version = version_text(info), parse_version(str(info.get("redis_version", "")))
    if not version:
        return Finding("version", "note", "the server doesn't say its version", "make sure that it is 6.2 or later")
    name = text if text.startswith(VALKEY) else f"Redis {text}"
    if version < OLDEST_VERSION:
        wanted = ".".join(map(str, OLDEST_VERSION))
        return Finding("version", "wrong", name, f"{wanted} or later is needed")
    if version < FIRST_VERSION_WITH_FLAGS:
        return Finding(
            "version",
            "note",
            name,
            "with 7.0 or later more operations work while the server's memory is full",
        )
    return Finding("version", "fine", name)


def _role(info: dict[str, Any]) -> Iterator[Finding]:
    if info.get("role") == "slave":
        primary = f"{info.get('master_host')}:{info.get('master_port')}"
        yield Finding("role", "wrong", f"a replica of {primary}", "name the primary in PRIOQUEUE_REDIS_URL")
    if info.get("loading"):
        yield Finding("role", "warning", "it is still loading its data from disk", "wait until it is done")


def _cluster(link: Link, info: dict[str, Any], slot: int) -> Iterator[Finding]:
    """Check where in a cluster the frontier's hash slot is."""
    if not is_node_of_cluster(info):
        return
    if not link.in_cluster:
        text = f"a node of a cluster, named as a server of its own: if hash slot {slot} moves, workers don't find it"
        yield Finding("cluster", "warning", text, "begin PRIOQUEUE_REDIS_URL with redis+cluster://")
        return
    text, replicas = f"hash slot {slot} is on {link.place()}", int(info.get("connected_slaves", 0))
    if replicas:
        yield Finding("cluster", "fine", f"{text}, replicas: {replicas}")
    else:
        yield Finding("cluster", "warning", f"{text}, which has no replica", "add one: nobody else can take its place")


def _sentinels(link: Link, sentinels: SentinelLocator) -> Iterator[Finding]:
    """Check what the Sentinels in the URL say, and whether they can replace the primary."""
    views, errors = sentinels.views()
    for (name, port), error in errors.items():
        remedy = "start it, or leave it out of PRIOQUEUE_REDIS_URL"
        yield Finding("sentinels", "warning", f"{name}:{port} can't be asked: {error}", remedy)
    places = {f"{name}:{port}" for name, port in (view.host for view in views.values())}
    if len(places) > 1:
        text = f"they name several primaries {sentinels.primary!r}: {', '.join(sorted(places))}"
        remedy = f"if no failover is under way: SENTINEL RESET {sentinels.primary}, at those that are mistaken"
        yield Finding("sentinels", "wrong", text, remedy)
        return
    for view in sorted(views.values(), key=lambda view: view.sentinels)[:1]:
        yield from _failover(view, f"{len(views)} of {len(sentinels.hosts)} name {places.pop()}")
    if _config(link, "min-replicas-to-write").get("min-replicas-to-write") == "0":
        text = "min-replicas-to-write is 0: a primary that is cut off from the Sentinels takes writes, and loses them"
        remedy = "CONFIG SET min-replicas-to-write 1, and in redis.conf, on the replicas, too"
        yield Finding("sentinels", "note", text, remedy)


def _failover(view: SentinelView, text: str) -> Iterator[Finding]:
    text += (
        f"; Sentinels: {view.sentinels}, quorum: {view.quorum}, replicas: {view.replicas}, failover after"
        f" {view.down_after_s:g} s"
    )
    if not view.replicas:
        yield Finding("sentinels", "warning", text, "add a replica: without one nothing can be promoted")
    elif view.sentinels - 1 < max(view.quorum, view.sentinels // 2 + 1):
        yield Finding("sentinels", "warning", text, "add Sentinels: if one of them fails, there is no failover")
    else:
        yield Finding("sentinels", "fine", text)


def _memory(info: dict[str, Any]) -> Iterator[Finding]:
    policy, limit = str(info.get("maxmemory_policy", NO_EVICTION)), int(info.get("maxmemory", 0))
    used = int(info.get("used_memory", 0))
    if not evicts(policy):
        yield Finding("memory policy", "fine", policy)
    else:
        yield Finding(
            "memory policy",
            "wrong",
            f"{policy}: when its memory is full, the server deletes requests and fingerprints",
            "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf",
        )
    if not limit:
        yield Finding("memory", "note", f"{used:,} bytes used, no maxmemory", "set one below the memory of the machine")
        return
    text = f"{used:,} of {limit:,} bytes used: {used / limit:.0%}"
    remedy = "raise maxmemory, or drain the crawl, which drops new links: scrapy frontier drain"
    # Buffers for replicas and the append-only file don't count.
    if policy == NO_EVICTION and used - int(info.get("mem_not_counted_for_evict", 0)) > limit:
        yield Finding("memory", "wrong", f"{text}, so the server refuses new requests", remedy)
    elif used > NEARLY_FULL * limit:
        yield Finding("memory", "warning", text, remedy)
    else:
        yield Finding("memory", "fine", text)


def _persistence(link: Link, info: dict[str, Any]) -> Iterator[Finding]:
    if "aof_enabled" not in info:
        yield Finding("persistence", "note", "the server doesn't say it", "make sure that the server keeps its data")
    elif int(info["aof_enabled"]):
        if info.get("aof_last_write_status", "ok") != "ok":
            yield Finding("persistence", "wrong", "the last write of the append-only file failed", "free disk space")
        else:
            yield Finding("persistence", "fine", "append-only file")
    elif (save := _config(link, "save").get("save")) is None:
        yield Finding(
            "persistence", "note", "no append-only file; snapshots unknown", "make sure that the server keeps its data"
        )
    elif save.strip():
        text = "snapshots only: a crash loses writes since the last one, and workers restore only recent ones"
        yield Finding("persistence", "note", text, "CONFIG SET appendonly yes, and in redis.conf")
    else:
        text = "nothing is stored on disk: if the server stops, the whole frontier is lost"
        yield Finding("persistence", "warning", text, "CONFIG SET appendonly yes, and in redis.conf")
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        yield Finding("persistence", "wrong", "the last snapshot failed", "check the server's log, free disk space")


def _clock(link: Link) -> Iterator[Finding]:
    begun = time.time()
    try:
        seconds, micros = link.ask(lambda client: client.time())
    except FrontierRefused:
        # Scripts can't use it either, which was found before.
        return
    ahead_s = int(seconds) + int(micros) / 1e6 - (begun + time.time()) / 2
    if abs(ahead_s) <= CLOCK_TOLERANCE_S:
        yield Finding("clock", "fine", f"{abs(ahead_s):.1f} s from this machine's")
        return
    direction = "ahead of" if ahead_s > 0 else "behind"
    text = f"{abs(ahead_s):,.0f} s {direction} this machine's; prioqueue_not_before uses the server's"
    yield Finding("clock", "note", text, "synchronise both with NTP")


def _compact_limits(link: Link) -> Iterator[Finding]:
    """Check that hashes and sets of fingerprints keep their compact encodings."""
    config = _config(link, "*-max-*")
    limits = limits_of(config)
    least = zip(limits, EncodingLimits(FIELDS_PER_HASH, FIELD_BYTES, USUAL.integers), NAMES_OF_LIMITS, strict=True)
    for value, wanted, names in least:
        if value < wanted:
            name = next(name for name in names if name in config)
            text = f"{name} is {value}: fingerprints take up to 14 times more memory"
            yield Finding("seen sets", "warning", text, f"CONFIG SET {name} {wanted}, and in redis.conf")


def worst(findings: Sequence[Finding]) -> Severity:
    """Return the worst severity."""
    return max((finding.severity for finding in findings), key=SEVERITIES.index, default="fine")
