"""Where a request came from, as plain data: the stored part, and the view that spiders see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn


class Found(NamedTuple):
    """How a request was found.

    Args:
        source: URL of the page on which it was found, None for a start request or if unknown.
        at_s: Unix time in seconds, None if unknown.
    """

    source: str | None = None
    at_s: int | None = None


NOT_KNOWN = Found()


class Lineage(dict[str, Any]):
    """A read-only dictionary; copying it returns the same object.

    It can be stored as a value in a request's `meta`, and is an ordinary dictionary when that is read.
    """

    is_own = False
    """The request, and every request that it redirects to, stays in its worker."""

    roots: Sequence[Any] | None = None
    """For a request that stays in its worker: the leased pages that it comes from."""

    is_unrecorded = False
    """The request, and every request that it redirects to, is not marked as seen."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError('meta["prioqueue"] is read-only')

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __copy__(self) -> Lineage:
        return self

    def __deepcopy__(self, memo: Any) -> Lineage:
        return self

    def __reduce__(self) -> tuple[type[Lineage], tuple[dict[str, Any]]]:
        return Lineage, (dict(self),)
