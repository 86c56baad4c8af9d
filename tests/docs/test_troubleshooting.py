"""Messages that the pages quote are literally those of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.docs.markdown import FENCE, REFERENCE, REPOSITORY, names, pages
from tests.docs.test_reference import PACKAGE, parsed

PAGE = REPOSITORY / "docs" / "troubleshooting.md"
PLACEHOLDER = re.compile(r"%(?:\(\w+\))?[-.\d]*[sdrgf]")
CODE = re.compile(r"`([^`]+)`")
NOT_MESSAGES = re.compile(r"scrapy frontier|PRIOQUEUE_[A-Z_]+ = [^…]*$|DOWNLOAD_DELAY = 1$")


def texts_of_the_package() -> Iterator[str]:
    """Yield every text in the code, with … for what is filled in."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(parsed(path.read_text("utf-8"))):
            match node:
                case ast.Constant(value=str(text)):
                    yield PLACEHOLDER.sub("…", text).replace("%%", "%")
                case ast.JoinedStr(values=parts):
                    yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)


def quoted(page: Path) -> list[str]:
    text = FENCE.sub("", page.read_text("utf-8"))
    return [message for message in CODE.findall(text) if " " in message and not NOT_MESSAGES.match(message)]


def pattern_of(message: str) -> re.Pattern[str]:
    """Return what finds a message in a text; … stands for anything."""
    return re.compile(".*".join(map(re.escape, message.split("…"))), re.DOTALL)


def test_messages_quoted_in_troubleshooting_are_those_of_the_code() -> None:
    texts = list(texts_of_the_package())
    messages = quoted(PAGE)

    assert len(messages) > 30
    assert [message for message in messages if not any(map(pattern_of(message).search, texts))] == []


def test_stats_on_all_pages_exist() -> None:
    known = {*names(REFERENCE / "stats.md", "stat")}
    for page in pages():
        named = re.findall(r"`(prioqueue/[a-z/]+)`", page.read_text("utf-8"))
        assert {name for name in named if not name.startswith("prioqueue/escalated/")} <= known, page
