"""`scrapy frontier push`: push requests from the command line, a file or a pipe."""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, BinaryIO

from scrapy_prioqueue.client import Item, Pushed
from scrapy_prioqueue.codec.reasons import brief
from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.options import duration_s, opened
from scrapy_prioqueue.commands.output import number
from scrapy_prioqueue.commands.progress import working
from scrapy_prioqueue.commands.verb import FINE, WRONG_USE, Stop, Verb
from scrapy_prioqueue.commands.writing import client_of, tier_index
from scrapy_prioqueue.errors import EncodeError, RequestError


class PushVerb(Verb):
    """Pushes requests."""

    name = "push"
    summary = "store requests, from the command line or a file"
    syntax = "[URL ...]"
    examples = ("https://shop.example/", "--file urls.txt --tier high", "--file - --delay 2h < requests.jl")
    is_read = False
    takes_more = ("urls", str)

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("urls", nargs="*", metavar="URL", help="URLs to fetch")
        parser.add_argument(
            "--file",
            metavar="FILE",
            help="file with a URL, or a JSON object with the fields of a request, per line; - for standard input",
        )
        parser.add_argument("--tier", help="name of the tier (default: by PRIOQUEUE_TIER_RULES)")
        parser.add_argument("--priority", type=int, default=0, help="within the tier, higher first (default: 0)")
        parser.add_argument("--meta", type=_json_object, default={}, metavar="JSON", help="meta of the requests")
        parser.add_argument("--callback", metavar="METHOD", help="method of the spider (default: parse)")
        parser.add_argument(
            "--delay", type=duration_s, metavar="TIME", help="time to wait before they may be served: 90, 15min, 2h, 1d"
        )
        parser.add_argument("--dont-filter", action="store_true", help="store URLs that were seen before, too")

    def run(self, context: Context, options: Namespace) -> int:
        if not options.urls and not options.file:
            raise Stop("nothing to push: give URLs, or --file FILE", WRONG_USE)
        _check_callback(context, options.callback)
        if options.tier is not None:
            tier_index(context, context.config.tiers, options.tier)
        parts = {name: getattr(options, name) for name in ("tier", "priority", "meta", "callback", "dont_filter")}
        if options.delay is not None:
            parts["delay"] = options.delay
        try:
            with client_of(context) as client, _source(options) as source, working("pushing", source.total) as work:
                again = "would be stored again" if options.dont_filter else "count as seen before"
                context.so_far = lambda: f"{work} pushed; repeated, these {again}" if work.done else ""
                pushed = client.push_many(source, progress=lambda done: work.note(done, part=source.part), **parts)
        except (RequestError, EncodeError) as error:
            raise Stop(f"{source.where}{error}", WRONG_USE) from error
        context.output.show(_told(pushed))
        return FINE


def _told(pushed: Pushed) -> str:
    seen = f", {number(pushed.duplicates)} seen before" if pushed.duplicates else ""
    return f"{number(pushed.accepted)} pushed{seen}"


def _json_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentTypeError(f"{text!r} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ArgumentTypeError(f"{text!r} is not a JSON object")
    return found


def _check_callback(context: Context, name: str | None) -> None:
    kind = context.spider_class
    if name is not None and kind is not None and not callable(getattr(kind, name, None)):
        raise Stop(f"spider {kind.name!r} has no method {name!r}", WRONG_USE)


class _Source:
    """The input: URLs from the command line, then the lines of a file.

    Args:
        file: None without a file.
    """

    def __init__(self, urls: Sequence[str], file: BinaryIO | None) -> None:
        self._urls = urls
        self._file = file
        self._read = 0
        self._line = 0
        self._size = 0
        with suppress(OSError):
            # A pipe has no size.
            self._size = 0 if file is None else os.fstat(file.fileno()).st_size
        self.total = len(urls) if file is None else None

    @property
    def part(self) -> float | None:
        """The part of the file that has been read, from 0 to 1; None if the file's size is unknown."""
        return self._read / self._size if self._size else None

    @property
    def where(self) -> str:
        """The last line read, as a prefix of messages; empty before the first line."""
        return f"line {self._line}: " if self._line else ""

    def __iter__(self) -> Iterator[Item]:
        yield from self._urls
        for line in self._file or ():
            self._line += 1
            self._read += len(line)
            try:
                text = line.decode("utf-8-sig" if self._line == 1 else "utf-8").strip()
                item = json.loads(text) if text.startswith("{") else text
            except (ValueError, RecursionError) as error:
                raise RequestError(brief(line), f"it is neither a URL nor a JSON object: {error}") from error
            if item and not text.startswith("#"):
                yield item


@contextmanager
def _source(options: Namespace) -> Iterator[_Source]:
    with opened(options.file, "rb") if options.file else nullcontext() as file:
        yield _Source(options.urls, file)
