"""Check the Lua scripts with luacheck, each with its parts as the server gets it; nothing else lives here."""

from __future__ import annotations

import re
import subprocess
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from scrapy_prioqueue.frontier.redis import scripts, seeds

GLOBALS = ("ARGV", "KEYS", "bit", "cjson", "cmsgpack", "redis", "struct")
OPTIONS = ("--std", "lua51", "--max-line-length", "120", "--codes", "--formatter", "plain")
SYNTAX_ERRORS_FOUND = 2
PLACE = re.compile(r"[^:]+:\d+")
WARNING = re.compile(r"^[^:]+:(\d+):(\d+): (.*)$", re.MULTILINE)


def findings(scripts: Mapping[str, Sequence[tuple[str, str]]]) -> list[str]:
    """Return what luacheck has to say, as ``file:line:column: text``.

    What it says of a line of a shared part counts only where it says so in every script that has the line: one of them
    needs not use all of it.

    Args:
        scripts: the pieces of each script, in their order, as (name of the file, text).
    """
    with ThreadPoolExecutor() as threads:
        said = list(threads.map(_findings_of, scripts.values()))
    users = Counter(place for pieces in scripts.values() for place in _places(pieces))
    counts = Counter(text for texts in said for text in texts)
    return sorted(text for text, count in counts.items() if count == users[PLACE.findall(text)[0]])


def _places(pieces: Sequence[tuple[str, str]]) -> Iterator[str]:
    for name, text in pieces:
        for number, line in enumerate(text.splitlines(), 1):
            if line:
                yield f"{name}.lua:{number}"


def _findings_of(pieces: Sequence[tuple[str, str]]) -> set[str]:
    found, starts = set(), [0]
    for _, text in pieces:
        starts.append(starts[-1] + text.count("\n"))
    for line, column, text in WARNING.findall(_luacheck("".join(text for _, text in pieces))):
        at = bisect_left(starts, int(line)) - 1
        found.add(f"{pieces[at][0]}.lua:{int(line) - starts[at]}:{column}: {text}")
    return found


def _luacheck(source: str) -> str:
    command = ["luacheck", *OPTIONS, "--read-globals", *GLOBALS, "--filename", "script", "-"]
    ended = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    if ended.returncode > SYNTAX_ERRORS_FOUND:
        raise RuntimeError(f"luacheck failed: {ended.stdout}{ended.stderr}")
    return ended.stdout


if __name__ == "__main__":
    checked = {
        **scripts.joined_pieces(),
        **{f"seeds/{name}": [(f"seeds/{name}", scripts.text_of(f"seeds/{name}"))] for name in seeds.NAMES},
    }
    print(f"{len(checked)} Lua scripts checked")
    sys.exit("\n".join(findings(checked)) or None)
