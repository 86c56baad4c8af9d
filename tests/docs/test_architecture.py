"""The table of packages in the architecture names all of them, and modules that exist."""

from __future__ import annotations

import re
from pathlib import Path

import scrapy_prioqueue
from tests.docs.markdown import DOCS, rows

PACKAGE = Path(scrapy_prioqueue.__file__).parent
ROOMS = rows(DOCS / "architecture.md", "package or module")


def names_in(cell: str) -> list[str]:
    return [name.rstrip("/") for name in re.findall(r"`([\w/]+)`", cell)]


def test_every_package_and_module_of_the_top_level_is_named() -> None:
    named = {name for cells in ROOMS for name in names_in(cells[0])}
    top = {path.stem for path in PACKAGE.glob("*.py")} | {path.parent.name for path in PACKAGE.glob("*/__init__.py")}

    assert sorted(top - {"__init__"} - named) == []


def test_every_module_that_is_named_is_there() -> None:
    named = [name for cells in ROOMS for name in names_in(cells[0])]
    named += [f"{folder}/{name}" for cells in ROOMS for folder in names_in(cells[0]) for name in names_in(cells[-1])]

    assert len(named) > 50
    assert [name for name in named if not any((PACKAGE / f"{name}{end}").exists() for end in ("", ".py", ".lua"))] == []
