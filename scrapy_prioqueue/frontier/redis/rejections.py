"""Messages for operators when a worker may not join a frontier, or a program not push to it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from redis.crc import key_slot

from scrapy_prioqueue.errors import CrawlEnded, LayoutMismatch, NotPermitted, PrioQueueError
from scrapy_prioqueue.frontier.base import FrontierConfig
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.wire import decoded
from scrapy_prioqueue.hints import evict_command, frontier_command
from scrapy_prioqueue.printable import counted

CLEAR, WAIT, ENDED, ALIVE, UNFINISHED, LAYOUT, TIERS, SHAPE = range(10, 18)
IMPORTING, OVER, POLICY, ELSEWHERE = 19, 20, 21, 22
"""Codes with which `join` rejects or delays a worker, and `open` a program."""

BY_OTHERS = (ALIVE, UNFINISHED, TIERS, SHAPE)
"""Rejections whose cause may be other living workers."""


def rejection_of(config: FrontierConfig, reply: Sequence[Any], *, layout: str) -> PrioQueueError:
    """Return why a worker may not join, from the reply of `join`."""
    name = config.name
    code, details = reply[0], reply[1:]
    if code == ENDED:
        return CrawlEnded(f"crawl {config.crawl_id!r} of frontier {name!r} has ended")
    if code == ALIVE:
        names = ", ".join(sorted(other.decode() for other in details[0]))
        return NotPermitted(
            f"PRIOQUEUE_FLUSH_ON_START: frontier {name!r} has other living workers ({names}). Stop them first,"
            f" or wait {config.lease_ttl_s:g} s (PRIOQUEUE_LEASE_TTL) if they were killed"
        )
    if code == UNFINISHED:
        return NotPermitted(_unfinished(name, config.crawl_id, details))
    if code == LAYOUT:
        return LayoutMismatch(
            f"frontier {name!r} was written with layout version {details[0].decode()}, this release writes"
            f" {layout}: use another PRIOQUEUE_NAME, or PRIOQUEUE_FLUSH_ON_START to delete what it holds"
        )
    if code == TIERS:
        return LayoutMismatch(_other_tiers(config, details))
    if code == SHAPE:
        return LayoutMismatch(_other_shape(config, details))
    if code == IMPORTING:
        return cut_short(name, details[0])
    if code == ELSEWHERE:
        return NotPermitted(
            f"PRIOQUEUE_SEEN_NAME, or SCHEDULER_DUPEFILTER_KEY, is {config.seen_name!r}, but frontier {name!r} stores"
            f" {counted(details[0], 'fingerprint')} of a moved crawl itself: remove the setting until this crawl has"
            " ended"
        )
    if code == OVER:
        return CrawlEnded(f"the crawl of frontier {name!r} is over")
    return PrioQueueError(f"frontier {name!r} answered with the unknown code {code}")


def cut_short(name: str, client: bytes) -> NotPermitted:
    """Return the error for a frontier that was only partly imported.

    Args:
        client: id of the program that imported, which begins with its verb.
    """
    verb = decoded(client).partition(":")[0]
    return NotPermitted(
        f"an import into frontier {name!r} was interrupted, so only a part of it exists: repeat it"
        f" (scrapy frontier {verb}), or delete that part ({frontier_command('reset --all', name)})"
    )


def other_layout(name: str, found: bytes, *, layout: str) -> LayoutMismatch:
    """Return the error for a frontier with another layout."""
    return LayoutMismatch(
        f"frontier {name!r} was written with layout version {found.decode()}, this release writes {layout}:"
        " use the release that wrote it"
    )


_TIMES = {"0": "without times", "1": "with times in the format of an earlier version, which this one can't read"}


def _other_shape(config: FrontierConfig, details: Sequence[Any]) -> str:
    home, (found, seen, others) = config.seen_name or config.name, details
    mode, has_times, *_ = found.decode().split()
    if mode != config.seen.mode:
        what, keeps = f"PRIOQUEUE_SEEN = {config.seen.mode!r}", f"{mode!r}"
    else:
        what = f"PRIOQUEUE_REVISIT_AFTER = {config.seen.revisit_s}"
        keeps = _TIMES.get(has_times, "with the times at which they are new again")
    if config.seen_name is not None:
        # Workers of other frontiers may share the fingerprints, so those of this one are not listed.
        others = ()
    names = sorted(decoded(other) for other in others)
    if seen or not names:
        why = f"frontier {home!r} stores its fingerprints {keeps}"
    else:
        why = f"frontier {home!r} has no fingerprints, but its living workers store them {keeps}"
    advice = [f"stop the workers that are alive ({', '.join(names)})"] if names else []
    if seen or not names:
        advice.append(f"forget the fingerprints ({frontier_command('reset --seen', home)})")
    name = "PRIOQUEUE_SEEN_NAME" if config.seen_name else "PRIOQUEUE_NAME"
    text = f"{what}: {why}: set that back, or {' and '.join(advice)}, or use another {name}"
    if names:
        text += (
            f"; a worker that was killed counts as alive for {config.lease_ttl_s:g} s (PRIOQUEUE_LEASE_TTL), or until"
            f" it is evicted ({evict_command(names[0], config.name)})"
        )
    return text


def _other_tiers(config: FrontierConfig, details: Sequence[Any]) -> str:
    tiers, pending, leased, others = details
    if pending + leased:
        what = f"holds {pending} pending and {counted(leased, 'leased request')} in"
    else:
        names = ", ".join(sorted(other.decode() for other in others))
        what = f"has other living workers ({names}) with"
    return (
        f"PRIOQUEUE_TIERS: frontier {config.name!r} {what} the tiers {tiers.decode()}, not"
        f" {json.dumps(list(config.tiers))}: finish that crawl with its own tiers, or use another PRIOQUEUE_NAME, or"
        " PRIOQUEUE_FLUSH_ON_START to drop what it holds"
    )


def _unfinished(name: str, crawl_id: str | None, details: Sequence[Any]) -> str:
    found = details[0].decode()
    held = f"the unfinished crawl {found!r}" if found else "an unfinished crawl without an id"
    finish = f"finish it with PRIOQUEUE_CRAWL_ID = {found!r}" if found else "finish it without PRIOQUEUE_CRAWL_ID"
    return (
        f"PRIOQUEUE_CRAWL_ID = {crawl_id!r}: frontier {name!r} holds {held}"
        f" ({details[1]} pending, {details[2]} leased): {finish},"
        " or use another PRIOQUEUE_NAME, or PRIOQUEUE_FLUSH_ON_START to drop what it holds"
    )


def refuse_other_hash_slot(name: str, seen_name: str | None) -> None:
    """Refuse fingerprints on another node of a cluster, since no script can use keys of two nodes.

    Raises:
        NotPermitted: the two names have different hash slots.
    """
    if seen_name is None or key_slot(Keys(name).state.encode()) == key_slot(Keys(seen_name).state.encode()):
        return
    raise NotPermitted(
        f"PRIOQUEUE_SEEN_NAME, or SCHEDULER_DUPEFILTER_KEY, is {seen_name!r}, whose hash slot in the cluster is another"
        f" one than that of frontier {name!r}, and a script can't use both. Unset it, or keep these frontiers on a"
        " server that is no cluster"
    )
