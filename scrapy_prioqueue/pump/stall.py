"""Where a thread is now, for people: the code of the spider, or of a library, that holds up its event loop."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from types import CodeType, FrameType

_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


@dataclass(frozen=True, slots=True)
class Place:
    """Where a thread was for a moment.

    Args:
        text: function, file and line.
        codes: of all functions that it was in.
    """

    text: str
    codes: Collection[CodeType]


def place_of(thread_id: int) -> Place:
    """Return where a thread is: in the innermost function that is in no library, or else in the innermost one."""
    frames = list(_frames(sys._current_frames().get(thread_id)))  # noqa: SLF001 - documented
    own = [frame for frame in frames if not _is_of_library(frame.f_code.co_filename)]
    where = next(iter(own or frames), None)
    if where is None:
        return Place("in code that is not known", ())
    file = "/".join(PurePath(where.f_code.co_filename).parts[-2:])
    text = f"in {where.f_code.co_name} of {file}, line {where.f_lineno}"
    return Place(text, {frame.f_code for frame in frames})


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield frames, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_of_library(file: str) -> bool:
    return file.startswith((*_LIBRARIES, "<")) or "site-packages" in file
