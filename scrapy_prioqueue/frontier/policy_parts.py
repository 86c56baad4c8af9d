"""The parts of a policy: which of them a worker sets, whose are in force, and what it is told where they differ."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from hashlib import blake2b
from itertools import islice
from typing import Any

from scrapy_prioqueue.frontier.policy import Policy

SETTINGS: Mapping[str, str] = {
    "slots": "PRIOQUEUE_SLOTS",
    "throttle": "PRIOQUEUE_AUTOTHROTTLE",
    "awaits_delays": "PRIOQUEUE_ROBOTSTXT_CRAWL_DELAY",
    "weights": "PRIOQUEUE_TIER_WEIGHTS",
    "budgets": "PRIOQUEUE_BUDGETS",
    "high_water": "PRIOQUEUE_HIGH_WATER",
    "low_water": "PRIOQUEUE_LOW_WATER",
    "pending_limit": "PRIOQUEUE_PENDING_LIMIT",
    "memory_high_water": "PRIOQUEUE_MEMORY_HIGH_WATER",
    "discovery": "PRIOQUEUE_DISCOVERY_TIERS",
}
"""The setting that each field of a plain policy comes from."""

PARTS: Mapping[str, Sequence[str]] = {
    "slots": ("slots",),
    "throttle": ("throttle",),
    "crawl_delay": ("awaits_delays",),
    "weights": ("weights",),
    "budgets": ("budgets",),
    "marks": ("high_water", "low_water", "pending_limit", "memory_high_water", "discovery"),
}
"""Fields of a plain policy by part; a worker sets a part as a whole, or not at all."""

MOST_CHANGES = 5
"""Values that a worker is told of."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose word a part of the policy in force is.

    Args:
        digest: of what it says, empty for nothing.
        by: the worker that has brought it first.
        ms: when that was, by the frontier's clock.
    """

    digest: str
    by: str
    ms: int


NOBODY = Owner("", "", 0)
"""Whose a part is that no worker has set."""


@dataclass(frozen=True, slots=True)
class Change:
    """A value that is another one than before.

    Args:
        field: of a plain policy.
        name: of the entry, empty where there is only one.
        old: JSON, empty for none.
        new: likewise.
    """

    field: str
    name: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """A worker has joined whose policy isn't the one in force.

    Args:
        by: that worker.
        ms: when, by the frontier's clock.
        owners: whose the parts were until then of which its own are in force now.
        changes: of these parts, not more than `MOST_CHANGES`.
        kept: parts that it doesn't set, so they stay as they are.
    """

    by: str
    ms: int
    owners: Mapping[str, Owner]
    changes: Sequence[Change] = ()
    kept: Sequence[str] = ()


def plain_policy(policy: Policy) -> dict[str, Any]:
    """Return a policy as JSON may hold it, without what says nothing."""
    throttle, budgets = policy.throttle, policy.budgets
    found: Mapping[str, Any] = {
        "slots": {
            name: _said({"delay": limit.delay_s, "concurrency": limit.concurrency, "burst": limit.burst})
            for name, limit in policy.slots.items()
        },
        "budgets": None if budgets is None else {key: _said(asdict(budget)) for key, budget in budgets.items()},
        "awaits_delays": 1 if policy.awaits_crawl_delay else None,
        "high_water": policy.high_water or None,
        "low_water": policy.low_water if policy.high_water else None,
        "pending_limit": policy.pending_limit or None,
        "memory_high_water": policy.memory_high_water or None,
        "weights": list(policy.weights) or None,
        "discovery": list(policy.discovery) or None,
        "throttle": throttle
        and {
            "start_delay": throttle.start_delay_s,
            "max_delay": throttle.max_delay_s,
            "target_concurrency": throttle.target_concurrency,
        },
    }
    return _said(found)


def _said(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what says nothing."""
    return {name: value for name, value in fields.items() if value is not None}


