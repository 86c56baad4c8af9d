"""The Scrapy command that this process runs, and whether it crawls."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType

from scrapy import cmdline
from scrapy.commands import ScrapyCommand, crawl, runspider

_CRAWLING = (crawl.Command, runspider.Command)


@dataclass(frozen=True, slots=True)
class Invocation:
    """A running Scrapy command.

    Args:
        name: as on the command line.
        command: the object that runs it.
        arguments: of the spider (`-a NAME=VALUE`), None for a command that accepts none.
    """

    name: str
    command: ScrapyCommand
    arguments: Mapping[str, str] | None = None

    def crawls(self, names: Collection[str], commands_module: str = "") -> bool:
        """Return whether it crawls: `crawl`, `runspider`, their subclasses, the project's commands, and named ones do.

        A command of the project, such as the usual `crawlall`, starts spiders as `crawl` does. Commands of packages,
        such as scrapy-poet's `savefixture`, and subclasses of `shell` or `check` only look at a page.

        Args:
            names: of further commands that crawl.
            commands_module: the module of the project's commands (`COMMANDS_MODULE`).
        """
        if self.name in names or isinstance(self.command, _CRAWLING):
            return True
        kind = type(self.command)
        is_of_project = bool(commands_module) and f"{kind.__module__}.".startswith(f"{commands_module}.")
        return is_of_project and not any(map(_is_scrapys, kind.__mro__))

    def fail(self) -> None:
        """Make its exit code 1."""
        self.command.exitcode = 1

    @property
    def is_scrapys(self) -> bool:
        """Whether the command is one of Scrapy's own."""
        return _is_scrapys(type(self.command))


def _is_scrapys(kind: type) -> bool:
    # `scrapy.commands` itself has the base classes of all commands.
    return kind.__module__.startswith("scrapy.commands.")


def running_command() -> Invocation | None:
    """Return the command that this process runs, None for a program that uses Scrapy as a library.

    `scrapy.cmdline.execute()` stays on the stack while its command runs, however that was started. `scrapy shell` runs
    the reactor in a second thread, so the stacks of all threads are searched.
    """
    for frame in _frames():
        # The file and the name are compared, since `python -m scrapy.cmdline` runs a second copy of the function.
        if frame.f_code.co_filename == cmdline.__file__ and frame.f_code.co_name == "execute":
            name, command = frame.f_locals.get("cmdname"), frame.f_locals.get("cmd")
            if isinstance(name, str) and isinstance(command, ScrapyCommand):
                arguments = getattr(frame.f_locals.get("opts"), "spargs", None)
                return Invocation(name, command, arguments if isinstance(arguments, dict) else None)
    return None


def _frames() -> Iterator[FrameType]:
    for innermost in sys._current_frames().values():  # noqa: SLF001
        frame: FrameType | None = innermost
        while frame is not None:
            yield frame
            frame = frame.f_back
