"""A crawl of Scrapy's own scheduler with `JOBDIR`: its disk queues, and the fingerprints in `requests.seen`."""

from __future__ import annotations

import json
import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence, Set
from contextlib import closing
from functools import cached_property
from os import SEEK_END
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO

from scrapy_prioqueue.moving.serialized import OF_SCRAPY
from scrapy_prioqueue.moving.source import Source, SourceError, SourceRequest

_SIZE = Struct(">L")
_QUEUE_NAME = re.compile(r"(-?\d+)(s?)")
_SQLITE = b"SQLite format 3\0"
_HEX = frozenset(b"0123456789abcdefABCDEF")
_SEEN_SIZE_BYTES = 2


class JobDir(Source):
    """The requests and fingerprints in a job directory.

    Args:
        are_lifo: whether queues in SQLite files are served newest first: those of start requests, and the others.
    """

    formats = OF_SCRAPY
    usual_identity = ""
    are_distinct = False

    def __init__(self, path: Path, *, are_lifo: tuple[bool, bool]) -> None:
        self._seen = path / "requests.seen"
        self.where = str(self._seen)
        folder = path / "requests.queue"
        if not folder.is_dir() and not self._seen.is_file():
            raise SourceError(f"{path} is not a job directory: it has neither requests.queue nor requests.seen")
        # In each slot's folder, or in the only one: lower numbers come first, and start requests last among equals.
        found = sorted(_queues_in(folder), key=lambda queue: (queue[0].parent, queue[1], queue[2]))
        self._queues = [(_queue_at(path, are_lifo=are_lifo[not is_start]), is_start) for path, _, is_start in found]
        self.was_killed = any(queue.count() != queue.noted for queue, _ in self._queues) or (
            bool(self._queues) and not (folder / "active.json").is_file()
        )

    def count(self) -> int:
        return sum(queue.count() for queue, _ in self._queues)

    def requests(self) -> Iterator[SourceRequest]:
        for queue, is_start in self._queues:
            for index, data in enumerate(queue.each()):
                yield SourceRequest(f"{queue.path}, request {index}", data, is_start)

    def seen_count(self) -> int:
        return sum(1 for _ in self.fingerprints())

    def fingerprints(self) -> Iterator[bytes]:
        if self._seen.is_file():
            with self._seen.open("rb") as file:
                yield from _fingerprints(file)

    def known(self, fingerprints: Sequence[bytes]) -> Sequence[bool]:
        return [each in self._all_seen for each in fingerprints]

    @cached_property
    def _all_seen(self) -> Set[bytes]:
        # Scrapy has them all in memory, too.
        return frozenset(self.fingerprints())


def _fingerprints(file: BinaryIO) -> Iterator[bytes]:
    """Yield fingerprints in both formats: a line of hexadecimal digits each, before Scrapy 2.19, and the newer one.

    A newer Scrapy appends to an older file, so both may occur. An incomplete one at the end, after a kill, is left out.
    """
    while first := file.read(1):
        if first[0] in _HEX:
            line = first + file.readline()
            if line.endswith(b"\n"):
                yield bytes.fromhex(line.decode())
            continue
        size = int.from_bytes(first + file.read(_SEEN_SIZE_BYTES - 1), "big")
        found = file.read(size)
        if len(found) == size:
            yield found


class _Queue(ABC):
    """A disk queue of queuelib; `noted` is its number of requests when it was last closed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    @abstractmethod
    def noted(self) -> int: ...

    @abstractmethod
    def count(self) -> int: ...

    @abstractmethod
    def each(self) -> Iterator[bytes]:
        """Yield its requests in the order in which they would be served."""


class _Lifo(_Queue):
    """A file: the number of requests, then the requests, each followed by its size."""

    @property
    def noted(self) -> int:
        with self.path.open("rb") as file:
            return int(_SIZE.unpack(file.read(_SIZE.size))[0])

    def count(self) -> int:
        with self.path.open("rb") as file:
            return sum(1 for _ in self._spans(file))

    def each(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            for first, size in self._spans(file):
                file.seek(first)
                yield file.read(size)

    def _spans(self, file: BinaryIO) -> Iterator[tuple[int, int]]:
        """Yield positions and sizes of requests, the newest first."""
        at = file.seek(0, SEEK_END)
        while at > _SIZE.size:
            file.seek(at - _SIZE.size)
            (size,) = _SIZE.unpack(file.read(_SIZE.size))
            at -= _SIZE.size + size
            if at < _SIZE.size:
                break
            yield at, size
        if at != _SIZE.size:
            raise SourceError(
                f"{self.path} is truncated or not a LIFO queue: start the crawl with Scrapy and stop it gracefully, or"
                " remove the file to do without its requests"
            )


class _Fifo(_Queue):
    """A folder of files, in which each request follows its size; `info.json` has the position of the oldest one."""

    def _info(self) -> tuple[int, int, int]:
        """Return the number of requests, and file and offset of the oldest one."""
        path = self.path / "info.json"
        try:
            info = json.loads(path.read_text())
            number, _, offset = info["tail"]
            return int(info["size"]), number, offset
        except FileNotFoundError:
            return 0, min((int(chunk.name[1:]) for chunk in self.path.glob("q*")), default=0), 0
        except (ValueError, TypeError, KeyError) as error:
            raise SourceError(f"{path} can't be read: {error!r}; restore it from a backup") from error

    @property
    def noted(self) -> int:
        return self._info()[0]

    def count(self) -> int:
        return sum(1 for _ in self.each())

    def each(self) -> Iterator[bytes]:
        _, number, offset = self._info()
        while (path := self.path / f"q{number:05d}").is_file():
            with path.open("rb") as file:
                file.seek(offset)
                while head := file.read(_SIZE.size):
                    size = int(_SIZE.unpack(head.ljust(_SIZE.size, b"\xff"))[0])
                    data = file.read(size)
                    if len(data) != size:
                        raise SourceError(f"{path} is truncated: remove everything after its last complete request")
                    yield data
            number, offset = number + 1, 0


class _Sqlite(_Queue):
    """An SQLite file, which doesn't store the order in which it is served."""

    def __init__(self, path: Path, *, is_lifo: bool) -> None:
        super().__init__(path)
        self._direction = "DESC" if is_lifo else "ASC"

    @property
    def noted(self) -> int:
        return self.count()

    def count(self) -> int:
        (found,) = self._select("SELECT COUNT(*) FROM queue")
        return int(found)

    def each(self) -> Iterator[bytes]:
        return map(bytes, self._select(f"SELECT item FROM queue ORDER BY id {self._direction}"))

    def _select(self, query: str) -> Iterator[Any]:
        """Yield the only column of each row."""
        with closing(sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            for (value,) in database.execute(query):
                yield value


def _queues_in(folder: Path) -> Iterator[tuple[Path, int, bool]]:
    """Yield path, number and kind of each queue: in the folder itself, or in folders of slots."""
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        match = _QUEUE_NAME.fullmatch(path.name)
        if match:
            yield path, int(match[1]), bool(match[2])
        elif path.is_dir():
            yield from _queues_in(path)
        elif path.name != "active.json":
            raise SourceError(f"{path} is not a file of Scrapy's queues: remove it, or move it elsewhere")


def _queue_at(path: Path, *, are_lifo: bool) -> _Queue:
    if path.is_dir():
        return _Fifo(path)
    with path.open("rb") as file:
        is_sqlite = file.read(len(_SQLITE)) == _SQLITE
    return _Sqlite(path, is_lifo=are_lifo) if is_sqlite else _Lifo(path)
