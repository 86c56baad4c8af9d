"""The scripts as sent to a server: joined, with flags if the server supports them, named by their hash."""

from __future__ import annotations

import re
from hashlib import sha1
from importlib.resources import files

import pytest

from scrapy_prioqueue.frontier.policy import CATCH_UP_MS, LATE_MS, STRETCH
from scrapy_prioqueue.frontier.redis import scripts
from scrapy_prioqueue.frontier.redis.scripts import (
    LIBRARY,
    NAMES,
    OPERATOR_NAMES,
    joined_pieces,
    joined_sources,
    scripts_for,
    text_of,
)

FOLDER = files(scripts.__package__) / "lua"
OLD, NEW = (6, 2, 14), (7, 0, 0)
ALL = (*NAMES, *OPERATOR_NAMES)
PIECES = joined_pieces()


def test_every_file_of_the_library_is_loaded() -> None:
    found = {f"lib/{path.name}" for path in (FOLDER / "lib").iterdir()}

    assert found == {f"{part}.lua" for part in LIBRARY}


@pytest.mark.parametrize("name", ALL)
def test_parts_that_a_script_uses_are_in_front_of_it_in_their_order(name: str) -> None:
    parts = [part for part, _ in PIECES[name]]

    assert parts[0] == "lib/core"
    assert parts[-1].endswith(f"/{name}")
    assert [part for part in LIBRARY if part in parts] == sorted(set(parts[:-1]), key=LIBRARY.index)
    assert joined_sources()[name] == "".join(text for _, text in PIECES[name])
    assert joined_sources()[name].endswith(text_of(parts[-1]))


def functions_of(text: str) -> set[str]:
    return set(re.findall(r"^function (lib\.\w+)", text, re.MULTILINE))


def test_every_function_is_used_and_no_script_has_those_that_it_does_not_need() -> None:
    loaded = {name: functions_of(source) for name, source in joined_sources().items()}

    assert set().union(*loaded.values()) == functions_of("".join(map(text_of, LIBRARY)))
    assert "lib.give_back_lost" in loaded["recover"]
    assert not loaded["recover"] & {"lib.store", "lib.serve", "lib.promote", "lib.apply_policy", "lib.take_order"}


@pytest.mark.parametrize("name", ALL)
def test_seldom_needed_functions_are_built_last_and_none_twice(name: str) -> None:
    source = joined_sources()[name]
    before, _, behind = source.partition("lib.__index = function(")
    late, _, own = behind.rpartition("setmetatable(lib, lib)")

    assert not re.search(r"^function lib\..* -- (?:seldom|policies)$", before + own, re.MULTILINE)
    assert len(re.findall(r"^function (lib\.\w+)", source, re.MULTILINE)) == len(functions_of(source))
    assert not functions_of(before) & functions_of(late)


def test_plain_path_is_built_without_limits_budgets_and_dead_letters() -> None:
    before = joined_sources()["lease"].partition("lib.__index = function(")[0]

    assert not functions_of(before) & {
        "lib.with_limits",
        "lib.with_budgets",
        "lib.dead_letter",
        "lib.reap",
        "lib.give_back",
    }
    assert {"lib.fill", "lib.serve", "lib.write_served"} <= functions_of(before)


def test_lines_of_a_part_are_where_they_are_in_its_file() -> None:
    for pieces in PIECES.values():
        for name, text in pieces:
            lines = text_of(name).splitlines()
            found = text.splitlines()[: len(lines)]
            assert [at for at, line in enumerate(found) if line and line != lines[at]] == []


def test_old_server_gets_no_shebang() -> None:
    assert {name: script.source for name, script in scripts_for(OLD, ALL).items()} == joined_sources()


def test_new_server_gets_the_flags_as_a_shebang_and_never_an_empty_one() -> None:
    for name, script in scripts_for(NEW, ALL).items():
        plain = joined_sources()[name]
        assert script.source in (plain, f"#!lua flags=allow-oom\n{plain}")


def test_only_what_brings_requests_may_be_refused_by_a_full_server() -> None:
    refused = [
        name for name, script in scripts_for(NEW, ALL).items() if not script.source.startswith("#!lua flags=allow-oom")
    ]

    assert refused == ["commit", "adopt", "complete", "push", "restore"]


@pytest.mark.parametrize("version", [OLD, NEW])
def test_digest_is_the_one_that_the_server_computes(version: tuple[int, ...]) -> None:
    for script in scripts_for(version).values():
        assert script.digest == sha1(script.source.encode()).hexdigest()


def test_call_names_the_state_as_its_only_key() -> None:
    script = scripts_for(NEW)["leave"]

    assert script.call("{prioqueue:a}:state", ["", "1", 5, 100]) == (
        *("EVALSHA", script.digest, 1, "{prioqueue:a}:state"),
        *("", "1", 5, 100),
    )


def test_line_numbers_of_errors_can_be_traced_since_every_script_ends_with_a_newline() -> None:
    assert all(source.endswith("\n") for source in joined_sources().values())


def test_numbers_of_limits_are_those_that_the_in_process_frontier_goes_by() -> None:
    text = text_of("lib/limits")

    (found,) = re.findall(r"^local STRETCH, CATCH_UP_MS, LATE_MS = (.*)$", text, re.MULTILINE)

    assert [float(number) for number in found.split(", ")] == [STRETCH, CATCH_UP_MS, LATE_MS]
