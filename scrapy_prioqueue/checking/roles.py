"""When each method of a spider runs: at the set-up, in `start()`, for pages, when it is idle, or at the end."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from typing import Literal

from scrapy_prioqueue.checking.code import Method, SpiderCode, argument, name_of, text_in

Role = Literal["setup", "start", "page", "idle", "end"]

_KNOWN: Mapping[str, Role] = {
    **dict.fromkeys(("__init__", "from_crawler", "set_crawler", "_set_crawler", "update_settings"), "setup"),
    **dict.fromkeys(("start", "start_requests", "init_request"), "start"),
    **dict.fromkeys(("parse", "parse_start_url", "parse_node", "parse_row", "parse_item", "process_results"), "page"),
    **dict.fromkeys(("closed", "close"), "end"),
}
"""Methods that Scrapy's spiders call by name."""

_SIGNALS: Mapping[str, Role] = {
    "spider_opened": "setup",
    "engine_started": "setup",
    "spider_idle": "idle",
    "spider_closed": "end",
    "engine_stopped": "end",
    "feed_exporter_closed": "end",
}


class Roles:
    """The roles of the methods of a spider; a method that is never referred to has none."""

    def __init__(self, code: SpiderCode) -> None:
        self._code = code
        self.callbacks: set[str] = {"parse"}
        """Names of methods that are passed to requests and rules, and those that Scrapy calls for a page."""
        self._properties = {method.name for method in code.definitions if _is_property(method)}
        self._of: dict[str, set[Role]] = {name: set() for name in code.methods}
        handlers = dict(self._handlers())
        for name in code.methods:
            if name in handlers:
                self._of[name].add(handlers[name])
            elif name in _KNOWN:
                self._of[name].add(_KNOWN[name])
        others = {*handlers, *_KNOWN, *self._properties}
        self.callbacks.update(name for name in code.methods if _KNOWN.get(name) == "page")
        self.callbacks.update(name for name in self._named() if name and name not in others)
        passed = {
            name: {one for method in found for one in _passed(method)} - others for name, found in code.methods.items()
        }
        # What only methods that never run refer to doesn't run either.
        before = -1
        while before != len(self.callbacks):
            before = len(self.callbacks)
            for name in self.callbacks & set(self._of):
                self._of[name].add("page")
            self._spread()
            self.callbacks.update(*(passed[name] for name, roles in self._of.items() if roles))

    def of(self, method: Method) -> Collection[Role]:
        """Return when a method runs."""
        return self._of[method.name]

    def methods(self, *when: Role) -> Iterator[Method]:
        """Yield the methods that run at any of these times."""
        return (method for method in self._code.definitions if not self._of[method.name].isdisjoint(when))

    def _spread(self) -> None:
        """Give each method the roles of those that call it."""
        calls = {
            name: {called for one in found for called in _called(one, self._properties)}
            for name, found in self._code.methods.items()
        }
        ahead = list(calls)
        while ahead:
            caller = ahead.pop()
            for called in calls[caller]:
                if called in self._of and not self._of[caller] <= self._of[called]:
                    self._of[called] |= self._of[caller]
                    ahead.append(called)

    def _handlers(self) -> Iterator[tuple[str, Role]]:
        """Yield the methods that are connected to signals; those of other signals run while there are pages."""
        for method in self._code.definitions:
            for node in ast.walk(method.node):
                if isinstance(node, ast.Call) and name_of(node.func) == "connect" and node.args:
                    handler, signal = node.args[0], argument(node, 1, "signal")
                    if isinstance(handler, ast.Attribute) and handler.attr in self._code.methods:
                        yield handler.attr, _SIGNALS.get(name_of(signal) if signal else "", "page")

    def _named(self) -> Iterator[str]:
        """Yield the methods that are named as a callback by a text."""
        for node, _ in self._code.classes:
            for inner in ast.walk(node):
                if isinstance(inner, ast.keyword) and inner.arg in {"callback", "errback"}:
                    yield text_in(inner.value)
        rules = self._code.class_values.get("sitemap_rules")
        yield from map(text_in, ast.walk(rules) if rules is not None else ())


def _passed(method: Method) -> Iterator[str]:
    for node in ast.walk(method.node):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and method.attribute(node):
            parent = method.parents.get(node)
            if not (isinstance(parent, ast.Call) and parent.func is node) and not isinstance(parent, ast.Attribute):
                yield node.attr


def _is_property(method: Method) -> bool:
    return any(name_of(node) in {"property", "cached_property"} for node in method.node.decorator_list)


def _called(method: Method, properties: Collection[str]) -> Iterator[str]:
    for node in ast.walk(method.node):
        if (name := method.attribute(node)) in properties:
            yield name
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if method.is_own(owner) or (isinstance(owner, ast.Call) and name_of(owner.func) == "super"):
                yield node.func.attr
