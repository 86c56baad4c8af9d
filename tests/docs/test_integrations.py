"""The page of integrations lists the packages that are tested, with their versions, and the parts of Scrapy."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.docs.markdown import REPOSITORY, rows

PAGE = REPOSITORY / "docs" / "integrations.md"
FOLDER = REPOSITORY / "tests" / "integrations"
CODE, WORD = re.compile(r"`([^`]+)`"), re.compile(r"\w+")
CRAWLS = REPOSITORY / "tests" / "crawl"


def subject(test: Path) -> str:
    """Return the package that a module of tests is about, with which its docstring begins."""
    return str(ast.get_docstring(ast.parse(test.read_text("utf-8")))).partition(":")[0]


def listed() -> dict[str, str]:
    """Return the versions in the table, by package."""
    return {name.strip("[").partition("]")[0]: version for name, version, _ in rows(PAGE, "package")}


def test_page_lists_the_packages_that_are_tested() -> None:
    # The dashboard of this package is tested there, too, since it takes a browser.
    modules = set(FOLDER.rglob("test_*.py")) - {FOLDER / "test_dashboard.py"}

    assert sorted(listed()) == sorted(map(subject, modules))


def test_versions_are_those_of_the_requirements() -> None:
    lines = [line for file in FOLDER.rglob("requirements.txt") for line in file.read_text("utf-8").splitlines()]
    required = dict(re.findall(r"^([\w-]+)(?:\[\w+\])?>=([\d.]+)$", "\n".join(lines), re.MULTILINE))

    assert {name: required.get(name) for name in listed()} == listed()


def test_the_parts_of_scrapy_on_the_page_are_used_in_crawls() -> None:
    tests = [path.read_text("utf-8") for folder in (FOLDER, CRAWLS) for path in folder.glob("*.py")]
    used = set(WORD.findall("\n".join(tests)))
    named = {
        word for part, _ in rows(PAGE, "part of Scrapy") for code in CODE.findall(part) for word in WORD.findall(code)
    }

    assert named <= used
