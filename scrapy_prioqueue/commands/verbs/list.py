"""`scrapy frontier list`: all frontiers of a server."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.options import in_options
from scrapy_prioqueue.commands.output import Cell, FittedTable, duration, warn
from scrapy_prioqueue.commands.progress import working
from scrapy_prioqueue.commands.verb import FINE, NO_SERVER, NOTHING, Verb
from scrapy_prioqueue.frontier.redis.operators.frontiers import FrontierFound, frontier_names, frontiers, is_one_node


class ListVerb(Verb):
    name = "list"
    summary = "all frontiers of the server"
    examples = ("", "--json", "--url redis://redis.example:6379/0")
    needs_frontier = False

    def run(self, context: Context, options: Namespace) -> int:
        with working("reading keys") as work:
            context.so_far = lambda: f"{work.counted('key')} read" if work.done else ""
            silent: list[str] = []
            names = frontier_names(context.link, work.note, on_silent=silent.append)
        found = list(frontiers(context.link, names, lease_ttl_s=context.config.lease_ttl_s))
        nothing = f"there are no frontiers at {'the other nodes' if silent else context.link.address}"
        context.output.found(found, _table(found), nothing=nothing)
        for node in silent:
            why = in_options(node, options)
            warn(self.name, f"the frontiers of a node of the cluster are missing, since it can't be used: {why}")
        if is_one_node(context.link):
            warn(
                self.name,
                f"{context.link.address} is one node of a cluster: to list the frontiers of all nodes, begin the URL"
                " with redis+cluster:// (rediss+cluster:// for TLS)",
            )
        if silent:
            return NO_SERVER
        return FINE if found else NOTHING


def _table(found: Sequence[FrontierFound]) -> RenderableType:
    rows: list[Sequence[Cell]] = [
        (each.name, _crawl(each), each.pending, each.delayed, each.leased, each.dead, each.workers) for each in found
    ]
    columns = ("frontier", "crawl", "pending>", "delayed>", "leased>", "dead>", "workers>")
    return FittedTable(columns, rows, fold=("frontier",), below=("dead", "delayed", "leased"))


def _crawl(found: FrontierFound) -> Text:
    if found.crawl == "ended":
        return Text(f"ended {duration(max(0, found.now_ms - found.ended_ms) / 1000)} ago", style="dim")
    return Text(found.crawl, style="green" if found.crawl == "running" else "yellow")
