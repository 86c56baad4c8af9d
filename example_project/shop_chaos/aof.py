"""What a server's append-only file held a moment ago, to take from a killed server what a dying machine would take."""

from __future__ import annotations

import os
import time
from collections import deque
from pathlib import Path

FORGETS_S = 1.0
"""What may be missing with ``appendfsync everysec``."""


class AppendOnlyFile:
    """The newest file that a server appends to, and how it has grown.

    Args:
        directory: of the server.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._sizes: deque[tuple[float, Path, int]] = deque()

    def note(self) -> None:
        """Note its size; to be called several times a second."""
        path = self._newest()
        if path is not None:
            now = time.monotonic()
            self._sizes.append((now, path, path.stat().st_size))
            while len(self._sizes) > 1 and self._sizes[1][0] < now - FORGETS_S:
                self._sizes.popleft()

    def would_keep(self, text: bytes) -> bool:
        """Return whether these bytes were appended before the last second."""
        path = self._newest()
        return path is not None and text in path.read_bytes()[: self._size_before(path)]

    def forget_newest(self) -> int:
        """Cut off what was appended in the last second before the server was killed; return how many bytes."""
        path = self._newest()
        if path is None:
            return 0
        size = path.stat().st_size
        kept = self._size_before(path)
        self._sizes.clear()
        if kept is None:
            return 0
        os.truncate(path, kept)
        return size - kept

    def _size_before(self, path: Path) -> int | None:
        """Return the size of a file a second ago, None if it wasn't noted."""
        return next((size for _, noted, size in self._sizes if noted == path), None)

    def _newest(self) -> Path | None:
        # Redis 7 and later keep a folder of them, and append to the one of the highest number.
        incremental = self._directory.glob("appendonlydir/*.incr.aof")
        old = self._directory / "appendonly.aof"
        found = sorted(incremental, key=lambda path: int(path.name.split(".")[-3]))
        return found[-1] if found else old if old.exists() else None
