"""`scrapy frontier exporter`: metrics of frontiers for Prometheus."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from functools import partial
from threading import Event

from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.options import add_listening
from scrapy_prioqueue.commands.output import warn
from scrapy_prioqueue.commands.verb import FINE, WRONG_USE, Stop, Verb
from scrapy_prioqueue.monitoring.adviser import SCALE_PATH, scale_app
from scrapy_prioqueue.monitoring.fleet import FleetCollector, Search
from scrapy_prioqueue.monitoring.serving import METRICS_PATH, Endpoint, metrics_app, missing, routed

PORT = 9450


class ExporterVerb(Verb):
    name = "exporter"
    summary = "serve metrics of frontiers for Prometheus; Ctrl-C quits"
    syntax = "[NAME...]"
    examples = ("", "books shop --host 0.0.0.0", "--all --port 9500")
    needs_frontier = False
    takes_more = ("names", str)

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("names", nargs="*", metavar="NAME", help="names of frontiers (default: the one of --name)")
        parser.add_argument("--all", action="store_true", help="all frontiers of the server, including later ones")
        add_listening(parser, PORT)

    def needs_name(self, options: Namespace) -> bool:
        return not (options.all or options.names)

    def run(self, context: Context, options: Namespace) -> int:
        if why := missing():
            raise Stop(why, WRONG_USE)
        config, names = context.config, [*dict.fromkeys(options.names)] or [context.name]
        report = partial(warn, self.name)
        search = Search(context.link, report) if options.all else None
        collector = FleetCollector(
            *(context.link, search.names if search else lambda: names, report),
            lease_ttl_s=config.lease_ttl_s,
            seeds_keys=config.seeds_keys,
        )
        routes = {METRICS_PATH: metrics_app([collector]), SCALE_PATH: scale_app(config, collector.reading_of)}
        try:
            endpoint = Endpoint(routed(routes), options.host, [options.port])
        except OSError as error:
            raise Stop(f"can't listen at {options.host}, port {options.port}: {error.strerror}", WRONG_USE) from error
        what = "all frontiers" if search else ", ".join(names)
        url = endpoint.url + METRICS_PATH
        context.output.found({"url": url}, f"Metrics of {what} at {context.link.address}: {url}")
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):  # Ctrl-C and SIGTERM are the usual ways to end this verb
            Event().wait()
        endpoint.close()
        if search is not None:
            search.close()
        return FINE
