"""Key names: one hash tag, a pattern that matches only the frontier's keys, and the keys that each clearing drops."""

from __future__ import annotations

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_prioqueue.frontier.redis.keys import Keys, connection_name

NAMES = st.text(st.characters(exclude_characters="{}", exclude_categories=["Cs"]), min_size=1)


def test_all_keys_share_one_hash_tag() -> None:
    keys = Keys("books")

    found = (keys.state, keys.leased, keys.dead, keys.died, keys.bell)
    assert found == tuple(f"{{prioqueue:books}}:{noun}" for noun in ("state", "leased", "dead", "died", "bell"))


@pytest.mark.parametrize(
    "name, pattern",
    [("books", "{prioqueue:books}:*"), ("a*b?[c]\\", "{prioqueue:a\\*b\\?\\[c\\]\\\\}:*")],
)
def test_pattern_takes_the_name_literally(name: str, pattern: str) -> None:
    assert Keys(name).pattern() == pattern


@pytest.mark.parametrize(
    ("frontier", "who", "name"),
    [
        ("books", "w-1", "prioqueue:books:w-1"),
        ("my büch\ner", "a b", "prioqueue:my_b_ch_er:a_b"),
        ("x" * 500, "w", f"prioqueue:{'x' * 100}:w"),
    ],
)
def test_connections_have_names_that_redis_takes(frontier: str, who: str, name: str) -> None:
    assert connection_name(frontier, who) == name


DROPPED_BY = {
    "state": "",
    "workers": "",
    "busy": "",
    "hungry": "",
    "sessions": "",
    "info": "",
    "stats": "",
    "ended": "all",
    "dead": "all",
    "died": "all",
    "seen:0:17": "all restart",
    "queue:shop.example": "all restart keep",
    "queue:seen": "all restart keep",
    "limits": "",
    "budgets": "",
    "used": "all restart keep",
    "delays": "all restart keep",
    "paced": "all restart keep",
    "closed": "all restart keep",
    "running": "all restart keep",
    "waiting": "all restart keep",
    "passes": "all restart keep",
    "unsorted": "all restart keep",
    "ready": "all restart keep",
    "ready:3": "all restart keep",
    "turns": "all restart keep",
    "leases": "all restart keep",
    "leased": "all restart keep",
    "marks": "all restart keep",
}


@pytest.mark.parametrize("noun, scopes", DROPPED_BY.items())
def test_clearing_drops_what_its_scope_says(noun: str, scopes: str) -> None:
    keys = Keys("books")

    dropped = [
        scope for scope in ("all", "restart", "keep") if keys.is_cleared_by(f"{keys.prefix}{noun}".encode(), scope)
    ]

    assert dropped == scopes.split()


@given(NAMES, st.binary())
def test_queue_of_any_slot_is_cleared(name: str, slot: bytes) -> None:
    keys = Keys(name)

    assert keys.is_cleared_by(keys.prefix.encode() + b"queue:" + slot, "keep")


@given(st.text(st.sampled_from("ab*?:"), min_size=1), st.text(st.sampled_from("ab*?:"), min_size=1))
def test_pattern_of_one_frontier_finds_no_key_of_another(name: str, other: str) -> None:
    # The escapes of Redis, in the spelling of `fnmatch`.
    pattern = Keys(name).pattern().replace("\\*", "[*]").replace("\\?", "[?]")

    assert fnmatch.fnmatchcase(Keys(other).state, pattern) == (name == other)
