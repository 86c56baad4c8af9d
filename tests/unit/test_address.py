"""Addresses in messages name the server, but show no password."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_prioqueue.address import address_of


@pytest.mark.parametrize(
    "url, shown",
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("redis://user:secret@cache.example:6380/2", "redis://cache.example:6380/2"),
        ("rediss://:secret@cache.example", "rediss://cache.example"),
        ("redis://:sec@ret@cache.example/1", "redis://cache.example/1"),
        ("redis://cache.example/0?password=secret&socket_timeout=1", "redis://cache.example/0"),
        ("redis://cache.example/0#secret", "redis://cache.example/0"),
        ("redis://u:secret@[::1]:6379/0", "redis://[::1]:6379/0"),
        ("unix:///run/redis/redis.sock?db=1&password=secret", "unix:///run/redis/redis.sock"),
        ("unix://user:secret@/run/redis.sock", "unix:///run/redis.sock"),
    ],
)
def test_address_is_shown_without_user_password_and_query(url: str, shown: str) -> None:
    assert address_of(url) == shown


letters = st.text(st.characters(codec="ascii", exclude_characters="/?#[]\\", exclude_categories=["C", "Z"]), min_size=1)


@given(letters, letters)
def test_text_before_the_last_at_sign_is_not_shown(user: str, password: str) -> None:
    assert address_of(f"redis://{user}:{password}@cache.example:1/0") == "redis://cache.example:1/0"


def test_an_invalid_url_raises_a_value_error() -> None:
    with pytest.raises(ValueError):
        address_of("redis://[cache.example")
