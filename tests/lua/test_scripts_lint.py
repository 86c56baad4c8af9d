"""The check of the Lua scripts finds what it should find, and nothing in ours; `scripts/lint_lua.py`."""

from __future__ import annotations

from pathlib import Path

from lint_lua import findings

from scrapy_prioqueue.frontier.redis import scripts as redis_scripts
from scrapy_prioqueue.frontier.redis import seeds
from scrapy_prioqueue.frontier.redis.scripts import joined_sources, library_source

LIBRARY_OF_TWO = """\
local function key(noun) return KEYS[1] .. noun end
local function count(noun) return redis.call("ZCARD", key(noun)) end
"""


def test_our_scripts_have_no_findings() -> None:
    assert findings(joined_sources(), library_source()) == []


def test_scripts_of_seeds_have_no_findings_and_are_all_there_is() -> None:
    folder = Path(redis_scripts.__file__).with_name("lua") / "seeds"

    assert {path.stem for path in folder.glob("*.lua")} == set(seeds.NAMES)
    assert findings({name: seeds.source_of(name) for name in seeds.NAMES}, "") == []


def test_each_script_is_checked_behind_the_library() -> None:
    library = library_source()
    folder = Path(redis_scripts.__file__).with_name("lua")
    scripts = {path.stem for path in folder.glob("*.lua")} - set(redis_scripts.LIBRARY)
    scripts -= {part for parts in redis_scripts.PARTS.values() for part in parts}

    sources = joined_sources()

    assert sources.keys() == scripts
    assert all(source.startswith(library) for source in sources.values())


def test_finding_in_a_script_names_its_own_file_and_line() -> None:
    found = findings({"push": LIBRARY_OF_TWO + "\nreturn count(nuon)\n"}, LIBRARY_OF_TWO)

    assert found == ["push.lua:2:14: (W113) accessing undefined variable 'nuon'"]


def test_function_of_the_library_may_be_unused_in_one_script_but_not_in_all() -> None:
    uses_count = LIBRARY_OF_TWO + 'return count("queue")\n'
    uses_key = LIBRARY_OF_TWO + 'return key("queue")\n'

    assert findings({"depth": uses_count, "name": uses_key}, LIBRARY_OF_TWO) == []
    assert findings({"name": uses_key}, LIBRARY_OF_TWO) == ["library:2:16: (W211) unused function 'count'"]


def test_syntax_error_is_a_finding() -> None:
    found = findings({"push": LIBRARY_OF_TWO + "local = 1\n"}, LIBRARY_OF_TWO)

    assert len(found) == 1
    assert found[0].startswith("push.lua:1:7: (E011)")
