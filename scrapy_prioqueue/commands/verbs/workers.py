"""`scrapy frontier workers`: who works on the frontier."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace

from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.verb import FINE, NOTHING, Verb
from scrapy_prioqueue.commands.verbs.status import existing_state, worker_table


class WorkersVerb(Verb):
    """Lists the workers."""

    name = "workers"
    summary = "who works on it: host, pid, last heard of, requests held, rate"

    def run(self, context: Context, options: Namespace) -> int:
        """Show them."""
        existing_state(context)
        held = context.inspector.held_by_worker()
        found = [replace(worker, leased=held.get(worker.name, 0)) for worker in context.inspector.workers()]
        if context.output.as_json:
            context.output.json(found)
        elif found:
            context.output.show(worker_table(found))
        else:
            context.output.show("nobody works on it")
        return FINE if found else NOTHING
