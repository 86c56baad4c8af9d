"""Runs `scrapy frontier` in this process, as Scrapy does, on a frontier with workers."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from scrapy.cmdline import ScrapyArgumentParser
from scrapy.commands import ScrapyHelpFormatter
from scrapy.exceptions import UsageError
from scrapy.settings import Settings

from scrapy_prioqueue.commands.frontier import FrontierCommand
from tests.support.servers import RedisServer

PROGRAM = (
    "from scrapy.cmdline import execute; from scrapy.settings import Settings;"
    " execute(settings=Settings({'COMMANDS_MODULE': 'scrapy_prioqueue.commands'}))"
)
"""Scrapy's command line without a project; the entry point needs an installed package, a module of commands doesn't."""


@dataclass(frozen=True)
class Ran:
    """What a run of the command has left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The document printed."""
        return json.loads(self.out)


Run = Callable[..., Ran]


@pytest.fixture
def run(redis_server: RedisServer, frontier_name: str, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `scrapy frontier` with these arguments on this test's frontier: `run("status", "--json")`."""

    def run_on(*args: str, settings: dict[str, Any] | None = None, columns: int = 0) -> Ran:
        chosen = {"PRIOQUEUE_NAME": frontier_name, "PRIOQUEUE_REDIS_URL": redis_server.url, **(settings or {})}
        with pytest.MonkeyPatch.context() as patch:
            if columns:
                patch.setenv("COLUMNS", str(columns))
            else:
                patch.delenv("COLUMNS", raising=False)
            code = run_command(args, Settings(chosen))
        return Ran(code, *capsys.readouterr())

    return run_on


def run_command(args: tuple[str, ...], settings: Settings) -> int:
    """Do what Scrapy's command line does for a command, without ending the process."""
    command = FrontierCommand()
    settings.setdict(command.default_settings, priority="command")
    command.settings = settings
    parser = ScrapyArgumentParser(formatter_class=ScrapyHelpFormatter, conflict_handler="resolve")
    command.add_options(parser)
    options: Namespace
    try:
        options, rest = parser.parse_known_args(list(args))
        command.process_options(rest, options)
    except UsageError as error:
        print(error)
        return 2
    except SystemExit as ended:
        return int(ended.code or 0)
    command.run(rest, options)
    return command.exitcode
