"""`scrapy frontier move` and `remove`: change the tier of pending and delayed requests, or delete them."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import BinaryIO

import msgpack

from scrapy_prioqueue.codec.detached import with_meta
from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.options import add_pattern
from scrapy_prioqueue.commands.output import number
from scrapy_prioqueue.commands.progress import looking, working
from scrapy_prioqueue.commands.verb import FINE, NOTHING, Verb
from scrapy_prioqueue.commands.verbs.find import find
from scrapy_prioqueue.commands.writing import add_confirmation, confirm, operator_of, tier_index
from scrapy_prioqueue.errors import DecodeError
from scrapy_prioqueue.frontier.redis.operators.findings import Stored
from scrapy_prioqueue.rank import priority_of, rank_of
from scrapy_prioqueue.tiers import TIER_META

_AGAIN = "the same command does the rest"


@dataclass(frozen=True, slots=True)
class _Change:
    """Texts and function of a verb that changes requests.

    Args:
        doing: for the progress bar, as in "moving".
        done: for the progress, as in "moved".
        question: what would change; `{}` is the number of requests.
        result: what was changed; `{}` is the number of requests.
        nothing: text if no request matches.
        apply: changes requests, reports its progress, and returns the number of changed requests.
    """

    doing: str
    done: str
    question: str
    result: str
    nothing: str
    apply: Callable[[Iterable[Stored], Callable[[int], object]], int]


class MoveVerb(Verb):
    name = "move"
    summary = "move pending requests whose URLs match to another tier"
    syntax = "PATTERN --tier TIER"
    examples = ("'/product/' --tier high --dry-run", "'/sale/' --tier high --slot a.example")
    is_read = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_pattern(parser)
        parser.add_argument("--tier", required=True, help="name of the new tier")
        add_confirmation(parser, can_be_tried=True)

    def run(self, context: Context, options: Namespace) -> int:
        tier = tier_index(context, context.state().tiers, options.tier)

        def moved_rank(stored: Stored) -> int:
            return rank_of(tier, priority_of(stored.rank))

        def move(requests: Iterable[Stored], progress: Callable[[int], object]) -> int:
            moves = ((stored, moved_rank(stored), _in_tier(stored, options.tier)) for stored in requests)
            return operator_of(context).move(moves, progress)

        change = _Change(
            "moving",
            "moved",
            f"move {{}} of the pending and delayed requests that match to tier {options.tier!r}",
            f"{{}} moved to tier {options.tier!r}",
            f"no pending or delayed request in another tier matches {options.pattern.pattern}",
            move,
        )
        found = (stored for stored in _waiting(context, options) if moved_rank(stored) != stored.rank)
        return _run(context, options, found, change)


class RemoveVerb(Verb):
    name = "remove"
    summary = "remove pending requests whose URLs match from the crawl"
    syntax = "PATTERN"
    examples = ("'/calendar/' --dry-run", "'/calendar/' --slot a.example --yes")
    is_read = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_pattern(parser)
        add_confirmation(parser, can_be_tried=True)

    def run(self, context: Context, options: Namespace) -> int:
        context.state()
        change = _Change(
            "removing",
            "removed",
            "remove {} of the pending and delayed requests that match, and keep the fingerprints",
            "{} removed",
            f"no pending or delayed request matches {options.pattern.pattern}",
            operator_of(context).remove,
        )
        return _run(context, options, _waiting(context, options), change)


def _run(context: Context, options: Namespace, found: Iterator[Stored], change: _Change) -> int:
    """Change the requests found: at once with `--yes`, else after one pass that counts them and a question."""
    if options.yes and not options.dry_run:
        count, changed = _change_found(context, found, change)
    else:
        # The requests are kept in a file, since there may be millions.
        with TemporaryFile() as file:
            with looking(context) as work:
                context.so_far = lambda: f"{work.counted('request')} read, nothing {change.done}"
                count = _keep(file, found)
            if count:
                confirm(context, options, change.question.format(number(count)))
            changed = _change_kept(context, file, count, change)
    context.output.show(change.result.format(number(changed)) if count else context.nothing(change.nothing))
    return FINE if count else NOTHING


def _change_found(context: Context, found: Iterator[Stored], change: _Change) -> tuple[int, int]:
    """Return the number of requests found and the number changed."""
    count = changed = 0

    def counted() -> Iterator[Stored]:
        nonlocal count
        for stored in found:
            count += 1
            yield stored

    def note(done: int) -> None:
        nonlocal changed
        changed = done
        work.note(work.done, doing=f"{number(done)} {change.done}, reading requests")

    with looking(context) as work:
        context.so_far = lambda: f"{number(changed)} {change.done}, {work.counted('request')} read; {_AGAIN}"
        changed = change.apply(counted(), note)
    return count, changed


def _change_kept(context: Context, file: BinaryIO, count: int, change: _Change) -> int:
    with working(change.doing, count) as work:
        context.so_far = lambda: f"{work} {change.done}; {_AGAIN}"
        return change.apply(_kept(file), work.note)


def _keep(file: BinaryIO, found: Iterable[Stored]) -> int:
    """Write requests into a file and return their number."""
    count = 0
    for stored in found:
        count += 1
        slot = stored.slot.encode("utf-8", "surrogatepass")
        file.write(msgpack.packb((stored.lease_id, stored.state, stored.attempts, stored.rank, slot, stored.payload)))
    return count


def _kept(file: BinaryIO) -> Iterator[Stored]:
    file.seek(0)
    for lease_id, state, attempts, rank, slot, payload in msgpack.Unpacker(file, max_buffer_size=0):
        yield Stored(lease_id, state, attempts, rank, slot.decode("utf-8", "surrogatepass"), payload)


def _waiting(context: Context, options: Namespace) -> Iterator[Stored]:
    options.states = ("pending", "delayed")
    return find(context, options)


def _in_tier(stored: Stored, tier: str) -> bytes:
    """Return the payload of a request with the tier in `meta`, so that retries stay in it."""
    try:
        return with_meta(stored.payload, stored.slot, {TIER_META: tier})
    except DecodeError:
        return stored.payload
