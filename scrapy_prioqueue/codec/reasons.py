"""Why a value can't be stored, and short forms of values for messages."""

from __future__ import annotations

import reprlib
from functools import partial
from typing import Any

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 200


class Unstorable(Exception):
    """A value can't be stored and restored exactly.

    Args:
        why: what it is and why it can't be stored.
        kind: name of its type, with the module; stats count by it.
    """

    def __init__(self, why: str, kind: str) -> None:
        super().__init__(why)
        self.why = why
        self.kind = kind
        self._steps: list[Any] = []

    def add_step(self, key: Any) -> None:
        """Add the key under which the value was found; called from the innermost container outwards."""
        self._steps.append(key)

    @property
    def path(self) -> str:
        """The position of the value, for example ``['items'][3]``."""
        steps = [f"[{brief(key)}]" for key in reversed(self._steps)]
        return "".join(steps if len(steps) <= 8 else [*steps[:8], "…"])


def brief(value: Any) -> str:
    """Return a short repr of a value for a message; it never raises."""
    if type(value) is partial:
        return f"functools.partial({brief(value.func)}, …)"
    try:
        return _REPR.repr(value)
    except Exception:  # for example of an integer with more digits than Python prints
        return f"<{type(value).__qualname__}>"


def name_of_type(value: Any) -> str:
    """Return the name of a value's type with its module, for example ``builtins.object``."""
    return name_of_class(type(value))


def name_of_class(cls: type) -> str:
    """Return the name of a class with its module, or that of a base if the class is named after its only object.

    pytz, for example, names the class of each zone after it, such as ``Asia/Tokyo``.
    """
    named = next((base for base in type.mro(cls) if "/" not in base.__qualname__), object)
    return f"{named.__module__}.{named.__qualname__}"
