"""The output of verbs: tables by rich or one JSON document; numbers, sizes and times formatted for people."""

from __future__ import annotations

import io
import json
import math
import os
import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from itertools import zip_longest
from operator import ge
from typing import Any, TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from scrapy_prioqueue.codec.reasons import brief
from scrapy_prioqueue.codec.standins import StandIn
from scrapy_prioqueue.frontier.redis.operators.doctor import Finding
from scrapy_prioqueue.frontier.redis.operators.findings import SlotFound, Stored, WorkerFound
from scrapy_prioqueue.frontier.waits import SlowPage
from scrapy_prioqueue.printable import clean, clean_json, in_a_line, text_of
from scrapy_prioqueue.printable import counted as counted
from scrapy_prioqueue.printable import duration as duration

WIDE = 500
"""Width without a terminal: in effect nothing is cut."""

LEAST_WIDTH = 10
"""Minimal width of a column that may be cut."""

MOST_BITS = 10_000
"""Longest integer that is printed in decimal; Python refuses to convert much longer ones."""

GAP = 3
"""Blanks between two columns."""

READABLE = 50
"""Width below which a column that is cut gets a line of its own."""

READABLE_PART = 20
"""Width below which other columns make room for one that is folded."""

MOST_LINES = 3
"""Maximum number of lines of a cell below its row."""

INDENT = "    "
"""In front of the lines below a row."""

Cell = str | int | Text

