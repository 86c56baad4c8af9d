"""Sphinx's configuration.

The pages are Markdown whose links work on GitHub, too. `make docs` and the tests treat every warning as an error.
"""

from __future__ import annotations

import os
import re
from importlib.metadata import version as installed_version
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
REPOSITORY = DOCS.parent
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
    "example_project/README.md": "example.md",
}
"""Files outside this folder that pages here include, and those pages."""

LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)\s#]+)")

project = "scrapy-prioqueue"
author = "the developers of scrapy-prioqueue"
release = version = installed_version(project)

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
nitpicky = True
# Headings have the anchors that they have on GitHub.
myst_heading_anchors = 4

html_theme = "furo"
html_title = f"{project} {release}"


def relinked(text: str, folder: Path, page: Path) -> str:
    """Return the text of a page, or of a file in `folder` that it includes, with links to pages of this site."""

    def target_of(match: re.Match[str]) -> str:
        path = (folder / match[2]).resolve()
        name = os.path.relpath(path, REPOSITORY)
        path = DOCS / OUTSIDE[name] if name in OUTSIDE else path
        return match[1] + os.path.relpath(path, page.parent)

    return LINK.sub(target_of, text)


def relink_page(app: Sphinx, name: str, content: list[str]) -> None:
    """Change the links of a page."""
    page = Path(app.env.doc2path(name))
    content[0] = relinked(content[0], page.parent, page)


def relink_included(app: Sphinx, path: Path, name: str, content: list[str]) -> None:
    """Change the links of a file that a page includes."""
    content[0] = relinked(content[0], (DOCS / path).resolve().parent, Path(app.env.doc2path(name)))


def setup(app: Sphinx) -> None:
    """Connect to the events of Sphinx."""
    app.connect("source-read", relink_page)
    app.connect("include-read", relink_included)
