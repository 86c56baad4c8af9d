"""Objects of a project as plain data under the name of their class, and back without running code of that class.

Supported are items of Scrapy, dataclasses, classes of attrs and pydantic, named tuples, enums, and a few classes of
other packages that only hold values. Objects of other classes are neither stored nor built.

An object is built by `object.__new__`, and its attributes are set directly in its ``__dict__`` and its slots. No
constructor, validator, property or ``__setattr__`` runs.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field
from functools import cached_property, lru_cache, reduce
from operator import or_
from types import GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any, NamedTuple

from scrapy import Item
from scrapy.utils.trackref import object_ref

from scrapy_prioqueue.codec.names import bases_of, inherits, loaded_class, path_of, static_attribute
from scrapy_prioqueue.codec.reasons import brief
from scrapy_prioqueue.errors import DecodeError, UnknownName

VALUE_OBJECTS = {"scrapy.link:Link": None, "scrapy_playwright.page:PageMethod": "result"}
"""Further classes that only hold values, each with the attribute that a download fills; None is stored for that."""

_ITEM_VALUES = "_values"
_NEWS = frozenset({object.__dict__["__new__"], object_ref.__dict__["__new__"]})
_CACHED_HASH = "_attrs_cached_hash"
_MADE_ANEW: Mapping[Any, Callable[[], Any]] = {kind: kind for kind in (list, dict, set, tuple, str, int, float)}
_UNCHANGING = frozenset({type(None), bool, int, float, str, bytes})
_HEAP_TYPE = 1 << 9
"""Flag of classes written in Python. Classes written in C may keep state that no attribute shows."""
_flags_of: Callable[[type], int] = type.__dict__["__flags__"].__get__


class Attributes(NamedTuple):
    """The attributes of an object.

    Args:
        fields: by name.
        others: attributes that aren't fields, by name; only for items, whose fields aren't attributes.
    """

    fields: dict[str, Any]
    others: dict[str, Any]


class ClassPlan:
    """How objects of one class are taken apart and built.

    Args:
        cls: the class.
        defaults: the declared fields, each with a function that returns its default, or None if it has no default.
    """

    def __init__(self, cls: type, defaults: Mapping[str, Callable[[], Any] | None]) -> None:
        self._cls = cls
        self._defaults = defaults
        self._is_item = inherits(cls, Item)
        self._slots = slots_of(cls)
        self._filled = VALUE_OBJECTS.get(path_of(cls) or "")
        self._dict: GetSetDescriptorType | None = None
        for base in reversed(bases_of(cls)):
            found = vars(base).get("__dict__")
            if type(found) is GetSetDescriptorType:
                self._dict = found

    def take(self, value: Any) -> Attributes:
        """Return what an object holds.

        Raises:
            ValueError: a part of it can't be restored.
        """
        attributes = dict(self._attributes(value))
        for name, slot in self._slots.items():
            try:
                attributes[name] = slot.__get__(value)
            except AttributeError:
                continue
        # Hashes of texts differ between processes, so a cached hash would be wrong in another one.
        if attributes.get(_CACHED_HASH) is not None:
            attributes[_CACHED_HASH] = None
        if self._filled in attributes:
            attributes[self._filled] = None
        taken = Attributes(attributes, {})
        if self._is_item:
            values = attributes.pop(_ITEM_VALUES, None)
            taken = Attributes(dict(values) if type(values) is dict else {_ITEM_VALUES: values}, attributes)
        self._check(taken)
        missing = self._missing(taken)
        if missing:
            raise ValueError(f"its field {missing[0]} has no value")
        return taken

    def make(self, fields: dict[str, Any], others: dict[str, Any]) -> Any:
        """Return an object with these fields and other attributes.

        Raises:
            UnknownName: the class here has no such field.
            Exception: any, if such an object can't be built.
        """
        try:
            self._check(Attributes(fields, others))
        except ValueError as error:
            raise UnknownName(f"{self._cls!r}: {error}; is it another version of that class?") from error
        for name in self._missing(Attributes(fields, others)):
            default = self._defaults[name]
            if default is None:
                raise UnknownName(f"{self._cls!r}: the field {name} has no value; is it another version of that class?")
            fields[name] = default()
        made: Any = (object_ref if inherits(self._cls, object_ref) else object).__new__(self._cls)
        attributes = {**others, _ITEM_VALUES: fields} if self._is_item else fields
        own = self._attributes(made)
        for name, value in attributes.items():
            slot = self._slots.get(name)
            if slot is None:
                own[name] = value
            else:
                slot.__set__(made, value)
        return made

    def _attributes(self, value: Any) -> dict[str, Any]:
        """Return the actual ``__dict__`` of an object, even if its class defines something else under that name."""
        found: dict[str, Any] = {} if self._dict is None else self._dict.__get__(value)
        return found

    def _check(self, taken: Attributes) -> None:
        fields, others = taken
        if self._is_item:
            # Any field name is accepted: projects declare some fields at run time, and not in every worker.
            strange = [name for name in fields if type(name) is not str]
            strange += [name for name in others if name == _ITEM_VALUES or not self._may_have(name)]
        else:
            strange = [name for name in fields if not self._may_have(name)]
            strange += others
        if strange:
            raise ValueError(f"it can't have {brief(strange[0])}")

    def _may_have(self, name: str) -> bool:
        return name in self._slots or (self._dict is not None and (name in self._defaults or can_hold(self._cls, name)))

    def _missing(self, taken: Attributes) -> list[str]:
        return [name for name in self._defaults if name not in taken.fields]


def slots_of(cls: type) -> dict[str, MemberDescriptorType]:
    """Return the slots of the objects of a class by name."""
    return {
        name: found
        for base in reversed(bases_of(cls))
        for name, found in vars(base).items()
        if type(found) is MemberDescriptorType
    }


def can_hold(cls: type, name: object) -> bool:
    """Return whether an attribute of that name in an object's ``__dict__`` is a plain value and shadows no code."""
    if type(name) is not str or not name.isidentifier() or (name.startswith("__") and name.endswith("__")):
        return False
    found = static_attribute(cls, name)
    if found is None or type(found) is cached_property:
        return True
    kind = type(found)
    has_code = any(static_attribute(kind, special) is not None for special in ("__get__", "__set__", "__delete__"))
    return not has_code and not callable(found)


