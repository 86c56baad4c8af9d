"""A `credential_provider` in the options: tokens that expire, as those of managed services do."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from redis.credentials import CredentialProvider

from scrapy_prioqueue import FrontierClient
from scrapy_prioqueue.errors import SettingError
from scrapy_prioqueue.frontier import open_frontier
from scrapy_prioqueue.frontier.base import Demand, FrontierConfig
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.settings.table import SETTINGS
from tests.docs.markdown import DOCS, python_blocks
from tests.support.coroutines import run
from tests.support.servers import RedisServer

pytestmark = pytest.mark.any_server


class Tokens(CredentialProvider):
    """Each token is valid until there is another one."""

    def __init__(self, server: RedisServer) -> None:
        self._client: Any = server.client()
        self._numbers = count()

    def get_credentials(self) -> tuple[str, str]:
        token = f"token-{next(self._numbers)}"
        rules = ("on", "resetpass", f">{token}", "~*", "&*", "+@all")
        self._client.execute_command("ACL", "SETUSER", "crawler", "reset", *rules)
        return "crawler", token

    async def get_credentials_async(self) -> tuple[str, str]:
        return self.get_credentials()

    def end_all(self) -> None:
        """Close the connections of all tokens, as a service does some hours after a login."""
        self._client.execute_command("CLIENT", "KILL", "USER", "crawler")


def test_documented_tokens_connect_without_warnings(own_server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """The example in docs/managed.md, on the server of this test."""
    (example,) = python_blocks(DOCS / "managed.md", "Tokens that expire")
    tokens = Tokens(own_server)
    names: dict[str, Any] = {"new_token": lambda: tokens.get_credentials()[1]}
    exec(example, names)
    options = names["PRIOQUEUE_REDIS_OPTIONS"]

    assert Link(own_server.url, options=options).info("server")
    connection = Connection(own_server.url, options=options)
    run(connection.open())
    run(connection.close())

    assert "backward compatibility" not in caplog.text


def test_each_connection_gets_a_token_of_its_own(own_server: RedisServer, frontier_name: str) -> None:
    tokens = Tokens(own_server)
    options = {"credential_provider": tokens}
    config = FrontierConfig(frontier_name, SETTINGS["PRIOQUEUE_TIERS"].default, "w1")
    frontier = open_frontier(config, own_server.url, timeout_s=5, options=options)
    with FrontierClient(own_server.url, frontier_name, options=options) as client:
        run(frontier.join())

        for number in range(1, 4):
            tokens.end_all()
            assert client.push(f"https://a.example/{number}")
            assert run(frontier.exchange((), Demand(0))).depth.accepted == number
            twin = frontier.twin()
            assert run(twin.leases()) == []
            run(twin.close())
    run(frontier.leave())
    run(frontier.close())


def test_a_password_beside_tokens_is_an_error_of_the_settings(own_server: RedisServer) -> None:
    url = own_server.url.replace("//", "//crawler:secret@")
    options = {"credential_provider": Tokens(own_server)}

    with pytest.raises(SettingError, match="credential_provider"):
        Link(url, options=options).info()
    frontier = open_frontier(FrontierConfig("x", ("a",), "w1"), url, timeout_s=5, options=options)
    with pytest.raises(SettingError, match="credential_provider"):
        run(frontier.join())
