"""`scrapy frontier check` in a project: what it prints, its exit codes, and the requests of sampled pages."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
import scrapy

from tests.commands.conftest import Run
from tests.support.crawls import WITHIN_S
from tests.support.site import Page, Site, leaves

REPOSITORY = Path(__file__).resolve().parents[2]

RAISING = """
    import scrapy

    class Raising(scrapy.Spider):
        name = "raising"

        def parse_late(self, response):
            yield scrapy.Request(response.urljoin("/late"))
            yield 1 / 0

        def parse_page(self, response, page):
            return [page]
"""

SPIDERS = """
    import scrapy

    class Good(scrapy.Spider):
        name = "good"

        def parse(self, response):
            for link in response.css("a"):
                yield response.follow(link, self.parse_page, cb_kwargs={"text": link.css("::text").get()})
            yield {"url": response.url}

        def parse_page(self, response, text):
            yield {"text": text}

    class Bad(Good):
        name = "bad"
        page = 1

        def parse(self, response):
            for request in super().parse(response):
                yield request.replace(meta={"key": make_key()}) if isinstance(request, scrapy.Request) else request
            self.page += 1
            yield scrapy.Request(f"{response.url}?page={self.page}", self.parse_page, cb_kwargs={"text": ""})

    class Key:
        __slots__ = ("key",)

    def make_key():
        return Key()
"""

SETTINGS = {"SPIDER_MODULES": ["checked_spiders"], "PRIOQUEUE_NAME": "%(spider)s"}
NO_SERVER = ("-s", "PRIOQUEUE_REDIS_URL=redis://127.0.0.1:1/0")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with spiders, which is the working directory."""
    (tmp_path / "checked_spiders.py").write_text(dedent(SPIDERS))
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = checked_settings\n")
    settings = {**SETTINGS, "SCHEDULER": "scrapy_prioqueue.Scheduler", "FEEDS": {"items.jl": {"format": "jsonlines"}}}
    (tmp_path / "checked_settings.py").write_text("".join(f"{name} = {value!r}\n" for name, value in settings.items()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("checked_spiders", None)


def test_a_spider_with_nothing_to_say_gets_one_line(run: Run, project: Path) -> None:
    ran = run("check", "good", *NO_SERVER, settings=SETTINGS)

    assert (ran.code, ran.out, ran.err) == (0, "good: ready for several workers\n", "")


def test_findings_name_place_and_pattern_and_fail(run: Run, project: Path) -> None:
    ran = run("check", "bad", *NO_SERVER, settings=SETTINGS)
    as_json = run("check", "bad", "--json", *NO_SERVER, settings=SETTINGS)

    assert ran.code == as_json.code == 1
    assert "page counter  checked_spiders.py:22 self.page is written and read in parse (line 23): " in ran.out
    assert '; see "Count in the request" in the documentation, Is my spider ready?\n' in ran.out
    assert ran.out.endswith("bad: not ready for several workers: change the lines marked with ✗\n")
    assert (as_json.json["spider"], as_json.json["verdict"]) == ("bad", "wrong")
    assert [(one["file"], one["line"], one["section"]) for one in as_json.json["findings"]] == [
        ("checked_spiders.py", 22, "count-in-the-request")
    ]


def test_wrong_use_is_said(run: Run, project: Path) -> None:
    assert "which spider?" in run("check", settings=SETTINGS).err
    assert "has no method parse_list" in run("check", "good", "--callback", "parse_list", settings=SETTINGS).err
    assert run("check", "none", settings=SETTINGS).code == 2
    assert "which spider? good or --spider bad" in run("check", "good", "--spider", "bad", settings=SETTINGS).out
    assert run("check", "good", "--spider", "good", *NO_SERVER, settings=SETTINGS).code == 0


def test_requests_of_a_sample_are_judged_and_leave_nothing(project: Path, site: Site) -> None:
    body = b"<a href=/1>one</a><a href=/2>two</a>"
    site.pages = {"/": Page(body=body, headers={"Content-Type": "text/html"}), **leaves("/1", "/2")}
    urls = ("--sample", site.url("/"), "--sample", site.url("/none"))

    ran = _sampled("bad", *urls)

    assert ran.returncode == 1, ran.stderr
    local = f"checked_spiders.py:19 2 of 3 requests of {site.url('/')} would stay in the worker: meta['key']"
    assert local in ran.stdout
    assert f"{site.url('/none')} was not checked: " in ran.stdout
    assert "(3 requests, 1 of 2 pages checked)" in ran.stdout
    assert not site.count("/1")
    assert not (project / "items.jl").exists()


def test_a_spider_is_not_called_ready_if_a_sample_could_not_be_looked_at(project: Path, site: Site) -> None:
    site.pages = dict(leaves("/", "/late"))
    (project / "raising.py").write_text(dedent(RAISING))
    settings = project / "checked_settings.py"
    settings.write_text(settings.read_text().replace("'checked_spiders'", "'checked_spiders', 'raising'"))
    url = site.url("/")

    for callback, error in (("parse_page", "TypeError"), ("parse_late", "ZeroDivisionError")):
        ran = _sampled("raising", "--sample", url, "--sample", "nourl", "--callback", callback)
        assert (ran.returncode, "ready for several" in ran.stdout) == (1, False), ran.stdout
        assert ran.stdout.count(f"the callback of {url} raised {error}") == 1
        assert "nourl was not checked: ValueError" in ran.stdout
        assert ", 0 of 2 pages checked)" in ran.stdout


@pytest.mark.parametrize("has_start", [False, True])
def test_a_spider_whose_start_requests_is_never_called_is_reported(run: Run, project: Path, has_start: bool) -> None:
    both = "    async def start(self):\n        for request in self.start_requests():\n            yield request\n"
    (project / "checked_spiders.py").write_text(
        "import scrapy\n\nclass Old(scrapy.Spider):\n    name = 'old'\n"
        + "    def start_requests(self):\n        yield scrapy.Request('https://a.example/')\n"
        + (both if has_start else "")
    )

    ran = run("check", "old", *NO_SERVER, settings=SETTINGS)

    is_called = has_start or hasattr(scrapy.Spider, "start_requests")
    assert (ran.code, "start_requests() is never called" in ran.out) == (int(not is_called), not is_called)


def _sampled(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scrapy", "frontier", "check", *arguments, *NO_SERVER],
        env={"PYTHONPATH": str(REPOSITORY), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
