"""`scrapy frontier check`: what differs when several workers run a spider, from its code and from sampled pages."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text
from scrapy import Spider
from scrapy.settings import SETTINGS_PRIORITIES, Settings
from scrapy.utils.spider import iter_spider_classes

from scrapy_prioqueue.checking.check import code_findings, in_order
from scrapy_prioqueue.checking.code import NoSource, Surroundings, code_of
from scrapy_prioqueue.checking.findings import CodeFinding
from scrapy_prioqueue.commands.context import NAME_SETTING, Context
from scrapy_prioqueue.commands.output import counted, number
from scrapy_prioqueue.commands.verb import FINE, NOTHING, WRONG_USE, Stop, Verb
from scrapy_prioqueue.commands.verbs.doctor import drawing
from scrapy_prioqueue.frontier.redis.operators.doctor import Finding, worst

if TYPE_CHECKING:
    from scrapy_prioqueue.checking.sample import Sampled

_SUMMARIES = {
    "fine": "ready for several workers",
    "note": "ready for several workers",
    "warning": "runs on several workers; read the lines marked with ! first",
    "wrong": "not ready for several workers: change the lines marked with ✗",
}
_UNKNOWN = "not known to be ready: not every page of --sample could be checked"
_DEFAULT_NAME = "%(spider)s"
_COUNTS = ("CLOSESPIDER_ITEMCOUNT", "CLOSESPIDER_PAGECOUNT", "CLOSESPIDER_PAGECOUNT_NO_ITEM", "CLOSESPIDER_ERRORCOUNT")


class CheckVerb(Verb):
    name = "check"
    summary = "whether a spider is ready for several workers, from its code"
    syntax = "[SPIDER]"
    examples = ("books", "books --sample https://a.example/")
    needs_frontier = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "spider_argument",
            nargs="?",
            metavar="SPIDER",
            help="name of the spider (default: the only one)",
        )
        parser.add_argument(
            "--sample",
            action="append",
            default=[],
            metavar="URL",
            help="also download this page, and check the requests that are found on it (may be repeated)",
        )
        parser.add_argument(
            "-c", "--callback", default="", metavar="NAME", help="method of the spider that gets the sampled pages"
        )

    def run(self, context: Context, options: Namespace) -> int:
        cls = context.spider_class
        if cls is None:
            raise Stop("which spider? Name it: scrapy frontier check SPIDER", WRONG_USE)
        if options.callback and not callable(getattr(cls, options.callback, None)):
            raise Stop(f"spider {cls.name} has no method {options.callback}", WRONG_USE)
        try:
            findings = code_findings(code_of(cls), _surroundings(context, cls))
        except NoSource as error:
            raise Stop(str(error), WRONG_USE) from error
        looked_at, is_complete = "", True
        if options.sample:
            sampled = _sample(context, cls, options)
            findings = in_order([*findings, *sampled.findings])
            is_complete = sampled.pages == len(options.sample)
            pages = f"{number(sampled.pages)} of {counted(len(options.sample), 'page')}"
            looked_at = f" ({counted(sampled.requests, 'request')}, {pages} checked)"
        severity = worst(findings)
        is_unknown = severity != "wrong" and not is_complete
        last = f"{cls.name}: {_UNKNOWN if is_unknown else _SUMMARIES[severity]}{looked_at}"
        parts: list[RenderableType] = [drawing(map(_placed, findings)), ""] if findings else []
        document = {"spider": cls.name, "verdict": severity, "findings": findings}
        context.output.found(document, *parts, Text(last, style="bold"))
        return NOTHING if severity == "wrong" or is_unknown else FINE


def _sample(context: Context, cls: type[Spider], options: Namespace) -> Sampled:
    # Only here, since it imports what a crawl needs.
    from scrapy_prioqueue.checking.sample import NotStarted, sample

    try:
        return sample(cls, context.settings, options.sample, callback=options.callback, arguments=options.arguments)
    except NotStarted:
        raise Stop(f"the spider can't be started: scrapy crawl {cls.name} shows why") from None


def _placed(finding: CodeFinding) -> Finding:
    """Return a finding as it is drawn: with its place, and with the section about the pattern."""
    place = f"{finding.file}:{finding.line} " if finding.file else ""
    return Finding(finding.topic, finding.severity, place + finding.text, f"{finding.remedy}; {finding.link}")


def _surroundings(context: Context, cls: type[Spider]) -> Surroundings:
    settings, config = context.settings, context.config
    return Surroundings(
        cls.name,
        pattern=str(settings.get(NAME_SETTING, _DEFAULT_NAME)),
        others=list(_others(settings, cls)),
        has_cookies=settings.getbool("COOKIES_ENABLED"),
        are_jars_kept=config.cookiejars == "local",
        is_held=config.holds_until_start,
        fetches_each_start=config.starts == "each",
        calls_start_requests=hasattr(Spider, "start_requests") or cls.start is not Spider.start,
        limits=[name for name in _COUNTS if settings.getint(name)],
    )


def _others(settings: Settings, cls: type[Spider]) -> Iterator[tuple[str, str, str]]:
    """Yield name, `PRIOQUEUE_NAME` and class of the other spiders of the project, all of which are loaded."""
    priority = settings.getpriority(NAME_SETTING) or 0
    of_project = settings.get(NAME_SETTING) if priority <= SETTINGS_PRIORITIES["project"] else None
    roots = tuple(settings.getlist("SPIDER_MODULES"))
    for name, module in sorted(sys.modules.items()):
        if not any(name == root or name.startswith(f"{root}.") for root in roots):
            continue
        for other in iter_spider_classes(module):
            own: Any = other.custom_settings or {}
            # A name from the command line is chosen for this run.
            pattern = own.get(NAME_SETTING, of_project or _DEFAULT_NAME)
            if other is not cls:
                yield other.name, str(pattern), f"{other.__module__}.{other.__qualname__}"
