"""`scrapy frontier push`: requests from the command line, a file or a pipe."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from rich.progress import Progress, TaskID

from scrapy_prioqueue.client import Item, Pushed
from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.options import duration_s
from scrapy_prioqueue.commands.output import number
from scrapy_prioqueue.commands.verb import FINE, WRONG_USE, Stop, Verb
from scrapy_prioqueue.commands.writing import client_of, progress_bar, tier_index
from scrapy_prioqueue.errors import EncodeError, RequestError


class PushVerb(Verb):
    """Pushes requests."""

    name = "push"
    summary = "store requests, from the command line or a file"
    is_read = False
    takes_more = ("urls", str)

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the requests and their parts."""
        parser.add_argument("urls", nargs="*", metavar="URL", help="what to fetch")
        parser.add_argument(
            "--file", metavar="FILE", help="a URL, or a JSON object with the parts of a request, per line; - for a pipe"
        )
        parser.add_argument("--tier", help="name of the tier (default: as PRIOQUEUE_TIER_RULES say)")
        parser.add_argument("--priority", type=int, default=0, help="inside the tier, higher first (default: 0)")
        parser.add_argument("--meta", type=_json_object, default={}, metavar="JSON", help="meta of the requests")
        parser.add_argument("--callback", metavar="METHOD", help="method of the spider (default: parse)")
        parser.add_argument("--delay", type=duration_s, metavar="TIME", help="keep them back: 90, 15min, 2h, 1d")
        parser.add_argument("--dont-filter", action="store_true", help="also what was seen before")

    def run(self, context: Context, options: Namespace) -> int:
        """Push them."""
        if not options.urls and not options.file:
            raise Stop("nothing to push: give URLs, or --file FILE", WRONG_USE)
        _check_callback(context, options.callback)
        if options.tier is not None:
            tier_index(context, list(context.config.tiers), options.tier)
        parts = {name: getattr(options, name) for name in ("tier", "priority", "meta", "callback", "dont_filter")}
        if options.delay is not None:
            parts["delay"] = options.delay
        done = [0]
        try:
            with client_of(context) as client, _source(options) as (items, note):

                def progress(count: int) -> None:
                    done[0] = count
                    note(count)

                pushed = client.push_many(items, progress=progress, **parts)
        except (RequestError, EncodeError) as error:
            before = f"; the {number(done[0])} before it are stored" if done[0] else ""
            raise Stop(f"{error}{before}", WRONG_USE) from error
        context.output.show(_told(pushed))
        return FINE


def _told(pushed: Pushed) -> str:
    seen = f", {number(pushed.duplicates)} seen before" if pushed.duplicates else ""
    return f"{number(pushed.accepted)} pushed{seen}"


def _json_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ArgumentTypeError(f"{text!r} is not a JSON object")
    return found


def _check_callback(context: Context, name: str | None) -> None:
    kind = context.spider_class
    if name is not None and kind is not None and not callable(getattr(kind, name, None)):
        raise Stop(f"spider {kind.name!r} has no method {name!r}", WRONG_USE)


@contextmanager
def _source(options: Namespace) -> Iterator[tuple[Iterator[Item], Any]]:
    """Yield the items, and what is to be told how many are done."""
    if not options.file:
        yield iter(options.urls), lambda count: None
        return
    with _opened(options.file) as file, progress_bar() as bar:
        size = None if options.file == "-" else os.fstat(file.fileno()).st_size
        task = bar.add_task("pushing", total=size, done=0)
        read = [0]
        yield _items(options, file, read), lambda count: _update(bar, task, read[0], count)


def _update(bar: Progress, task: TaskID, read: int, done: int) -> None:
    bar.update(task, completed=read, done=done)


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    if path == "-":
        yield sys.stdin.buffer
        return
    try:
        file = Path(path).open("rb")  # noqa: SIM115 - closed below; only opening it may fail as a wrong use
    except OSError as error:
        raise Stop(f"{path} can't be read: {error.strerror}", WRONG_USE) from error
    with file:
        yield file


def _items(options: Namespace, file: BinaryIO, read: list[int]) -> Iterator[Item]:
    yield from options.urls
    for index, line in enumerate(file, 1):
        read[0] += len(line)
        try:
            text = line.decode("utf-8-sig" if index == 1 else "utf-8").strip()
            if text.startswith("{"):
                yield json.loads(text)
            elif text and not text.startswith("#"):
                yield text
        except ValueError as error:
            raise RequestError(f"line {index}", f"it is neither a URL nor a JSON object: {error}") from error
