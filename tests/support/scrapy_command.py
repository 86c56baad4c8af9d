"""The program of a `scrapy` command that runs in a fork, as `python -m scrapy` would in the example project."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from scrapy.cmdline import execute

PROJECT = Path(__file__).resolve().parents[2] / "example_project"


def main(order_path: Path) -> None:
    """Run the command whose arguments are in that file, as a JSON list."""
    os.chdir(PROJECT)
    sys.path.insert(0, str(PROJECT))
    execute(["scrapy", *json.loads(order_path.read_bytes())])
