"""Where the methods of a spider write and read state that outlives a call: on the spider, its class and its module."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from scrapy_prioqueue.checking.code import Method, SpiderCode, is_response, name_of, text_in
from scrapy_prioqueue.checking.roles import Roles
from scrapy_prioqueue.checking.uses import Use, Uses

Kind = Literal["read", "set", "count", "put", "take"]
"""Read; assigned; counted up or changed from its old value; put into a container; taken out of one, which is a read."""

_PUT = {
    *("append", "appendleft", "add", "extend", "insert", "update", "setdefault", "put", "put_nowait", "push"),
    *("remove", "discard", "clear"),
}
_TAKE = {"pop", "popleft", "popitem", "get_nowait"}
_CONTAINERS = {
    *("list", "dict", "set", "tuple", "defaultdict", "OrderedDict", "Counter", "deque", "Queue", "LifoQueue"),
    *("PriorityQueue", "SimpleQueue", "iter", "cycle"),
}
_SCRAPYS = {"logger", "settings", "crawler", "custom_settings", "name"}


@dataclass(frozen=True, slots=True)
class Touch:
    """One use of an attribute or a global variable in a method.

    Args:
        uses: of a read.
        is_fresh: it was assigned before, in the same call of the same callback.
        is_guarded: a write under a test of the same attribute.
        is_constant: the value written is a constant, or made of what the worker has itself.
        is_from_page: the value written is made in a method that has a response.
    """

    name: str
    kind: Kind
    method: Method
    line: int
    uses: Collection[Use] = ()
    is_fresh: bool = False
    is_guarded: bool = False
    is_constant: bool = False
    is_from_page: bool = False


class Usage:
    """All uses of all state of a spider."""

    def __init__(self, code: SpiderCode, roles: Roles) -> None:
        self._code = code
        self._globals = _shared_globals(code)
        self.containers = set(self._find(_is_container))
        self.filled = set(self._find(lambda value: _is_container(value) and not _is_empty(value)))
        """Names of containers that are made with something in them."""
        self.counters = set(self._find(lambda value: isinstance(value, ast.Call) and name_of(value.func) == "count"))
        """Names of iterators of `itertools.count()`."""
        found = list(code.definitions)
        sets_on_exit = {
            method.name: set() if method.is_async_or_generator else _Walk(self, method, {}, frozenset()).on_exit
            for method in found
        }
        walks = {method: _Walk(self, method, sets_on_exit, frozenset()) for method in found}
        on_entry = _on_entry(walks, roles)
        self.touches = [
            touch
            for method in found
            for touch in _Walk(self, method, sets_on_exit, on_entry.get(method.name, frozenset())).touches
        ]

    def name_of_state(self, node: ast.AST, method: Method) -> str:
        """Return the name of the attribute or global variable that an expression is, empty for neither."""
        if isinstance(node, ast.Attribute) and node.attr not in _SCRAPYS and self._is_spider(node.value, method):
            return "" if node.attr in self._code.methods else f"self.{node.attr}"
        if isinstance(node, ast.Name) and node.id in self._globals and node.id not in method.locals:
            return node.id if node.id in method.module.values else ""
        return ""

    def _is_spider(self, node: ast.AST, method: Method) -> bool:
        if method.is_own(node) or (isinstance(node, ast.Name) and node.id in self._code.names):
            return True
        if isinstance(node, ast.Call) and name_of(node.func) == "type" and node.args:
            return method.is_own(node.args[0])
        return method.attribute(node) == "__class__"

    def _find(self, test: Callable[[ast.expr], bool]) -> Iterator[str]:
        """Yield the names of the state to which a value is assigned for which the test is true."""
        for _, module in self._code.classes:
            yield from (name for name, value in module.values.items() if test(value))
        yield from (f"self.{name}" for name, value in self._code.class_values.items() if test(value))
        for method in self._code.definitions:
            for node in ast.walk(method.node):
                if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None and test(node.value):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    yield from filter(None, (self.name_of_state(target, method) for target in targets))
        yield "self.state"


def _is_container(value: ast.expr) -> bool:
    if isinstance(value, (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp, ast.GeneratorExp)):
        return True
    return isinstance(value, ast.Call) and name_of(value.func) in _CONTAINERS


def _is_empty(value: ast.expr) -> bool:
    match value:
        case ast.List(elts=[]) | ast.Set(elts=[]) | ast.Dict(keys=[]) | ast.Call(args=[]):
            return True
    return False


def _shared_globals(code: SpiderCode) -> set[str]:
    """Return the module's variables that methods can change: containers, and those declared global."""
    found = {name for _, module in code.classes for name, value in module.values.items() if _is_container(value)}
    for method in code.definitions:
        for node in ast.walk(method.node):
            if isinstance(node, ast.Global):
                found.update(node.names)
    return found


