"""A large tree of real HTML pages: Python's documentation, from a Debian package."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PACKAGE = "python3-doc"
INSTALLED = Path("/usr/share/doc")
MODULES = ("argparse", "ast", "asyncio", "collections", "csv", "ctypes", "datetime", "email", "html", "http", "json")
WITHIN_S = 50.0


def find_documentation(cache: Path) -> Path:
    """Return a folder of HTML pages: installed, else from Debian's package, else made by pydoc, which it says.

    Args:
        cache: a folder where what was downloaded is found again.
    """
    return _documentation_in(INSTALLED) or _downloaded(cache / PACKAGE) or _made_by_pydoc(cache / "pydoc")


def _documentation_in(folder: Path) -> Path | None:
    indexes = sorted(folder.glob("python3*/html/index.html"))
    return indexes[-1].parent.resolve() if indexes else None


def _downloaded(folder: Path) -> Path | None:
    root = folder / "root"
    if not root.exists():
        folder.mkdir(exist_ok=True)
        draft = folder / "draft"
        try:
            depends = _run("apt-cache", "depends", "--important", PACKAGE, folder=folder)
            names = re.findall(r"Depends: (python3\.\d+-doc)", depends)
            _run("apt-get", "download", *names, folder=folder)
            _run("dpkg", "-x", *map(str, folder.glob("*.deb")), str(draft), folder=folder)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"Debian's {PACKAGE} is not to be had: {error}")
            return None
        draft.rename(root)
    return _documentation_in(root / INSTALLED.relative_to("/"))


def _made_by_pydoc(folder: Path) -> Path:
    print(f"No documentation was found: {folder} is made by pydoc, and much smaller")
    folder.mkdir(exist_ok=True)
    _run(sys.executable, "-m", "pydoc", "-w", *MODULES, folder=folder)
    return folder


def _run(*command: str, folder: Path) -> str:
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=WITHIN_S).stdout