@lru_cache(maxsize=1000)
def shape_of(cls: type) -> ClassPlan | None:
    """Return how objects of a class are taken apart and built, None if it is not a data class."""
    bases = bases_of(cls)
    is_plain = static_attribute(cls, "__new__") in _NEWS and static_attribute(cls, "__del__") is None
    if not is_plain or not all(_flags_of(base) & _HEAP_TYPE for base in bases[:-1]):
        return None
    defaults = _defaults(cls)
    return None if defaults is None else ClassPlan(cls, defaults)


def object_at(path: str, fields: Any, others: Any = None) -> Any:
    """Return an object of the class at a path.

    Raises:
        UnknownName: there is no such class, or it has no such field.
        DecodeError: it is not a data class.
        Exception: any, if such an object can't be built.
    """
    cls = loaded_class(path)
    shape = shape_of(cls)
    if shape is None:
        raise DecodeError(f"{brief(path)} is not a class of items or other data")
    if type(fields) is not dict or type(others or {}) is not dict:
        raise DecodeError(f"{brief(path)}: the fields are not a map")
    return shape.make(fields, others or {})


def is_named_tuple(cls: type) -> bool:
    """Return whether a class is a named tuple."""
    fields = static_attribute(cls, "_fields")
    return inherits(cls, tuple) and type(fields) is tuple and static_attribute(cls, "__del__") is None


def named_tuple_at(path: str, *items: Any) -> Any:
    """Return a named tuple of the class at a path.

    Raises:
        UnknownName: there is no such class, or it has another number of fields.
        DecodeError: it is another class.
    """
    cls = loaded_class(path)
    if not is_named_tuple(cls):
        raise DecodeError(f"{brief(path)} is not a class of named tuples")
    made: Any = tuple.__new__(cls, items)
    if tuple.__len__(made) != len(static_attribute(cls, "_fields")):
        raise UnknownName(f"{brief(path)} has another number of fields; is it another version of that class?")
    return made


def is_enum(cls: type) -> bool:
    """Return whether a class is an enum."""
    return inherits(cls, enum.Enum) and type(vars(cls).get("_member_map_")) is dict


