"""`scrapy frontier report`: one HTML file about a running or finished crawl."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from importlib.util import find_spec

from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.options import opened
from scrapy_prioqueue.commands.reporting.document import gather, render
from scrapy_prioqueue.commands.verb import FINE, WRONG_USE, Stop, Verb

MISSING = 'the report needs Jinja2: pip install "scrapy-prioqueue[dashboard]"'


class ReportVerb(Verb):
    name = "report"
    summary = "write an HTML report on the crawl, running or finished"
    examples = ("", "--output books.html", "--output - | gzip > books.html.gz")
    is_read = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        what = "file to write; - for standard output (default: report-NAME.html, in this folder)"
        parser.add_argument("-o", "--output", metavar="FILE", help=what)

    def run(self, context: Context, options: Namespace) -> int:
        if find_spec("jinja2") is None:
            raise Stop(MISSING, WRONG_USE)
        path = options.output or f"report-{_file_name(context.name)}.html"
        page = render(gather(context.inspector, context.status()))
        with opened(path, "wb") as file:
            file.write(page.encode())
        if path != "-":
            context.output.show(f"Report on the crawl of {context.name!r}: {path}")
        return FINE


def _file_name(name: str) -> str:
    """Return the name of a frontier without characters that files can't have."""
    return re.sub(r"[^\w.-]+", "_", name)[:100]
