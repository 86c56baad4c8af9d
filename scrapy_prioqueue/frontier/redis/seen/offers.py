"""What a server offers for the fingerprints of a crawl: how much it keeps in compact form, and filters of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Command, Link
from scrapy_prioqueue.frontier.redis.seen.shapes import USUAL, Limits, limits_of
from scrapy_prioqueue.frontier.redis.troubles import BLOOM_RULES, is_forbidden, is_full
from scrapy_prioqueue.frontier.seen import Mode

NO_FILTERS = (
    "what was seen is kept by commands of RedisBloom (BF.*), which this server lacks, or this Redis user may not use:"
    f" load that module (Redis 8 has it), and give the user {BLOOM_RULES}"
)
"""Why a frontier can't be used."""


@dataclass(frozen=True, slots=True)
class Offers:
    """What was found.

    Args:
        limits: up to where values are kept in compact form; what the server doesn't say is as in a new one.
        has_filters: RedisBloom's commands are there, and the user may use them; not asked for where they aren't needed.
    """

    limits: Limits = USUAL
    has_filters: bool = False


def offers_by(link: Link, keys: Keys) -> Offers:
    """Ask what the server offers to a Bloom filter, for programs that are no workers; it blocks."""
    return offers_of(link.attempt(*offer_questions(keys, "bloom")))


def offer_questions(keys: Keys, mode: Mode) -> Sequence[Command]:
    """Return commands whose answers show what a server offers to a frontier that remembers what was seen in that mode.

    They change nothing, since that key is never there.
    """
    limits, probe = ("CONFIG GET", "*-max-*"), keys.of("probe")
    if mode != "bloom":
        return [limits]
    return [
        limits,
        ("BF.EXISTS", probe, ""),
        ("BF.INSERT", probe, "NOCREATE", "ITEMS", ""),
        ("BF.RESERVE", probe, "no rate", 1),
        # Modules that have only the commands above can't be exported from.
        ("BF.SCANDUMP", probe, 0),
        ("BF.LOADCHUNK", probe, "no cursor", ""),
    ]


def offers_of(answers: Sequence[Any]) -> Offers:
    """Return what the answers to `offer_questions` show."""
    config, *of_filters = answers
    limits = USUAL if isinstance(config, ResponseError) else limits_of(config_texts(config))
    return Offers(limits, bool(of_filters) and all(map(_is_had, of_filters)))


def _is_had(answer: Any) -> bool:
    """Tell whether a command is there and may be used, by its answer, which may be what is wrong with its arguments."""
    return not isinstance(answer, ResponseError) or not (is_forbidden(answer) or is_full(answer))


def config_texts(config: Mapping[str | bytes, str | bytes]) -> Mapping[str, str]:
    """Return what `CONFIG GET` has answered, as text, with the names as they are in ``redis.conf``."""
    return {_text(name).lower(): _text(value) for name, value in config.items()}


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
