"""Write the pages of measurements: templates in which directives stand for tables, values and plots of the results.

A directive stands in double braces:

- ``about NAME``: when and on what that benchmark was run,
- ``table NAME | TITLE``: one of its tables,
- ``value NAME | TITLE | ROW | COLUMN``: the median of a cell, whose row is found by its first cells, separated by "/",
- ``plot PLOT | TEXT``: a drawing, with what it shows in words,
- ``sizing TABLE``: a table that ``sizing.py`` works out.

What was not measured yet says so, and how to.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from processes import HERE
from results import Cell, Measured, Results, Table

REPOSITORY = HERE.parent
RESULTS = HERE / "results"
PLOTS = "plots"
"""Folder of the drawings, beside the pages."""

TEMPLATES = ("performance.md", "sizing.md")

DIRECTIVE = re.compile(r"\{\{ (\w+) (.*?) \}\}")
NOTICE = "<!-- Made by `make bench` from benchmarks/templates/{name} and benchmarks/results/; change it there. -->\n"


class NotMeasured(Exception):
    """The results that something needs are not there.

    Args:
        benchmark: the one that would bring them.
    """

    def __init__(self, benchmark: str) -> None:
        super().__init__(f"not measured yet: `make bench ONLY={benchmark}`")
        self.benchmark = benchmark


class Library:
    """All results that there are.

    Args:
        by_name: results by the name of their benchmark.
    """

    def __init__(self, by_name: Mapping[str, Results]) -> None:
        self._by_name = by_name

    @classmethod
    def read(cls, folder: Path) -> Library:
        """Read all files of a folder."""
        return cls({path.stem: Results.read(path) for path in sorted(folder.glob("*.json"))})

    def results(self, benchmark: str) -> Results:
        """Return the results of a benchmark.

        Raises:
            NotMeasured: there are none.
        """
        try:
            return self._by_name[benchmark]
        except KeyError:
            raise NotMeasured(benchmark) from None

    def table(self, benchmark: str, title: str) -> Table:
        """Return one table.

        Raises:
            NotMeasured: there are no results of that benchmark, or they are those of a part of it.
        """
        try:
            return self.results(benchmark).table(title)
        except KeyError:
            raise NotMeasured(benchmark) from None

    def value(self, benchmark: str, title: str, row: Sequence[str], column: str) -> float:
        """Return the median of a cell.

        Args:
            row: its first cells, as they are printed.

        Raises:
            NotMeasured: there is no such cell, or no number in it.
        """
        found = self.table(benchmark, title)
        for cells in found.rows:
            if [str(cell) for cell in cells[: len(row)]] == list(row) and column in found.columns:
                number = number_of(cells[list(found.columns).index(column)])
                if number is not None:
                    return number
        raise NotMeasured(benchmark)


def number_of(cell: Cell) -> float | None:
    """Return the number in a cell, of samples their median; None if there is none."""
    if isinstance(cell, Measured):
        return statistics.median(cell.values) if cell.values else None
    return float(cell) if isinstance(cell, int | float) else None


def printed(number: float) -> str:
    """Return a number with three digits that count, or all before the point."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


Source = Callable[[Library], Table]
"""Finds or works out a table."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What pages are made of, besides the tables of the results.

    Args:
        sizing: tables that are worked out, by name.
        drawings: the tables that are drawn, by name of the drawing.
    """

    sizing: Mapping[str, Source]
    drawings: Mapping[str, Source]


def render(template: str, library: Library, parts: Parts) -> str:
    """Return a page.

    Raises:
        ValueError: a directive is not known.
    """

    def replaced(found: re.Match[str]) -> str:
        try:
            return _filled(found[1], [word.strip() for word in found[2].split(" | ")], library, parts)
        except NotMeasured as error:
            return f"({error})"

    return DIRECTIVE.sub(replaced, template)


def _filled(kind: str, words: Sequence[str], library: Library, parts: Parts) -> str:
    if kind == "about":
        results = library.results(words[0])
        form = ", the short form" if results.is_quick else ""
        return f"Measured on {results.measured_on}{form}.\n{results.machine}\n{results.versions}"
    if kind == "table":
        return library.table(*words).markdown()
    if kind == "value":
        benchmark, title, row, column = words
        return printed(library.value(benchmark, title, row.split("/"), column))
    if kind == "plot":
        parts.drawings[words[0]](library)
        return f"![{words[1]}]({PLOTS}/{words[0]}.svg)"
    if kind == "sizing":
        return parts.sizing[words[0]](library).markdown()
    raise ValueError(f"no directive {kind!r}")


def write_pages(library: Library, folder: Path, parts: Parts) -> None:
    """Write all pages into a folder."""
    for name in TEMPLATES:
        (folder / name).write_text(page(name, library, parts))


def page(name: str, library: Library, parts: Parts) -> str:
    """Return the page of a template, by the name of its file."""
    return NOTICE.format(name=name) + render((HERE / "templates" / name).read_text(), library, parts)
