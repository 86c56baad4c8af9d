"""How a value that a method reads is used: in a request, an item, a log line, a condition."""

from __future__ import annotations

import ast
from typing import Literal

from scrapy_prioqueue.checking.code import Method, is_request, name_of

Use = Literal["request", "test", "compare", "equal", "member", "length", "log", "iterate", "removed", "other"]
"""`compare` is a limit, `equal` a number that must be met, `test` whether there is a value."""

_LOGS = {"debug", "info", "warning", "warn", "error", "critical", "exception", "log", "print", "msg", "pprint"}
_STOPS = {"CloseSpider", "close_spider"}


class Uses:
    """Follows values within one method."""

    def __init__(self, method: Method) -> None:
        self._method = method

    def of(self, node: ast.AST, followed: set[str] | None = None) -> set[Use]:
        """Return how the value of an expression is used, also through local variables.

        Args:
            followed: names of the variables that were followed before.
        """
        followed = set() if followed is None else followed
        while (parent := self._method.parents.get(node)) is not None:
            found = self._in_expression(parent, node, followed)
            if found is None and isinstance(parent, (ast.stmt, ast.comprehension, ast.NamedExpr)):
                found = self._in_statement(parent, node, followed)
            if found is not None:
                return found
            node = parent
        return {"other"}

    def _in_expression(self, parent: ast.AST, node: ast.AST, followed: set[str]) -> set[Use] | None:
        """Return how an expression uses a part of it, None if that depends on the expression around it."""
        match parent:
            case ast.Call() if node is not parent.func:
                return self._in_call(parent, followed)
            case ast.Compare():
                return {_use_in(parent, node)}
            case ast.BinOp(op=ast.Mod(), left=left) if left is node:
                # Every n-th time something happens.
                return {"log"}
            case ast.Dict() if _rotates(parent, node):
                return {"log"}
            case ast.UnaryOp(op=ast.Not()):
                return {"test"}
            case ast.IfExp(test=test) if test is node:
                return {"test"}
        return None

    def _in_call(self, call: ast.Call, followed: set[str]) -> set[Use] | None:
        if is_request(call):
            return {"request"}
        function = name_of(call.func)
        if function in _LOGS or function in _STOPS:
            return {"log"}
        if function == "len":
            return {"length", *self.of(call, followed)} - {"other"}
        return None

    def _in_statement(self, parent: ast.AST, node: ast.AST, followed: set[str]) -> set[Use] | None:
        match parent:
            case ast.If() | ast.While() | ast.Assert():
                return {"test"}
            case ast.For() | ast.AsyncFor() | ast.comprehension():
                return {"iterate", *self._of_names(parent.target, followed)} if node is parent.iter else None
            case ast.Assign():
                found: set[Use] = set()
                for target in parent.targets:
                    found |= self._of_names(target, followed)
                return found or {"other"}
            case ast.AugAssign() | ast.AnnAssign() | ast.NamedExpr():
                return self._of_names(parent.target, followed) or {"other"}
        return {"other"}

    def _of_names(self, target: ast.AST, followed: set[str]) -> set[Use]:
        """Return how the local variables of a target are used."""
        names = {inner.id for inner in ast.walk(target) if isinstance(inner, ast.Name)} & set(self._method.locals)
        found: set[Use] = set() if names else {"other"}
        for name in names - followed:
            followed.add(name)
            for node in self._method.loads.get(name, ()):
                parent = self._method.parents.get(node)
                if not (isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Store)):
                    found |= self.of(node, followed)
        return found


def _use_in(comparison: ast.Compare, node: ast.AST) -> Use:
    if any(isinstance(op, (ast.In, ast.NotIn)) for op in comparison.ops):
        return "other" if node is comparison.left else "member"
    if not all(isinstance(op, (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)) for op in comparison.ops):
        return "compare"
    is_with_nothing = any(isinstance(side, ast.Constant) and not side.value for side in comparison.comparators)
    return "test" if is_with_nothing or isinstance(comparison.ops[0], (ast.Is, ast.IsNot)) else "equal"


def _rotates(holder: ast.Dict, value: ast.AST) -> bool:
    """Return whether a value is a proxy or a user agent, of which each worker may take the next by itself."""
    keys = [key for key, item in zip(holder.keys, holder.values, strict=True) if item is value]
    return any(isinstance(key, ast.Constant) and str(key.value).lower() in {"proxy", "user-agent"} for key in keys)
