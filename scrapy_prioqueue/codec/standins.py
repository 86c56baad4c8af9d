"""What programs without a spider see where a payload names a class or a method: nothing is looked up for it."""

from __future__ import annotations

from typing import Any

from scrapy_prioqueue.codec.reasons import brief


class StandIn:
    """Stands for an object, a class or a method; it is written as it was read.

    Args:
        code: of the extension that names it.
        name: of the method, or ``module:qualified.name`` of the class.
        content: what else is stored of it.
    """

    __slots__ = ("code", "content", "name")

    def __init__(self, code: int, name: str, content: tuple[Any, ...] = ()) -> None:
        self.code = code
        self.name = name
        self.content = content

    @property
    def shown(self) -> Any:
        """The same as dictionaries, lists and texts."""
        if not self.content:
            return self.name
        maps = [part for part in self.content if isinstance(part, dict)]
        if len(maps) == len(self.content):
            return {"class": self.name, **{str(name): value for part in maps for name, value in part.items()}}
        return {"class": self.name, "items": list(self.content)}

    def __repr__(self) -> str:
        """Show it as it may have been written."""
        if not self.content:
            return str(self.name)
        parts = [f"{name}={value!r}" for part in self.content if isinstance(part, dict) for name, value in part.items()]
        return f"{self.name}({', '.join(parts or map(brief, self.content))})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StandIn) and (self.code, self.name, self.content) == (
            *(other.code, other.name),
            other.content,
        )

    def __hash__(self) -> int:
        try:
            return hash((self.code, self.name, self.content))
        except TypeError:  # what it holds can't be hashed, which the object itself may be
            return hash((self.code, self.name))
