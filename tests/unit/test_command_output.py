"""Tables that fit, and numbers and times for people."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Group
from rich.text import Text
from scrapy import Request, Spider

from scrapy_prioqueue.codec import RequestCodec
from scrapy_prioqueue.commands.listing import request_document, request_sheet
from scrapy_prioqueue.commands.output import FittedTable, Output, duration, name_text, pairs, rate, size
from scrapy_prioqueue.frontier.redis.operators.findings import Stored
from scrapy_prioqueue.printable import clean


def drawn(width: int, *args: Any, **options: Any) -> list[str]:
    file = io.StringIO()
    output = Output(file=file)
    output.console.width = width
    output.show(FittedTable(*args, **options))
    return file.getvalue().splitlines()


def test_cells_are_cut_in_the_middle_and_numbers_never() -> None:
    rows = [(1_234_567, "https://a.example/a/long/path/to/product-1"), (2, "https://a.example/")]

    lines = drawn(40, ("count>", "URL"), rows, cut=("URL",))

    assert max(map(len, lines)) <= 40
    assert "1,234,567" in lines[2]
    assert lines[2].rstrip().endswith("product-1")
    assert "…" in lines[2]


def test_cells_of_double_width_fit() -> None:
    lines = drawn(30, ("URL",), [("https://例え.example/" + "例え" * 20,)], cut=("URL",))

    assert all(len(line) <= 30 for line in lines)


def test_a_column_moves_below_if_there_is_no_room() -> None:
    detail = "TimeoutError: Getting https://shop.example/product/1 took longer than 180.0 seconds."
    rows = [(471_112, detail, f"https://shop.example/{'path/' * 20}end"), (2, "", "https://shop.example/")]
    table, fitting = (("id>", "detail", "URL"), rows), {"cut": ("URL",), "below": ("detail",)}

    wide, narrow = drawn(300, *table, **fitting), drawn(60, *table, **fitting)

    assert "detail" in wide[0]
    assert len(wide) == 4
    assert max(map(len, narrow)) <= 60
    assert "detail" not in narrow[0]
    assert narrow[2].startswith("471,112   https://shop.example/")
    assert narrow[2].endswith("/end")
    assert f"detail: {detail}" in " ".join(" ".join(narrow[3:]).split())


def test_names_that_users_copy_are_folded() -> None:
    lines = drawn(24, ("worker", "done>"), [("host-a.example:4711:9f3c21", 1_234)], fold=("worker",))

    assert max(map(len, lines)) <= 24
    assert "…" not in "".join(lines)
    assert "".join(line.split()[0] for line in lines[2:]) == "host-a.example:4711:9f3c21"


def test_columns_without_room_are_below_their_rows_from_the_right() -> None:
    columns = ("name", *(f"{letter * 8}>" for letter in "abcd"), "")
    rows = [("n" * 30, 1, 2, 3, 4, "drawing")]

    for width in (60, 40, 20):
        lines = drawn(width, columns, rows, fold=("name",), below=("b" * 8,))
        assert max(map(len, lines)) <= width
        shown = " ".join(lines).split()
        assert all(letter * 8 in (word.rstrip(":") for word in shown) for letter in "abcd")
        assert ("drawing" in shown) == (width == 60)


def test_table_without_rows_has_its_headings() -> None:
    assert "URL" in drawn(30, ("URL",), [])[0]


def test_without_a_terminal_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    file = io.StringIO()

    Output(file=file).show(FittedTable(("URL",), [("x" * 300,)], cut=("URL",)))

    assert "x" * 300 in file.getvalue()


def test_without_a_terminal_no_line_ends_in_spaces() -> None:
    lines = drawn(40, ("URL", "tier"), [("https://a.example/", ""), ("https://a.example/long", "high")])

    assert all(line == line.rstrip() for line in lines)
    assert lines[2] == "https://a.example/"


def test_json_can_contain_all_values_of_requests() -> None:
    file = io.StringIO()

    Output(file=file).json({("a", 1): {b"\xff", 1}, "lone": "\udc80", "text": b"text"})

    assert '"text": "text"' in file.getvalue()
    file.getvalue().encode()


def test_json_holds_nothing_that_terminals_obey_and_says_the_same() -> None:
    file, hostile = io.StringIO(), "\x1b[2J\x7f\x9b31m\u202e\u2066\u2028\U000e0041 ü 例 \udc80\n"

    Output(file=file).json({hostile: [hostile]})

    assert "ü 例" in file.getvalue()
    assert all(letter.isprintable() or letter == "\n" for letter in file.getvalue())
    assert json.loads(file.getvalue()) == {hostile: [hostile]}


@pytest.mark.parametrize("meta", [{"x": 256**5000}, {256**5000: "x"}, {"x": [-(256**5000)]}, {"x": {(256**5000,)}}])
def test_integers_that_python_does_not_print_are_shown(meta: dict[Any, Any]) -> None:
    payload = RequestCodec(Spider("x")).encode(Request("https://shop.example/", meta=meta))
    stored, file = Stored(1, "dead", 1, 0, "shop.example", payload), io.StringIO()

    Output(file=file).show(request_sheet(stored, ["normal"]))
    Output(file=file).json(request_document(stored, ["normal"]))

    assert file.getvalue().count("https://shop.example/") == 2


def test_traceback_of_a_dead_letter_holds_nothing_that_terminals_obey() -> None:
    file = io.StringIO()
    stored = Stored(1, "dead", 1, 0, "shop.example", b"", traceback="Traceback:\n  \x9b31m\u202e")

    Output(file=file).show(request_sheet(stored, ["normal"]))

    assert "Traceback:\n  \\x9b31m\\u202e" in file.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (59.6, "1 min"),
        (3661, "1 h 1 min"),
        (3600, "1 h"),
        (90_000, "1 d 1 h"),
        (-70, "-1 min 10 s"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_sizes_and_rates() -> None:
    assert [size(999), size(1_500), size(2_000_000), size(3e9), size(4e12)] == [
        *("999 B", "1.5 KB", "2.0 MB", "3.0 GB", "4.0 TB"),
    ]
    assert [rate(None), rate(12.34), rate(12_345)] == ["-", "12.3/s", "12,345/s"]


def test_a_row_stays_a_row() -> None:
    lines = drawn(60, ("key", "pages>"), [("a\nb\r\u2028\x1b[2J", 1), ("c", 2)])

    assert [line.split() for line in lines[2:]] == [["a\\nb\\r\\u2028\\x1b[2J", "1"], ["c", "2"]]


def test_names_that_blanks_would_hide_are_in_quotes() -> None:
    assert [name_text(name) for name in ("a b", "", "  ", "a ", "\n", "a\n")] == [
        *("a b", "''", "'  '", "'a '", "\\n", "a\\n"),
    ]


def test_control_characters_are_escaped() -> None:
    assert clean("a\x1b[31mb\u202e\n") == "a\\x1b[31mb\\u202e\n"


@pytest.mark.parametrize("is_terminal", [False, True])
def test_no_text_is_obeyed_by_a_terminal_wherever_it_is_printed(*, is_terminal: bool) -> None:
    hostile = "a\x1b[31mb\x9b\u202e\u2028\x07c"
    file = io.StringIO()
    output = Output(file=file)
    output.console.legacy_windows = False

    cells: list[Any] = [hostile + "\nforged", Text(hostile + "\nforged", style="red")]
    parts: list[Any] = [hostile, Text(hostile, style="bold"), Group(hostile, Text.assemble((hostile, "dim")))]
    parts += [FittedTable(("x", "y"), [cells], fold=("x",)), pairs([(hostile, cell) for cell in cells])]
    if is_terminal:
        file.isatty = lambda: True  # type: ignore[method-assign]
    output.show(*parts)

    shown = file.getvalue()
    assert all(letter.isprintable() or letter == "\n" for letter in shown)
    assert shown.count("\\x1b[31mb") == 10
    assert not any(line.startswith("forged") for line in shown.splitlines())
