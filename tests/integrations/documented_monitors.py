"""The module `books.monitors` of docs/integrations.md, for the crawls of `test_spidermon`."""

from __future__ import annotations

import re

from tests.docs.markdown import REPOSITORY

_PAGE = (REPOSITORY / "docs" / "integrations.md").read_text("utf-8")
(_SOURCE,) = re.findall(r"```python\n(# books/monitors.py\n.*?)```", _PAGE, re.DOTALL)

exec(_SOURCE)
