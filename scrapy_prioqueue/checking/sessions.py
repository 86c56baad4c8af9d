"""Logins and cookie sessions: which of them each worker needs, or keeps to itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from scrapy_prioqueue.checking.code import Surroundings, text_in
from scrapy_prioqueue.checking.findings import CodeFinding, found
from scrapy_prioqueue.checking.roles import Roles

_PASSWORD = re.compile(r"pass(word|wd|wort)?$|^pwd$|\[password\]$|senha|contrase", re.IGNORECASE)
_FORMS = {"formdata", "data", "body", "json"}


def session_findings(roles: Roles, around: Surroundings) -> Iterator[CodeFinding]:
    """Find logins and cookie sessions."""
    if not around.has_cookies:
        return
    jars: list[CodeFinding] = []
    for method in roles.methods("start", "page"):
        for call in method.requests:
            has_jar = any(map(_has_jar, call.keywords))
            if has_jar and around.are_jars_kept:
                text = f"requests of {method.name} have a cookie jar: later ones stay in the worker with its cookies"
                jars.append(found("note", "cookie jars", text, "cookie-sessions", method.place(call)))
            elif not has_jar and not around.is_held and any(map(_is_login, call.keywords)):
                text = f"{method.name} logs in: only the worker that fetches this has the cookies of the login"
                yield found("wrong", "login", text, "logins-and-tokens", method.place(call))
    yield from jars[:1]


def _has_jar(word: ast.keyword) -> bool:
    return word.arg == "meta" and "cookiejar" in map(text_in, ast.walk(word.value))


def _is_login(word: ast.keyword) -> bool:
    if word.arg not in _FORMS:
        return False
    keys = [key for node in ast.walk(word.value) if isinstance(node, ast.Dict) for key in node.keys]
    return any(_PASSWORD.search(text_in(key)) for key in keys)
