"""How the benchmarks begin and end: their command lines, a directory and a Redis server, exit codes, Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import redis
from processes import BenchmarkFailed
from redis_server import RedisServer, RedisServerError


class Workplace(NamedTuple):
    """A directory and a running server."""

    directory: Path
    server: RedisServer

    def clear(self) -> None:
        """Empty the server."""
        with redis.Redis.from_url(self.server.url, socket_timeout=30) as client:
            client.flushall()

    def new_folder(self) -> Path:
        """Return a folder in the directory that is not there yet."""
        return self.directory / f"run-{len(list(self.directory.iterdir()))}"


@contextmanager
def workplace(**config: Any) -> Iterator[Workplace]:
    """Yield a directory and a running server, which are gone after the ``with`` block.

    Args:
        config: directives for the server, see `RedisServer`.

    Raises:
        RedisServerError: there is no server on this machine, or it doesn't start.
    """
    with (
        tempfile.TemporaryDirectory(prefix="prioqueue-bench-") as directory,
        RedisServer(Path(directory) / "redis", **config) as server,
    ):
        yield Workplace(Path(directory), server)


def processor_s(client: redis.Redis) -> float:
    """Return the seconds of processor time that a server has taken so far."""
    info: Mapping[str, float] = client.info("cpu")
    return info["used_cpu_user"] + info["used_cpu_sys"]


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a benchmark's command line.

    Args:
        flag: such as ``--pages``.
        default: its type is that of the values; False for a switch, a list for any number of values.
        help: what it is.
        quick: default of the short form, None for the same.
        choices: the only values, None for any.
    """

    flag: str
    default: Any
    help: str
    quick: Any = None
    choices: Sequence[str] | None = None

    def add_to(self, parser: argparse.ArgumentParser, *, is_quick: bool) -> None:
        """Add it to a parser."""
        default = self.quick if is_quick and self.quick is not None else self.default
        if self.default is False:
            parser.add_argument(self.flag, action="store_true", help=self.help)
            return
        more: dict[str, Any] = {"type": type(self.default)}
        if isinstance(self.default, list):
            more = {"type": type(self.default[0]), "nargs": "+"} if self.default else {"action": "extend", "nargs": "+"}
        parser.add_argument(self.flag, default=default, choices=self.choices, help=self.help, **more)


def run_from_command_line(
    benchmark: Callable[[argparse.Namespace], None], description: str | None, *options: Option
) -> int:
    """Run a benchmark as the command line says and return its exit code.

    Args:
        benchmark: called with the options, and with those that all have: `quick`, and `json`, a path or None.
        description: for ``--help``.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short form, for a first look")
    parser.add_argument("--json", type=Path, metavar="PATH", help="file that the results are written to")
    for option in options:
        option.add_to(parser, is_quick="--quick" in sys.argv)
    return run_as_program(lambda: benchmark(parser.parse_args()))


def run_as_program(benchmark: Callable[[], None]) -> int:
    """Run a benchmark and return its exit code; however it ends, what it started is stopped first."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        benchmark()
    except (BenchmarkFailed, RedisServerError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0
