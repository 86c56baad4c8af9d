"""Puts unreadable seeds back into their keys; it blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scrapy_prioqueue.frontier.redis.link import Command, Link
from scrapy_prioqueue.frontier.redis.operators.findings import Stored


def put_back(link: Link, letters: Sequence[tuple[str, Stored]]) -> list[Any]:
    """Put entries back, to be read again; return the server's reply to each, an exception if it was refused.

    Args:
        letters: dead letters, each after the key that it came from.
    """
    keys = list({key: None for key, _ in letters})
    kinds = dict(zip(keys, link.pipe(*(("TYPE", key) for key in keys)), strict=True))
    return link.attempt(*(_command(key, kinds[key], letter.payload) for key, letter in letters))


def _command(key: str, kind: bytes, payload: bytes) -> Command:
    if kind == b"zset":
        return ("ZADD", key, 0, payload)
    return ("SADD" if kind == b"set" else "LPUSH", key, payload)
