"""The documentation site builds without a warning: links work, and every page is in a table of contents."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import REPOSITORY

BUILD = (sys.executable, "-m", "sphinx", "-E", "-n", "-q", "-W", "--keep-going", "-b", "html")


@pytest.mark.timeout(300)  # It keeps one core busy for 10 s.
def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [*BUILD, "-d", tmp_path / "read", REPOSITORY / "docs", tmp_path / "site"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    assert (tmp_path / "site" / "index.html").exists()
