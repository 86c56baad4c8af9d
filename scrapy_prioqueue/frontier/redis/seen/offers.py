"""Features of a server for the set of seen fingerprints: limits of compact encodings, and Bloom filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Command, Link
from scrapy_prioqueue.frontier.redis.seen.shapes import USUAL, EncodingLimits, limits_of
from scrapy_prioqueue.frontier.redis.troubles import BLOOM_RULES, is_forbidden, is_full
from scrapy_prioqueue.frontier.seen import Mode

NO_FILTERS = (
    "what was seen is kept by commands of RedisBloom (BF.*), which this server lacks, or this Redis user may not use:"
    f" load that module (Redis 8 has it), and give the user {BLOOM_RULES}"
)
"""Why a frontier can't be used."""


@dataclass(frozen=True, slots=True)
class Offers:
    """The features of a server.

    Args:
        limits: of compact encodings; unknown ones have Redis's defaults.
        has_filters: the user may use RedisBloom's commands; only checked if they are needed.
    """

    limits: EncodingLimits = USUAL
    has_filters: bool = False


def offers_by(link: Link, keys: Keys) -> Offers:
    """Read a server's features for a Bloom filter, for programs that aren't workers; it blocks."""
    return offers_of(link.attempt(*offer_questions(keys, "bloom")))


def offer_questions(keys: Keys, mode: Mode) -> Sequence[Command]:
    """Return commands whose replies show the features that a frontier with this mode needs.

    They change nothing, since their key never exists.
    """
    limits, probe = ("CONFIG GET", "*-max-*"), keys.of("probe")
    if mode != "bloom":
        return [limits]
    return [
        limits,
        ("BF.EXISTS", probe, ""),
        ("BF.INSERT", probe, "NOCREATE", "ITEMS", ""),
        ("BF.RESERVE", probe, "no rate", 1),
        # Modules that have only the commands above don't support exports.
        ("BF.SCANDUMP", probe, 0),
        ("BF.LOADCHUNK", probe, "no cursor", ""),
    ]


def offers_of(answers: Sequence[Any]) -> Offers:
    """Return a server's features from the replies to `offer_questions`."""
    config, *of_filters = answers
    limits = USUAL if isinstance(config, ResponseError) else limits_of(config_texts(config))
    return Offers(limits, bool(of_filters) and all(map(_is_had, of_filters)))


def _is_had(answer: Any) -> bool:
    """Return whether a command exists and is permitted; an error about its arguments counts as yes."""
    return not isinstance(answer, ResponseError) or not (is_forbidden(answer) or is_full(answer))


def config_texts(config: Mapping[str, str]) -> Mapping[str, str]:
    """Return the reply to `CONFIG GET` with names as in ``redis.conf``."""
    return {name.lower(): value for name, value in config.items()}
