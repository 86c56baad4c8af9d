"""The output of verbs: tables by rich or one JSON document; numbers, sizes and times formatted for people."""

from __future__ import annotations

import io
import json
import math
import os
import sys
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any, TextIO

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from scrapy_prioqueue.codec.reasons import brief
from scrapy_prioqueue.codec.standins import StandIn
from scrapy_prioqueue.printable import clean, clean_json, in_a_line, text_of

WIDE = 500
"""Width without a terminal: in effect nothing is cut."""

LEAST_WIDTH = 10
"""Minimal width of a column that may be cut."""

MOST_BITS = 10_000
"""Longest integer that is printed in decimal; Python refuses to convert much longer ones."""

GAP = 3
"""Blanks between two columns."""

Cell = str | int | Text


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Let the command handle a closed pipe; rich would end the process with an error."""
        raise BrokenPipeError


class Output:
    """Writes to standard output.

    Args:
        as_json: whether the user wants JSON instead of tables.
        file: None for standard output.
    """

    def __init__(self, *, as_json: bool = False, file: TextIO | None = None) -> None:
        self.as_json = as_json
        self._file = file or sys.stdout
        if isinstance(self._file, io.TextIOWrapper):
            # If the terminal or pipe isn't UTF-8, characters that it lacks are escaped instead of raising an error.
            self._file.reconfigure(errors="backslashreplace")
        is_cut = self._file.isatty() or "COLUMNS" in os.environ
        # The texts come from web pages, so nothing in them may count as markup.
        self.console = _Console(
            file=self._file, width=None if is_cut else WIDE, markup=False, highlight=False, emoji=False
        )

    def json(self, value: Any) -> None:
        """Print one JSON document: dataclasses as objects, bytes decoded as UTF-8 with escapes."""
        self._print_json(value, indent=2)

    def json_line(self, value: Any) -> None:
        """Print one JSON document on one line, and flush."""
        self._print_json(value, indent=None)
        self._file.flush()

    def _print_json(self, value: Any, *, indent: int | None) -> None:
        print(clean_json(json.dumps(_plain(value), ensure_ascii=False, indent=indent)), file=self._file)

    def found(self, document: Any, *parts: RenderableType, nothing: str = "") -> None:
        """Print the document as JSON if the user wants that, else tables and texts; `nothing` if it is empty."""
        if self.as_json:
            self.json(document)
        else:
            self.show(*(parts if document or not nothing else [nothing]))

    def show(self, *parts: RenderableType) -> None:
        """Print tables and texts."""
        for part in parts:
            shown = part if not isinstance(part, str) else Text(clean(part))
            if self._file.isatty():
                self.console.print(shown)
            else:
                self._print_without_padding(shown)

    def _print_without_padding(self, part: RenderableType) -> None:
        with self.console.capture() as shown:
            self.console.print(part)
        for line in shown.get().removesuffix("\n").split("\n"):
            print(line.rstrip(), file=self._file)


class FittedTable:
    """A table that cuts cells in the middle if the console is too narrow.

    Args:
        columns: headings; a trailing ``>`` marks a column of numbers, aligned to the right.
        rows: a cell for each column; control characters and line breaks in them are escaped.
        cut: headings of the columns that may be cut, the widest first.
    """

    def __init__(self, columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, cut: Collection[str] = ()) -> None:
        self._columns = columns
        self._rows = [[_cell(in_a_line(cell) if isinstance(cell, str) else cell) for cell in row] for row in rows]
        self._cut = cut

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the table, at most as wide as the console."""
        widths = self._widths(options.max_width)
        made = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for column, width in zip(self._columns, widths, strict=True):
            justify: JustifyMethod = "right" if column.endswith(">") else "left"
            made.add_column(column.removesuffix(">"), justify=justify, no_wrap=True, overflow="ellipsis", width=width)
        for row in self._rows:
            made.add_row(*(_shortened(cell, width) for cell, width in zip(row, widths, strict=True)))
        yield made

    def _widths(self, room: int) -> list[int]:
        headings = [column.removesuffix(">") for column in self._columns]
        widths = [
            max(cell_len(heading), *(row[index].cell_len for row in self._rows), 0)
            for index, heading in enumerate(headings)
        ]
        excess = sum(widths) + GAP * (len(widths) - 1) - room
        while excess > 0:
            widest = max((widths[index], index) for index, heading in enumerate(headings) if heading in self._cut)
            if widest[0] <= LEAST_WIDTH:
                break
            widths[widest[1]] -= 1
            excess -= 1
        return widths


