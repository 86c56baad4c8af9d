"""Objects that several requests of one page share and that their callbacks change together."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from scrapy_prioqueue.checking.code import Method, SpiderCode, argument, name_of, text_in
from scrapy_prioqueue.checking.findings import CodeFinding, found
from scrapy_prioqueue.checking.roles import Roles

_CHANGES = {"append", "extend", "add", "remove", "pop", "popleft", "discard", "insert"}
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def sibling_findings(code: SpiderCode, roles: Roles) -> Iterator[CodeFinding]:
    """Find an object that all requests of a loop carry, and that a callback counts down or fills."""
    for method in roles.methods("start", "page"):
        for call in method.requests:
            callback = _callback(call, code)
            if callback is None:
                continue
            for holder, key, name in _shared(call, method):
                line = _change(callback, holder, key)
                if line:
                    text = (
                        f"{callback.name} (line {line}) changes {holder}[{key!r}], which the requests of {method.name}"
                        f" share as {name}: each gets its own copy, so none sees the changes of the others"
                    )
                    section = "one-object-in-several-requests"
                    yield found("wrong", "shared object", text, section, method.place(call))


def _callback(call: ast.Call, code: SpiderCode) -> Method | None:
    given = argument(call, 1, "callback")
    methods = code.methods.get(name_of(given), []) if given else []
    return methods[0] if methods else None


def _shared(call: ast.Call, method: Method) -> Iterator[tuple[str, str, str]]:
    """Yield holder, key and variable of mutable objects made outside of the innermost loop around a request."""
    loop: ast.AST | None = call
    while loop is not None and not isinstance(loop, _LOOPS):
        loop = method.parents.get(loop)
    if loop is None:
        return
    inside = {id(node) for node in ast.walk(loop)}
    for word in call.keywords:
        if word.arg in {"meta", "cb_kwargs"} and isinstance(word.value, ast.Dict):
            for key, value in zip(word.value.keys, word.value.values, strict=True):
                if (text := text_in(key)) and isinstance(value, ast.Name):
                    made = [node for node in ast.walk(method.node) if _makes(node, value.id)]
                    if made and not any(id(node) in inside for node in made):
                        yield word.arg, text, value.id


def _makes(node: ast.AST, name: str) -> bool:
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.value, (ast.Dict, ast.List, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp, ast.Call))
        and any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    )


def _change(callback: Method, holder: str, key: str) -> int:
    """Return the line in which a callback changes this object in a way that needs the others' changes; 0 for none."""
    names = {key} & {arg.arg for arg in callback.parameters} if holder == "cb_kwargs" else set()
    for node in ast.walk(callback.node):
        if isinstance(node, ast.Assign) and _reads(node.value, key):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
    for node in ast.walk(callback.node):
        target: ast.AST | None = None
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript):
            target = node.target.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
            target = node.func.value
        while isinstance(target, ast.Subscript):
            target = target.value
        if isinstance(target, ast.Name) and target.id in names:
            return target.lineno
    return 0


def _reads(value: ast.expr, key: str) -> bool:
    """Return whether an expression is `response.meta[key]` or `response.meta.get(key)`."""
    match value:
        case ast.Subscript(value=ast.Attribute(attr="meta" | "cb_kwargs"), slice=ast.Constant(value=found)):
            return bool(found == key)
        case ast.Call(
            func=ast.Attribute(value=ast.Attribute(attr="meta"), attr="get"), args=[ast.Constant(value=found), *_]
        ):
            return bool(found == key)
    return False
