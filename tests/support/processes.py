"""Child processes of tests, each with a log file that is shown when the test fails."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from redis_server import ends_with_this_process


class ChildProcess:
    """A process that writes to a log file of its own.

    Args:
        command: the program and its arguments.
        log: path of the file for its standard output and error.
        env: its whole environment, None for that of the tests.
        cwd: its working directory, None for that of the tests.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.log_path = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*ends_with_this_process(), *command],
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    @property
    def pid(self) -> int:
        """Of the process, also after its end."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    @property
    def log(self) -> str:
        """What it has printed so far."""
        return self.log_path.read_text(errors="replace")

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it with SIGKILL and wait for that; nothing happens if it has ended."""
        self._process.kill()
        self._process.wait()

    def wait(self, *, within: float) -> int:
        """Wait for its end and return the exit code, the negative number of the signal that killed it.

        Args:
            within: seconds until the wait fails.

        Raises:
            AssertionError: it runs on.
        """
        try:
            return self._process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not within {within} s: the end of process {self.pid}\n{self.log}") from None


class StartProcess(Protocol):
    """Starts a child process, see `ChildProcess`."""

    def __call__(
        self, command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> ChildProcess: ...


@contextmanager
def child_processes(directory: Path) -> Iterator[tuple[StartProcess, list[ChildProcess]]]:
    """Yield a function that starts processes, and their list; logs are in the folder, all are killed at the end."""
    children: list[ChildProcess] = []

    def start(
        command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> ChildProcess:
        child = ChildProcess(command, directory / f"process-{len(children) + 1}.log", env=env, cwd=cwd)
        children.append(child)
        return child

    try:
        yield start, children
    finally:
        for child in children:
            child.kill()
