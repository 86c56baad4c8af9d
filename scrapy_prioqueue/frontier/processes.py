"""Identity of a process, so that another one on the same machine can find out that it has ended.

The name of a host and a pid are not sufficient: containers share names, and pids are reused. If `/proc` lacks some of
the information, a process counts as alive.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_PROC = Path("/proc")
_PLACE = ("host", "boot", "pid_namespace")


def process_info(host: str) -> dict[str, str]:
    """Return the identity of this process: host and pid, and if available the data that make them unique."""
    pid = os.getpid()
    found = {"host": host, "pid": str(pid)}
    try:
        # In the `/proc` of another pid namespace, this pid belongs to another process.
        status = (_PROC / "self" / "status").read_text("ascii", "replace")
        pids = next(line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:"))
        if pids != [str(pid)]:
            return found
        return {
            **found,
            "boot": (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text("ascii").strip(),
            "pid_namespace": str((_PROC / "self" / "ns" / "pid").readlink()),
            "started": _state_and_start(pid)[1],
        }
    except (OSError, StopIteration, ValueError):
        return found


def is_gone(info: Mapping[str, str], own: Mapping[str, str]) -> bool:
    """Return whether a process has certainly ended.

    Args:
        info: its `process_info`.
        own: that of this process.
    """
    if "started" not in own or not info.get("started"):
        return False
    if any(info.get(part) != own.get(part) for part in _PLACE):
        return False
    try:
        pid = int(info["pid"])
        # This also finds processes that `/proc` hides from this user.
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError, KeyError, ValueError):
        return False
    try:
        state, started = _state_and_start(pid)
        threads = sum(1 for _ in (_PROC / str(pid) / "task").iterdir())
    except (OSError, ValueError):
        return False
    # A killed process stays a zombie until its parent reads its status; the leader of living threads may look the same.
    return started != info["started"] or (state in "ZX" and threads <= 1)


def _state_and_start(pid: int) -> tuple[str, str]:
    """Return the state of a process, a letter, and its start time, in ticks since the boot."""
    text = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    # The fields after its name, which may contain any characters.
    fields = text.rpartition(")")[2].split()
    if len(fields) < 20:
        raise ValueError(f"/proc/{pid}/stat has {len(fields)} fields")
    return fields[0], fields[19]
