"""What a verb of `scrapy frontier` is, the exit codes, and how a verb gives up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from scrapy_prioqueue.commands.context import Context

FINE = 0
"""Exit code: done, or found."""

NOTHING = 1
"""Exit code: there is no such frontier or request, or something is wrong with it."""

WRONG_USE = 2
"""Exit code: the options or the settings can't be used."""

NO_SERVER = 3
"""Exit code: the server can't be used."""


class Stop(Exception):
    """Ends a verb with one line for the user.

    Args:
        text: what is wrong and what to do; empty where all has been said.
        code: exit code.
    """

    def __init__(self, text: str, code: int = NOTHING) -> None:
        super().__init__(text)
        self.code = code


class Verb(ABC):
    """One verb; a subclass in a module of `scrapy_prioqueue.commands.verbs`, listed in that package's `VERBS`.

    Attributes:
        name: as typed.
        summary: one line for the help.
        is_read: it changes nothing, and so has `--json`.
        takes_more: name and type of what it takes any number of; they may also follow options.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    is_read: ClassVar[bool] = True
    takes_more: ClassVar[tuple[str, Callable[[str], Any]] | None] = None

    def add_arguments(self, parser: ArgumentParser) -> None:  # noqa: B027 - most verbs take nothing of their own
        """Add what only this verb takes."""

    @abstractmethod
    def run(self, context: Context, options: Namespace) -> int:
        """Do it and return an exit code.

        Raises:
            Stop: with what to tell the user instead.
            PrioQueueError: the command makes one line and an exit code of it.
        """
