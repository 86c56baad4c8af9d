"""Child processes that start fast: forks of one process that has imported Scrapy."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import pkgutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import scrapy.commands
from scrapy.settings import default_settings

COMPONENTS = (
    default_settings.DOWNLOADER_MIDDLEWARES_BASE,
    default_settings.SPIDER_MIDDLEWARES_BASE,
    default_settings.EXTENSIONS_BASE,
)

PRELOADED = (
    # For spiders in modules of tests.
    "pytest",
    "tests.support.crawl_process",
    "tests.support.joined_scripts",
    "scrapy.cmdline",
    *(f"scrapy.core.downloader.handlers.{name}" for name in ("http11", "datauri", "file", "s3")),
    *(f"scrapy.commands.{module.name}" for module in pkgutil.iter_modules(scrapy.commands.__path__)),
    *sorted({path.rpartition(".")[0] for paths in COMPONENTS for path in paths}),
    "tests.crawl.spiders",
    "scrapy_prioqueue.scheduler",
    "scrapy_prioqueue.frontier.redis.frontier",
    "scrapy_prioqueue.commands.frontier",
    "shop.spiders.shop",
    "shop.middlewares",
    "shop.pipelines",
    "tests.faults.components",
)
"""Modules that the forks share, as far as there are such; none of them may install a reactor."""

PR_SET_PDEATHSIG = 1
"""Of `prctl`: the signal that a process gets when its parent ends."""

Program = Callable[[Path], None]


class Fork:
    """A process with a log file of its own that runs a function of a module.

    Args:
        program: called in the process; `SystemExit` gives the exit code.
        argument: what it is called with.
        log: path of the file for its standard output and error.
    """

    def __init__(self, program: Program, argument: Path, log: Path) -> None:
        self._log_path = log
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(PRELOADED))
        self._process = context.Process(target=_logged, args=(program, argument, log))
        self._process.start()

    @property
    def log(self) -> str:
        """What it has printed so far."""
        return self._log_path.read_text(errors="replace") if self._log_path.exists() else ""

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.exitcode is None

    @property
    def pid(self) -> int:
        """Of the process, also after its end."""
        assert self._process.pid is not None
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.is_running:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it with SIGKILL and wait for that; nothing happens if it has ended."""
        self._process.kill()
        self._process.join()

    def wait(self, *, within: float) -> int:
        """Wait for its end and return the exit code, the negative number of the signal that killed it.

        Args:
            within: seconds until the wait fails.

        Raises:
            AssertionError: it runs on.
        """
        self._process.join(within)
        assert self._process.exitcode is not None, f"not within {within} s: the end of process {self.pid}"
        return self._process.exitcode


def _logged(program: Program, argument: Path, log: Path) -> None:
    if sys.platform == "linux":
        # The parent is the server of forks, which ends with the tests, also if they are killed.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with log.open("ab") as output:
        for standard in (1, 2):
            os.dup2(output.fileno(), standard)
    # What was there before the fork is no garbage, and looking at it would copy its pages.
    gc.freeze()
    program(argument)


class StartFork(Protocol):
    """Starts a `Fork`, with a log file of its own."""

    def __call__(self, program: Program, argument: Path) -> Fork: ...


@contextmanager
def forks(directory: Path) -> Iterator[StartFork]:
    """Yield a function that starts forks; all are killed at the end, and their logs are printed.

    What a fixture prints is shown by pytest if its test fails.
    """
    children: list[Fork] = []

    def start(program: Program, argument: Path) -> Fork:
        child = Fork(program, argument, directory / f"fork-{len(children) + 1}.log")
        children.append(child)
        return child

    try:
        yield start
    finally:
        for child in children:
            child.kill()
            print(f"---- log of process {child.pid} ----\n{child.log}")
