"""Commands that log lines, errors and reports recommend."""

from __future__ import annotations

import shlex


def frontier_command(verb: str, name: str) -> str:
    """Return a shell command with the frontier's name, since a project may have several spiders.

    Args:
        verb: with its arguments.
        name: of the frontier.
    """
    return f"scrapy frontier {verb} --name {shlex.quote(name)}"


def evict_command(worker: str, name: str) -> str:
    """Return the command that takes all leases from a worker and removes it from the frontier."""
    return frontier_command(f"workers --evict {shlex.quote(worker)}", name)
