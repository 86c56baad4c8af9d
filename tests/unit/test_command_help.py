"""The help of `scrapy frontier` at the widths of usual terminals."""

from __future__ import annotations

import re
import shlex

import pytest
from scrapy.cmdline import ScrapyArgumentParser
from scrapy.commands import ScrapyHelpFormatter
from scrapy.settings import Settings

from scrapy_prioqueue.commands.frontier import FrontierCommand
from scrapy_prioqueue.commands.verbs import VERBS

HEADINGS = {"Usage", "Positional Arguments", "Options", "Global Options", "Frontier", "Verbs", "Examples"}


def parser() -> ScrapyArgumentParser:
    """Return the parser, as Scrapy's command line makes it."""
    command = FrontierCommand()
    command.settings = Settings()
    made = ScrapyArgumentParser(
        formatter_class=ScrapyHelpFormatter,
        usage=f"scrapy frontier {command.syntax()}",
        conflict_handler="resolve",
        description=command.long_desc(),
    )
    command.add_options(made)
    return made


@pytest.mark.parametrize("columns", [60, 80, 100, 120])
def test_help_fits_the_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    made = parser()

    for verb in VERBS:
        with pytest.raises(SystemExit):
            made.parse_args([verb.name, "--help"])
        text = capsys.readouterr().out
        lines = text.splitlines()

        assert max(map(len, lines)) <= columns, verb
        assert {above for above, line in zip(lines, lines[1:], strict=False) if re.fullmatch("[=-]+", line)} <= HEADINGS
        assert not [line for line in lines if line.endswith("-")], verb
        assert all(f"  scrapy frontier {verb.name} {example}".rstrip() in lines for example in verb.examples)
    text = made.format_help()
    assert max(map(len, text.splitlines())) <= columns
    assert "name of the frontier (default:" in text


def test_examples_can_be_typed() -> None:
    made = parser()

    for verb in VERBS:
        assert verb.examples
        for example in verb.examples:
            command = re.split(r" [|<] ", example)[0]
            options, rest = made.parse_known_args([verb.name, *shlex.split(command)])
            assert (options.verb, rest) == (verb.name, []), example
