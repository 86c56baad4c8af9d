"""Reads tables, headings and links of Markdown for the documentation's tests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
REFERENCE = DOCS / "reference"

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SEPARATOR = re.compile(r"(?<!\\) \| ")


def pages() -> Sequence[Path]:
    """Return every page that is written by hand."""
    in_root = (REPOSITORY / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"))
    return [*in_root, *sorted((REPOSITORY / "docs").rglob("*.md"))]


def rows(page: Path, heading: str) -> list[Sequence[str]]:
    """Return the cells of the first table whose first column has that heading, without its head.

    Raises:
        LookupError: there is no such table.
    """
    lines = page.read_text("utf-8").splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith(f"| {heading} |")]
    if not starts:
        raise LookupError(f"{page.name} has no table that begins with {heading!r}")
    found: list[Sequence[str]] = []
    for line in lines[starts[0] + 2 :]:
        if not line.startswith("|"):
            break
        found.append(SEPARATOR.split(line.removeprefix("| ").removesuffix(" |")))
    return found


def names(page: Path, heading: str) -> list[str]:
    """Return the first column of a table, out of its backticks."""
    return [cells[0].strip("`") for cells in rows(page, heading)]


def python_blocks(page: Path, heading: str = "") -> list[str]:
    """Return the blocks of Python on a page, or in the section with that heading."""
    text = page.read_text("utf-8")
    if heading:
        _, found, text = text.partition(f"\n## {heading}\n")
        assert found, f"{page.name} has no section {heading!r}"
        text = text.partition("\n## ")[0]
    return PYTHON.findall(text)


def links(page: Path) -> Iterator[str]:
    """Yield the targets of all links outside of code blocks."""
    for found in LINK.finditer(FENCE.sub("", page.read_text("utf-8"))):
        yield found[1]


def anchors(page: Path) -> set[str]:
    """Return what can follow # in a link to a page."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
