"""`scrapy frontier dashboard`: web pages that show the crawl."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from secrets import token_urlsafe

from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.options import add_listening
from scrapy_prioqueue.commands.verb import FINE, WRONG_USE, Stop, Verb

PORT = 8765

VARIABLE = "PRIOQUEUE_DASHBOARD_TOKEN"

NEEDED = ("jinja2", "python-multipart", "starlette", "uvicorn")
"""Distributions; the names of their modules differ between releases."""


class DashboardVerb(Verb):
    name = "dashboard"
    summary = "serve web pages that show the crawl; Ctrl-C quits"
    examples = ("", "--port 9000", "--allow-host crawl.example")

    is_read = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_listening(parser, PORT)
        parser.add_argument("--token", help=f"token for changes (default: ${VARIABLE}, or a new one)")
        parser.add_argument("--allow-host", action="append", default=[], metavar="NAME",
                            help="name under which browsers reach the dashboard (may be repeated)")  # fmt: skip

    def run(self, context: Context, options: Namespace) -> int:
        missing = [name for name in NEEDED if not _is_installed(name)]
        if missing:
            what = f'it needs {", ".join(missing)}: pip install "scrapy-prioqueue[dashboard]"'
            raise Stop(what, WRONG_USE)
        from scrapy_prioqueue.dashboard.access import LEAST_TOKEN, is_loopback
        from scrapy_prioqueue.dashboard.serving import listen, serve

        given = options.token if options.token is not None else os.environ.get(VARIABLE)
        if given is None and not is_loopback(options.host):
            what = f"a dashboard on {options.host} needs a token, since others can reach it: set {VARIABLE}"
            raise Stop(what, WRONG_USE)
        if given is not None and len(given) < LEAST_TOKEN:
            raise Stop(f"the token is too short; it needs at least {LEAST_TOKEN} characters", WRONG_USE)
        try:
            listener = listen(options.host, options.port)
        except OSError as error:
            what = f"can't listen on port {options.port} of {options.host}: {error.strerror}; --port takes another one"
            raise Stop(what, WRONG_USE) from error
        place, number = listener.getsockname()[:2]
        token = given or token_urlsafe(24)

        def ready() -> None:
            shown = f"[{place}]" if ":" in place else place
            context.output.show(f"The dashboard of frontier {context.name!r} is at http://{shown}:{number}/")
            if given is None:
                context.output.show(f"Changes need this token: {token}")
            # A program that reads this from a pipe waits for the address.
            sys.stdout.flush()

        with suppress(KeyboardInterrupt):  # Ctrl-C is the usual way to end this verb
            serve(context, listener, token=token, host=options.host, allowed_hosts=options.allow_host, ready=ready)
        return FINE


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True
