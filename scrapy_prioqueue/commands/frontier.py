"""Scrapy's command `frontier`: its common options, and how errors of verbs become messages and exit codes.

Scrapy loads this module for every one of its commands, so the verbs are imported only when this command runs.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from argparse import SUPPRESS, ArgumentError, ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from scrapy.commands import ScrapyCommand
from scrapy.exceptions import UsageError
from scrapy.utils.conf import arglist_to_dict

if TYPE_CHECKING:
    from scrapy_prioqueue.commands.verb import Verb

INTERRUPTED, TERMINATED = 130, 143
"""Exit codes after Ctrl-C and SIGTERM, as shells report them."""


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived; the verb ends as after Ctrl-C."""


class _Verbs(dict[str, ArgumentParser]):
    """The verbs as choices of argparse, whose own error would list all of them instead of the one that was meant."""

    def __contains__(self, name: object) -> bool:
        if super().__contains__(name):
            return True
        from scrapy_prioqueue.hints import did_you_mean

        question = did_you_mean(name, self) or "'scrapy frontier -h' lists them"
        raise ArgumentError(None, f"there is no verb {str(name)!r}; {question}")


class FrontierCommand(ScrapyCommand):
    """Inspect and control a frontier, whether workers are running or not."""

    requires_project = False
    requires_crawler_process = False
    default_settings: ClassVar[dict[str, Any]] = {"LOG_ENABLED": False}

    def __init__(self) -> None:
        super().__init__()
        self._verbs: dict[str, Verb] = {}
        self._options: dict[str, list[str]] = {}

    def syntax(self) -> str:
        """Return the text after the command's name in the usage line."""
        return "VERB [options]"

    def short_desc(self) -> str:
        return "Inspect and control a shared crawl"

    def long_desc(self) -> str:
        return (
            "Inspect and control the frontier of a shared crawl, whether workers are running or not."
            " 'scrapy frontier VERB --help' shows the options of a verb, with examples."
        )

    def add_options(self, parser: ArgumentParser) -> None:
        """Add a parser for each verb; the common options are allowed before and after the verb."""
        from scrapy_prioqueue.commands.help import VerbHelpFormatter, examples_text, sentence
        from scrapy_prioqueue.commands.verbs import VERBS

        super().add_options(parser)
        parser.formatter_class = VerbHelpFormatter
        _add_common(parser)
        self._verbs = {verb.name: verb() for verb in VERBS}
        verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="Verbs", prog="scrapy frontier")
        for verb in self._verbs.values():
            made = verbs.add_parser(
                verb.name,
                help=verb.summary,
                usage=" ".join(["scrapy frontier", verb.name, *([verb.syntax] if verb.syntax else []), "[options]"]),
                description=sentence(verb.summary),
                epilog=examples_text(verb.name, verb.examples),
                formatter_class=VerbHelpFormatter,
                conflict_handler="resolve",
            )
            verb.add_arguments(made)
            if verb.is_read:
                made.add_argument("--json", action="store_true", help="print JSON instead of tables")
            _add_common(made, default=SUPPRESS, arguments="more_arguments")
            made.add_argument("-s", "--set", dest="also_set", action="append", default=[], metavar="NAME=VALUE",
                              help="set/override setting (may be repeated)")  # fmt: skip
            options = (option for action in made._actions for option in action.option_strings)  # noqa: SLF001
            self._options[verb.name] = [option for option in options if option.startswith("--")]
        verbs.choices = _Verbs(verbs.choices)

    def process_options(self, args: list[str], opts: Namespace) -> None:
        """Copy options that stand for settings into the settings."""
        if opts.verb is None:
            raise UsageError(f"which verb? One of {', '.join(self._verbs)}", print_help=False)
        if args and not self._takes(args, opts):
            raise UsageError(f"unrecognized arguments: {' '.join(args)}{self._meant(args, opts)}", print_help=False)
        wanted = getattr(opts, "spider_argument", None)
        if wanted is not None and opts.spider not in (None, wanted):
            raise UsageError(f"which spider? {wanted} or --spider {opts.spider}: give one of them", print_help=False)
        opts.spider = wanted or opts.spider
        opts.set = [*opts.set, *opts.also_set]
        try:
            opts.arguments = arglist_to_dict([*opts.arguments, *opts.more_arguments])
        except ValueError:
            raise UsageError("Invalid -a value, use -a NAME=VALUE", print_help=False) from None
        super().process_options(args, opts)
        if opts.url:
            assert self.settings is not None
            self.settings.set("PRIOQUEUE_REDIS_URL", opts.url, priority="cmdline")

    def _meant(self, args: list[str], opts: Namespace) -> str:
        """Return which option was probably meant by the first unknown one, empty if none is like it."""
        from scrapy_prioqueue.hints import did_you_mean

        name = next((argument.partition("=")[0] for argument in args if argument.startswith("--")), "")
        question = did_you_mean(name, self._options[opts.verb], prefix="--") if name else ""
        return question and f"; {question}"

    def _takes(self, args: list[str], opts: Namespace) -> bool:
        """Append arguments after the options to the verb's list, which argparse can't; False if they are invalid."""
        more = self._verbs[opts.verb].takes_more
        if more is None or any(argument.startswith("-") for argument in args):
            return False
        name, read = more
        try:
            setattr(opts, name, [*getattr(opts, name), *map(read, args)])
        except ValueError:
            return False
        return True

    def run(self, args: list[str], opts: Namespace) -> None:
        try:
            with _interruptible():
                self.exitcode = self._run(opts)
                sys.stdout.flush()
        except BrokenPipeError:
            # The reader, such as `head`, has closed the pipe; without this Python would complain again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except KeyboardInterrupt:
            # A second Ctrl-C, while the verb was ending.
            self.exitcode = INTERRUPTED

    def _run(self, opts: Namespace) -> int:
        from scrapy_prioqueue.commands.context import find_context
        from scrapy_prioqueue.commands.options import in_options
        from scrapy_prioqueue.commands.output import Output, warn
        from scrapy_prioqueue.commands.verb import NO_SERVER, NOTHING, WRONG_USE, Stop
        from scrapy_prioqueue.errors import FrontierFull, FrontierUnavailable, PrioQueueError, SettingError

        assert self.settings is not None
        output = Output(as_json=getattr(opts, "json", False))
        context, is_midway = None, True
        try:
            verb = self._verbs[opts.verb]
            context = find_context(
                *(self.settings, output),
                name=opts.name,
                spider=opts.spider,
                arguments=opts.arguments,
                needs_name=verb.needs_name(opts),
            )
            return verb.run(context, opts)
        except Stop as stop:
            text, code, is_midway = str(stop), stop.code, stop.is_midway
        except SettingError as error:
            text, code = str(error), WRONG_USE
        except (FrontierUnavailable, FrontierFull) as error:
            text, code = str(error), NO_SERVER
        except PrioQueueError as error:
            text, code = str(error), NOTHING
        except KeyboardInterrupt as interrupt:
            text, code = "interrupted", TERMINATED if isinstance(interrupt, Terminated) else INTERRUPTED
        finally:
            if context is not None:
                context.close()
        if is_midway and context is not None and context.so_far is not None and (done := context.so_far()):
            text = f"{text}; so far {done}"
        if text:
            warn(opts.verb, in_options(text, opts))
        return code


@contextmanager
def _interruptible() -> Iterator[None]:
    """Make SIGTERM end a verb as Ctrl-C does; a second SIGTERM ends the process at once."""

    def terminate(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _add_common(parser: ArgumentParser, *, default: str | None = None, arguments: str = "arguments") -> None:
    group = parser.add_argument_group("Frontier")
    group.add_argument("--name", default=default, help="name of the frontier (default: PRIOQUEUE_NAME)")
    group.add_argument("--spider", default=default, help="spider whose frontier to use (default: the only one)")
    group.add_argument("-a", dest=arguments, action="append", default=[], metavar="NAME=VALUE",
                       help="argument of the spider that PRIOQUEUE_NAME contains (may be repeated)")  # fmt: skip
    group.add_argument("--url", default=default, help="URL of the server (default: PRIOQUEUE_REDIS_URL)")
