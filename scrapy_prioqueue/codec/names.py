"""Names in payloads: methods of the spider and imported classes. Payloads reach code in no other way.

Others can write to the server, so a name in a payload is only looked up: no module is imported, no property read, and
nothing called to resolve it.
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

# Methods that Scrapy itself calls on a spider to set it up, start it and close it.
_NO_CALLBACKS = (frozenset(vars(Spider)) | {"closed"}) - {"parse", "_parse", "log"}


class Callbacks:
    """The methods of a spider that may be callbacks and errbacks, by name.

    As in Scrapy's disk queues these are bound methods: defined in the class or inherited, plain, async or generators,
    class methods, decorated or private ones, and functions bound to the spider at run time.
    Static methods of the spider's class are accepted, too.
    Methods of other objects, plain functions, special methods (``__init__``) and those that only Scrapy may call
    (``from_crawler``, ``closed``) are refused.
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
        """Return the name for which `find` returns that method, None if there is none."""
        if type(method) is FunctionType:
            name = method.__name__
            return name if self._is_static(name) and self.find(name) is method else None
        if type(method) is not MethodType or not self._is_own(method):
            return None
        # The key is the id, since some callables can't be hashed; `find` verifies the name.
        key = id(method.__func__)
        name = self._renamed.get(key) or str(getattr(method, "__name__", ""))
        if self.find(name) == method:
            return name
        # A private method, or a decorated one whose function has another name.
        for name in dir(self._spider):
            if self.find(name) == method:
                self._renamed[key] = name
                return name
        return None

    def has_other(self, method: Callable[..., Any]) -> bool:
        """Return whether a method that `name_of` can't name belongs to this spider and is hidden by one of its name."""
        if type(method) is not MethodType or not self._is_own(method):
            return False
        return self.find(str(getattr(method, "__name__", ""))) is not None

    def _is_own(self, method: MethodType) -> bool:
        return method.__self__ is self._spider or method.__self__ is self._class

    def _is_method(self, name: str) -> bool:
        if name in _NO_CALLBACKS or (name.startswith("__") and name.endswith("__")):
            return False
        attribute = self._static(name)
        # Class methods and static methods aren't callable before they are bound.
        return callable(attribute) or isinstance(attribute, (classmethod, staticmethod))

    def _is_static(self, name: str) -> bool:
        return isinstance(self._static(name), staticmethod)

    def _static(self, name: str) -> object:
        return getattr_static(self._spider, name, None)


def path_of(cls: type) -> str | None:
    """Return the path with which `loaded_class` returns that class, None if there is none."""
    path = f"{cls.__module__}:{cls.__qualname__}"
    try:
        return path if loaded_class(path) is cls else None
    except DecodeError:
        return None


def loaded_class(path: str) -> type:
    """Return the class at a path such as ``shop.items:Book``.

    Only imported modules are searched. Importing one would run it, so anyone who can write to the server could run any
    module on the machine. A worker knows the classes that its spider's modules import.

    Raises:
        UnknownName: there is no such class.
    """
    module_name, _, qualified_name = path.partition(":")
    found: object = sys.modules.get(module_name)
    for name in qualified_name.split("."):
        # Modules of other types are skipped: a lazy module would run when an attribute is read.
        found = vars(found).get(name) if type(found) is ModuleType or _is_class(found) else None
    if not _is_class(found):
        raise UnknownName(f"{brief(path)} is not a class in an imported module; import it in the module of the spider")
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
            f"{brief(path)} is not a subclass of Request in an imported module; import it in the module of the spider"
        )
    return cls


bases_of: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
"""Return a class and its bases in method resolution order, without calling its metaclass."""


def inherits(cls: type, base: object) -> bool:
    """Return whether a class is another one or a subclass of it; false if the other one is None."""
    return any(each is base for each in bases_of(cls))


def is_hashed_by_value(cls: type) -> bool:
    """Return whether objects of a class are hashed by value; mutable ones have no hash, or that of their identity."""
    names = (type.__dict__["__dict__"].__get__(base) for base in bases_of(cls))
    found = next(each["__hash__"] for each in names if "__hash__" in each)
    return found is not None and found is not object.__hash__


def static_attribute(cls: type, name: str) -> Any:
    """Return an attribute from the ``__dict__`` of a class or its first base that has it, unbound; None if missing."""
    for base in bases_of(cls):
        found = type.__dict__["__dict__"].__get__(base).get(name)
        if found is not None:
            return found
    return None


def _is_class(found: object) -> TypeGuard[type]:
    # `isinstance` would also ask the object itself, which may run its code.
    return issubclass(type(found), type)
