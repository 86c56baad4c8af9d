"""Commands of Scrapy that don't crawl leave a shared crawl alone; those that crawl join it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import dedent

import pytest

from tests.support import scrapy_command
from tests.support.crawls import WITHIN_S
from tests.support.forks import StartFork
from tests.support.servers import RedisServer
from tests.support.site import Site, leaves, moved

REPOSITORY = Path(__file__).resolve().parents[2]

SETTINGS = """
    SCHEDULER = "scrapy_prioqueue.Scheduler"
    SPIDER_MODULES = ["shop_spiders"]
    COMMANDS_MODULE = "shop_commands"
    TELNETCONSOLE_ENABLED = False
    REMOTE_CONTROL_ENABLED = False
    PRIOQUEUE_REDIS_URL = {url!r}
    PRIOQUEUE_FLUSH_ON_START = True
    PRIOQUEUE_MAX_IDLE = -1
    PRIOQUEUE_SEEDS_KEY = "seeds"
    JOBDIR = {job_dir!r}
"""

SPIDER = """
    import scrapy

    class Shop(scrapy.Spider):
        name = "shop"
        start_urls = [{start!r}]

        def parse(self, response):
            '''
            @url {start}
            @returns items 0 0
            @returns requests 1
            '''
            yield response.follow("/next", self.parse_next)

        def parse_next(self, response):
            yield {{"page": response.url, "tier": response.meta["prioqueue"]["tier"]}}
"""

VISIT = """
    from scrapy.commands import ScrapyCommand

    class Command(ScrapyCommand):
        requires_project = True

        def short_desc(self):
            return "Crawl the shop"

        def run(self, args, opts):
            self.crawler_process.crawl("shop")
            self.crawler_process.start()
"""

FROM_A_PACKAGE = """
import sys
from unittest.mock import patch

from scrapy import cmdline
from shop_commands import visit

visit.Command.__module__ = "package.commands.visit"
with patch("scrapy.cmdline._get_commands_dict", lambda *_: {"visit": visit.Command()}):
    cmdline.execute(["scrapy", "visit", *sys.argv[1:]])
"""

RunCommand = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def job_dir(tmp_path: Path, site: Site) -> Path:
    """What a crawl without a server has left: the page that `start_urls` names counts as seen."""
    directory = tmp_path / "job"
    directory.mkdir()
    (directory / "requests.seen").write_text("seen before\n")
    return directory


@pytest.fixture
def run_command(tmp_path: Path, site: Site, own_server: RedisServer, job_dir: Path) -> RunCommand:
    """Runs Python in a project with a spider and a command of its own."""
    site.pages = {"/moved": moved("/"), **leaves("/", "/next")}
    files = {
        "scrapy.cfg": "[settings]\ndefault = shop_settings\n",
        "shop_settings.py": SETTINGS.format(url=own_server.url, job_dir=str(job_dir)),
        "shop_spiders.py": SPIDER.format(start=site.url("/")),
        "shop_commands/__init__.py": "",
        "shop_commands/visit.py": VISIT,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(dedent(text))

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={"PYTHONPATH": str(REPOSITORY), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )

    return run


def test_commands_that_do_not_crawl_leave_redis_and_the_job_directory_alone(
    run_command: RunCommand, site: Site, own_server: RedisServer, job_dir: Path
) -> None:
    client = own_server.client()
    client.rpush("seeds", site.url("/seed"))
    connections = client.info("stats")["total_connections_received"]
    next_page = site.url("/next")
    fetches = f"fetch({site.url('/moved')!r}, redirect=False), response.status, fetch(scrapy.Request({next_page!r}))"

    checked = run_command("-m", "scrapy", "check")
    parsed = run_command("-m", "scrapy.cmdline", "parse", "--spider=shop", "--depth=2", site.url("/"))
    shell = run_command(
        *("-m", "scrapy", "shell", "--no-redirect", "-c"),
        f"[response.status, {fetches}, response.url]",
        site.url("/moved"),
    )
    visit = run_command("-c", FROM_A_PACKAGE)

    for done in (checked, parsed, shell, visit):
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
    assert "\nOK" in checked.stderr
    assert "scrapy parse works alone, in memory" in parsed.stderr
    assert f"'page': '{next_page}', 'tier': 'normal'" in parsed.stdout
    assert shell.stdout.strip() == f"[302, None, 302, None, {next_page!r}]"
    assert "add its name to PRIOQUEUE_CRAWL_COMMANDS" in visit.stderr
    assert not site.count("/seed")
    assert client.info("stats")["total_connections_received"] == connections
    assert (job_dir / "requests.seen").read_text() == "seen before\n"
    assert not (job_dir / "requests.queue").exists()


@pytest.mark.parametrize(
    "arguments", [("-m", "scrapy", "visit"), ("-c", FROM_A_PACKAGE, "-s", "PRIOQUEUE_CRAWL_COMMANDS=visit")]
)
def test_commands_of_the_project_take_part_and_named_ones_of_packages(
    run_command: RunCommand, own_server: RedisServer, arguments: Sequence[str]
) -> None:
    done = run_command(*arguments, "-s", "PRIOQUEUE_MAX_IDLE=0")

    assert "New crawl in frontier shop" in done.stderr
    assert own_server.client().hget("{prioqueue:shop}:stats", "done") == b"2"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"PRIOQUEUE_REDIS_URL": "redis://127.0.0.1:1", "PRIOQUEUE_FALLBACK": "error"}, "Connect call failed"),
        ({"PRIOQUEUE_TIERS": ""}, "every tier must be a non-empty string"),
    ],
)
def test_a_crawl_that_can_not_be_shared_fails(
    start_fork: StartFork, tmp_path: Path, settings: Mapping[str, str], said: str
) -> None:
    options = [word for name, value in settings.items() for word in ("-s", f"{name}={value}")]
    order = tmp_path / "order"
    order.write_text(json.dumps(["crawl", "shop", "-s", "SHOP_URL=http://127.0.0.1:1/", *options]))

    crawl = start_fork(scrapy_command.main, order)

    assert crawl.wait(within=WITHIN_S) == 1
    assert said in crawl.log
