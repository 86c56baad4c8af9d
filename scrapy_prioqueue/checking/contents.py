"""Callbacks and values in requests that keep them in their worker, as far as code shows them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from scrapy_prioqueue.checking.code import (
    Method,
    SpiderCode,
    assignments,
    dotted,
    is_request,
    is_response,
    name_of,
    text_in,
)
from scrapy_prioqueue.checking.findings import CodeFinding, found
from scrapy_prioqueue.checking.handles import handle_of, handles_of
from scrapy_prioqueue.checking.roles import Roles

_SECTION = "callbacks-and-values"
_HOLDERS = {"meta", "cb_kwargs"}
_SELECTORS = {"css", "xpath", "jmespath"}
_NODES = {"find", "select_one", "find_next", "find_parent", "find_next_sibling", "find_previous_sibling"}
_NODE_LISTS = {"find_all", "findAll", "select", "find_parents", "find_next_siblings"}

_WHAT = {
    "selector": ("a selector", "store its text: .get() or .getall()"),
    "response": ("a response", "store what the callback needs of it, such as its text"),
    "loader": ("an item loader", "store load_item(), and make a new loader of that item"),
    "soup": ("a node of BeautifulSoup", "store its text: str(node)"),
    "lambda": ("a lambda", "store a name, and look the function up in the callback"),
    "generator": ("a generator", "store a list"),
    "request": ("a request", "store its URL, and make the request in the callback"),
    "spider": ("the spider", "use self in the callback"),
    "handle": ("an open handle", "keep it on the spider: use self in the callback"),
}


def content_findings(code: SpiderCode, roles: Roles) -> Iterator[CodeFinding]:
    """Find callbacks and values that can't be stored."""
    handles = handles_of(code)
    for method in roles.methods("start", "page", "idle"):
        kinds = _Kinds(method, handles)
        for node in ast.walk(method.node):
            if is_request(node):
                yield from _callbacks(node, method)
                yield from _values(node, method, kinds)
            elif isinstance(node, ast.Assign):
                yield from _stored_later(node, method, kinds)


def _callbacks(call: ast.Call, method: Method) -> Iterator[CodeFinding]:
    given = [(word.arg, word.value) for word in call.keywords if word.arg in {"callback", "errback"}]
    if name_of(call.func) in {"Request", "follow", "follow_all"} and len(call.args) > 1:
        given.append(("callback", call.args[1]))
    for argument, value in given:
        what, remedy = _not_a_method(value, method)
        if what:
            text = f"{argument} in {method.name} is {what}, so this request stays in its worker"
            yield found("wrong", "stays local", text, _SECTION, method.place(value), remedy=remedy)


def _not_a_method(value: ast.expr, method: Method) -> tuple[str, str]:
    """Return what a callback is, and the remedy; empty if it is a method of the spider, or unknown."""
    remedy = "use a method of the spider, with its other arguments in cb_kwargs"
    if isinstance(value, ast.Name):
        if value.id in method.nested:
            return f"a function defined inside, {value.id}", remedy
        if value.id in method.module.functions and value.id not in method.locals:
            return f"a function of the module, {value.id}", remedy
        values = _assigned(method).get(value.id, [])
        if value.id in {arg.arg for arg in method.parameters} or len(values) != 1:
            return "", ""
        value = values[0]
    if isinstance(value, ast.Lambda):
        return "a lambda", remedy
    if isinstance(value, ast.Call) and name_of(value.func) == "partial":
        return "a functools.partial", remedy
    if isinstance(value, ast.Attribute) and method.attribute(value.value):
        return f"a method of another object, {dotted(value)}", remedy
    return "", ""


def _values(call: ast.Call, method: Method, kinds: _Kinds) -> Iterator[CodeFinding]:
    for word in call.keywords:
        if word.arg in _HOLDERS:
            for key, value in _items(word.value, method):
                yield from _judged(value, f"{word.arg}[{key!r}]", method, kinds)


def _items(value: ast.expr, method: Method) -> Iterator[tuple[str, ast.expr]]:
    """Yield keys and values of a dictionary that is written out, also in a local variable."""
    if isinstance(value, ast.Name):
        assigned = _assigned(method).get(value.id, [])
        if len(assigned) == 1 and not isinstance(assigned[0], ast.Name):
            yield from _items(assigned[0], method)
    elif isinstance(value, ast.Dict):
        for key, item in zip(value.keys, value.values, strict=True):
            yield str(key.value) if isinstance(key, ast.Constant) else "…", item
    elif isinstance(value, ast.Call) and name_of(value.func) == "dict":
        yield from ((word.arg, word.value) for word in value.keywords if word.arg)


