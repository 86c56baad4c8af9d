"""The parts of a policy: which of them a worker sets, whose are in force, and the warning if they differ."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from hashlib import blake2b
from itertools import islice
from typing import Any

from scrapy_prioqueue.frontier.policy import Policy, values_of

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
"""Setting of each field of a plain policy."""

PARTS: Mapping[str, Sequence[str]] = {
    "slots": ("slots",),
    "throttle": ("throttle",),
    "crawl_delay": ("awaits_delays",),
    "weights": ("weights",),
    "budgets": ("budgets",),
    "marks": ("high_water", "low_water", "pending_limit", "memory_high_water", "discovery"),
}
"""Fields of a plain policy by part; a worker sets all fields of a part, or none."""

MOST_CHANGES = 5
"""Maximum number of changed values in a warning."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The worker whose value of a part is in force.

    Args:
        digest: of the value, empty for none.
        by: the first worker that set it.
        ms: when it did, on the frontier's clock.
    """

    digest: str
    by: str
    ms: int


NOBODY = Owner("", "", 0)
"""Owner of a part that no worker has set."""


@dataclass(frozen=True, slots=True)
class Change:
    """A changed value.

    Args:
        field: of a plain policy.
        name: of the entry, empty for a field without entries.
        old: JSON, empty for none.
        new: likewise.
    """

    field: str
    name: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """The changes made by a worker that joined with another policy than the one in force.

    Args:
        by: that worker.
        ms: when it joined, on the frontier's clock.
        owners: the previous owners of the parts that it has replaced.
        changes: in these parts, at most `MOST_CHANGES`.
        kept: parts that it doesn't set, so they stay unchanged.
    """

    by: str
    ms: int
    owners: Mapping[str, Owner]
    changes: Sequence[Change] = ()
    kept: Sequence[str] = ()


def plain_policy(policy: Policy) -> dict[str, Any]:
    """Return a policy as JSON data, without empty values."""
    throttle, budgets = policy.throttle, policy.budgets
    found: Mapping[str, Any] = {
        "slots": {name: values_of(limit) for name, limit in policy.slots.items()},
        "budgets": None if budgets is None else {key: values_of(budget) for key, budget in budgets.items()},
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
    return {name: value for name, value in found.items() if value is not None}


def digests_of(policy: Policy) -> Mapping[str, str]:
    """Return a digest of each part that a policy sets, empty for a part without values."""
    plain = plain_policy(policy)
    found = {}
    for part in PARTS.keys() - policy.unset:
        given = {field: plain[field] for field in PARTS[part] if field in plain}
        is_none = not given or given == {"slots": {}}
        found[part] = "" if is_none else blake2b(as_text(given).encode(), digest_size=8).hexdigest()
    return found


def merged(own: Policy, before: Policy, taken: Collection[str], tiers: int) -> Policy:
    """Return a policy with the given parts from a worker's policy, and the others from the previous one.

    Args:
        tiers: number of tiers; weights for another number, from before, are dropped.
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
    """Return the differences between two policies."""
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
    """Return the warning for a worker after it or another one has joined with another policy.

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
        text += f" From now on its settings apply to all workers{_before(change.owners.values())}: {values}."
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
    """Return a time as text for messages."""
    return datetime.fromtimestamp(at_ms / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def take_parts(
    own: Policy, owners: Mapping[str, Owner], worker: str, now_ms: int
) -> tuple[Mapping[str, Owner], Sequence[str], Sequence[str]]:
    """Return the owners of the parts after a worker has joined, the parts it replaced, and those it doesn't set."""
    digests = digests_of(own)
    taken = [part for part, digest in digests.items() if part not in owners or owners[part].digest != digest]
    kept = sorted(part for part, owner in owners.items() if part not in digests and owner.digest)
    return {**owners, **{part: Owner(digests[part], worker, now_ms) for part in taken}}, taken, kept
