"""Crawls that would share a frontier by mistake: of spiders with one name, or with different arguments."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from scrapy_prioqueue.checking.code import SpiderCode, Surroundings, name_of, text_in
from scrapy_prioqueue.checking.findings import CodeFinding, found

_SECTION = "one-frontier-for-each-crawl"
_NOT_ARGUMENTS = {"name", "self", "cls", "crawler", "args", "kwargs"}
_MOST = 3
_PLACEHOLDER = re.compile(r"%\((\w+)\)")


def frontier_findings(code: SpiderCode, around: Surroundings) -> Iterator[CodeFinding]:
    """Find what would share this spider's frontier."""
    own, pattern = around.name, around.pattern
    same = [(name, where) for name, other, where in around.others if _named(other, name) == _named(pattern, own)]
    named = [where for name, where in same if name == own]
    if named:
        text = f"{_some(named)} has the name {own!r}, too: both share one frontier, and Scrapy starts only one of them"
        remedy = "give each spider a name of its own"
        yield found("wrong", "name", text, _SECTION, code.place, remedy=remedy)
    elif same:
        text = f"PRIOQUEUE_NAME is {pattern!r} for {_some([name for name, _ in same])}, too: they share one frontier"
        remedy = 'use PRIOQUEUE_NAME = "%(spider)s", or a name for each spider'
        yield found("wrong", "name", text, _SECTION, code.place, remedy=remedy)
    known = {*_PLACEHOLDER.findall(pattern), *_NOT_ARGUMENTS}
    names = [name for name in _arguments(code) if name not in known]
    if names:
        text = f"runs with different values of {_some(names)} share one frontier"
        remedy = f'if you start such runs: PRIOQUEUE_NAME = "%(spider)s-%({names[0]})s"'
        yield found("note", "arguments", text, _SECTION, code.place, remedy=remedy)


def _named(pattern: str, spider: str) -> str:
    return pattern.replace("%(spider)s", spider)


def _some(names: list[str]) -> str:
    return ", ".join(names[:_MOST]) + (", …" if len(names) > _MOST else "")


def _arguments(code: SpiderCode) -> Mapping[str, None]:
    """Return the names of the arguments (`-a NAME=VALUE`) that the code of the spider reads."""
    result: dict[str, None] = {}
    for method in code.methods.get("__init__", []):
        arguments = method.node.args
        result.update(dict.fromkeys(arg.arg for arg in [*method.parameters, *arguments.kwonlyargs]))
        if arguments.kwarg is not None:
            result.update(dict.fromkeys(_keys(method.node, arguments.kwarg.arg)))
    for method in code.definitions:
        for node in ast.walk(method.node):
            if isinstance(node, ast.Call) and name_of(node.func) == "getattr" and len(node.args) == 3:
                owner, key = node.args[:2]
                name = text_in(key)
                if name and method.is_own(owner) and not _is_assigned(code, name):
                    result[name] = None
    return {name: None for name in result if not name.startswith("_")}


def _keys(node: ast.AST, mapping: str) -> Iterator[str]:
    """Yield the keys that are read from the keyword arguments: `kwargs.get("country")`."""
    for inner in ast.walk(node):
        match inner:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=name), attr="get" | "pop"), args=[ast.Constant(value=str(key)), *_]
            ) if name == mapping:
                yield key
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(key))) if name == mapping:
                yield key


def _is_assigned(code: SpiderCode, name: str) -> bool:
    if name in code.class_values or name in code.methods:
        return True
    return any(
        isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and method.attribute(node) == name
        for method in code.definitions
        for node in ast.walk(method.node)
    )
