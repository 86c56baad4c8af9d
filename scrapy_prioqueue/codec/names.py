"""What a payload may name: methods of the spider and classes that are imported; the only doors from bytes to code.

A payload comes from a server that others can write to, so a name in it is looked up and never obeyed:
no module is imported, no property is read, nothing is called to find out what a name stands for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import getattr_static
from types import FunctionType, MethodType, ModuleType
from typing import Any, TypeGuard

from scrapy import Request, Spider

from scrapy_prioqueue.codec.reasons import brief
from scrapy_prioqueue.errors import DecodeError, UnknownName

# What Scrapy itself calls on a spider to set it up, start it and close it.
_NO_CALLBACKS = (frozenset(vars(Spider)) | {"closed"}) - {"parse", "_parse", "log"}


class Callbacks:
    """The methods of a spider that may be callbacks and errbacks, by name.

    As in Scrapy's disk queues these are bound methods: defined in the class or inherited, plain, async or generators,
    class methods, decorated ones, private ones, and functions bound to the spider at run time.
    Static methods of the spider's class are callbacks, too.
    Methods of other objects, plain functions, special methods (``__init__``) and those that
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
        if type(method) is MethodType:
            return method if self._is_own(method) else None
        return method if type(method) is FunctionType and self._is_static(name) else None

    def get(self, name: object) -> Callable[..., Any]:
        """Return the method of that name.

        Raises:
            UnknownName: the spider has nothing of that name.
            DecodeError: it can't be a callback.
        """
        method = self.find(name) if isinstance(name, str) else None
        if method is not None:
            return method
        is_missing = isinstance(name, str) and name.isidentifier() and self._static(name) is None
        error = UnknownName if is_missing else DecodeError
        raise error(f"{brief(name)} is not a method of spider {brief(self._spider.name)} that may be a callback")

    def name_of(self, method: Callable[..., Any]) -> str | None:
        """Return the name under which `find` gives that method, None if there is none."""
        if type(method) is FunctionType:
            name = method.__name__
            return name if self._is_static(name) and self.find(name) is method else None
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

    def has_other(self, method: Callable[..., Any]) -> bool:
        """Tell whether a method without a name of its own is of this spider, which has another one of its name."""
        if type(method) is not MethodType or not self._is_own(method):
            return False
        return self.find(str(getattr(method, "__name__", ""))) is not None

    def _is_own(self, method: MethodType) -> bool:
        return method.__self__ is self._spider or method.__self__ is self._class

    def _is_method(self, name: str) -> bool:
        if name in _NO_CALLBACKS or (name.startswith("__") and name.endswith("__")):
            return False
        attribute = self._static(name)
        # Class methods and static ones are, too, but can't be called until they are bound.
        return callable(attribute) or isinstance(attribute, (classmethod, staticmethod))

    def _is_static(self, name: str) -> bool:
        return isinstance(self._static(name), staticmethod)

    def _static(self, name: str) -> object:
        return getattr_static(self._spider, name, None)


def path_of(cls: type) -> str | None:
    """Return the path at which `loaded_class` finds that class, None if it doesn't."""
    path = f"{cls.__module__}:{cls.__qualname__}"
    try:
        return path if loaded_class(path) is cls else None
    except DecodeError:
        return None


def loaded_class(path: str) -> type:
    """Return the class at a path such as ``shop.items:Book``.

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
    if not _is_class(found):
        raise UnknownName(f"{brief(path)} is no class in a module that is imported; import it where the spider is")
    return found


def request_class(path: str) -> type[Request]:
    """Return the subclass of `Request` at a path such as ``shop.requests:SearchRequest``.

    Raises:
        UnknownName: there is no such class.
    """
    try:
        cls = loaded_class(path)
    except UnknownName:
        cls = object
    if not inherits(cls, Request):
        raise UnknownName(
            f"{brief(path)} is no subclass of Request in a module that is imported; import it where the spider is"
        )
    return cls


bases_of: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
"""Return a class and its bases, in the order in which they are searched, without a question to its metaclass."""


def inherits(cls: type, base: object) -> bool:
    """Tell whether a class is another one or a subclass of it; None has no subclasses."""
    return any(each is base for each in bases_of(cls))


def is_hashed_by_value(cls: type) -> bool:
    """Tell whether objects of a class have a hash other than that of their identity: what is mutable has none."""
    names = (type.__dict__["__dict__"].__get__(base) for base in bases_of(cls))
    found = next(each["__hash__"] for each in names if "__hash__" in each)
    return found is not None and found is not object.__hash__


def static_attribute(cls: type, name: str) -> Any:
    """Return what a class or its first base that has it keeps under a name, as it is; None if there is nothing."""
    for base in bases_of(cls):
        found = type.__dict__["__dict__"].__get__(base).get(name)
        if found is not None:
            return found
    return None


def _is_class(found: object) -> TypeGuard[type]:
    # Not by `isinstance`, which also asks the object itself.
    return issubclass(type(found), type)
