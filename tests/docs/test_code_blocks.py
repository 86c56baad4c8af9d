"""Every code block of README and docs that can be run or parsed is valid."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from scrapy.settings import Settings

from scrapy_prioqueue.commands.frontier import FrontierCommand
from scrapy_prioqueue.settings import SETTINGS, Config
from tests.docs.markdown import REPOSITORY, pages

FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(scrapy (?:frontier|crawl) [^`]+)`")
NOT_READ = {"", "sql", "dockerfile", "{toctree}", "{include} ../CHANGELOG.md"}
PAGES = [
    *pages(),
    *(REPOSITORY / name for name in ("CONTRIBUTING.md", "benchmarks/README.md", "example_project/README.md")),
]


@dataclass(frozen=True)
class Block:
    page: Path
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(REPOSITORY)}-{self.language}-{self.text.splitlines()[0][:40]}"


def blocks(*languages: str) -> list[Block]:
    """Return the code blocks in these languages."""
    found = [
        Block(page, language, text)
        for page in PAGES
        for _, language, text in FENCE.findall(page.read_text("utf-8"))
        if language in languages
    ]
    assert found, languages
    return found


def parsed(source: str) -> ast.Module:
    """Return the syntax tree of a block; `yield` and `return` may stand in it, as a part of a function."""

    def parse() -> ast.Module:
        try:
            compile(source, "block", "exec")
        except SyntaxError as error:
            if "outside" not in str(error):
                raise
            compile("def block():\n" + "\n".join(f"    {line}" for line in source.splitlines()), "block", "exec")
        return ast.parse(source)

    # In a thread: the parser of Python 3.11 counts wrong in the greenlets in which pytest-twisted runs tests.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(parse).result()


def settings_in(tree: ast.Module) -> Mapping[str, Any]:
    """Return the settings that a block assigns, if it assigns nothing else."""
    values = {}
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name.isupper():
                values[name] = ast.literal_eval(value)
            case _:
                return {}
    return values


def commands() -> Iterator[tuple[Path, list[str]]]:
    """Yield every command line of Scrapy in a block, and those in the text that aren't only named, in words."""
    for page in PAGES:
        text = page.read_text("utf-8")
        lines = [line[2:] for _, _, block in FENCE.findall(text) for line in block.splitlines() if line[:2] == "$ "]
        named = [line for line in INLINE.findall(FENCE.sub("", text)) if len(line.split()) > 3 and "…" not in line]
        for line in [*lines, *named]:
            for part in re.split(r" (?:\||&&) ", line):
                words = shlex.split(re.sub(r"\bID\b", "1", part))
                if words[0] == "scrapy":
                    yield page, words[1:]


def frontier_parser() -> ArgumentParser:
    command, parser = FrontierCommand(), ArgumentParser(exit_on_error=False)
    command.settings = Settings()
    command.add_options(parser)
    return parser


def test_every_block_is_in_a_language_that_is_known_here() -> None:
    languages = {
        (page.name, language)
        for page in PAGES
        for _, language, _ in FENCE.findall(page.read_text("utf-8"))
        if language not in NOT_READ and not language.startswith("{include}")
    }

    assert {language for _, language in languages} <= {"python", "console", "yaml", "ini"}, languages


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_compiles_and_settings_are_accepted(block: Block) -> None:
    values = settings_in(parsed(block.text))

    settings = Settings()
    settings.setdict(values, priority="project")
    Config.from_settings(settings, "books")


def test_commands_are_accepted_by_the_parser() -> None:
    parser = frontier_parser()
    found: list[Namespace] = []
    for page, words in commands():
        if words[0] == "frontier":
            try:
                opts, more = parser.parse_known_args(words[1:])
            except (SystemExit, Exception) as error:
                raise AssertionError(f"{page.name}: scrapy {shlex.join(words)}: {error}") from error
            assert not [word for word in more if word.startswith("-")], f"{page.name}: scrapy {shlex.join(words)}"
            found.append(opts)

    assert len(found) > 20


def test_settings_on_command_lines_are_accepted() -> None:
    for page, words in commands():
        named = [after for word, after in zip(words, words[1:], strict=False) if word == "-s"]
        settings = Settings()
        for text in named:
            name, _, value = text.partition("=")
            settings.set(name, value.replace("$", "x"), priority="cmdline")
            assert name in SETTINGS or not name.startswith("PRIOQUEUE"), (page, name)
        Config.from_settings(settings, "books")


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_yaml_can_be_read(block: Block) -> None:
    yaml: Any = importlib.import_module("yaml")

    assert all(isinstance(document, dict) for document in yaml.safe_load_all(block.text))


@pytest.mark.parametrize("block", blocks("ini"), ids=str)
def test_ini_can_be_read(block: Block) -> None:
    parser = ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.read_string(block.text)

    assert parser.sections()
