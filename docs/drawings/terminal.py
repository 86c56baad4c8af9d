"""Write ``terminal.svg``, the picture in README, from the real output of two workers and of ``scrapy frontier``.

Starts a Redis server and the shop of the example project, kills one worker and starts it again:
``PYTHONPATH=example_project python docs/drawings/terminal.py``. What is printed is shortened, and the server's port is
shown as the usual one, and the machine as h1; the numbers differ each time.
"""

from __future__ import annotations

import io
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from children import EXAMPLE, Children, wait_until
from ledger import Ledger
from redis_server import RedisServer
from rich.console import Console
from rich.text import Text

SVG = Path(__file__).with_suffix(".svg")
WIDTH = 100
WITHIN_S = 90
LOGGED = re.compile(r"^(\S+ )(\S+) \[\S+\] [A-Z]+: (.*)$", re.MULTILINE)
FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Of rich's template: a picture loads nothing."""


class Recording:
    """A crawl, and what a terminal shows of it."""

    def __init__(self, directory: Path, redis: RedisServer, children: Children) -> None:
        self._ledger, self._redis, self._children = Ledger(directory), redis, children
        self._deadline = time.monotonic() + WITHIN_S
        self._console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, highlight=False)

    def run(self) -> str:
        """Crawl with two workers and a kill, and return the picture."""
        self._children.start("site", *self._ledger.site_command(products=600, seed=7, latency=1))
        self._wait_until(self._ledger.page_list.exists, "the shop is open")
        self._start("worker-1", "New crawl")
        self._start("worker-2", "Joined crawl")
        third = len(self._ledger.pages) // 3
        self._wait_until(lambda: self._ledger.fetched >= third, "a third of the pages is fetched")
        pid = self._children.kill("worker-1")
        self._type(f"kill -9 {pid}", comment="worker-1")
        killed = self._ledger.fetched
        self._wait_until(lambda: self._ledger.fetched >= killed + 20, "the other continues")
        self._top()
        self._start("worker-1", "Got back", already=self._children.log("worker-1"))
        self._wait_until(lambda: self._children.have_ended("worker-2"), "the end")
        self._show_log("worker-2", "Left frontier")
        return FONTS.sub("", self._console.export_svg(title="one crawl, two workers, one kill -9"))

    def _start(self, worker: str, awaited: str, *, already: str = "") -> None:
        settings = {
            "SHOP_URL": self._ledger.pages[0].url,
            "SHOP_ITEMS": str(self._ledger.items_directory),
            "PRIOQUEUE_REDIS_URL": self._redis.url,
            "PRIOQUEUE_WORKER_ID": worker,
            "PRIOQUEUE_CRAWL_ID": "today",
        }
        self._type(f"scrapy crawl shop -s PRIOQUEUE_CRAWL_ID=today -s PRIOQUEUE_WORKER_ID={worker} &")
        words = [word for name, value in settings.items() for word in ("-s", f"{name}={value}")]
        self._children.start(worker, "-m", "scrapy", "crawl", "shop", *words)
        self._wait_until(lambda: awaited in self._children.log(worker)[len(already) :], f"{worker}: {awaited}")
        self._show_log(worker, awaited)

    def _show_log(self, worker: str, text: str) -> None:
        lines = [match[3] for match in LOGGED.finditer(self._children.log(worker)) if text in match[3]]
        self._print(Text(self._plain(lines[-1])))
        self._print(Text())

    def _top(self) -> None:
        """Show the second update, which is the first that knows rates."""
        self._type("scrapy frontier top")
        done = subprocess.run(
            [sys.executable, "-m", "scrapy", "frontier", "top", "--count", "2", "--url", self._redis.url],
            cwd=EXAMPLE,
            env={**os.environ, "COLUMNS": str(WIDTH)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        _, start, update = done.stdout.rpartition("now  ")
        self._print(Text(self._plain(start + update.rstrip())))
        self._print(Text())

    def _type(self, command: str, *, comment: str = "") -> None:
        line = Text.assemble(("$ ", "bold green"), (command, "bold"), (f"   # {comment}" if comment else "", "dim"))
        self._print(line)

    def _print(self, text: Text) -> None:
        self._console.print(text)

    def _plain(self, text: str) -> str:
        host = socket.gethostname()
        return text.replace(self._redis.url, "redis://127.0.0.1:6379/0").replace(host, "h1".ljust(len(host)))

    def _wait_until(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, what=what, deadline=self._deadline)


def main(arguments: Sequence[str]) -> None:
    """Record a crawl and write the picture."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with RedisServer(directory / "redis", appendonly=True) as redis, Children(directory) as children:
            picture = Recording(directory, redis, children).run()
    Path(*arguments or [SVG]).write_text(picture)


if __name__ == "__main__":
    main(sys.argv[1:])
