"""`scrapy frontier reset`: delete fingerprints, waiting requests, or everything."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.output import counted, number
from scrapy_prioqueue.commands.progress import working
from scrapy_prioqueue.commands.verb import FINE, Verb
from scrapy_prioqueue.commands.writing import add_confirmation, confirm, operator_of


class ResetVerb(Verb):
    name = "reset"
    summary = "delete fingerprints, waiting requests, or everything"
    syntax = "(--seen | --queue | --all)"
    examples = ("--seen", "--queue", "--all --yes")
    is_read = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument(
            "--seen", action="store_true", help="forget fingerprints, and which start requests were pushed"
        )
        what.add_argument("--queue", action="store_true", help="delete pending and delayed requests")
        what.add_argument("--all", action="store_true", help="delete everything; rejected while workers are alive")
        add_confirmation(parser)

    def run(self, context: Context, options: Namespace) -> int:
        shared = context.inspector.seen_of_others() if options.seen and context.inspector.state() is None else None
        if shared is not None:
            what = f"forget the {counted(shared, 'fingerprint')} that frontiers share as {context.name!r}"
            return self._run(context, options, f"{what} (PRIOQUEUE_SEEN_NAME)", 0)
        age_s = context.inspector.import_age_s() if options.all else None
        if age_s is not None:
            what = f"delete the import into {context.name!r}, which has been silent for {age_s:.0f} s"
            return self._run(context, options, what, 0)
        state, depth = context.state(), operator_of(context).depth()
        waiting = f"{number(depth.pending)} pending and {counted(depth.delayed, 'delayed request')}"
        seen = f"{counted(state.seen, 'fingerprint')} seen"
        if state.seen_name:
            seen += f" (those of frontier {state.seen_name!r}, PRIOQUEUE_SEEN_NAME, which others may share)"
        if options.seen:
            what = f"forget the {seen}"
        elif options.queue:
            what = f"delete {waiting}"
        else:
            kept = "" if state.seen_name else f"{seen}, "
            what = f"delete {waiting}, {counted(depth.leased, 'leased one')}, {kept}dead letters and counters"
        return self._run(context, options, f"{what} of frontier {context.name!r}", depth.pending + depth.delayed)

    def _run(self, context: Context, options: Namespace, what: str, waiting: int) -> int:
        confirm(context, options, what)
        context.output.show(_reset(context, options, waiting))
        return FINE


def _reset(context: Context, options: Namespace, waiting: int) -> str:
    operator = operator_of(context)
    with working("dropping", waiting if options.queue else None) as work:
        what = "request" if options.queue else "key"
        context.so_far = lambda: f"{work.counted(what)} deleted; the same command deletes the rest" if work.done else ""
        if options.seen:
            operator.forget_all(work.note)
            return "all fingerprints are forgotten"
        if options.all:
            operator.reset(work.note)
            return "everything is dropped"
        dropped = operator.drop(work.note)
    return f"{counted(dropped, 'request')} deleted"
