"""The rights that the documentation names are enough for a whole crawl."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
import redis_server

from scrapy_prioqueue.frontier.redis.troubles import ACL_RULES
from tests.docs.markdown import REFERENCE
from tests.support.crawls import Crawls
from tests.support.servers import RedisServer, StartServer
from tests.support.site import Site
from tests.support.whole_crawl import READING, WholeCrawl

PAGE = (REFERENCE.parent / "redis.md").read_text("utf-8")
USERS = dict(re.findall(r"^ACL SETUSER (\w+) on >password (.*)$", PAGE, re.MULTILINE))
DEFAULT_USER = re.findall(r"^user default .*$", PAGE, re.MULTILINE)
FURTHER_KEYS = re.findall(r"~{?books:[\w{}:*]+", PAGE)


def refusals(admin: Any) -> Sequence[str]:
    """Return what users were not allowed to do."""
    return [f"{entry['username']}: {entry['reason']} {entry['object']}" for entry in admin.acl_log()]


def test_a_whole_crawl_needs_no_more_rights_than_the_documentation_names(
    plain_crawls: Crawls, site: Site, own_server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    admin: Any = own_server.client()
    url, watching = (own_server.url.replace("//", f"//{user}:secret@") for user in ("crawler", "watcher"))
    crawls = plain_crawls.having(PRIOQUEUE_REDIS_URL=url, PRIOQUEUE_FALLBACK="error")
    whole = WholeCrawl(crawls, site, admin, tmp_path, capsys)
    further = [key.replace("books", whole.name) for key in FURTHER_KEYS]
    admin.execute_command("ACL", "SETUSER", "crawler", "on", ">secret", *USERS["crawler"].split(), *further)
    admin.execute_command("ACL", "SETUSER", "watcher", "on", ">secret", *USERS["watcher"].split())

    def watch() -> None:
        for words in READING:
            # It finds out whether this user could be a worker's.
            whole.verb(words, url=watching, code=1 if words == ("doctor",) else 0)
        whole.scrape(url=watching)

    whole.run(watch)

    # `doctor` tries scripts; redis-py sends CLIENT SETINFO, which Redis 6.2 doesn't have and so can't allow.
    expected = re.compile(r"watcher: command (eval|script|script\|load|client)|crawler: command client")
    assert not [refusal for refusal in refusals(admin) if not expected.fullmatch(refusal)]
    refused = whole.verb(("reset", "--all", "--yes"), url=watching, code=3)
    assert "can't be used: NoPermissionError: " in refused and ACL_RULES in refused


def test_rules_of_the_message_are_those_of_the_documentation() -> None:
    assert USERS["crawler"] == ACL_RULES


def test_a_server_whose_default_user_is_off_keeps_what_scripts_have_written(
    redis_server_factory: StartServer, tmp_path: Path
) -> None:
    (line,) = DEFAULT_USER
    users = tmp_path / "users.acl"
    users.write_text("user default on nopass ~* &* +@all\nuser admin on >secret ~* &* +@all\n")
    server = redis_server_factory(appendonly=True, appendfsync="always", aclfile=str(users))
    server.client().eval("redis.call('SET', KEYS[1], 1) redis.call('SET', KEYS[2], 1)", 2, "{x}:1", "{x}:2")
    users.write_text(users.read_text().replace("user default on nopass ~* &* +@all", line))

    server.kill()
    server.start()

    admin = redis.Redis(host=redis_server.HOST, port=server.port, username="admin", password="secret")
    with pytest.raises(redis.AuthenticationError):
        server.client().ping()
    assert admin.exists("{x}:1", "{x}:2") == 2
