"""The pages of benchmarks agree with their templates and results; `benchmarks/page.py`."""

from __future__ import annotations

import argparse
from pathlib import Path

import fleet
import pytest
import sizing
import suite
import traffic
from drawings import DRAWINGS
from fleet import split
from page import PLOTS, REPOSITORY, RESULTS, TEMPLATES, Library, NotMeasured, Parts, page, printed, render
from plots import Plot, groups_of, lines_of
from processes import BenchmarkFailed
from results import Cell, Measured, Results, Table
from suite import PARTS, SUITE, chosen

NO_PARTS = Parts({}, {})


def library_of(*tables: Table) -> Library:
    return Library({"fleet": Results("fleet", True, "Machine: m.", "Versions: v.", "2026-01-02", list(tables))})


def speed() -> Table:
    rows: list[list[Cell]] = [
        ["ours", 1, Measured([30, 10, 20], 0)],
        ["plain", 1, 50],
        ["ours", 10, Measured([40, 60], 0)],
        ["plain", 10, None],
        ["plain", 1000, "1,250.5"],
    ]
    return Table("Speed", ["", "workers", "requests/s"], rows, "A note.")


@pytest.mark.parametrize("name", TEMPLATES)
def test_committed_pages_are_made_of_the_committed_results(name: str) -> None:
    made = page(name, Library.read(RESULTS), PARTS)

    assert (REPOSITORY / "docs" / name).read_text() == made, "run: make bench-write"


def test_drawings_of_the_pages_are_small_and_have_no_date() -> None:
    for path in (REPOSITORY / "docs" / PLOTS).glob("*.svg"):
        drawing = path.read_text()
        assert path.stem in {one.name for one in DRAWINGS}
        assert drawing.startswith("<?xml") and "<dc:date>" not in drawing
        assert len(drawing) < 60_000


def test_directives_stand_for_what_was_measured() -> None:
    parts = Parts({"twice": lambda library: library.table("fleet", "Speed")}, {"speeds": lambda library: speed()})
    template = (
        "{{ about fleet }}\n{{ table fleet | Speed }}\n{{ value fleet | Speed | ours/10 | requests/s }}\n"
        "{{ plot speeds | What it shows }}\n{{ sizing twice }}\n"
    )

    made = render(template, library_of(speed()), parts)

    head, rest = made.split("\n| ", 1)
    assert head == "Measured on 2026-01-02, the short form.\nMachine: m.\nVersions: v."
    assert made.count(speed().markdown()) == 2
    assert "\n50\n![What it shows](plots/speeds.svg)\n" in rest


def test_a_missing_result_says_how_to_measure_it() -> None:
    for directive in ("table seen | Memory", "about seen", "value seen | Memory | exact | bytes"):
        made = render(f"Before.\n{{{{ {directive} }}}}\n", library_of(speed()), NO_PARTS)
        assert made == "Before.\n(not measured yet: `make bench ONLY=seen`)\n"
    for row, column in ((["ours", "2"], "requests/s"), (["ours", "1"], "pages/s"), (["plain", "10"], "requests/s")):
        with pytest.raises(NotMeasured):
            library_of(speed()).value("fleet", "Speed", row, column)


def test_a_directive_that_is_not_known_is_an_error() -> None:
    with pytest.raises(ValueError, match="tabel"):
        render("{{ tabel fleet | Speed }}", library_of(speed()), NO_PARTS)


def test_lines_are_distinguished_by_a_column_or_by_several() -> None:
    by_name = lines_of(Plot("p", "fleet", "Speed", ("requests/s",), x="workers", by=""), speed())
    by_column = lines_of(Plot("p", "fleet", "Speed", ("workers", "requests/s"), x="workers"), speed())

    assert {line.name: line.points for line in by_name} == {
        "ours": [(1, [30, 10, 20]), (10, [40, 60])],
        "plain": [(1, [50]), (1000, [1250.5])],
    }
    assert [(line.name, len(line.points)) for line in by_column] == [("workers", 5), ("requests/s", 4)]


def test_bars_are_a_group_per_row_without_what_has_no_number() -> None:
    labels, bars = groups_of(Plot("p", "fleet", "Speed", ("requests/s",), labels=["", "workers"]), speed())

    assert labels == ["ours · 1", "plain · 1", "ours · 10", "plain · 10", "plain · 1000"]
    assert [line.points for line in bars] == [[(0, [30, 10, 20]), (1, [50]), (2, [40, 60]), (4, [1250.5])]]


def test_bars_may_be_distinguished_by_a_column() -> None:
    labels, bars = groups_of(Plot("p", "fleet", "Speed", ("requests/s",), by="workers"), speed())

    assert labels == ["ours", "plain"]
    assert {line.name: line.points for line in bars} == {
        "1": [(0, [30, 10, 20]), (1, [50])],
        "10": [(0, [40, 60])],
        "1000": [(1, [1250.5])],
    }


