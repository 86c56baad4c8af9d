"""Where a request came from, as plain data: what is stored of it, and what spiders see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn


class Found(NamedTuple):
    """How a request was found.

    Args:
        source: URL of the page on which it was found, None for a start request or where that isn't known.
        at_s: Unix time in seconds, None where that isn't known.
    """

    source: str | None = None
    at_s: int | None = None


NOT_KNOWN = Found()


class Lineage(dict[str, Any]):
    """A dictionary that can't be changed; a copy of it is itself.

    Its values can be stored in a request's `meta` as they are, where it becomes an ordinary dictionary.
    """

    is_own = False
    """The request is one that its worker doesn't share, and so is what it redirects to."""

    roots: Sequence[Any] | None = None
    """Where the request is kept in its process, the pages in the frontier that it comes from."""

    is_unrecorded = False
    """The request, and what it redirects to, is not marked as seen."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError('meta["prioqueue"] tells what was, and can\'t be changed')

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __copy__(self) -> Lineage:
        return self

    def __deepcopy__(self, memo: Any) -> Lineage:
        return self

    def __reduce__(self) -> tuple[type[Lineage], tuple[dict[str, Any]]]:
        return Lineage, (dict(self),)