_NAMES: Mapping[type, Mapping[str, str]] = {
    Stored: {"lease_id": "id"},
    SlowPage: {"lease_id": "id"},
    WorkerFound: {"name": "worker"},
    SlotFound: {"name": "slot"},
    Finding: {"severity": "level"},
}
"""Names of fields in all output, where it has others than the code: the id of a request is `id`."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Let the command handle a closed pipe; rich would end the process with an error."""
        raise BrokenPipeError

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Escape what terminals obey, in all text that is printed; rich's own commands to the terminal are kept."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(clean(segment.text), segment.style)


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
        print(clean_json(json.dumps(plain(value), ensure_ascii=False, indent=indent)), file=self._file)

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
    """A table that fits the console.

    If the console is too narrow, the columns in `below` get lines of their own below each row, then those of the
    others for which there is no room, from the right; the columns in `cut` and `fold` become narrower.

    Args:
        columns: headings; a trailing ``>`` marks a column of numbers, aligned to the right.
        rows: a cell for each column; control characters and line breaks in them are escaped.
        cut: headings of the columns that may be cut in the middle, the widest first.
        fold: headings of the columns that may be folded, since users have to copy their cells.
        below: headings of the columns that may have lines of their own, in the order in which they get these; those
            that the table lacks don't count.
    """

    def __init__(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[Cell]],
        *,
        cut: Collection[str] = (),
        fold: Collection[str] = (),
        below: Sequence[str] = (),
    ) -> None:
        self._columns = [column.removesuffix(">") for column in columns]
        self._numbers = {column.removesuffix(">") for column in columns if column.endswith(">")}
        self._rows = [[*map(_cell, row)] for row in rows]
        self._cut = cut
        self._fold = fold
        self._below = [self._columns.index(heading) for heading in below if heading in self._columns]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the table, at most as wide as the console."""
        room, shown = options.max_width, list(range(len(self._columns)))
        for index in self._below:
            if not self._has_room(shown, room):
                shown.remove(index)
        while len(shown) > 1 and _total(self._fitted(shown, room)) > room:
            shown.pop()
        widths = self._fitted(shown, room)
        yield self._line([Text(self._columns[index]) for index in shown], shown, widths)
        yield Text("─" * _total(widths), no_wrap=True, overflow="ignore")
        for row in self._rows:
            cells = [
                self._lines_of(row[index], index, width, console) for index, width in zip(shown, widths, strict=True)
            ]
            for part in zip_longest(*cells, fillvalue=Text()):
                yield self._line(part, shown, widths)
            for index in range(len(row)):
                # A column without a heading is only a drawing.
                if index not in shown and self._columns[index] and row[index].plain not in ("", "-"):
                    yield from self._lines_below(row[index], index, room, console)

    def _has_room(self, shown: Sequence[int], room: int) -> bool:
        """Return whether these columns fit, and those that are cut or folded remain readable."""
        natural, fitted = self._widths(shown), self._fitted(shown, room)
        least = [READABLE if self._columns[index] in self._cut else READABLE_PART for index in shown]
        return _total(fitted) <= room and all(map(ge, fitted, map(min, natural, least)))

    def _widths(self, shown: Sequence[int]) -> list[int]:
        return [max(cell_len(self._columns[index]), *(row[index].cell_len for row in self._rows), 0) for index in shown]

    def _fitted(self, shown: Sequence[int], room: int) -> list[int]:
        widths = self._widths(shown)
        while _total(widths) > room:
            flexible = [at for at, index in enumerate(shown) if self._columns[index] in (*self._cut, *self._fold)]
            widest = max(flexible, key=lambda at: (widths[at], at), default=None)
            if widest is None or widths[widest] <= LEAST_WIDTH:
                break
            widths[widest] -= 1
        return widths

    def _lines_of(self, cell: Text, index: int, width: int, console: Console) -> Sequence[Text]:
        if self._columns[index] in self._fold and cell.cell_len > width:
            return list(cell.wrap(console, width, overflow="fold"))
        return [_shortened(cell, width)]

    def _lines_below(self, cell: Text, index: int, room: int, console: Console) -> Iterator[Text]:
        heading, width = self._columns[index], room - len(INDENT)
        lines: Sequence[Text] = [_shortened(cell, width)]
        if heading not in self._cut:
            lines = list(Text(f"{heading}: {cell.plain}").wrap(console, width))
        for line in lines[:MOST_LINES]:
            yield Text(INDENT, style="dim", no_wrap=True, overflow="ignore").append_text(line)
        if len(lines) > MOST_LINES:
            yield Text(f"{INDENT}…", style="dim")

    def _line(self, cells: Sequence[Text], shown: Sequence[int], widths: Sequence[int]) -> Text:
        line = Text(no_wrap=True, overflow="ignore")
        for at, (cell, index, width) in enumerate(zip(cells, shown, widths, strict=True)):
            padding = " " * (width - cell.cell_len)
            is_number = self._columns[index] in self._numbers
            line.append(" " * GAP if at else "").append(padding if is_number else "").append_text(cell)
            line.append("" if is_number else padding)
        return line


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _shortened(cell: Text, width: int) -> Text:
    """Cut a text in the middle, since addresses and names often differ at their ends."""
    if cell.cell_len <= width or width < 3:
        return cell
    head_width = width * 3 // 5
    head = set_cell_size(cell.plain, head_width)
    tail = set_cell_size(cell.plain[::-1], width - 1 - head_width)[::-1]
    return Text(f"{head}…{tail}", style=cell.style)


def listed(
    columns: Sequence[str], rows: Sequence[Sequence[Cell]], limit: int, *, fold: str, below: Sequence[str] = ()
) -> list[RenderableType]:
    """Return a table of at most `limit` rows, and the number of rows left out; see `FittedTable` for the rest."""
    table = FittedTable(columns, rows[:limit], fold=(fold,), below=below)
    return [table, more(limit, len(rows) - limit)] if len(rows) > limit else [table]


def pairs(rows: Iterable[tuple[str, Cell]]) -> Table:
    """Return a table of names and values, one pair per line."""
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(_cell(name), _cell(value))
    return made


def _cell(value: Cell) -> Text:
    """Return a cell on one line."""
    if isinstance(value, int):
        return Text(number(value))
    if isinstance(value, str):
        return Text(in_a_line(value))
    return value if value.plain.isprintable() else Text(in_a_line(value.plain), value.style)


def warn(verb: str, text: str) -> None:
    """Print a text of a verb to standard error."""
    print(f"scrapy frontier {verb}: {clean(text)}", file=sys.stderr, flush=True)


def name_text(name: str) -> str:
    """Return a name on one line, quoted if it is empty or has blanks at its ends."""
    shown = in_a_line(name)
    return shown if shown and shown == shown.strip() else f"'{shown}'"


def number(value: float) -> str:
    """Return 1234567 as 1,234,567."""
    return f"{value:,.0f}"


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


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, under the names that tables and other commands use for them."""
    names = _names_of(type(value))
    return {names.get(field.name, field.name): getattr(value, field.name) for field in fields(value)}


def _names_of(kind: type) -> Mapping[str, str]:
    return next((_NAMES[base] for base in kind.__mro__ if base in _NAMES), {})


def spelled(value: Any) -> str:
    """Return the repr of a value; an abbreviated one if Python refuses (very long integers)."""
    try:
        return repr(value)
    except ValueError:
        return brief(value)


def plain(value: Any) -> Any:
    """Return a value as JSON can represent it."""
    if isinstance(value, StandIn):
        value = value.shown
    if is_dataclass(value) and not isinstance(value, type):
        value = fields_of(value)
    if isinstance(value, Mapping):
        return {_key(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return [plain(item) for item in value]
    if isinstance(value, (bytes, bytearray)):
        return text_of(bytes(value))
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        return hex(value)
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return str(value)


def _key(key: Any) -> str:
    found = plain(key)
    return found if isinstance(found, str) else str(found)
