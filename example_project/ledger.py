"""What is known of a crawl outside its workers: the site's list of pages, its access log, the pipelines' files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from pathlib import Path

from shop_site.catalogue import Page
from shop_site.records import Visit, read_pages, read_visits


class Ledger:
    """The files in one folder that site and workers write.

    Args:
        directory: of the files; they need not be there yet.
    """

    def __init__(self, directory: Path) -> None:
        self.items_directory = directory / "items"
        self.page_list = directory / "pages.jsonl"
        self._access_log = directory / "access.jsonl"
        self._read = 0
        self._final: set[str] = set()

    def site_command(self, **options: float | str) -> Sequence[str]:
        """Return the arguments of ``python`` that open the shop on a free port.

        Args:
            options: of ``python -m shop_site``.
        """
        files = ("--log", str(self._access_log), "--pages", str(self.page_list))
        return ["-m", "shop_site", "--port", "0", *files, *(f"--{name}={value}" for name, value in options.items())]

    @cached_property
    def pages(self) -> Sequence[Page]:
        """The site's own list; there is one once the shop is open."""
        return read_pages(self.page_list)

    @property
    def visits(self) -> Sequence[Visit]:
        """What the site has seen, oldest first."""
        return read_visits(self._access_log)

    @property
    def items(self) -> Sequence[Mapping[str, str]]:
        """What the pipelines have written."""
        files = self.items_directory.glob("*.jsonl")
        return [json.loads(line) for path in files for line in path.read_bytes().splitlines()]

    @property
    def fetched(self) -> int:
        """How many pages have been answered to the end; reads only what is new."""
        if self._access_log.exists():
            with self._access_log.open("rb") as log:
                log.seek(self._read)
                # Of a line that is just being written, the next call reads all.
                for line in takewhile(lambda line: line.endswith(b"\n"), log):
                    self._note(line)
        return len(self._final)

    def _note(self, line: bytes) -> None:
        self._read += len(line)
        visit = Visit(**json.loads(line))
        if visit.is_final and visit.path != "/robots.txt":
            self._final.add(visit.url)
