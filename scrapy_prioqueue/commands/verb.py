"""The base class of the verbs of `scrapy frontier`, the exit codes, and the exception that ends a verb."""

from __future__ import annotations

from abc import ABC, abstractmethod
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
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
        text: the problem and what to do about it; empty if all has been said.
        code: exit code.
        is_midway: the verb has begun its work, so the line also says how far it got.
    """

    def __init__(self, text: str, code: int = NOTHING, *, is_midway: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.is_midway = is_midway


class Verb(ABC):
    """One verb; a subclass, with a name, in a module that `scrapy_prioqueue.commands.verbs` lists.

    Attributes:
        name: as typed.
        summary: one line for the help.
        syntax: its required and positional arguments, for the usage line.
        examples: arguments of example calls, at most 60 columns with the command.
        is_read: whether it changes nothing; such a verb has `--json`.
        needs_frontier: whether it is about one frontier, whose name must be known.
        takes_more: name and type of its list of arguments, which may also follow options; None without such a list.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    syntax: ClassVar[str] = ""
    examples: ClassVar[Sequence[str]]
    is_read: ClassVar[bool] = True
    needs_frontier: ClassVar[bool] = True
    takes_more: ClassVar[tuple[str, Callable[[str], Any]] | None] = None

    def add_arguments(self, parser: ArgumentParser) -> None:  # noqa: B027 - most verbs take nothing of their own
        """Add the options of this verb alone."""

    def needs_name(self, options: Namespace) -> bool:
        """Return whether the name of one frontier must be known."""
        return self.needs_frontier

    @abstractmethod
    def run(self, context: Context, options: Namespace) -> int:
        """Run the verb and return its exit code.

        Raises:
            Stop: the verb can't do what was asked; the message is for the user.
            PrioQueueError: the command turns it into a message and an exit code.
        """
