"""Labels: budget keys in front of a payload, for a frontier that can't decode payloads.

A labelled payload is ``0x02``, two bytes with the length of the label (big-endian), the label, and the payload.
The label is a MessagePack array: whether the request is rendered, then its budget keys.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import msgpack

LABELLED = 0x02
"""First byte of a labelled payload; see the format byte in docs/reference/payload.md."""

_HEAD = struct.Struct(">BH")


class Label(NamedTuple):
    """The content of a label.

    Args:
        is_rendered: fetched by a browser.
        keys: budgets that the request must fit, from narrow to wide.
    """

    is_rendered: bool
    keys: Sequence[str]


def labelled(payload: bytes, label: Label) -> bytes:
    """Return a payload with a label in front.

    Raises:
        ValueError: the keys are longer than 65,000 bytes in all.
    """
    packed: bytes = msgpack.packb([label.is_rendered, *label.keys])
    if len(packed) > 0xFFFF:
        raise ValueError("the budget keys of a request are longer than 65,000 bytes in all")
    return _HEAD.pack(LABELLED, len(packed)) + packed + payload


def label_of(payload: bytes) -> Label | None:
    """Return the label of a payload, None if it has none or an unreadable one."""
    if payload[:1] != bytes((LABELLED,)):
        return None
    try:
        return _unpacked(payload[_HEAD.size : _end_of_label(payload)])
    except Exception:  # anyone may have written the bytes: the payload of an unreadable seed is the seed itself
        return None


@lru_cache(maxsize=1000)
def _unpacked(packed: bytes) -> Label | None:
    """Return a label; cached, since many requests share one and each is read several times."""
    is_rendered, *keys = msgpack.unpackb(packed)
    return Label(bool(is_rendered), keys) if all(isinstance(key, str) for key in keys) else None


def unlabelled(payload: bytes) -> bytes:
    """Return a payload without its label."""
    is_labelled = payload[:1] == bytes((LABELLED,)) and len(payload) >= _HEAD.size
    return payload[_end_of_label(payload) :] if is_labelled else payload


def _end_of_label(payload: bytes) -> int:
    return int(_HEAD.size + _HEAD.unpack_from(payload)[1])
