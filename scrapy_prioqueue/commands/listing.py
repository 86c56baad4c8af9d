"""How verbs show requests: as rows of a table, as a sheet of one request, or as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from scrapy_prioqueue.codec.plain import PlainRequest, plain_or_none
from scrapy_prioqueue.commands.output import Cell, FittedTable, fields_of, moment, name_text, number, pairs, spelled
from scrapy_prioqueue.frontier.labels import label_of
from scrapy_prioqueue.frontier.redis.operators.findings import Status, Stored
from scrapy_prioqueue.frontier.redis.operators.inspector import tier_name
from scrapy_prioqueue.printable import clean, counted
from scrapy_prioqueue.rank import priority_of

UNREADABLE = "(the payload can't be read)"

_OPTIONAL = (
    *("errback", "meta", "cb_kwargs", "headers", "cookies", "body", "flags", "dont_filter", "request_class"),
    *("attributes", "others", "unknown"),
)

_TIMES = {"leased": "leased until", "delayed": "due", "dead": "died"}


def url_of(stored: Stored) -> str:
    """Return a request's URL, or `UNREADABLE`."""
    plain = plain_or_none(stored.payload, stored.slot)
    return plain.url if plain else UNREADABLE


def dead_text(status: Status) -> str:
    """Return how many requests were given up, and how many of their dead letters are kept."""
    kept = f", {number(status.own_letters)} of them kept" if status.counts["dead_dropped"] else ""
    earlier = f"; {number(status.earlier_letters)} more kept from earlier crawls" if status.earlier_letters else ""
    return f"{number(status.counts['dead'])}{kept}{earlier}"


def request_documents(requests: Iterable[Stored], tiers: Sequence[str]) -> list[dict[str, Any]]:
    """Return `request_document()` of each request."""
    return [request_document(stored, tiers) for stored in requests]


def request_document(stored: Stored, tiers: Sequence[str]) -> dict[str, Any]:
    """Return all fields of a request for JSON, decoded; the raw payload only if it can't be decoded."""
    known = fields_of(stored)
    payload = known.pop("payload")
    known |= {"tier": tier_name(tiers, stored.rank), "priority": priority_of(stored.rank)}
    known["budgets"] = _budgets(stored)
    plain = plain_or_none(stored.payload, stored.slot)
    known["request"] = plain
    if plain is None:
        known["payload_hex"] = payload.hex()
    return known


def request_table(requests: Iterable[Stored], tiers: Sequence[str], *, with_state: bool = False) -> RenderableType:
    """Return a table of requests."""
    found = list(requests)
    with_holder = any(stored.state == "leased" for stored in found)
    rows: list[Sequence[Cell]] = [
        (
            stored.state + (" (suspect)" if stored.is_suspect else "") if with_state else number,
            tier_name(tiers, stored.rank),
            str(priority_of(stored.rank)),
            str(stored.lease_id),
            url_of(stored),
            *([_holder(stored)] if with_holder else []),
        )
        for number, stored in enumerate(found, 1)
    ]
    columns = ["where" if with_state else "#>", "tier", "prio>", "id>", "URL", *(["held by"] if with_holder else [])]
    return FittedTable(columns, rows, cut=("URL",), below=("held by", "URL"))


def _holder(stored: Stored) -> str:
    return f"{stored.worker} until {moment(stored.at_ms)}" if stored.state == "leased" else ""


def request_sheet(stored: Stored, tiers: Sequence[str]) -> RenderableType:
    """Return all fields of a request, one per line, for people."""
    plain = plain_or_none(stored.payload, stored.slot)
    facts: list[tuple[str, Cell]] = [("id", str(stored.lease_id)), ("is", _state_text(stored))]
    if stored.state in _TIMES:
        facts.append((_TIMES[stored.state], moment(stored.at_ms)))
    facts += [
        ("tier", tier_name(tiers, stored.rank)),
        ("priority", str(priority_of(stored.rank))),
        ("slot", stored.slot),
        ("attempts", str(stored.attempts)),
        *((name, text) for name, text in _optional_facts(stored) if text),
        *(_request_facts(plain) if plain else [("payload", f"{UNREADABLE} {stored.payload[:200]!r}")]),
    ]
    parts: list[RenderableType] = [pairs(facts)]
    if stored.traceback:
        parts += ["", Text(clean(stored.traceback))]
    return Group(*parts)


def _budgets(stored: Stored) -> Sequence[str]:
    label = label_of(stored.payload)
    return label.keys if label else ()


def suspects_text(count: int) -> str:
    """Return where pending suspects are: 1 suspect, kept apart from its slot."""
    return f"{counted(count, 'suspect')}, kept apart from {'its slot' if count == 1 else 'their slots'}"


def _state_text(stored: Stored) -> str:
    if stored.is_suspect:
        return "pending, apart from its slot: it has lost workers"
    return stored.state


def _optional_facts(stored: Stored) -> Iterable[tuple[str, str]]:
    return (
        ("worker", stored.worker),
        ("reason", stored.reason),
        ("detail", stored.detail),
        ("lost by", stored.lost_by),
        ("crawl", stored.epoch),
        ("budgets", ", ".join(map(name_text, _budgets(stored)))),
    )


def _request_facts(plain: PlainRequest) -> list[tuple[str, Cell]]:
    facts: list[tuple[str, Cell]] = [("URL", plain.url), ("method", plain.method)]
    facts.append(("callback", plain.callback or "parse"))
    if plain.source:
        facts.append(("found on", plain.source))
    if plain.found_s:
        facts.append(("found at", moment(plain.found_s * 1000)))
    return [*facts, *optional_fields(plain)]


def optional_fields(plain: PlainRequest) -> Iterator[tuple[str, str]]:
    """Yield the other fields of a request that differ from their defaults, as text."""
    for name in _OPTIONAL:
        value = getattr(plain, name)
        if value:
            yield "request class" if name == "request_class" else name, _shown(value)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{_text(name)}: {_text(item)}" for name, item in value.items())
    return _text(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else spelled(value)
