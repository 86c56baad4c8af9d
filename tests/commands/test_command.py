"""`scrapy frontier` itself: the selection of the frontier, exit codes, errors in one line, the entry point."""

from __future__ import annotations

import configparser
import io
import os
import re
import subprocess
import sys
from argparse import ArgumentParser
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from scrapy import Spider
from scrapy.settings import Settings

from scrapy_prioqueue.commands import verbs
from scrapy_prioqueue.commands.frontier import FrontierCommand
from scrapy_prioqueue.commands.verbs import VERBS
from scrapy_prioqueue.commands.verbs.check import CheckVerb
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.troubles import ACL_RULES
from tests.commands.conftest import PROGRAM, Run
from tests.commands.requests import page
from tests.contract.backends import RedisBackend, push
from tests.docs.markdown import REFERENCE, rows
from tests.support.servers import RedisServer

ARGUMENTS = {"find": ("product",), "show": ("1",), "explain": ("https://a.example/",)}
"""What verbs can't do without."""

SERVES = {"exporter"}
"""Verbs that run until an interrupt."""

COMMON = {"--help", "--json", "--name", "--spider", "--url", "--set"}
"""Options that all verbs have, or all that read."""

ROOT = Path(__file__).parents[2]


class BooksSpider(Spider):
    name = "books"
    custom_settings = {"PRIOQUEUE_NAME": "%(spider)s-of-its-own"}
    country = "us"


@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        (
            "redis+cluster://:secret@a:1,b:x",
            "--url = '(not shown: it may hold a password)': must have a host and a port",
        ),
        ("redis+cluster://:secret@a:1,b:x", "(this part is wrong: 'b:x')"),
        ("redis://127.0.0.1:1/0?client_nam=secret", "--url = '…?client_nam=…': connections of redis-py"),
        ("redis://127.0.0.1:1/0?client_nam=secret", "no such parameter; did you mean client_name?"),
        ("redis://127.0.0.1:1/0?max_connections=secret", "--url = 'redis://127.0.0.1:1/0': Invalid value for"),
    ],
)
def test_wrong_url_is_blamed_on_the_option(run: Run, url: str, wrong: str) -> None:
    ran = run("status", "--url", url)

    assert ran.code == 2
    assert wrong in ran.err
    assert "secret" not in ran.err and "PRIOQUEUE_REDIS" not in ran.err


def test_entry_point_names_the_command() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")

    (line,) = setup["options.entry_points"]["scrapy.commands"].strip().splitlines()

    assert line == f"frontier = {FrontierCommand.__module__}:{FrontierCommand.__qualname__}"


def test_verbs_are_those_of_the_reference_with_their_summaries() -> None:
    documented = [(name.strip("`"), what) for name, what in rows(REFERENCE / "commands.md", "verb")]

    assert documented == [(verb.name, verb.summary) for verb in VERBS]


def test_every_module_of_verbs_is_listed() -> None:
    modules = {path.stem for path in Path(verbs.__file__).parent.glob("*.py")} - {"__init__"}

    assert {verb.__module__.rpartition(".")[2] for verb in VERBS} == modules


def options_of(verb: str) -> set[str]:
    """Return the long options that a verb has, and others have not."""
    command = FrontierCommand()
    command.settings = Settings()
    parser = ArgumentParser(conflict_handler="resolve")
    command.add_options(parser)
    with pytest.raises(SystemExit), redirect_stdout(io.StringIO()) as shown:
        parser.parse_args([verb, "--help"])
    return set(re.findall(r"(?<!\w)--[a-z-]+", shown.getvalue().split("\nFrontier\n")[0])) - COMMON


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_options_of_a_verb_are_those_of_its_section_in_the_reference(verb: str) -> None:
    text = (REFERENCE / "commands.md").read_text("utf-8")
    section = text.split(f"\n## {verb}\n")[1].split("\n## ")[0]

    assert set(re.findall(r"`(--[a-z-]+)", section)) - COMMON == options_of(verb)


def test_command_runs_in_scrapys_own_command_line(
    redis_server: RedisServer, backend: RedisBackend, frontier_name: str
) -> None:
    backend.join("w1").commit(push("1"))
    args = [sys.executable, "-c", PROGRAM, "frontier", "status", "--name", frontier_name, "--url", redis_server.url]

    ended = subprocess.run(
        args, cwd=ROOT, env={**os.environ, "COLUMNS": "80"}, capture_output=True, text=True, check=False
    )

    assert (ended.returncode, ended.stderr) == (0, "")
    assert "1 in 1 slot" in ended.stdout