def digests_of(policy: Policy) -> Mapping[str, str]:
    """Return what each part that a policy sets is known by, empty for one that says nothing."""
    plain = plain_policy(policy)
    found = {}
    for part in PARTS.keys() - policy.unset:
        said = {field: plain[field] for field in PARTS[part] if field in plain}
        is_none = not said or said == {"slots": {}}
        found[part] = "" if is_none else blake2b(as_text(said).encode(), digest_size=8).hexdigest()
    return found


def merged(own: Policy, before: Policy, taken: Collection[str], tiers: int) -> Policy:
    """Return a policy of which these parts are those of a worker, and the others as before.

    Args:
        tiers: how many there are now; weights for another number, which were there before, count for nothing.
    """
    fields: dict[str, Any] = {}
    for part, names in _FIELDS.items():
        source = own if part in taken else before
        fields |= {name: getattr(source, name) for name in names}
    if "weights" not in taken and len(fields["weights"]) != tiers:
        fields["weights"] = ()
    return replace(own, **fields)


_FIELDS: Mapping[str, Sequence[str]] = {
    **PARTS,
    "crawl_delay": ("awaits_crawl_delay",),
}
"""Fields of a policy by part."""


def changes_of(before: Policy, after: Policy) -> Sequence[Change]:
    """Return in what a policy is another one than before."""
    old, new = plain_policy(before), plain_policy(after)
    return list(islice(_changes(old, new), MOST_CHANGES))


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for field in SETTINGS:
        was, now = old.get(field), new.get(field)
        if was == now:
            continue
        if field not in ("slots", "budgets"):
            yield Change(field, "", as_text(was), as_text(now))
            continue
        was, now = was or {}, now or {}
        for name in sorted({*was, *now}):
            if was.get(name) != now.get(name):
                yield Change(field, name, as_text(was.get(name)), as_text(now.get(name)))


def as_text(value: Any) -> str:
    """Return a value as JSON, empty for none."""
    return "" if value is None else json.dumps(value, sort_keys=True)


def policy_warning(change: PolicyChange, worker: str, name: str) -> str:
    """Return what a worker is to be warned of, since it or another one has joined with another policy.

    Args:
        name: of the frontier.
    """
    who = "This worker" if change.by == worker else f"Worker {change.by}"
    text = f"{who} has joined frontier {name!r} with other limits, budgets, weights or water marks than those in force."
    changed = {each.field for each in change.changes}
    taken = [field for part in PARTS if part in change.owners for field in PARTS[part]]
    fields = [field for field in taken if field in changed or not changed]
    if change.owners:
        values = "; ".join(map(_change_text, change.changes)) or ", ".join(SETTINGS[field] for field in fields)
        text += f" From now on its own count for all workers{_before(change.owners.values())}: {values}."
    missing = [PARTS[part][0] for part in PARTS if part in change.kept]
    if missing:
        text += f" It doesn't set {', '.join(SETTINGS[field] for field in missing)}, so what is in force stays."
    return f"{text} Give all workers the same {', '.join(SETTINGS[field] for field in (*fields, *missing))}"


def _before(owners: Iterable[Owner]) -> str:
    known = sorted({f"{owner.by} ({moment(owner.ms)})" for owner in owners if owner.by})
    return f", in place of what {', '.join(known)} has brought" if known else ""


def _change_text(change: Change) -> str:
    entry = f"[{change.name!r}]" if change.name else ""
    return f"{SETTINGS[change.field]}{entry} is {_shown(change.new)}, was {_shown(change.old)}"


def _shown(text: str) -> str:
    return json.dumps(json.loads(text), sort_keys=True) if text else "none"


def moment(at_ms: int) -> str:
    """Return a time for people."""
    return datetime.fromtimestamp(at_ms / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def take_parts(
    own: Policy, owners: Mapping[str, Owner], worker: str, now_ms: int
) -> tuple[Mapping[str, Owner], Sequence[str], Sequence[str]]:
    """Return whose the parts in force are once a worker has joined, which are new, and which it doesn't set."""
    digests = digests_of(own)
    taken = [part for part, digest in digests.items() if part not in owners or owners[part].digest != digest]
    kept = sorted(part for part, owner in owners.items() if part not in digests and owner.digest)
    return {**owners, **{part: Owner(digests[part], worker, now_ms) for part in taken}}, taken, kept
