"""The module `books.monitors` of docs/integrations.md, for the crawls of `test_spidermon`."""

from __future__ import annotations

from tests.docs.markdown import DOCS, python_blocks

(_SOURCE,) = [block for block in python_blocks(DOCS / "integrations.md") if block.startswith("# books/monitors.py\n")]

exec(_SOURCE)
