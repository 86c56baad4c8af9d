"""`scrapy frontier workers`: list the workers of the frontier."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import replace

from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.output import counted, duration
from scrapy_prioqueue.commands.verb import FINE, NOTHING, Stop, Verb
from scrapy_prioqueue.commands.verbs.status import slow_pages, worker_table
from scrapy_prioqueue.commands.writing import add_confirmation, confirm, operator_of
from scrapy_prioqueue.hints import frontier_command


class WorkersVerb(Verb):
    name = "workers"
    summary = "workers: name with host and pid, last contact, requests held, rate"
    examples = ("", "--evict host-a:4711:9f3c")

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--evict", metavar="WORKER", help="take all leases from this worker, and forget the worker")
        add_confirmation(parser)

    def run(self, context: Context, options: Namespace) -> int:
        state = context.state()
        if options.evict is not None:
            return _evict(context, options)
        held = context.inspector.held_by_worker()
        found = [replace(worker, leased=held.get(worker.name, 0)) for worker in context.inspector.workers()]
        shown = (worker_table(found, state, has_leases=bool(held)), *slow_pages(found, context.name))
        nothing = "" if found else context.nothing("no worker is running")
        context.output.found(found, *shown, nothing=nothing)
        return FINE if found else NOTHING


def _evict(context: Context, options: Namespace) -> int:
    name = options.evict
    held = context.inspector.held_by_worker().get(name, 0)
    worker = next((worker for worker in context.inspector.workers() if worker.name == name), None)
    if worker is None and not held:
        listing = frontier_command("workers", context.name)
        raise Stop(context.nothing(f"there is no worker {name!r}; {listing} lists them"))
    what = f"take {counted(held, 'lease')} from worker {name!r}"
    if worker is not None:
        what += f", last contact {duration(worker.heard_s)} ago"
        if worker.is_alive:
            what += "; if it is still running, requests that it has in progress are fetched twice"
    confirm(context, options, what)
    taken = operator_of(context).evict(name, max_attempts=context.config.max_attempts)
    context.output.show(f"{counted(taken, 'lease')} taken from {name!r}; the worker is forgotten unless it joins again")
    return FINE