def test_command_imports_no_redis_and_no_reactor_before_it_is_chosen() -> None:
    program = (
        "import sys, scrapy_prioqueue.commands.frontier;"
        " print([name for name in ('redis', 'rich', 'twisted.internet.reactor') if name in sys.modules])"
    )

    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)

    assert ended.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "verb", [verb.name for verb in VERBS if verb.is_read and verb.needs_frontier and verb.name != "doctor"]
)
def test_unknown_frontier_is_exit_code_1_and_one_line(run: Run, verb: str) -> None:
    ran = run(verb, *ARGUMENTS.get(verb, ()))

    assert (ran.code, ran.out) == (1, "")
    assert ran.err.count("\n") == 1
    assert "there is no frontier" in ran.err


def test_frontier_of_another_layout_is_exit_code_1_and_one_line(
    run: Run, backend: RedisBackend, redis_server: RedisServer, frontier_name: str
) -> None:
    backend.join("w1")
    redis_server.client().hset(Keys(frontier_name).state, "layout", "99")

    for verb in ("status", "peek"):
        ran = run(verb)
        assert (ran.code, ran.err.count("\n")) == (1, 1)
        assert "has layout 99" in ran.err


def test_server_away_is_exit_code_3_and_one_line(run: Run) -> None:
    ran = run("status", "--url", "redis://127.0.0.1:1/0")

    assert ran.code == 3
    assert ran.err.count("\n") == 1
    assert "redis://127.0.0.1:1/0 can't be used" in ran.err


@pytest.mark.parametrize(
    "args",
    [
        pytest.param((), id="no-verb"),
        pytest.param(("dance",), id="unknown-verb"),
        pytest.param(("status", "--dance"), id="unknown-option"),
        pytest.param(("status", "more"), id="unknown-argument"),
        pytest.param(("status", "--url", "http://example.com"), id="bad-url"),
        pytest.param(("status", "-s", "PRIOQUEUE_TIERS=[]"), id="bad-setting"),
        pytest.param(("status", "-s", "PRIOQUEUE_DANCE=1"), id="unknown-setting"),
        pytest.param(("status", "--spider", "nobody"), id="unknown-spider"),
        pytest.param(("check", "books", "--spider", "others"), id="two-spiders"),
        pytest.param(("--spider", "others", "check", "books"), id="two-spiders-before-the-verb"),
    ],
)
def test_wrong_use_is_exit_code_2(run: Run, args: tuple[str, ...]) -> None:
    assert run(*args).code == 2


@pytest.mark.parametrize(
    ("args", "question"),
    [
        (("stauts",), "there is no verb 'stauts'; did you mean status?"),
        (("xyz",), "there is no verb 'xyz'; 'scrapy frontier -h' lists them"),
        (("push", "https://a.example/", "--teir", "high"), "--teir high; did you mean --tier?"),
        (("peek", "--jsno"), "--jsno; did you mean --json?"),
        (("status", "-s", "PRIOQUEUE_TEIRS=a"), "did you mean PRIOQUEUE_TIERS?"),
        (("status", "--spider", "bokos"), "no such spider; did you mean books? Spiders here: books"),
    ],
)
def test_the_probable_name_is_suggested(run: Run, args: tuple[str, ...], question: str) -> None:
    ran = run(*args, settings={"SPIDER_MODULES": [__name__]})

    assert ran.code == 2
    assert question in ran.out + ran.err


def test_name_is_that_of_the_option_even_with_a_percent_sign(run: Run) -> None:
    assert "no frontier '100%' at" in run("status", "--name", "100%").err


def test_name_is_that_of_the_only_spider_with_its_own_settings(run: Run) -> None:
    ran = run("status", settings={"PRIOQUEUE_NAME": "%(spider)s", "SPIDER_MODULES": [__name__]})

    assert "no frontier 'books-of-its-own' at" in ran.err


def test_name_that_needs_a_spider_lists_the_choices(run: Run) -> None:
    settings = {"PRIOQUEUE_NAME": "%(spider)s", "SPIDER_MODULES": [__name__, "tests.crawl.spiders"]}

    ran = run("status", settings=settings)
    chosen = run("status", "--spider", "books", settings=settings)

    assert ran.code == 2
    assert "--spider SPIDER; spiders here: books, " in ran.err
    assert "no frontier 'books-of-its-own' at" in chosen.err


