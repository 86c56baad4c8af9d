"""What a payload may name: methods of the spider and classes of requests; the only doors from bytes to code.

A payload comes from a server that others can write to, so a name in it is looked up and never obeyed:
no module is imported, no property is read, nothing is called to find out what a name stands for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import getattr_static
from types import MethodType, ModuleType
from typing import Any, TypeGuard

from scrapy import Request, Spider

from scrapy_prioqueue.codec.values import brief
from scrapy_prioqueue.errors import DecodeError, UnknownName

# What Scrapy itself calls on a spider to set it up, start it and close it.
_NO_CALLBACKS = (frozenset(vars(Spider)) | {"closed"}) - {"parse", "_parse", "log"}


class Callbacks:
    """The methods of a spider that may be callbacks and errbacks, by name.

    As in Scrapy's disk queues these are bound methods: defined in the class or inherited, plain, async or generators,
    class methods, decorated ones, private ones, and functions bound to the spider at run time.
    Methods of other objects, plain functions, static methods, special methods (``__init__``) and those that
    only Scrapy may call (``from_crawler``, ``closed``) are none.
    """

    def __init__(self, spider: Spider) -> None:
        self._spider = spider
        self._class = type(spider)
        self._methods: set[str] = set()
        self._renamed: dict[int, str] = {}

    def find(self, name: str) -> Callable[..., Any] | None:
        """Return the method of that name, None if it can't be a callback."""
        if name not in self._methods:
            if not self._is_method(name):
                return None
            self._methods.add(name)
        method = getattr(self._spider, name, None)
        return method if type(method) is MethodType and self._is_own(method) else None

    def name_of(self, method: Callable[..., Any]) -> str | None:
        """Return the name under which `find` gives that method, None if there is none."""
        if type(method) is not MethodType or not self._is_own(method):
            return None
        # By identity, for not all callables can be hashed; `find` has the last word.
        key = id(method.__func__)
        name = self._renamed.get(key) or str(getattr(method, "__name__", ""))
        if self.find(name) == method:
            return name
        # A private method, or one whose decorator has a name of its own.
        for name in dir(self._spider):
            if self.find(name) == method:
                self._renamed[key] = name
                return name
        return None

    def _is_own(self, method: MethodType) -> bool:
        return method.__self__ is self._spider or method.__self__ is self._class

    def _is_method(self, name: str) -> bool:
        if name in _NO_CALLBACKS or (name.startswith("__") and name.endswith("__")):
            return False
        attribute = getattr_static(self._spider, name, None)
        # A class method is one, too, but can't be called until it is bound.
        return callable(attribute) or isinstance(attribute, classmethod)


def path_of(cls: type[Request]) -> str | None:
    """Return the path at which `request_class` finds that class, None if it doesn't."""
    path = f"{cls.__module__}:{cls.__qualname__}"
    try:
        return path if request_class(path) is cls else None
    except DecodeError:
        return None


def request_class(path: str) -> type[Request]:
    """Return the subclass of `Request` at a path such as ``shop.requests:SearchRequest``.

    Only modules that are imported already are looked into, because importing one runs it: whoever could write to the
    server could run any module on the machine. A worker knows the classes that its spider's modules import.

    Raises:
        UnknownName: there is no such class.
    """
    module_name, _, qualified_name = path.partition(":")
    found: object = sys.modules.get(module_name)
    for name in qualified_name.split("."):
        # No other type of module: a lazy one would run at the first look into it.
        found = vars(found).get(name) if type(found) is ModuleType or _is_class(found) else None
    if _is_class(found) and issubclass(found, Request):
        return found
    raise UnknownName(
        f"{brief(path)} is no subclass of Request in a module that is imported; import it where the spider is defined"
    )


def _is_class(found: object) -> TypeGuard[type]:
    # Not by `isinstance`, which also asks the object itself.
    return issubclass(type(found), type)
