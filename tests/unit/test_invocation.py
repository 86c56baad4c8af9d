"""Which command of Scrapy a process runs, and whether the command crawls."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
from scrapy import cmdline, crawler
from scrapy.commands import ScrapyCommand, crawl, shell
from scrapy.settings import Settings

from scrapy_prioqueue.invocation import Invocation, running_command

CRAWLS = ("crawl", "runspider")


class _Recorder(ScrapyCommand):
    requires_crawler_process = False

    def short_desc(self) -> str:
        return "Notes what is seen of it"

    def run(self, args: list[str], opts: Any) -> None:
        found = [running_command()]
        thread = threading.Thread(target=lambda: found.append(running_command()))
        thread.start()
        thread.join()
        self.seen = found


class _CrawlAll(crawl.Command):
    pass


def test_a_command_is_found_from_any_thread_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    command = _Recorder()
    monkeypatch.setattr(cmdline, "_get_commands_dict", lambda *_: {"look": command})
    monkeypatch.setattr(sys, "argv", ["pytest", "crawl"])
    # It would set the levels of all loggers, for the tests that come after this one, too.
    monkeypatch.setattr(crawler, "configure_logging", lambda *_: None)

    with pytest.raises(SystemExit):
        cmdline.execute(["scrapy", "look"], Settings())

    assert command.seen == [Invocation("look", command)] * 2
    assert running_command() is None


@pytest.mark.parametrize(
    "name, command, does_crawl, is_scrapys",
    [
        ("crawl", crawl.Command(), True, True),
        ("crawlall", _CrawlAll(), True, False),
        ("shell", shell.Command(), False, True),
        ("look", _Recorder(), False, False),
        ("runspider", _Recorder(), True, False),
    ],
)
def test_commands_that_crawl(name: str, command: ScrapyCommand, does_crawl: bool, is_scrapys: bool) -> None:
    invocation = Invocation(name, command)

    assert invocation.crawls(CRAWLS, "shop.commands") is does_crawl
    assert invocation.is_scrapys is is_scrapys


class _LookAgain(shell.Command):
    pass


@pytest.mark.parametrize(
    "kind, module, does_crawl",
    [
        (_Recorder, "shop.commands.crawlall", True),
        (_Recorder, "shop.commands", True),
        (_Recorder, "shop.commands_of_others", False),
        (_LookAgain, "shop.commands.look", False),
    ],
)
def test_commands_of_the_project_crawl_unless_they_are_subclasses_of_others(
    monkeypatch: pytest.MonkeyPatch, kind: type[ScrapyCommand], module: str, does_crawl: bool
) -> None:
    monkeypatch.setattr(kind, "__module__", module)

    assert Invocation("look", kind()).crawls(CRAWLS, "shop.commands") is does_crawl
    assert not Invocation("look", kind()).crawls(CRAWLS)
