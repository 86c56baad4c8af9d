"""Results of benchmarks are stored unchanged and printed with their range; `benchmarks/results.py`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from results import Cell, Measured, Results, Table


def some_results() -> Results:
    rows: list[list[Cell]] = [
        ["1 worker", 1, Measured([1.5, 0.25, 2.125], 2), None],
        ['quotes " and µ', 2.5, Measured([]), "3 of 4"],
    ]
    tables = [Table("Speed", ["", "workers", "pages/s", "said"], rows, "A note."), Table("Empty", ["only"], [])]
    return Results("fleet", True, "Machine: a.", "Versions: b.", "2026-01-02", tables)


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "fleet.json"
    some_results().write(path)

    assert Results.read(path) == some_results()
    assert json.loads(path.read_text())["tables"][0]["rows"][0][2]["values"] == [1.5, 0.25, 2.125]
    assert [one.name for one in path.parent.iterdir()] == ["fleet.json"]


def test_a_table_prints_medians_and_ranges() -> None:
    lines = some_results().table("Speed").markdown().splitlines()

    assert lines[2] == "| 1 worker       |       1 | 1.50 (0.25 to 2.12) |      - |"
    assert lines[3] == '| quotes " and µ |     2.5 |                   - | 3 of 4 |'
    assert lines[-1] == "A note."


def test_tables_and_columns_are_found_by_name() -> None:
    results = some_results()

    assert results.table("Speed").column("workers") == [1, 2.5]
    with pytest.raises(KeyError, match="fleet has no table 'Sped'"):
        results.table("Sped")
    with pytest.raises(ValueError, match="pages/h"):
        results.table("Speed").column("pages/h")