def test_name_may_hold_arguments_of_the_spider(run: Run) -> None:
    settings = {"SPIDER_MODULES": [__name__]}
    name = "PRIOQUEUE_NAME=%(spider)s-%(country)s-%(page)s"

    found = [
        run("status", "-s", name, "-a", "page=1", settings=settings),
        run("-a", "country=fr", "status", "-a", "page=1", "-s", name, settings=settings),
        run("status", "-a", "country=fr", settings={"PRIOQUEUE_NAME": "%(country)s"}),
    ]
    missing = run("status", "-s", name, settings=settings)

    for ran, expected in zip(found, ("books-us-1", "books-fr-1", "fr"), strict=True):
        assert f"no frontier '{expected}' at" in ran.err
    assert missing.code == 2
    assert "no argument 'page'; give it one (-a page=…)" in missing.err


def test_spiders_that_cannot_be_loaded_are_one_line(run: Run) -> None:
    ran = run("status", settings={"PRIOQUEUE_NAME": "%(spider)s", "SPIDER_MODULES": ["no.such.module"]})

    assert ran.code == 2
    assert "can't be loaded" in ran.err


def test_settings_may_stand_before_and_after_the_verb(run: Run) -> None:
    before = ("-s", "PRIOQUEUE_TIERS=a,b")
    after = ("-s", "PRIOQUEUE_DEFAULT_TIER=b")

    assert run(*before, "status", *after).code == 1
    assert run("status", *after).code == 2


def test_reader_that_has_enough_is_no_error(
    redis_server: RedisServer, backend: RedisBackend, frontier_name: str
) -> None:
    worker = backend.join("w1")
    # More than the pipe takes at once.
    address = "https://a.example/" + "x" * 200
    worker.commit(*(page(f"{address}{number}") for number in range(500)))
    args = ["find", "example", "--limit", "500", "--name", frontier_name, "--url", redis_server.url]

    children = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "frontier", *args, *options],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for options in ((), ("--json",))
    ]
    for child in children:
        assert child.stdout is not None and child.stderr is not None
        child.stdout.read(10)
        child.stdout.close()
        complaint = child.stderr.read()
        child.stderr.close()

        assert (child.wait(30), complaint) == (0, b"")


@pytest.mark.parametrize(
    "verb", [verb.name for verb in VERBS if verb.is_read and verb is not CheckVerb and verb.name not in SERVES]
)
def test_reading_needs_no_more_rights_than_a_worker_has(
    run: Run, backend: RedisBackend, redis_server: RedisServer, frontier_name: str, verb: str
) -> None:
    backend.join("w1").commit(*(page(f"https://a.example/{number}") for number in range(5)))
    (stored, *_) = run("peek", "--json").json
    user = f"user-{frontier_name[-8:]}"
    client: Any = redis_server.client()
    client.execute_command("ACL", "SETUSER", user, "on", ">secret", *ACL_RULES.split())
    url = redis_server.url.replace("//", f"//{user}:secret@")
    arguments = {"show": (str(stored["id"]),), "find": ("a.example",), "explain": ("https://a.example/1",)}

    ran = run(verb, *arguments.get(verb, ()), *(("--count", "1") if verb == "top" else ()), "--url", url)
    client.execute_command("ACL", "DELUSER", user)

    assert (ran.code, ran.err) == (0, "")
    assert "secret" not in ran.out


def test_wrong_password_is_one_line_without_it(run: Run, redis_server: RedisServer) -> None:
    ran = run("status", "--url", redis_server.url.replace("//", "//nobody:secret@"))

    assert (ran.code, ran.err.count("\n")) == (3, 1)
    assert "secret" not in ran.err
    assert "set user and password in --url" in ran.err


def test_options_of_the_client_are_used_and_checked(run: Run, backend: RedisBackend) -> None:
    backend.join("w1")

    async def greet(connection: object) -> None:
        """Only an asyncio client can use it."""

    assert (
        run("status", settings={"PRIOQUEUE_REDIS_OPTIONS": {"client_name": "x", "redis_connect_func": greet}}).code == 0
    )
    assert run("status", settings={"PRIOQUEUE_REDIS_OPTIONS": {"dance": 1}}).code == 2


def test_fingerprinter_that_cannot_be_made_is_wrong_use(run: Run, backend: RedisBackend) -> None:
    backend.join("w1")

    ran = run("explain", "https://a.example/", settings={"REQUEST_FINGERPRINTER_CLASS": "no.such.Class"})

    assert (ran.code, ran.err.count("\n")) == (2, 1)
