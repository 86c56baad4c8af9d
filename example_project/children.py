"""Processes that a program starts and answers for: their output goes to files, none of them outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

EXAMPLE = Path(__file__).resolve().parent
GRACE_S = 5.0


class DemoFailed(Exception):
    """Something did not happen that the demo is there to show."""


def wait_until(condition: Callable[[], bool], *, what: str, deadline: float) -> None:
    """Return once the condition holds.

    Args:
        condition: looked at every 50 ms; it may raise.
        what: the condition in words.
        deadline: when to give up, by the monotonic clock.

    Raises:
        DemoFailed: it didn't hold in time.
    """
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            raise DemoFailed(f"the time is up, and not yet true: {what}")
        pause.wait(0.05)


class Children:
    """Python processes by name; those still running are ended on leaving the ``with`` block.

    Args:
        directory: where each writes its output, as ``<name>.log``.
        environment: of the processes, in addition to that of this one.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str] | None = None) -> None:
        self._directory = directory
        self._environment = {**os.environ, **(environment or {})}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str) -> None:
        """Start ``python <arguments>`` in the example project; a second start under a name continues its log."""
        with self._log(name).open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=EXAMPLE,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo, which then ends them in good order
            )

    def kill(self, name: str) -> int:
        """End a process with SIGKILL; return its pid."""
        process = self._processes[name]
        process.kill()
        process.wait()
        return process.pid

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        self._processes[name].send_signal(number)

    def exit_code(self, name: str) -> int | None:
        """Return how a process has ended, None if it has not."""
        return self._processes[name].poll()

    def log(self, name: str) -> str:
        """Return what a process has printed so far."""
        return self._log(name).read_text(errors="replace")

    def have_ended(self, *names: str) -> bool:
        """Return whether all of these have ended well.

        Raises:
            DemoFailed: one has ended with an error.
        """
        codes = {name: self._processes[name].poll() for name in names}
        for name, code in codes.items():
            if code:
                raise DemoFailed(f"{name} ended with code {code}")
        return None not in codes.values()

    def tails(self) -> str:
        """Return the last lines that each process has written."""
        return "\n".join(f"--- {name}\n{self._tail(name)}" for name in self._processes)

    def __enter__(self) -> Children:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        running = [process for process in self._processes.values() if process.poll() is None]
        for process in running:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)
        for process in running:
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _tail(self, name: str) -> str:
        return "\n".join(self.log(name).splitlines()[-25:])
