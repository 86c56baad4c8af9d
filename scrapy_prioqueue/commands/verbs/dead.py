"""`scrapy frontier dead`: list, show, replay and purge dead letters."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.letters import Replay
from scrapy_prioqueue.commands.listing import request_documents, request_sheet, url_of
from scrapy_prioqueue.commands.options import add_limit, duration_s, pattern
from scrapy_prioqueue.commands.output import FittedTable, counted, duration, more, number
from scrapy_prioqueue.commands.progress import working
from scrapy_prioqueue.commands.verb import FINE, WRONG_USE, Stop, Verb
from scrapy_prioqueue.commands.writing import add_confirmation, confirm, operator_of
from scrapy_prioqueue.frontier.base import DEAD_REASONS
from scrapy_prioqueue.frontier.redis.operators.findings import Letter, Stored
from scrapy_prioqueue.printable import clean


class DeadVerb(Verb):
    name = "dead"
    summary = "dead letters: list, show, replay (put back) or purge (delete) them"
    syntax = "[ACTION] [ID ...]"
    examples = ("", "show 4711", "replay --reason download --newer 2h", "purge --older 30d --dry-run")
    takes_more = ("ids", int)

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = ("list", "show", "replay", "purge")
        what = "list (the default), show, replay or purge"
        parser.add_argument("action", nargs="?", choices=actions, default="list", metavar="ACTION", help=what)
        parser.add_argument("ids", nargs="*", type=int, metavar="ID", help="ids of dead letters (default: all)")
        parser.add_argument("--reason", help=f"only letters with this reason: {', '.join(DEAD_REASONS)}, …")
        parser.add_argument("--older", type=duration_s, metavar="TIME", help="only letters older than this: 2h, 1d")
        parser.add_argument("--newer", type=duration_s, metavar="TIME", help="only letters newer than this")
        parser.add_argument(
            "--match", type=pattern, metavar="PATTERN", help="only letters whose URL this regular expression matches"
        )
        add_limit(parser, 50)
        add_confirmation(parser, can_be_tried=True)

    def run(self, context: Context, options: Namespace) -> int:
        context.state()
        if options.action == "show" and not options.ids:
            raise Stop("which dead letter? Give its ID, as shown by 'dead list'", WRONG_USE)
        actions = {"list": _list, "show": _show, "replay": _replay, "purge": _purge}
        return actions[options.action](context, options)


def _chosen(context: Context, options: Namespace) -> Iterator[Stored]:
    """Yield the dead letters selected by the options, the newest first."""
    now_ms = context.inspector.now_ms()
    oldest_ms = now_ms - options.newer * 1000 if options.newer is not None else 0
    newest_ms = now_ms - options.older * 1000 if options.older is not None else float("inf")
    letters = context.inspector.requests.dead(options.reason)
    for stored in letters:
        if options.ids and stored.lease_id not in options.ids:
            continue
        if oldest_ms <= stored.at_ms <= newest_ms and (not options.match or options.match.search(url_of(stored))):
            yield stored


def _list(context: Context, options: Namespace) -> int:
    now_ms = context.inspector.now_ms()
    letters = _chosen(context, options)
    found = list(islice(letters, options.limit))
    tiers = context.state().tiers
    rows = [
        (str(stored.lease_id), stored.reason, duration((now_ms - stored.at_ms) / 1000), url_of(stored), stored.detail)
        for stored in found
    ]
    table = FittedTable(["id>", "reason", "age>", "URL", "detail"], rows, cut=("URL",), below=("detail", "URL"))
    rest = [more(options.limit)] if next(letters, None) is not None else []
    nothing = "" if found else context.nothing("no dead letters")
    context.output.found(request_documents(found, tiers), table, *rest, nothing=nothing)
    return FINE


def _show(context: Context, options: Namespace) -> int:
    found = list(_chosen(context, options))
    tiers = context.state().tiers
    if not found:
        raise Stop(context.nothing("there is no such dead letter"))
    context.output.found(request_documents(found, tiers), *(request_sheet(stored, tiers) for stored in found))
    return FINE


def _replay(context: Context, options: Namespace) -> int:
    _warn_of_new_crawl(context)
    context.so_far = lambda: "nothing was put back"
    asked = _asked(context, options, "put {} back into the queue")
    replay = Replay(context)
    context.so_far = lambda: f"{number(replay.done)} of {number(len(asked))} put back; the same command does the rest"
    replay.put_back(context.inspector.requests.letters(asked))
    context.output.show(str(replay))
    return FINE


def _warn_of_new_crawl(context: Context) -> None:
    state = context.state()
    if state.has_ended and not state.seen:
        print(
            f"The crawl of frontier {clean(context.name)!r} has ended and has dropped its fingerprints: the next worker"
            " begins a new crawl, reads start() and fetches what is linked again."
            ' PRIOQUEUE_ON_FINISH = "keep" keeps them at the end of a crawl.',
            file=sys.stderr,
        )


def _purge(context: Context, options: Namespace) -> int:
    context.so_far = lambda: "nothing was deleted"
    asked = _asked(context, options, "delete {}")
    with working("deleting", len(asked)) as work:
        context.so_far = lambda: f"{work} deleted; the same command deletes the rest"
        purged = operator_of(context).purge(context.inspector.requests.letters(asked), work.note)
    context.output.show(f"{number(purged)} deleted")
    return FINE


def _asked(context: Context, options: Namespace, what: str) -> Sequence[Letter]:
    """Ask for confirmation, and return the letters that were counted; workers may add others meanwhile."""
    reasons, asked, state, earlier = Counter[str](), list[Letter](), context.state(), 0
    for stored in _chosen(context, options):
        reasons[stored.reason] += 1
        asked.append(stored.letter)
        earlier += not state.has_letter(stored)
    if not asked:
        raise Stop(context.nothing("there are no such dead letters"))
    kinds = ", ".join(f"{reason}: {number(count)}" for reason, count in reasons.most_common())
    kinds += f"; {number(earlier)} from earlier crawls" if earlier else ""
    letters = f"{counted(len(asked), 'dead letter')} of frontier {context.name!r} ({kinds})"
    confirm(context, options, what.format(letters))
    return asked
