"""Whether a process on the same machine has ended, from the identity that it has stored."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from scrapy_prioqueue.frontier.processes import is_gone, process_info

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has what it takes in /proc")

PROGRAM = """
import json, sys
from scrapy_prioqueue.frontier.processes import process_info
print(json.dumps(process_info("here")), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def own() -> Mapping[str, str]:
    return process_info("here")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def info_of(child: subprocess.Popen[str]) -> Mapping[str, str]:
    assert child.stdout is not None
    found: Mapping[str, str] = json.loads(child.stdout.readline())
    return found


def test_a_process_that_lives_is_not_gone(own: Mapping[str, str], child: subprocess.Popen[str]) -> None:
    assert not is_gone(own, own)
    assert not is_gone(info_of(child), own)


def test_a_process_that_is_stopped_is_not_gone(own: Mapping[str, str], child: subprocess.Popen[str]) -> None:
    info = info_of(child)
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)

    assert not is_gone(info, own)


def test_a_killed_process_is_gone_also_as_a_zombie(own: Mapping[str, str], child: subprocess.Popen[str]) -> None:
    info = info_of(child)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    was_gone = is_gone(info, own)
    child.wait()

    assert was_gone
    assert is_gone(info, own)


def test_another_process_under_the_same_pid_is_another(own: Mapping[str, str]) -> None:
    assert is_gone({**own, "started": "1"}, own)


@pytest.mark.parametrize("part", ["host", "boot", "pid_namespace"])
def test_nothing_is_known_of_processes_elsewhere(own: Mapping[str, str], part: str) -> None:
    assert not is_gone({**own, "started": "1", part: "another"}, own)


@pytest.mark.parametrize("part", ["pid", "started", "boot"])
def test_a_process_with_too_little_information_counts_as_alive(own: Mapping[str, str], part: str) -> None:
    info = {name: value for name, value in own.items() if name != part}

    assert not is_gone(info, own)
    assert not is_gone({**own, "started": "1"}, {name: value for name, value in own.items() if name != "started"})


def test_without_proc_only_host_and_pid_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scrapy_prioqueue.frontier.processes._PROC", tmp_path)

    assert process_info("here") == {"host": "here", "pid": str(os.getpid())}


def test_a_process_behind_the_files_of_another_namespace_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "status").write_text(f"Name:\tpython\nNSpid:\t{os.getpid() + 1}\t{os.getpid()}\n")
    monkeypatch.setattr("scrapy_prioqueue.frontier.processes._PROC", tmp_path)

    assert process_info("here") == {"host": "here", "pid": str(os.getpid())}
