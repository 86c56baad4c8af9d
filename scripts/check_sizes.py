"""Check that modules, functions and Lua scripts are short enough to be read at a glance; nothing else lives here."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("scrapy_prioqueue", "example_project", "benchmarks", "scripts")
MODULE_LINES = 400
FUNCTION_LINES = 40
SCRIPT_LINES = 150


def too_long(folder: Path) -> Iterator[str]:
    """Yield what is too long in a folder, as ``file:line: text``."""
    for path in sorted(folder.rglob("*.lua")):
        yield from _over(SCRIPT_LINES, _code_lines(path), f"{path}:1: the script")
    for path in sorted(folder.rglob("*.py")):
        yield from _over(MODULE_LINES, _lines(path), f"{path}:1: the module")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from _over(FUNCTION_LINES, _body_lines(node), f"{path}:{node.lineno}: {node.name}")


def _over(limit: int, length: int, what: str) -> Iterator[str]:
    if length > limit:
        yield f"{what} has {length} lines, more than {limit}"


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def _code_lines(script: Path) -> int:
    """Lines of a Lua script without its header, which says at length what the code then does."""
    lines = script.read_text().splitlines()
    return len(lines) - next((index for index, line in enumerate(lines) if not line.startswith("--")), 0)


def _body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the first to the last, without those of the docstring."""
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None and first.end_lineno is not None:
        lines -= first.end_lineno - first.lineno + 1
    return lines


if __name__ == "__main__":
    sys.exit("\n".join(text for folder in FOLDERS for text in too_long(Path(folder))) or None)
