"""Check the Lua scripts with luacheck, each joined with the library as the server gets it; nothing else lives here."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping

from scrapy_prioqueue.frontier.redis import scripts, seeds

GLOBALS = ("ARGV", "KEYS", "bit", "cjson", "cmsgpack", "redis", "struct")
OPTIONS = ("--std", "lua51", "--max-line-length", "120", "--codes", "--formatter", "plain")
SYNTAX_ERRORS_FOUND = 2
WARNING = re.compile(r"^[^:]+:(\d+):(\d+): (.*)$", re.MULTILINE)


def findings(sources: Mapping[str, str], library: str) -> list[str]:
    """Return what luacheck has to say, as ``file:line:column: text``.

    What it says of the library counts only where it says so in every script: one script needs not use all functions.

    Args:
        sources: name of each script and its text, which begins with the library's.
        library: text of the library.
    """
    length = len(library.splitlines())
    in_library: list[set[str]] = []
    in_scripts: list[str] = []
    for name, source in sorted(sources.items()):
        in_library.append(set())
        for line, column, text in WARNING.findall(_luacheck(source)):
            if int(line) <= length:
                in_library[-1].add(f"library:{line}:{column}: {text}")
            else:
                in_scripts.append(f"{name}.lua:{int(line) - length}:{column}: {text}")
    return sorted(set.intersection(*in_library)) + in_scripts


def _luacheck(source: str) -> str:
    command = ["luacheck", *OPTIONS, "--read-globals", *GLOBALS, "--filename", "script", "-"]
    ended = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    if ended.returncode > SYNTAX_ERRORS_FOUND:
        raise RuntimeError(f"luacheck failed: {ended.stdout}{ended.stderr}")
    return ended.stdout


if __name__ == "__main__":
    sources = scripts.joined_sources()
    others = {f"seeds/{name}": seeds.source_of(name) for name in seeds.NAMES}
    print(f"{len(sources) + len(others)} Lua scripts checked")
    sys.exit("\n".join(findings(sources, scripts.library_source()) + findings(others, "")) or None)
