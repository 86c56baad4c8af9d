"""`scripts/lint_lua.py` finds mistakes in Lua scripts."""

from __future__ import annotations

from pathlib import Path

import pytest
from lint_lua import findings

from scrapy_prioqueue.frontier.redis import scripts as redis_scripts
from scrapy_prioqueue.frontier.redis import seeds

pytestmark = pytest.mark.any_server

PART = (
    "_part",
    """\
local function key(noun) return KEYS[1] .. noun end
local function count(noun) return redis.call("ZCARD", key(noun)) end
""",
)


def test_scripts_of_seeds_are_all_there_is() -> None:
    folder = Path(redis_scripts.__file__).with_name("lua") / "seeds"

    assert {path.stem for path in folder.glob("*.lua")} == set(seeds.NAMES)


def test_finding_in_a_script_names_its_own_file_and_line() -> None:
    found = findings({"push": [PART, ("push", "\nreturn count(nuon)\n")]})

    assert found == ["push.lua:2:14: (W113) accessing undefined variable 'nuon'"]


def test_function_of_a_part_may_be_unused_in_one_script_but_not_in_all() -> None:
    uses_count = [PART, ("depth", 'return count("queue")\n')]
    uses_key = [PART, ("name", 'return key("queue")\n')]

    assert findings({"depth": uses_count, "name": uses_key}) == []
    assert findings({"name": uses_key}) == ["_part.lua:2:16: (W211) unused function 'count'"]


def test_syntax_error_is_a_finding() -> None:
    found = findings({"push": [PART, ("push", "local = 1\n")]})

    assert len(found) == 1
    assert found[0].startswith("push.lua:1:7: (E011)")