def names_of(member: enum.Enum) -> list[str]:
    """Return the names of a member of an enum, or of the flags that are set in a combination."""
    names: dict[str, enum.Enum] = vars(type(member))["_member_map_"]
    name = member._name_
    if name is not None and names.get(name) is member:
        return [name]
    value = member._value_
    return [each for each, flag in names.items() if type(value) is int and flag.value & value == flag.value != 0]


def member_at(path: str, *names: Any) -> Any:
    """Return the member of an enum, or the combination of flags.

    Raises:
        UnknownName: there is no such class, or no such member.
        DecodeError: it is another class.
    """
    cls = loaded_class(path)
    if not is_enum(cls):
        raise DecodeError(f"{brief(path)} is not an enum")
    known: dict[str, enum.Enum] = vars(cls)["_member_map_"]
    members = [known[name] for name in names if type(name) is str and name in known]
    if len(members) != len(names):
        raise UnknownName(f"{brief(path)} has no member {brief(names)}; is it another version of that class?")
    if len(members) == 1:
        return members[0]
    if not inherits(cls, enum.Flag):
        raise DecodeError(f"{brief(path)} is not an enum of flags")
    value = reduce(or_, (member._value_ for member in members), 0)
    found = vars(cls)["_value2member_map_"].get(value)
    # Flag's own way to make a combination, not one of the class itself.
    return found if found is not None else enum.Flag.__dict__["_missing_"].__func__(cls, value)


def is_data_class(cls: type) -> bool:
    """Return whether a class itself may be a value: a data class, or an input that scrapy-poet injects in callbacks."""
    return is_enum(cls) or is_named_tuple(cls) or shape_of(cls) is not None or _is_injectable(cls)


def without_injected(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a callback without those that scrapy-poet adds, in each download anew.

    A request that is fetched again has them from the download before.
    """
    if "web_poet" not in sys.modules:
        return arguments
    return {name: value for name, value in arguments.items() if not _is_injected(type(value))}


def _is_injected(cls: type) -> bool:
    return _is_injectable(cls) or cls.__module__.startswith("scrapy_poet.")


def _is_injectable(cls: type) -> bool:
    return cls.__module__.startswith("web_poet.") or inherits(cls, _of_module("web_poet.pages", "Injectable"))


def class_at(path: str) -> type:
    """Return the class at a path.

    Raises:
        UnknownName: there is no such class.
        DecodeError: the class may not be a value.
    """
    cls = loaded_class(path)
    if not is_data_class(cls):
        raise DecodeError(f"{brief(path)} is not a class of items or other data")
    return cls


def _defaults(cls: type) -> Mapping[str, Callable[[], Any] | None] | None:
    """Return the declared fields of a data class with functions that return their defaults, None for other classes."""
    fields: Any
    if inherits(cls, Item):
        return {}
    if type(fields := static_attribute(cls, "__dataclass_fields__")) is dict:
        kept = [field for field in fields.values() if type(field) is Field and _is_stored(field)]
        return {field.name: _default(field.default, field.default_factory) for field in kept}
    if isinstance(fields := static_attribute(cls, "__attrs_attrs__"), tuple):
        return {field.name: _default(field.default, getattr(field.default, "factory", None)) for field in fields}
    for module in ("pydantic.main", "pydantic.v1.main"):
        if inherits(cls, _of_module(module, "BaseModel")):
            return _defaults_of_model(cls)
    return {} if path_of(cls) in VALUE_OBJECTS else None


def _is_stored(field: Field[Any]) -> bool:
    # `ClassVar` and `InitVar` fields are in the list, too; only a private attribute distinguishes them.
    return getattr(getattr(field, "_field_type", None), "name", None) == "_FIELD"


def _defaults_of_model(cls: type) -> Mapping[str, Callable[[], Any] | None]:
    fields = static_attribute(cls, "__pydantic_fields__") or static_attribute(cls, "model_fields")
    fields = fields if type(fields) is dict else static_attribute(cls, "__fields__")
    return {name: _default(field.default, field.default_factory) for name, field in fields.items()}


def _default(value: Any, factory: Any) -> Callable[[], Any] | None:
    if factory is not None and factory is not MISSING:
        return _MADE_ANEW.get(factory) if isinstance(factory, type) else None
    return (lambda: value) if type(value) in _UNCHANGING else None


def _of_module(name: str, attribute: str) -> Any:
    """Return an attribute of a module that is already imported, None if there is none."""
    module = sys.modules.get(name)
    return vars(module).get(attribute) if type(module) is ModuleType else None
