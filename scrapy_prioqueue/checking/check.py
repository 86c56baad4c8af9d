"""All findings about the code of a spider."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import scrapy

from scrapy_prioqueue.checking.code import SpiderCode, is_request
from scrapy_prioqueue.checking.contents import content_findings
from scrapy_prioqueue.checking.findings import CodeFinding, found
from scrapy_prioqueue.checking.frontiers import frontier_findings
from scrapy_prioqueue.checking.handles import handle_findings
from scrapy_prioqueue.checking.roles import Roles
from scrapy_prioqueue.checking.sessions import session_findings
from scrapy_prioqueue.checking.siblings import sibling_findings
from scrapy_prioqueue.checking.state import state_findings

_LEVELS = ("wrong", "warning", "note", "fine")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The settings and the project of a spider, as far as they matter here.

    Args:
        name: of the spider.
        pattern: `PRIOQUEUE_NAME`.
        others: the other spiders of the project: name, `PRIOQUEUE_NAME` and class.
        has_cookies: `COOKIES_ENABLED`.
        are_jars_kept: `PRIOQUEUE_COOKIEJARS` is `"local"`.
        is_held: `PRIOQUEUE_HOLD_UNTIL_START`.
        fetches_each_start: `PRIOQUEUE_START` is `"each"`.
        limits: settings of `CLOSESPIDER_*` that are set.
        calls_start_requests: Scrapy, or the spider's own `start()`, calls `start_requests()`.
    """

    name: str
    pattern: str = "%(spider)s"
    others: Iterable[tuple[str, str, str]] = ()
    has_cookies: bool = True
    are_jars_kept: bool = True
    is_held: bool = False
    fetches_each_start: bool = False
    limits: Sequence[str] = ()
    calls_start_requests: bool = True


def code_findings(code: SpiderCode, around: Surroundings) -> Sequence[CodeFinding]:
    """Return what the code shows, each finding once, the worst first and then by place."""
    roles = Roles(code)
    findings = [
        *content_findings(code, roles),
        *state_findings(code, roles, logs_in_everywhere=around.is_held),
        *sibling_findings(code, roles),
        *session_findings(
            *(code, roles),
            has_cookies=around.has_cookies,
            are_jars_kept=around.are_jars_kept,
            is_held=around.is_held,
        ),
        *handle_findings(code, roles),
        *frontier_findings(code, roles, pattern=around.pattern, own=around.name, others=around.others),
        *_limits(code, around),
        *_endless(code, roles, around),
        *_never_called(code, around),
    ]
    return in_order(findings)


def in_order(findings: Iterable[CodeFinding]) -> Sequence[CodeFinding]:
    """Return the findings without repetitions, the worst first and then by place."""
    return sorted(dict.fromkeys(findings), key=lambda one: (_LEVELS.index(one.level), one.file, one.line, one.text))


def _limits(code: SpiderCode, around: Surroundings) -> Iterator[CodeFinding]:
    for name in around.limits:
        file, line = code.place
        text = f"{name}: each worker counts for itself"
        yield found("warning", "limit", text, "flags-and-limits", file=file, line=line)


def _never_called(code: SpiderCode, around: Surroundings) -> Iterator[CodeFinding]:
    """Find a `start_requests()` that this version of Scrapy doesn't call."""
    for method in () if around.calls_start_requests else code.methods.get("start_requests", ()):
        text = f"start_requests() is never called by Scrapy {scrapy.__version__}: the spider yields only start_urls"
        yield found("wrong", "start", text, "start", file=method.module.file, line=method.node.lineno)


def _endless(code: SpiderCode, roles: Roles, around: Surroundings) -> Iterator[CodeFinding]:
    """Find a `start()` that takes work from elsewhere for ever, and yields the same URL again."""
    if around.fetches_each_start:
        return
    for method in code.definitions:
        if "start" not in roles.of(method):
            continue
        for loop in ast.walk(method.node):
            if isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant) and not _ends(loop):
                for call in ast.walk(loop):
                    if is_request(call) and isinstance(call, ast.Call) and any(map(_is_unfiltered, call.keywords)):
                        text = f"{method.name} never ends: what an earlier run has yielded is not fetched again"
                        file, line = method.module.file, call.lineno
                        yield found("warning", "endless start", text, "endless-starts", file=file, line=line)


def _ends(loop: ast.While) -> bool:
    return any(isinstance(node, (ast.Break, ast.Return)) for node in ast.walk(loop))


def _is_unfiltered(word: ast.keyword) -> bool:
    return word.arg == "dont_filter" and isinstance(word.value, ast.Constant) and word.value.value is True
