"""Placeholders for classes and methods that a payload names, in programs without a spider; nothing is looked up."""

from __future__ import annotations

from typing import Any

OBJECT, MEMBER, NAMED_TUPLE, METHOD, CLASS = 9, 10, 11, 21, 22
"""Codes of the extensions that hold names; part of the format."""


class StandIn:
    """Stands for an object, a class or a method; it is written again as it was read.

    Args:
        code: of the extension that names it.
        name: of the method, or ``module:qualified.name`` of the class.
        content: the other stored data.
    """

    __slots__ = ("code", "content", "is_shared", "name")

    def __init__(self, code: int, name: str, content: tuple[Any, ...] = ()) -> None:
        self.code = code
        self.name = name
        self.content = content
        self.is_shared = False
        """Whether it stands for a mutable object that occurs several times."""

    @property
    def shown(self) -> Any:
        """Its data as dictionaries, lists and texts."""
        if self.code == OBJECT:
            fields = {name: value for part in self.content if isinstance(part, dict) for name, value in part.items()}
            return {"class": self.name, **fields}
        return {"class": self.name, "items": list(self.content)} if self.code == NAMED_TUPLE else repr(self)

    def __repr__(self) -> str:
        """Return text similar to the code that created it."""
        if self.code == OBJECT:
            fields = (f"{name}={value!r}" for name, value in list(self.shown.items())[1:])
            return f"{self.name}({', '.join(fields)})"
        if self.code == NAMED_TUPLE:
            return f"{self.name}({', '.join(map(repr, self.content))})"
        return ".".join((str(self.name), "|".join(map(str, self.content)))) if self.content else str(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StandIn) and (self.code, self.name, self.content) == (
            *(other.code, other.name),
            other.content,
        )

    def __hash__(self) -> int:
        try:
            return hash((self.code, self.name, () if self.is_shared else self.content))
        except TypeError:  # an item can't be hashed here, although the original object may be
            return hash((self.code, self.name))
