"""The life of a request: where it was found, what has happened to it, and what it waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scrapy import Request

from scrapy_prioqueue.codec.plain import PlainRequest, plain_or_none
from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.explain import READ_LIMIT, Reason, reasons, situation_of
from scrapy_prioqueue.commands.listing import UNREADABLE, optional_fields
from scrapy_prioqueue.commands.output import moment, number
from scrapy_prioqueue.frontier.redis.operators.findings import State, Stored
from scrapy_prioqueue.frontier.redis.operators.inspector import tier_name
from scrapy_prioqueue.printable import how_often
from scrapy_prioqueue.rank import priority_of

MOST_TEXT = 20_000
"""Maximum number of characters of a value that are shown."""


@dataclass(frozen=True, slots=True)
class Step:
    """An event in the life of a request.

    Args:
        title: what happened.
        at_ms: when, 0 if unknown.
        kind: past, now or next.
    """

    title: str
    text: str = ""
    at_ms: int = 0
    kind: str = "past"


@dataclass(frozen=True, slots=True)
class Life:
    """A stored request.

    Args:
        url: `UNREADABLE` if its payload is.
        steps: in order.
        traceback: of a dead letter; empty if there is none.
    """

    id: int
    state: str
    url: str
    steps: Sequence[Step]
    facts: Sequence[tuple[str, str]]
    traceback: str


@dataclass(frozen=True, slots=True)
class Found:
    """What is known about a URL or an id.

    Args:
        url: the URL that was asked for; empty if an id was.
        reasons: why it is not being fetched now.
        lives: its requests in the frontier.
    """

    url: str
    reasons: Sequence[Reason]
    lives: Sequence[Life]


def found_by_url(context: Context, url: str) -> Found | None:
    """Return what is known about a URL, None if there is no such frontier.

    Raises:
        ValueError: it is not a URL.
    """
    request = Request(url)
    state = context.inspector.state()
    if state is None:
        return None
    situation = situation_of(context, state, request)
    return Found(request.url, reasons(situation), [life_of(stored, state) for stored in situation.found])


def found_by_id(context: Context, lease_id: int) -> Found | None:
    """Return the request with that id, None if there is no such frontier.

    If very many requests wait, only those in progress and dead letters are searched.
    """
    inspector = context.inspector
    state = inspector.state()
    if state is None:
        return None
    stored = inspector.requests.by_id(lease_id, searches=inspector.requests.count(("pending", "delayed")) <= READ_LIMIT)
    return Found("", (), [life_of(stored, state)] if stored else [])


def life_of(stored: Stored, state: State) -> Life:
    """Return the life of a stored request."""
    plain = plain_or_none(stored.payload, stored.slot)
    facts = [
        ("Tier", tier_name(state.tiers, stored.rank)),
        ("Priority", number(priority_of(stored.rank))),
        ("Slot", stored.slot),
        *(_facts(plain) if plain else [("Payload", f"{UNREADABLE} {stored.payload[:200]!r}")]),
    ]
    url = plain.url if plain else UNREADABLE
    return Life(stored.lease_id, stored.state, url, list(_steps(stored, plain)), facts, stored.traceback)


def _steps(stored: Stored, plain: PlainRequest | None) -> Sequence[Step]:
    steps = [_found(plain)] if plain else []
    carried: Mapping[Any, Any] = plain.meta if plain else {}
    redirects = carried.get("redirect_urls")
    if isinstance(redirects, (list, tuple)) and redirects:
        steps.append(Step(f"Redirected {how_often(len(redirects))}", " → ".join(map(str, redirects))))
    retries = carried.get("retry_times")
    if isinstance(retries, int) and retries:
        steps.append(Step(f"Tried again {how_often(retries)}", str(carried.get("retry_reason", ""))))
    earlier = stored.attempts - (stored.state in ("leased", "dead"))
    if earlier > 0:
        text = "Its worker was lost each time, gave it back or was stopped."
        steps.append(Step(f"Handed out {how_often(earlier)} before", text))
    if stored.lost_by:
        steps.append(Step("Lost with workers", stored.lost_by))
    return [*steps, *_now(stored)]


def _found(plain: PlainRequest) -> Step:
    at_ms = int(plain.found_s * 1000) if plain.found_s else 0
    return Step("Found", f"on {plain.source}" if plain.source else "by start(), a seed or a push", at_ms)


def _now(stored: Stored) -> Sequence[Step]:
    if stored.state == "leased":
        text = f"attempt {stored.attempts}; unless it is renewed, the lease ends at {moment(stored.at_ms)}"
        return [Step(f"In progress at {stored.worker}", text, kind="now")]
    if stored.state == "delayed":
        return [
            Step("Delayed", "by a retry, or by the spider", kind="now"),
            Step("Due", "then it waits for its turn", stored.at_ms, "next"),
        ]
    if stored.state == "dead":
        return [Step(f"Given up: {stored.reason}", stored.detail, stored.at_ms, "now")]
    text = "apart from its slot, since it has lost workers" if stored.is_suspect else f"in slot {stored.slot}"
    return [Step("Waits for its turn", text, kind="now")]


def _facts(plain: PlainRequest) -> Sequence[tuple[str, str]]:
    fields = ((name, text[:MOST_TEXT]) for name, text in optional_fields(plain))
    return [("Method", plain.method), ("Callback", plain.callback or "parse"), *fields]