def _on_entry(walks: Mapping[Method, _Walk], roles: Roles) -> Mapping[str, frozenset[str]]:
    """Return what is assigned before every call of a method that is no callback itself."""
    calls: dict[str, list[tuple[str, frozenset[str]]]] = {}
    for method, walk in walks.items():
        if set(roles.of(method)) - {"setup"}:
            for called, assigned in walk.calls:
                calls.setdefault(called, []).append((method.name, assigned))
    everything = frozenset(touch.name for walk in walks.values() for touch in walk.touches)
    found = {name: everything for name in calls if name not in roles.callbacks}
    for _ in range(len(found)):
        before = dict(found)
        for name in found:
            found[name] = frozenset.intersection(
                *(assigned | before.get(caller, frozenset()) for caller, assigned in calls[name])
            )
        if found == before:
            break
    return found


class _Walk:
    """Goes through a method in the order in which it runs.

    Args:
        sets_on_exit: what other methods have assigned when they return.
        on_entry: what is assigned before it is called.
    """

    def __init__(
        self, usage: Usage, method: Method, sets_on_exit: Mapping[str, Collection[str]], on_entry: frozenset[str]
    ) -> None:
        self._usage = usage
        self._method = method
        self._uses = Uses(method)
        self._sets_on_exit = sets_on_exit
        self.touches: list[Touch] = []
        self.calls: list[tuple[str, frozenset[str]]] = []
        self._exits: list[set[str]] = []
        self._has_response = any(map(is_response, method.parameters))
        end = self._block(method.node.body, set(on_entry))
        if end is not None:
            self._exits.append(end)
        self.on_exit: set[str] = set.intersection(*self._exits) if self._exits else set()

    def _block(self, body: Iterable[ast.stmt], assigned: set[str]) -> set[str] | None:
        """Return what is assigned after these statements, None if they don't end here."""
        for statement in body:
            after = self._statement(statement, assigned)
            if after is None:
                return None
            assigned = after
        return assigned

    def _statement(self, node: ast.stmt, assigned: set[str]) -> set[str] | None:
        match node:
            case ast.If() | ast.Match() | ast.Try():
                return self._branches(node, assigned)
            case ast.For() | ast.AsyncFor() | ast.While():
                self._expression(node.test if isinstance(node, ast.While) else node.iter, assigned)
                self._block(node.body, set(assigned))
                self._block(node.orelse, set(assigned))
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self._expression(item.context_expr, assigned)
                return self._block(node.body, assigned)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._block(node.body, set(assigned))
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.Delete():
                return self._change(node, assigned)
            case ast.Return() | ast.Raise() | ast.Continue() | ast.Break():
                self._expression(node, assigned)
                if isinstance(node, ast.Return):
                    self._exits.append(assigned)
                return None
            case _:
                self._expression(node, assigned)
        return assigned

    def _branches(self, node: ast.If | ast.Match | ast.Try, assigned: set[str]) -> set[str] | None:
        if isinstance(node, ast.If):
            self._expression(node.test, assigned)
            return _joined(self._block(node.body, set(assigned)), self._block(node.orelse, set(assigned)))
        if isinstance(node, ast.Match):
            self._expression(node.subject, assigned)
            return _joined(*(self._block(case.body, set(assigned)) for case in node.cases), assigned)
        ends = [self._block([*node.body, *node.orelse], set(assigned))]
        ends += [self._block(handler.body, set(assigned)) for handler in node.handlers]
        after = _joined(*ends)
        last = self._block(node.finalbody, set(assigned if after is None else after))
        return None if after is None else last

    def _change(
        self, node: ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Delete, assigned: set[str]
    ) -> set[str] | None:
        if isinstance(node, ast.Assign):
            return self._assignment(node.targets, node.value, assigned)
        if isinstance(node, ast.AnnAssign):
            return assigned if node.value is None else self._assignment([node.target], node.value, assigned)
        if isinstance(node, ast.AugAssign):
            self._expression(node.value, assigned)
            is_extended = self._name(node.target) in self._usage.containers
            self._write("put" if is_extended else "count", node.target, node.target, assigned)
            return assigned
        for deleted in node.targets:
            self._write("put", deleted, deleted, assigned)
        return assigned

    def _assignment(self, targets: list[ast.expr], value: ast.expr, assigned: set[str]) -> set[str]:
        self._expression(value, assigned, written={self._name(target) for target in targets} - {""})
        for target in chain.from_iterable(map(_unpacked, targets)):
            name = self._name(target)
            if isinstance(target, ast.Subscript):
                self._write("put", target, value, assigned)
                if isinstance(target.slice, ast.Constant) and (base := self._name(target.value)):
                    # Each call sets the key before it reads it.
                    assigned = assigned | {base}
            elif name:
                is_from_old = _counts(value) and any(self._name(inner) == name for inner in ast.walk(value))
                self._write("count" if is_from_old else "set", target, value, assigned)
                if not is_from_old:
                    assigned = assigned | {name}
        return assigned

    def _write(self, kind: Kind, target: ast.expr, value: ast.AST, assigned: set[str]) -> None:
        base = target
        while isinstance(base, ast.Subscript):
            self._expression(base.slice, assigned)
            base = base.value
        name = self._name(base)
        if name and (base is target or name in self._usage.containers):
            self._add(name, kind, target, assigned, is_constant=self._is_constant(value))

    def _is_constant(self, value: ast.AST) -> bool:
        names = [node for node in ast.walk(value) if isinstance(node, (ast.Name, ast.Call, ast.Subscript))]
        return all(map(self._method.is_own, names))

    def _expression(self, node: ast.AST, assigned: set[str], written: Collection[str] = ()) -> None:
        """Note the reads in an expression, the changes of containers by their methods, and the calls of methods.

        Args:
            written: what the statement assigns: its old value is part of that write.
        """
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call):
                self._call(inner, assigned)
            name = self._name(inner)
            if name and name not in written and isinstance(getattr(inner, "ctx", None), ast.Load):
                kind, uses = self._kind_of(inner)
                if kind is not None:
                    self._add(name, kind, inner, assigned, uses=uses)

    def _call(self, call: ast.Call, assigned: set[str]) -> None:
        function = name_of(call.func)
        if self._method.attribute(call.func):
            self.calls.append((function, frozenset(assigned)))
            assigned |= set(self._sets_on_exit.get(function, ()))
        elif function in {"getattr", "hasattr", "setattr"} and len(call.args) > 1:
            key = text_in(call.args[1])
            if key and self._method.is_own(call.args[0]):
                kind: Kind = "set" if function == "setattr" else "read"
                uses = () if kind == "set" else self._uses.of(call)
                self._add(f"self.{key}", kind, call, assigned, uses=uses)

    def _kind_of(self, node: ast.AST) -> tuple[Kind | None, Collection[Use]]:
        """Return what an expression does with the state that it names."""
        parents, above = self._method.parents, node
        while isinstance(parent := parents.get(above), ast.Subscript) and parent.value is above:
            above = parent
        if isinstance(parent, ast.Attribute):
            call = parents.get(parent)
            if isinstance(call, ast.Call) and call.func is parent:
                return self._method_call(node, parent.attr, call)
        if isinstance(parent, ast.Call) and name_of(parent.func) in {"next", "heappop"} and above in parent.args[:1]:
            return "take", self._uses.of(parent)
        if isinstance(parent, ast.Call) and name_of(parent.func) == "heappush" and above in parent.args[:1]:
            return "put", ()
        return "read", self._uses.of(node)

    def _method_call(self, node: ast.AST, method: str, call: ast.Call) -> tuple[Kind | None, Collection[Use]]:
        if self._name(node) not in self._usage.containers:
            return "read", self._uses.of(call)
        is_used = not isinstance(self._method.parents.get(call), ast.Expr)
        if method in _TAKE:
            is_of_key = bool(call.args) and not (
                isinstance(call.args[0], ast.Constant) and call.args[0].value in (0, -1)
            )
            if is_of_key:
                return ("read", {"removed", *self._uses.of(call)}) if is_used else ("put", ())
            return "take", self._uses.of(call)
        if method in _PUT:
            return "put", ()
        return "read", self._uses.of(call)

    def _name(self, node: ast.AST) -> str:
        return self._usage.name_of_state(node, self._method)

    def _add(
        self,
        name: str,
        kind: Kind,
        node: ast.AST,
        assigned: Collection[str],
        *,
        uses: Collection[Use] = (),
        is_constant: bool = False,
    ) -> None:
        line = getattr(node, "lineno", self._method.node.lineno)
        is_guarded = kind != "read" and self._is_guarded(node, name)
        self.touches.append(
            Touch(name, kind, self._method, line, uses, name in assigned, is_guarded, is_constant, self._has_response)
        )

    def _is_guarded(self, node: ast.AST, name: str) -> bool:
        above: ast.AST | None = node
        while above is not None and above is not self._method.node:
            if isinstance(above, ast.If) and self._tests_presence(above.test, name):
                return True
            above = self._method.parents.get(above)
        return False

    def _tests_presence(self, test: ast.expr, name: str) -> bool:
        """Return whether a condition says that a value is missing or there: `not self.x`, `self.x is None`."""
        for node in ast.walk(test):
            if name in (f"self.{text_in(node)}", self._name(node)):
                parent = self._method.parents.get(node)
                return not isinstance(parent, ast.Compare) or all(
                    isinstance(op, (ast.In, ast.NotIn, ast.Is, ast.IsNot)) for op in parent.ops
                )
        return False


def _joined(*ends: set[str] | None) -> set[str] | None:
    """Return what is assigned after branches of which any may have run."""
    found = [end for end in ends if end is not None]
    return set.intersection(*found) if found else None


def _counts(value: ast.expr) -> bool:
    """Return whether an expression computes a value, and doesn't only convert one: `x + 1`, but not `int(x)`."""
    return isinstance(value, ast.BinOp) or (isinstance(value, ast.Call) and name_of(value.func) in {"max", "min"})


def _unpacked(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, (ast.Tuple, ast.List)):
        for inner in target.elts:
            yield from _unpacked(inner)
    else:
        yield target.value if isinstance(target, ast.Starred) else target
