"""Scripts that fail in the middle, with an error at one of the commands that change something."""

from __future__ import annotations

import re

from scrapy_prioqueue.frontier.redis.scripts import joined_sources

SOURCES = joined_sources()


def commands_of(*names: str) -> list[str]:
    """Return the commands that these scripts call."""
    return sorted(set(re.findall(r'redis\.call\("([A-Z]+)"', "".join(SOURCES[name] for name in names))))


EFFECTS = sorted(
    {"BF.INSERT", "BF.RESERVE", "BITFIELD", "RENAME", "SETRANGE", "UNLINK", "ZPOPMIN"}.union(
        command for command in commands_of(*SOURCES) if re.match(r"H(SET|DEL|INCRBY)|S(ADD|REM)|Z(ADD|REM)", command)
    )
)
"""Those that change something."""

PLANTED = "planted error"

_WRAPPED = """
local effects_left, real = %s, redis
local function failing(command, ...)
  if ({%s})[command] then
    effects_left = effects_left - 1
    if effects_left == 0 then error("%s") end
  end
  return real.call(command, ...)
end
local redis = setmetatable({call = failing}, {__index = real})
"""


def failing(source: str, at: int | str) -> str:
    """Return a script that raises an error in the place of its n-th effect, counted from 1; `at` is n, or Lua for it.

    Lua that reads n keeps the script the same for each, so that the server compiles it once.
    """
    shebang, line, rest = source.partition("\n") if source.startswith("#!") else ("", "", source)
    effects = ", ".join(f'["{command}"] = true' for command in EFFECTS)
    return f"{shebang}{line}{_WRAPPED % (at, effects, PLANTED)}{rest}"
