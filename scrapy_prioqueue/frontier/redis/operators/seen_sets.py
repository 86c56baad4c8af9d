"""Reads and moves the set of seen fingerprints, for programs that aren't workers; it blocks."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Command, Link
from scrapy_prioqueue.frontier.redis.operators.records import base64_text
from scrapy_prioqueue.frontier.redis.scripts import Argument
from scrapy_prioqueue.frontier.redis.seen.bloom import fills, is_bloom, read_subfilters
from scrapy_prioqueue.frontier.redis.seen.fingerprints import hashed, locations_of, records_of
from scrapy_prioqueue.frontier.redis.seen.shapes import DEFAULT_SHAPE, read_shape
from scrapy_prioqueue.frontier.redis.seen.subfilters import FILTER_TYPE
from scrapy_prioqueue.frontier.redis.wire import pieces

_MEMBERS_PER_RECORD = 500

_KEYS_PER_TRIP = 100
"""Keys per round trip: a few hundred kilobytes, in short commands, between which other clients are served."""


def home_and_shape(link: Link, keys: Keys) -> tuple[Keys, str]:
    """Return the keys of the frontier that stores a frontier's fingerprints, and the shape of that seen set."""
    ((name, shape),) = link.pipe(("HMGET", keys.state, "seen_name", "seen_shape"))
    home = keys if name is None else Keys(name.decode())
    (shared,) = link.pipe(("HGET", home.state, "seen_shape"))
    return home, (shared or shape or DEFAULT_SHAPE.encode()).decode()


def identity_of(link: Link, keys: Keys) -> str:
    """Return whose fingerprints tell its requests apart: one of `IDENTITIES`, empty for those of its own project."""
    (found,) = link.at(keys.state).pipe(("HGET", keys.state, "identity"))
    return "" if found is None else str(found.decode())


def seen_until(link: Link, keys: Keys, fingerprint: bytes) -> float | None:
    """Return the Unix time in seconds at which a fingerprint is new again, None if it was never seen.

    The time may be in the past, or infinite. In a Bloom filter another fingerprint may be the cause.
    """
    (home, shape), digest = home_and_shape(link, keys), hashed(fingerprint)
    if is_bloom(shape):
        return float("inf") if _is_in_bloom(link, home, shape, digest) else None
    (moved,) = link.pipe(("HGET", home.state, "seen_moved"))
    locations = locations_of(read_shape(shape), digest, int(moved or 0))
    found = link.pipe(*(location.command(home) for location in locations))
    untils = [location.until(reply) for location, reply in zip(locations, found, strict=True)]
    return next((until for until in untils if until is not None), None)


def _is_in_bloom(link: Link, home: Keys, shape: str, digest: bytes) -> bool:
    (count,) = link.pipe(("HGET", home.state, "seen"))
    subfilters = (subfilter for subfilter, _ in fills(read_subfilters(shape), int(count or 0)))
    return any(all(link.pipe(*subfilter.lookups(home, level, digest))) for level, subfilter in enumerate(subfilters))


def exported(link: Link, keys: Keys) -> Iterator[dict[str, Any]]:
    """Yield the fingerprints that a frontier itself stores, as records of an export."""
    names = chain.from_iterable(link.scan(keys.pattern()[:-1] + "seen:*"))
    for part in pieces(names, _KEYS_PER_TRIP):
        yield from _records(link, keys, part)


def _records(link: Link, keys: Keys, names: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the records of some keys; the first pieces of all are read in one round trip."""
    kinds = [kind.decode() for kind in link.pipe(*(("TYPE", name) for name in names))]
    answers = link.pipe(*(_piece(kind, name) for kind, name in zip(kinds, names, strict=True)))
    for kind, name, answer in zip(kinds, names, answers, strict=True):
        bucket = name.decode().removeprefix(keys.of("seen") + ":")
        if kind == "hash":
            fields = {field.decode(): base64_text(value) for field, value in answer.items()}
            yield {"kind": "packed", "bucket": bucket, "fields": fields}
        elif kind == "string":
            yield {"kind": "bits", "bucket": bucket, "value": base64_text(answer)}
        elif kind == FILTER_TYPE:
            while answer[0]:
                cursor, value = answer
                yield {"kind": "filter", "bucket": bucket, "cursor": cursor, "value": base64_text(value)}
                (answer,) = link.pipe(_piece(kind, name, cursor))
        elif kind == "set":
            yield from _members(link, name, bucket, *answer)


def _piece(kind: str, name: bytes, cursor: int = 0) -> Command:
    """Return the command that reads a key, or the piece at a cursor."""
    if kind == "hash":
        return ("HGETALL", name)
    if kind == "string":
        return ("GET", name)
    if kind == FILTER_TYPE:
        return ("BF.SCANDUMP", name, cursor)
    return ("SSCAN", name, cursor, "COUNT", _MEMBERS_PER_RECORD)


def _members(link: Link, name: bytes, bucket: str, cursor: int, found: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    while True:
        if found:
            yield {"kind": "seen", "bucket": bucket, "members": [int(member) for member in found]}
        if not int(cursor):
            return
        ((cursor, found),) = link.pipe(_piece("set", name, cursor))


def restored(record: Mapping[str, Any], shape_text: str) -> Iterator[Sequence[Argument]]:
    """Yield the items of such a record for `restore`."""
    bucket = record["bucket"]
    if record["kind"] == "seen":
        yield from (("S", bucket, member) for member in record["members"])
    elif record["kind"] == "bits":
        yield ("B", bucket, b64decode(record["value"]))
    elif record["kind"] == "filter":
        yield ("F", bucket, record["cursor"], b64decode(record["value"]))
    else:
        shape = read_shape(shape_text)
        level = shape.levels[int(bucket.partition(":")[0])]
        for field, text in record["fields"].items():
            value = b64decode(text)
            yield ("R", bucket, field, value, sum(1 for _ in records_of(shape, level, value)))
