"""`scrapy frontier doctor`: problems of the server and the frontier, and their remedies."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from dataclasses import replace

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.options import in_options
from scrapy_prioqueue.commands.progress import working
from scrapy_prioqueue.commands.verb import FINE, NOTHING, Verb
from scrapy_prioqueue.errors import FrontierRefused
from scrapy_prioqueue.frontier.redis.operators.checkup import frontier_findings
from scrapy_prioqueue.frontier.redis.operators.doctor import Finding, server_findings, worst
from scrapy_prioqueue.printable import clean

_SIGNS = {"fine": ("✓", "green"), "note": ("·", "cyan"), "warning": ("!", "yellow"), "wrong": ("✗", "bold red")}

_SUMMARIES = {
    "fine": "all is well",
    "note": "all is well",
    "warning": "nothing is broken, but the lines marked with ! will cause trouble later",
    "wrong": "fix the lines marked with ✗",
}


class DoctorVerb(Verb):
    name = "doctor"
    summary = "problems of the server or the frontier, and how to fix them"
    examples = ("", "--json")

    def run(self, context: Context, options: Namespace) -> int:
        inspector = context.inspector
        found = list(server_findings(inspector.link, inspector.keys.of("probe")))
        with working("reading keys") as work:

            def report(doing: str, done: int) -> None:
                work.note(done, doing=doing)

            try:
                found += frontier_findings(inspector, context.config.tiers, report, context.config.seeds_keys)
            except FrontierRefused as error:
                found.append(Finding("frontier", "wrong", f"it can't be checked: {error.why}"))
        found = [
            replace(each, text=in_options(each.text, options), remedy=in_options(each.remedy, options))
            for each in found
        ]
        severity = worst(found)
        shown = (drawing(found), "", Text(_SUMMARIES[severity], style="bold"))
        context.output.found({"verdict": severity, "findings": found}, *shown)
        return NOTHING if severity == "wrong" else FINE


def drawing(findings: Iterable[Finding]) -> RenderableType:
    """Return the findings as a table: a sign, the topic, the finding, and below it the remedy."""
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(no_wrap=True)
    made.add_column(no_wrap=True, style="bold")
    made.add_column(overflow="fold")
    for finding in findings:
        sign, style = _SIGNS[finding.severity]
        parts: list[RenderableType] = [Text(clean(finding.text))]
        if finding.remedy:
            parts.append(Padding(Text("→ " + clean(finding.remedy), style="dim"), (0, 0, 0, 2)))
        made.add_row(Text(sign, style=style), Text(finding.topic), Group(*parts))
    return made
