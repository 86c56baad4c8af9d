"""Why a value can't be stored, and what messages show of a value."""

from __future__ import annotations

import reprlib
from functools import partial
from typing import Any

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 200


class Unstorable(Exception):
    """A value can't be stored so that it comes back.

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
        """Note the key under which the value was found, innermost first."""
        self._steps.append(key)

    @property
    def path(self) -> str:
        """Where the value is, for example ``['items'][3]``."""
        steps = [f"[{brief(key)}]" for key in reversed(self._steps)]
        return "".join(steps if len(steps) <= 8 else [*steps[:8], "…"])


def brief(value: Any) -> str:
    """Return the value's repr fit for a message: not long, and never an error itself."""
    if type(value) is partial:
        return f"functools.partial({brief(value.func)}, …)"
    try:
        return _REPR.repr(value)
    except Exception:  # such as that of an integer with more digits than Python is willing to print
        return f"<{type(value).__qualname__}>"


def name_of_type(value: Any) -> str:
    """Return the name of a value's type with its module, for example ``builtins.object``."""
    return name_of_class(type(value))


def name_of_class(cls: type) -> str:
    """Return the name of a class with its module; of a class that is named after its one object, that of its base.

    So pytz names the class of each zone, for example ``Asia/Tokyo``.
    """
    named = next((base for base in type.mro(cls) if "/" not in base.__qualname__), object)
    return f"{named.__module__}.{named.__qualname__}"
