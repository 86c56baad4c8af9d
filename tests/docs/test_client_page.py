"""The example on the page about the client runs, with only the server and the name changed."""

from __future__ import annotations

import re

import pytest

from tests.docs.markdown import REPOSITORY
from tests.support.servers import RedisServer


def test_example_of_the_client_runs(
    redis_server: RedisServer, frontier_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs/client.md").read_text("utf-8"), re.DOTALL)
    block = block.replace("redis://127.0.0.1:6379/0", redis_server.url).replace('"books"', repr(frontier_name))

    exec(block, {})

    assert capsys.readouterr().out == "1000 new, 0 seen before\n1001 wait for a worker\n"