def test_rows_that_agree_are_one_bar() -> None:
    rows: list[list[Cell]] = [["ours", "6.2", 1.0], ["theirs", "6.2", 3.0], ["ours", "8.2", Measured([2.0, 1.5])]]

    _, bars = groups_of(Plot("p", "fleet", "T", ("bytes",), by=""), Table("T", ["", "Redis", "bytes"], rows))

    assert [(line.name, line.points) for line in bars] == [("ours", [(0, [1, 2, 1.5])]), ("theirs", [(1, [3])])]


def test_numbers_are_printed_with_three_digits_that_count() -> None:
    numbers = (0.01234, 0.5, 5.0, 5.678, 12.34, 50.0, 123.4, 12345.6)

    assert [printed(one) for one in numbers] == ["0.0123", "0.5", "5", "5.68", "12.3", "50", "123", "12,346"]


def test_the_suite_names_programs_that_are_there_and_what_was_asked_for() -> None:
    assert [one.name for one in chosen(["fleet", "crawl"])] == ["crawl", "fleet"]
    assert chosen([]) == list(SUITE)
    with pytest.raises(Exception, match="no benchmark chess; there are crawl, "):
        chosen(["chess"])


def test_sizes_are_bytes_as_measured_and_beyond_that_those_of_the_largest() -> None:
    seen: list[list[Cell]] = [
        [mode, urls, Measured([each - 0.5, each, each + 0.5], 1)]
        for mode, each in (("exact", 12.0), ("compact", 6.0), ("bloom", 1.25))
        for urls in (1_000_000, 10_000_000)
    ]
    seen[0][2] = 15
    pending: list[list[Cell]] = [
        ["scrapy-prioqueue", sizing.USUAL_REQUEST, 200],
        ["scrapy-redis", sizing.USUAL_REQUEST, 500],
        ["scrapy-prioqueue", sizing.USUAL_REQUEST, Measured([210])],
        ["scrapy-prioqueue", "and a Referer", 300],
    ]
    tables = {
        "seen": Table(sizing.SEEN, ["mode", "URLs", "bytes per URL"], seen),
        "pending": Table(sizing.PENDING, ["", "requests", "bytes per request"], pending),
    }
    library = Library({name: Results(name, False, "", "", "", [table]) for name, table in tables.items()})

    made = sizing.memory_table(library)

    assert made.rows[0] == ["1,000,000", "15 MB", "6 MB", "1.25 MB", "210 MB"]
    assert made.rows[-1] == ["1,000,000,000", "12 GB", "6 GB", "1.25 GB", "210 GB"]
    assert "exact 12 at 10,000,000 URLs" in made.note
    with pytest.raises(NotMeasured):
        sizing.worker_table(library)


def test_the_example_multiplies_what_was_measured_per_page() -> None:
    by_fleet = ["workers", "pages/s each", "Redis µs", "bytes in", "bytes out"]
    by_option = ["", "append-only file", "to each replica"]
    tables = {
        "seen": [Table(sizing.SEEN, ["mode", "URLs", "bytes per URL"], [["exact", 1_000_000, 10.0]])],
        "fleet": [Table(fleet.SPEED, ["", "workers", "Redis µs"], [[fleet.OURS, sizing.BUSY_FLEET, 30.0]])],
        "traffic": [
            Table(traffic.BY_FLEET, by_fleet, [[*traffic.EXAMPLE, 200.0, 1000.0, 250.0]]),
            Table(traffic.BY_OPTION, by_option, [[traffic.EVERY_SECOND, 2000, None], [traffic.REPLICA, None, 1500]]),
        ],
    }
    library = Library({name: Results(name, False, "", "", "", found) for name, found in tables.items()})

    first = sizing.example_table(library).rows[0]

    traffic_of_400_pages = ["0.4 MB/s", "0.1 MB/s", "0.8 MB/s", "0.6 MB/s"]
    assert first == ["10", "400", "400", "1.2 % to 8 %", "30", *traffic_of_400_pages, "346 MB"]


def test_a_benchmark_that_fails_does_not_keep_the_others_from_being_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "crawl.py").write_text("raise SystemExit(3)")
    (tmp_path / "fleet.py").write_text("import sys; print(sys.argv[1:])")
    monkeypatch.setattr(suite, "HERE", tmp_path)
    monkeypatch.setattr(suite, "QUICK_FOLDER", tmp_path / "quick")
    monkeypatch.setattr(suite, "write", lambda results, docs: None)

    with pytest.raises(BenchmarkFailed, match="not measured: crawl"):
        suite.run_suite(argparse.Namespace(only=[], quick=True, write=False))

    out = capfd.readouterr().out
    assert str(["--json", str(tmp_path / "quick" / "results" / "fleet.json"), "--quick"]) in out
    assert "failed with code 3" in out


def test_workers_are_spread_evenly_over_processes() -> None:
    assert [split(workers, 2) for workers in (1, 2, 5, 50)] == [[1], [1, 1], [3, 2], [25, 25]]


def test_results_are_those_of_benchmarks_of_the_suite() -> None:
    assert {path.stem for path in RESULTS.glob("*.json")} <= {one.name for one in SUITE}
