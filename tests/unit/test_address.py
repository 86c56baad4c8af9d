"""Addresses in messages name the server, but show no password."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_prioqueue.address import Address, address_of, parse_address


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
        (
            "redis+sentinel://u:secret@a:1,[::1]:2/books/0?sentinel_password=secret",
            "redis+sentinel://a:1,[::1]:2/books/0",
        ),
        ("rediss+cluster://:secret@a,b:7001", "rediss+cluster://a,b:7001"),
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


def test_a_server_is_at_one_address() -> None:
    assert parse_address("redis://user:pw@[::1]/2") == Address("server", "redis://user:pw@[::1]/2", [("::1", 6379)])


def test_sentinels_know_the_primary_by_its_name() -> None:
    found = parse_address("redis+sentinel://user:p%40w@a,[::1]:2,c:3/books/4?health_check_interval=9")

    assert found.kind == "sentinel"
    assert found.hosts == [("a", 26379), ("::1", 2), ("c", 3)]
    assert found.primary == "books"
    assert found.url == "redis://user:p%40w@a:26379/4?health_check_interval=9"


def test_the_database_of_a_primary_may_be_left_out() -> None:
    assert parse_address("rediss+sentinel://a/books").url == "rediss://a:26379/0?"


def test_the_login_of_sentinels_is_apart_from_that_of_the_server() -> None:
    url = "redis+sentinel://:server@a/books?sentinel_username=watcher&sentinel_password=p%2Bw&db=1"

    found = parse_address(url)

    assert found.sentinel_login == {"username": "watcher", "password": "p+w"}
    assert found.url == "redis://:server@a:26379/0?db=1"


@pytest.mark.parametrize("path", ["", "/", "/0"])
def test_nodes_of_a_cluster_have_one_database(path: str) -> None:
    found = parse_address(f"rediss+cluster://a,b:7001{path}")

    assert (found.kind, found.hosts, found.url) == ("cluster", [("a", 6379), ("b", 7001)], "rediss://a:6379/0?")


def test_no_secret_is_in_what_is_shown_of_an_address() -> None:
    assert "secret" not in repr(parse_address("redis+sentinel://:secret@a/books?sentinel_password=secret"))


@pytest.mark.parametrize(
    "url, wrong",
    [
        ("redis+sentinel://a:1,b:2/", "must end with the name of the primary"),
        ("redis+sentinel://a:1,b:2/0", "must end with the name of the primary"),
        ("redis+sentinel://a:1,b:2/books/one", "must end with the name of the primary"),
        ("redis+cluster://a:1,b:2/1", "must not name a database but 0"),
        ("redis+cluster://a:1?sentinel_password=secret", "is not an address of Sentinels"),
        ("redis://a:1,b:2/0", "has several hosts"),
        ("redis://a:1/books", "must end with the number of a database"),
        ("redis://::1:6379/0", "IPv6 address without brackets"),
        ("redis://a:1;b:2", "must have commas"),
        ("redis+sentinel://a:1 b:2/books", "must have commas"),
        ("redis+sentinel://a:1,/books", "has an empty host"),
        ("redis+sentinel://a:1,:2/books", "has an empty host"),
        ("redis+sentinel://:sec@/books", "must have a host"),
        ("redis+sentinel:///books", "must have a host"),
        ("redis+cluster://", "must have a host"),
        ("redis+cluster://,a:1", "has an empty host"),
        ("redis+cluster://:sec@a:1,b:x", r"must have a host and a port .* \(this part is wrong: 'b:x'\)$"),
        ("redis+cluster://a:1,b:x,c", r"must have a host and a port .* \(this part is wrong: 'b:x'\)$"),
        ("redis+sentinel://:sec@a:1,::1:2/books", r"without brackets: .* \(this part is wrong: '::1:2'\)$"),
        ("redis+sentinel://a:1,b:0/books", r"from 1 to 65535 \(this part is wrong: 'b:0'\)$"),
        ("redis://:sec@a:0", r"from 1 to 65535 \(this part is wrong: 'a:0'\)$"),
        ("redis://user:sec", "percent-encoded$"),
        ("redis://user:a@sec#ret@a:1", "must be percent-encoded"),
        ("redis+cluster://user:a@sec:x,b/ret@a:1", "percent-encoded$"),
        ("redis+cluster://user:sec,x#ret@a:1", "must be percent-encoded"),
        ("redis+cluster://a;b", "must have commas"),
        ("redis://:sec/ret@a:1/0", "must be percent-encoded"),
        ("redis://:sec#ret@a:1/0", "must be percent-encoded"),
        ("redis://a:65536", "must have a port from 1 to 65535"),
        ("redis+cluster://a:1,b:0", "must have a port from 1 to 65535"),
        ("redis://a:b", "must have a host and a port"),
        ("unix://", "must have the path of the socket"),
        ("unix://run/redis.sock", "must have the path of the socket"),
        ("rediss+unix:///run/redis.sock", "must be a URL that begins with"),
        ("a:1", "must be a URL that begins with"),
    ],
)
def test_an_error_says_what_is_wrong_with_an_address_and_shows_no_secret(url: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong) as raised:
        parse_address(url)

    assert "sec" not in str(raised.value)
