"""Which of Scrapy's commands this process runs, and whether that is one that crawls."""

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
    """A command of Scrapy that runs in this process.

    Args:
        name: as on the command line.
        command: the object that runs it.
        arguments: of the spider (`-a NAME=VALUE`), None for a command that takes none.
    """

    name: str
    command: ScrapyCommand
    arguments: Mapping[str, str] | None = None

    def crawls(self, names: Collection[str], commands_module: str = "") -> bool:
        """Return whether it crawls: it is `crawl`, `runspider`, a subclass of these, the project's own, or one named.

        A command of the project, such as the usual `crawlall`, starts spiders as `crawl` does. Those of packages, such
        as scrapy-poet's `savefixture`, look at a page, and so does a subclass of `shell` or `check`.

        Args:
            names: of commands that crawl, whatever they are.
            commands_module: where the project has its commands (`COMMANDS_MODULE`).
        """
        if self.name in names or isinstance(self.command, _CRAWLING):
            return True
        kind = type(self.command)
        is_of_project = bool(commands_module) and f"{kind.__module__}.".startswith(f"{commands_module}.")
        return is_of_project and not any(map(_is_scrapys, kind.__mro__))

    @property
    def is_scrapys(self) -> bool:
        """Whether Scrapy itself brings the command."""
        return _is_scrapys(type(self.command))


def _is_scrapys(kind: type) -> bool:
    # `scrapy.commands` itself has what all commands are made from.
    return kind.__module__.startswith("scrapy.commands.")


def running_command() -> Invocation | None:
    """Return the command that this process runs, None for a program that uses Scrapy as a library.

    `scrapy.cmdline.execute()` stays on the stack while its command runs, however that was started. `scrapy shell` runs
    the reactor in a second thread, so the stacks of all threads are searched.
    """
    for frame in _frames():
        # By file and name, since `python -m scrapy.cmdline` runs a second copy of the function.
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
