"""Logins and cookie sessions: which of them each worker needs, or keeps to itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from scrapy_prioqueue.checking.code import SpiderCode, is_request
from scrapy_prioqueue.checking.findings import CodeFinding, found
from scrapy_prioqueue.checking.roles import Roles

_PASSWORD = re.compile(r"pass(word|wd|wort)?$|^pwd$|\[password\]$|senha|contrase", re.IGNORECASE)
_FORMS = {"formdata", "data", "body", "json"}


def session_findings(
    code: SpiderCode, roles: Roles, *, has_cookies: bool = True, are_jars_kept: bool = True, is_held: bool = False
) -> Iterator[CodeFinding]:
    """Find logins and cookie sessions.

    Args:
        has_cookies: `COOKIES_ENABLED`.
        are_jars_kept: requests with a cookie jar stay in their worker (`PRIOQUEUE_COOKIEJARS`).
        is_held: each worker logs in by itself (`PRIOQUEUE_HOLD_UNTIL_START`).
    """
    if not has_cookies:
        return
    jars: list[CodeFinding] = []
    for method in code.definitions:
        if {"start", "page"}.isdisjoint(roles.of(method)):
            continue
        for node in ast.walk(method.node):
            if not isinstance(node, ast.Call) or not is_request(node):
                continue
            file, has_jar = method.module.file, any(_has_jar(word) for word in node.keywords)
            if has_jar and are_jars_kept:
                text = f"requests of {method.name} have a cookie jar: later ones stay in the worker with its cookies"
                jars.append(found("note", "cookie jars", text, "cookie-sessions", file=file, line=node.lineno))
            elif not has_jar and not is_held and any(_is_login(word) for word in node.keywords):
                text = f"{method.name} logs in: only the worker that fetches this has the cookies of the login"
                yield found("wrong", "login", text, "logins-and-tokens", file=file, line=node.lineno)
    yield from jars[:1]


def _has_jar(word: ast.keyword) -> bool:
    return word.arg == "meta" and any(
        isinstance(node, ast.Constant) and node.value == "cookiejar" for node in ast.walk(word.value)
    )


def _is_login(word: ast.keyword) -> bool:
    if word.arg not in _FORMS:
        return False
    keys = [key for node in ast.walk(word.value) if isinstance(node, ast.Dict) for key in node.keys]
    return any(
        isinstance(key, ast.Constant) and isinstance(key.value, str) and _PASSWORD.search(key.value) for key in keys
    )