def _stored_later(node: ast.Assign, method: Method, kinds: _Kinds) -> Iterator[CodeFinding]:
    """Find `request.meta[key] = value`."""
    for target in node.targets:
        if not (isinstance(target, ast.Subscript) and isinstance(target.value, ast.Attribute)):
            continue
        holder = target.value
        if holder.attr in _HOLDERS and kinds.of(holder.value) == "request" and isinstance(target.slice, ast.Constant):
            yield from _judged(node.value, f"{holder.attr}[{target.slice.value!r}]", method, kinds)


def _judged(value: ast.expr, where: str, method: Method, kinds: _Kinds) -> Iterator[CodeFinding]:
    kind = kinds.of(value)
    if kind:
        what, remedy = _WHAT[kind]
        text = f"{where} in {method.name} is {what}, so this request stays in its worker"
        yield found("wrong", "stays local", text, _SECTION, method.place(value), remedy=remedy)


def _assigned(method: Method) -> Mapping[str, list[ast.expr]]:
    """Return the values that are assigned to each local variable."""
    result: dict[str, list[ast.expr]] = {}
    for name, value in assignments(ast.walk(method.node)):
        result.setdefault(name, []).append(value)
    return result


class _Kinds:
    """What the expressions of a method are, where one can tell: a selector, a response, … (see `_WHAT`)."""

    def __init__(self, method: Method, handles: Mapping[str, str]) -> None:
        self._method = method
        self._handles = handles
        self._names: dict[str, set[str]] = {
            arg.arg: {"response" if is_response(arg) else ""} for arg in method.parameters
        }
        for _ in range(3):
            names: dict[str, set[str]] = {
                name: set(kinds) for name, kinds in self._names.items() if kinds == {"response"}
            }
            names.update({arg.arg: {""} for arg in method.parameters if not is_response(arg)})
            for node in ast.walk(method.node):
                for target, kind in self._bound(node):
                    for inner in ast.walk(target):
                        if isinstance(inner, ast.Name):
                            names.setdefault(inner.id, set()).add(kind if inner is target else "")
            self._names = names

    def _bound(self, node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
        match node:
            case ast.Assign(targets=targets, value=value):
                yield from ((target, self.of(value)) for target in targets if isinstance(target, (ast.Name, ast.Tuple)))
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                kind = self.of(value)
                yield target, {"nodes": "soup"}.get(kind, kind) if kind in {"selector", "nodes"} else ""
            case ast.AugAssign(target=ast.Name() as target) | ast.AnnAssign(target=ast.Name() as target):
                yield target, ""
            case ast.withitem(context_expr=value, optional_vars=ast.Name() as target):
                yield target, self.of(value)
            case ast.NamedExpr(target=target, value=value):
                yield target, self.of(value)

    def of(self, node: ast.expr) -> str:
        """Return the kind of an expression, empty if it is another or unknown."""
        kind = self._kind(node)
        return kind if kind in _WHAT or kind == "nodes" else ""

    def _kind(self, node: ast.expr) -> str:
        match node:
            case ast.Name(id=name):
                kinds = {"spider"} if self._method.is_own(node) else self._names.get(name, set())
                return next(iter(kinds)) if len(kinds) == 1 else ""
            case ast.Lambda():
                return "lambda"
            case ast.GeneratorExp():
                return "generator"
            case ast.Subscript() | ast.Attribute():
                return self._kind_of_part(node)
            case ast.Call():
                return self._kind_of_call(node)
            case ast.Dict(values=values) | ast.List(elts=values) | ast.Tuple(elts=values):
                return next((kind for value in values if (kind := self.of(value)) in _WHAT), "")
        return ""

    def _kind_of_part(self, node: ast.Subscript | ast.Attribute) -> str:
        if isinstance(node, ast.Attribute):
            if name := self._method.attribute(node):
                return "handle" if name in self._handles else ""
            return "selector" if node.attr == "selector" and self.of(node.value) == "response" else ""
        kind = self.of(node.value)
        return "soup" if kind == "nodes" else kind if kind == "selector" and not text_in(node.slice) else ""

    def _kind_of_call(self, call: ast.Call) -> str:
        name = name_of(call.func)
        if isinstance(call.func, ast.Attribute):
            kind = self.of(call.func.value)
            if kind in {"response", "selector"} and name in _SELECTORS:
                return "selector"
            if kind == "soup":
                return "soup" if name in _NODES else "nodes" if name in _NODE_LISTS else ""
        if name == "Selector":
            return "selector"
        if name.endswith("Loader") and name[:1].isupper():
            return "loader"
        if name == "BeautifulSoup":
            return "soup"
        if name.endswith("Request") or name == "follow":
            return "request"
        return "handle" if handle_of(call) else ""
