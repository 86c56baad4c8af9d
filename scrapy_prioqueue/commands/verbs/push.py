"""`scrapy frontier push`: push requests from the command line, a file or a pipe."""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, BinaryIO

from scrapy import Spider

from scrapy_prioqueue.client import Item, Pushed
from scrapy_prioqueue.codec.reasons import brief
from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.options import duration_s, opened
from scrapy_prioqueue.commands.output import counted, number
from scrapy_prioqueue.commands.progress import working
from scrapy_prioqueue.commands.verb import FINE, NOTHING, WRONG_USE, Stop, Verb
from scrapy_prioqueue.commands.writing import LeftOut, client_of, tier_index
from scrapy_prioqueue.errors import EncodeError, RequestError
from scrapy_prioqueue.frontier.redis.operators.findings import State


class PushVerb(Verb):
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
        parser.add_argument("--skip-bad", action="store_true", help="leave out lines and URLs that can't be pushed")

    def run(self, context: Context, options: Namespace) -> int:
        if not options.urls and not options.file:
            raise Stop("nothing to push: give URLs, or --file FILE", WRONG_USE)
        if (why := _why_no_method(context.spider_class, options.callback)) is not None:
            raise Stop(why, WRONG_USE)
        if options.tier is not None:
            tier_index(context, context.config.tiers, options.tier)
        parts = {name: getattr(options, name) for name in ("tier", "priority", "meta", "callback", "dont_filter")}
        if options.delay is not None:
            parts["delay"] = options.delay
        before, left_out = context.inspector.state(of_any_layout=True), LeftOut()
        try:
            with (
                client_of(context) as client,
                _source(context, options) as source,
                working("pushing", source.total) as work,
            ):
                again = "would be stored again" if options.dont_filter else "count as seen before"
                context.so_far = lambda: f"{work} pushed; repeated, these {again}" if work.done else ""
                if options.skip_bad:
                    source.skip = lambda error: left_out.add(f"{source.where}{error}")
                pushed = client.push_many(
                    source, progress=lambda done: work.note(done, part=source.part), skip=source.skip, **parts
                )
        except (RequestError, EncodeError) as error:
            hint = "" if options.skip_bad or not options.file else "; --skip-bad leaves such lines out"
            raise Stop(f"{source.where}{error}{hint}", WRONG_USE, is_midway=True) from error
        left_out.report()
        into = "" if pushed == Pushed() else f", into {_crawl(context, before)}"
        context.output.show(f"{_summary(pushed, left_out.count)}{into}")
        return NOTHING if left_out.count and pushed == Pushed() else FINE


def _summary(pushed: Pushed, left_out: int) -> str:
    seen = f", {number(pushed.duplicates)} seen before" if pushed.duplicates else ""
    bad = f", {number(left_out)} left out" if left_out else ""
    return f"{number(pushed.accepted)} pushed{seen}{bad}"


def _crawl(context: Context, before: State | None) -> str:
    """Return which crawl has got the requests.

    Args:
        before: state of the frontier before the push.
    """
    state, alive = context.state(), sum(worker.is_alive for worker in context.inspector.workers())
    if before is None or before.epoch != state.epoch:
        why = "" if before is None else ", since the last one has ended"
        return f"a new crawl of frontier {context.name!r}{why}; no worker has joined it yet"
    orders = f", which is {' and '.join(state.orders)}" if state.orders else ""
    workers = f"the crawl of {counted(alive, 'worker')} in" if alive else "an open crawl without workers in"
    return f"{workers} frontier {context.name!r}{orders}"


def _json_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentTypeError(f"{text!r} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ArgumentTypeError(f"{text!r} is not a JSON object")
    return found


def _why_no_method(kind: type[Spider] | None, name: object) -> str | None:
    """Return why a spider, if it is known, can't have this callback; None if it may."""
    if not isinstance(name, str) or kind is None or callable(getattr(kind, name, None)):
        return None
    return f"spider {kind.name!r} has no method {brief(name)}"


class _Source:
    """The input: URLs from the command line, then the lines of a file."""

    def __init__(self, urls: Sequence[str], file: BinaryIO | None, kind: type[Spider] | None) -> None:
        self._urls = urls
        self._kind = kind
        self._file = file
        self._read = 0
        self._line = 0
        self._size = 0
        self.skip: Callable[[RequestError | EncodeError], object] | None = None
        """Called with the error of a line that is left out; None to raise it."""
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
                item = self._item(line)
            except RequestError as error:
                if self.skip is None:
                    raise
                self.skip(error)
            else:
                if item:
                    yield item

    def _item(self, line: bytes) -> Item:
        """Return what a line describes; empty for a blank line or a comment."""
        try:
            text = line.decode("utf-8-sig" if self._line == 1 else "utf-8").strip()
            item: Item = json.loads(text) if text.startswith("{") else text
        except (ValueError, RecursionError) as error:
            raise RequestError(brief(line), f"it is neither a URL nor a JSON object: {error}") from error
        why = _why_no_method(self._kind, item.get("callback")) if isinstance(item, dict) else None
        if why is not None:
            raise RequestError(brief(text), why)
        return "" if text.startswith("#") else item


@contextmanager
def _source(context: Context, options: Namespace) -> Iterator[_Source]:
    with opened(options.file, "rb") if options.file else nullcontext() as file:
        yield _Source(options.urls, file, context.spider_class)
