"""The drawings agree with their sources, and every file that the architecture's drawing names exists."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import scrapy_prioqueue

DRAWINGS = Path(__file__).parents[2] / "docs" / "drawings"
PACKAGE = Path(scrapy_prioqueue.__file__).parent


def source() -> dict[str, Any]:
    return runpy.run_path(str(DRAWINGS / "architecture.py"))


def test_the_drawing_is_up_to_date() -> None:
    assert (DRAWINGS / "architecture.svg").read_text("utf-8") == source()["drawing"]()


def test_every_file_in_the_drawing_is_there() -> None:
    named = [name for box in source()["BOXES"] for name in box.files]

    assert len(named) > 10
    assert [
        name for name in named if not ((PACKAGE / name).exists() or (PACKAGE / "frontier/redis" / name).exists())
    ] == []


def test_the_drawings_of_the_concepts_are_up_to_date() -> None:
    drawings = runpy.run_path(str(DRAWINGS / "concepts.py"))["drawings"]()

    assert {name: (DRAWINGS / name).read_text("utf-8") for name in drawings} == drawings
