"""`scrapy frontier export` and `import`: write and read a whole frontier as JSON Lines."""

from __future__ import annotations

import json
import os
import shutil
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryFile
from typing import Any, BinaryIO

from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.options import opened
from scrapy_prioqueue.commands.output import counted, number, warn
from scrapy_prioqueue.commands.progress import Work, working
from scrapy_prioqueue.commands.verb import FINE, Stop, Verb
from scrapy_prioqueue.frontier.redis.operators.exporter import Exporter
from scrapy_prioqueue.frontier.redis.operators.importer import Importer
from scrapy_prioqueue.frontier.redis.operators.records import checked
from scrapy_prioqueue.hints import frontier_command

_STEP = 1000


class ExportVerb(Verb):
    name = "export"
    summary = "write the whole frontier as JSON Lines"
    syntax = "FILE"
    examples = ("books.jl", "- --name books | gzip > books.jl.gz")
    is_read = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", help="file to write; - for standard output")

    def run(self, context: Context, options: Namespace) -> int:
        status = context.status()
        alive = sum(worker.is_alive for worker in status.workers)
        if alive and ("paused" not in status.state.orders or status.counts["leased"]):
            warn(
                self.name,
                f"{counted(alive, 'worker is', 'workers are')} running: requests that change meanwhile may be written"
                " twice or not at all; pause or stop all workers first for an exact copy",
            )
        total = status.left + status.counts["dead"]
        with opened(options.file, "wb") as file, working("exporting", total) as work:
            context.so_far = lambda: (
                f"{work.counted('request')} written; the export is incomplete, and import rejects it: run export again"
            )
            done = 0
            for done, record in enumerate(Exporter(context.link, context.name).records()):
                file.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")
                if done % _STEP == 0:
                    work.note(done)
        if options.file != "-":
            context.output.show(f"{counted(done + 1, 'line')} written to {options.file}")
        return FINE


class ImportVerb(Verb):
    name = "import"
    summary = "create a frontier from an export"
    syntax = "FILE"
    examples = ("books.jl --name books-copy",)
    is_read = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", help="file written by export; - for standard input")

    def run(self, context: Context, options: Namespace) -> int:
        with _read(options.file) as file:
            size, read, count = os.fstat(file.fileno()).st_size, [0], 0
            with working("checking") as work:
                context.so_far = lambda: f"{counted(count, 'record')} checked, nothing imported"
                for count, _ in enumerate(checked(_records(file, read))):
                    if count % _STEP == 0:
                        work.note(count, part=read[0] / size)
            file.seek(0)
            importer = Importer(context.link, context.name)
            with working("importing", count) as work:
                context.so_far = lambda: so_far(work, importer, context.name)
                found = importer.run(_records(file, read), work.note)
        context.output.show(
            f"{number(found.pending)} pending and {counted(found.delayed, 'delayed request')},"
            f" {counted(found.dead, 'dead letter')} and {counted(found.seen, 'fingerprint')}"
            f" are in frontier {context.name!r}"
        )
        return FINE


def so_far(work: Work, importer: Importer, name: str) -> str:
    """Return how far an import has got that may be cut short."""
    if importer.has_left is None:
        return ""
    left = f"still there: {frontier_command('reset --all', name)} deletes it" if importer.has_left else "deleted again"
    return f"{work.counted('record')} read; the imported part is {left}"


def _records(file: BinaryIO, read: list[int]) -> Iterator[dict[str, Any]]:
    for index, line in enumerate(file, 1):
        read[0] += len(line)
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Stop(f"line {index} is not JSON: {error}", is_midway=True) from error
        if not isinstance(record, dict):
            raise Stop(f"line {index} is not a JSON object", is_midway=True)
        yield record


@contextmanager
def _read(path: str) -> Iterator[BinaryIO]:
    """Yield a seekable file: an import reads it twice, to check everything before it writes anything."""
    with ExitStack() as files:
        file = files.enter_context(opened(path, "rb"))
        if not file.seekable():
            copy = files.enter_context(TemporaryFile())
            shutil.copyfileobj(file, copy)
            copy.seek(0)
            file = copy
        yield file
