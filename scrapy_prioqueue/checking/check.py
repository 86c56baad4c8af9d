"""All findings about the code of a spider."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

import scrapy

from scrapy_prioqueue.checking.code import SpiderCode, Surroundings, is_request
from scrapy_prioqueue.checking.contents import content_findings
from scrapy_prioqueue.checking.findings import CodeFinding, found
from scrapy_prioqueue.checking.frontiers import frontier_findings
from scrapy_prioqueue.checking.handles import handle_findings
from scrapy_prioqueue.checking.roles import Roles
from scrapy_prioqueue.checking.sessions import session_findings
from scrapy_prioqueue.checking.siblings import sibling_findings
from scrapy_prioqueue.checking.state import state_findings
from scrapy_prioqueue.frontier.redis.operators.doctor import SEVERITIES


def code_findings(code: SpiderCode, around: Surroundings) -> Sequence[CodeFinding]:
    """Return what the code shows, each finding once, the worst first and then by place."""
    roles = Roles(code)
    findings = [
        *content_findings(code, roles),
        *state_findings(code, roles, around),
        *sibling_findings(code, roles),
        *session_findings(roles, around),
        *handle_findings(code, roles),
        *frontier_findings(code, around),
        *_limits(code, around),
        *_endless(roles, around),
        *_never_called(code, around),
    ]
    return in_order(findings)


def in_order(findings: Iterable[CodeFinding]) -> Sequence[CodeFinding]:
    """Return the findings without repetitions, the worst first and then by place."""
    return sorted(
        dict.fromkeys(findings), key=lambda one: (-SEVERITIES.index(one.severity), one.file, one.line, one.text)
    )


def _limits(code: SpiderCode, around: Surroundings) -> Iterator[CodeFinding]:
    for name in around.limits:
        yield found("warning", "limit", f"{name}: each worker counts for itself", "flags-and-limits", code.place)


def _never_called(code: SpiderCode, around: Surroundings) -> Iterator[CodeFinding]:
    """Find a `start_requests()` that this version of Scrapy doesn't call."""
    for method in () if around.calls_start_requests else code.methods.get("start_requests", ()):
        text = f"start_requests() is never called by Scrapy {scrapy.__version__}: the spider yields only start_urls"
        yield found("wrong", "start", text, "start", method.place(method.node))


def _endless(roles: Roles, around: Surroundings) -> Iterator[CodeFinding]:
    """Find a `start()` that takes work from elsewhere for ever, and yields the same URL again."""
    if around.fetches_each_start:
        return
    for method in roles.methods("start"):
        for loop in ast.walk(method.node):
            if isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant) and not _ends(loop):
                for call in filter(is_request, ast.walk(loop)):
                    if any(map(_is_unfiltered, call.keywords)):
                        text = f"{method.name} never ends: what an earlier run has yielded is not fetched again"
                        yield found("warning", "endless start", text, "endless-starts", method.place(call))


def _ends(loop: ast.While) -> bool:
    return any(isinstance(node, (ast.Break, ast.Return)) for node in ast.walk(loop))


def _is_unfiltered(word: ast.keyword) -> bool:
    return word.arg == "dont_filter" and isinstance(word.value, ast.Constant) and word.value.value is True