def _shortened(cell: Text, width: int) -> Text:
    """Cut a text in the middle, since addresses and names often differ at their ends."""
    if cell.cell_len <= width or width < 3:
        return cell
    head_width = width * 3 // 5
    head = set_cell_size(cell.plain, head_width)
    tail = set_cell_size(cell.plain[::-1], width - 1 - head_width)[::-1]
    return Text(f"{head}…{tail}", style=cell.style)


def listed(columns: Sequence[str], rows: Sequence[Sequence[Cell]], limit: int, *, cut: str) -> list[RenderableType]:
    """Return a table of at most `limit` rows, and the number of rows left out; the column `cut` may be cut."""
    table = FittedTable(columns, rows[:limit], cut=(cut,))
    return [table, more(limit, len(rows) - limit)] if len(rows) > limit else [table]


def pairs(rows: Iterable[tuple[str, Cell]]) -> Table:
    """Return a table of names and values, one pair per line."""
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(Text(name), _cell(value))
    return made


def _cell(value: Cell) -> Text:
    if isinstance(value, Text):
        return value
    return Text(number(value) if isinstance(value, int) else clean(value))


def name_text(name: str) -> str:
    """Return a name on one line, quoted if it is empty or has blanks at its ends."""
    shown = in_a_line(name)
    return shown if shown and shown == shown.strip() else f"'{shown}'"


def number(value: float) -> str:
    """Return 1234567 as 1,234,567."""
    return f"{value:,.0f}"


def counted(count: int, noun: str) -> str:
    """Return 1 page, or 1,200 pages."""
    return f"{number(count)} {noun}{'' if count == 1 else 's'}"


def rate(per_s: float | None) -> str:
    """Return a rate per second: 12.3/s."""
    if per_s is None:
        return "-"
    return f"{per_s:,.1f}/s" if abs(per_s) < 1000 else f"{per_s:,.0f}/s"


def size(count: float) -> str:
    """Return bytes as 12.3 MB."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: float | None) -> str:
    """Return a duration in its two largest units: 3 h 5 min."""
    if seconds is None:
        return "-"
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    parts = []
    rest = round(seconds)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, length)
        parts.append((count, unit))
    first = next(index for index, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count)


def part(value: float) -> str:
    """Return 0.984 as 98%, always rounded down: only a complete part is 100%."""
    percent = math.floor(value * 100 + 1e-9)
    return f"{percent:,}%"


def moment(ms: int | None) -> str:
    """Return a time in this machine's time zone: 2026-11-28 09:46:37."""
    return "-" if not ms else datetime.fromtimestamp(ms / 1000).strftime("%Y-%m-%d %H:%M:%S")


def more(limit: int, count: int | None = None) -> str:
    """Return a line about results beyond the limit, with their number if it is known."""
    return f"… and {'' if count is None else number(count) + ' '}more: --limit {limit * 10} shows more of them"


def spelled(value: Any) -> str:
    """Return the repr of a value; an abbreviated one if Python refuses (very long integers)."""
    try:
        return repr(value)
    except ValueError:
        return brief(value)


def _plain(value: Any) -> Any:
    if isinstance(value, StandIn):
        value = value.shown
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return {_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return [_plain(item) for item in value]
    if isinstance(value, (bytes, bytearray)):
        return text_of(bytes(value))
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        return hex(value)
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return str(value)


def _key(key: Any) -> str:
    plain = _plain(key)
    return plain if isinstance(plain, str) else str(plain)
