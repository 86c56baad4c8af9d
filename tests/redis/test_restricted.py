"""Servers that forbid, rename or falsify commands, as managed services do: what works there, and what is said of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from scrapy.settings import Settings
from shop_chaos.proxy import Command, FaultProxy

from scrapy_prioqueue import FrontierClient
from scrapy_prioqueue.errors import FrontierRefused
from scrapy_prioqueue.frontier.base import Ack, Batch, Demand, FrontierConfig, Push, Report
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.frontier import RedisFrontier
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.servers import ServerChanged
from scrapy_prioqueue.frontier.runs import Figures
from scrapy_prioqueue.monitoring.fleet import FleetCollector
from scrapy_prioqueue.settings.table import SETTINGS
from tests.commands.conftest import run_command
from tests.support.coroutines import run
from tests.support.crawls import Crawls
from tests.support.servers import StartServer
from tests.support.site import Site
from tests.support.whole_crawl import WholeCrawl

Answers = Mapping[str, Command]
"""Beginnings of commands in capitals, and the command that the server gets instead."""


def error(text: str) -> Command:
    """Return a command that gets this error."""
    return (b"EVAL", b"return redis.error_reply(ARGV[1])", b"0", text.encode())


def text(reply: str) -> Command:
    """Return a command that gets this text."""
    return (b"ECHO", reply.encode())


NOTHING: Command = (b"LRANGE", b"no such key", b"0", b"-1")
"""A command that gets an empty list."""


@dataclass(frozen=True)
class Service:
    """What is different from a server of one's own.

    Args:
        without: commands that the server doesn't know.
        acl: rules of the user, besides all rights.
        answers: of a proxy before the server.
        config: directives of the server.
        warnings: parts of the warnings of a worker at its start; there are no others.
        findings: topics that the doctor finds to be wrong or warns of.
        options: of the worker.
    """

    without: Sequence[str] = ()
    acl: str = ""
    answers: Answers = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    findings: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@contextmanager
def opened(service: Service, start: StartServer) -> Iterator[str]:
    """Yield the address of a service."""
    # Something is persisted, so that nothing is said of it.
    without = [f'{name} ""' for name in service.without]
    server = start(**{"appendonly": True, "rename_command": without, **service.config})
    client: Any = server.client()
    if "|" in service.acl and int(client.info("server")["redis_version"].split(".")[0]) < 7:
        pytest.skip("a server before Redis 7 can't forbid a subcommand")
    client.execute_command("ACL", "SETUSER", "crawler", "on", "nopass", "~*", "&*", "+@all", *service.acl.split())
    client.close()

    def rewrite(command: Command) -> Command:
        words = " ".join(word.decode("utf-8", "replace") for word in command[:3]).upper()
        return next((answer for begins, answer in service.answers.items() if words.startswith(begins)), command)

    with FaultProxy(server.port, rewrite=rewrite) as proxy:
        yield f"redis://crawler:x@127.0.0.1:{proxy.port}/0"


async def work(frontier: RedisFrontier) -> Sequence[str]:
    """Do what a worker does, and return the warnings of its start."""
    joined = await frontier.join()
    batch = Batch(1, [Push(0, "slot", f"payload {number}".encode(), bytes([number]) * 20) for number in range(3)])
    leases = (await frontier.exchange([batch], Demand(2, is_fair=False))).leases
    assert len(leases) == 2
    bell = asyncio.ensure_future(frontier.listen(lambda: None))
    twin = frontier.twin()
    assert not await twin.renew([(lease.lease_id, lease.attempt) for lease in leases])
    await twin.close()
    await frontier.record(Report(Figures()))
    acks = Batch(2, [Ack(lease.lease_id, lease.attempt) for lease in leases])
    answer = await frontier.exchange([acks], Demand(0))
    if answer.recall is not None:
        # A server without an id may be another one whenever there is a new connection.
        answer = await frontier.exchange([acks], Demand(0))
    assert answer.depth.done == 2
    bell.cancel()
    await asyncio.gather(bell, return_exceptions=True)
    return joined.warnings


async def leave(frontier: RedisFrontier) -> None:
    """Leave as a worker does that closes."""
    report = Report(Figures(reason="finished"))
    try:
        await frontier.leave(report)
    except ServerChanged:
        # As after a recall: the connection of the bell is used again, and connects anew.
        await frontier.leave(report)
    await frontier.close()


DRAGONFLY = "ERR Error running script (call to f_0): @user_script:1: script tried accessing undeclared key"
INFO_WITHOUT_ID = "# Server\r\nredis_version:6.2.0\r\n"

HIDES_INFO: Any = {
    "warnings": ["refuses INFO: this user may not use it, or the service has disabled it"],
    "findings": ["server"],
}

SERVICES = {
    "no-administration": Service(without=["CONFIG", "CLIENT", "WAIT", "COMMAND", "OBJECT", "DEBUG", "MEMORY", "ROLE"]),
    "renamed": Service(config={"rename_command": ["CONFIG config-4711", "INFO info-4711"]}, **HIDES_INFO),
    "few-rights": Service(acl="-eval -@pubsub -@transaction"),
    "no-script-exists": Service(acl="-script|exists"),
    "other-words": Service(
        answers={
            "CONFIG": error("ERR Command is not available: 'CONFIG'. See https://example.com/docs"),
            "CLIENT": error("ERR This command is not allowed"),
            "INFO": error("ERR command not supported"),
        },
        **HIDES_INFO,
    ),
    "info-without-id": Service(answers={"INFO": text(INFO_WITHOUT_ID)}),
    "info-of-headings": Service(answers={"INFO": text("# Server\r\n")}),
    "config-of-nothing": Service(answers={"CONFIG GET": NOTHING}, config={"appendonly": False, "save": "3600 1"}),
    "config-of-few": Service(answers={"CONFIG GET SAVE": error("ERR unsupported CONFIG parameter: save")}),
    "volatile": Service(config={"maxmemory": "100mb", "maxmemory_policy": "volatile-lru"}),
}


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
def test_restricted_server_is_used_and_what_it_hides_is_said_once(
    redis_server_factory: StartServer, capsys: pytest.CaptureFixture[str], service: Service
) -> None:
    with opened(service, redis_server_factory) as url:
        config = FrontierConfig("books", SETTINGS["PRIOQUEUE_TIERS"].default, "w1", **service.options)
        worker = RedisFrontier(config, Connection(url, name="prioqueue:books:w1"))
        warnings = run(work(worker))

        assert len(warnings) == len(service.warnings), warnings
        assert all(part in warning for part, warning in zip(service.warnings, warnings, strict=True))
        assert push_as_a_program(url) == 2
        assert metrics_of(url)["prioqueue_up"] == 1
        assert topics_of_the_doctor(url, capsys) == set(service.findings)
        for verb in VERBS:
            assert frontier(url, *verb) == 0, (verb, capsys.readouterr())
        run(leave(worker))


VERBS = (("status",), ("workers",), ("export", "-"), ("pause",), ("resume",))


def push_as_a_program(url: str) -> int:
    """Push two pages as a program that isn't a worker; return how many were stored."""
    with FrontierClient(url, "books") as client:
        return client.push_many(["https://a.example/page/1", "https://a.example/page/2"]).accepted


def metrics_of(url: str) -> Mapping[str, float]:
    """Return the metrics that the exporter serves."""
    complaints: list[object] = []
    link = Link(url)
    collector = FleetCollector(link, lambda: ["books"], complaints.append, lease_ttl_s=60)
    found = {sample.name: sample.value for family in collector.collect() for sample in family.samples}
    link.close()
    assert not complaints
    return found


def frontier(url: str, *arguments: str) -> int:
    """Run `scrapy frontier` and return its exit code."""
    return run_command(arguments, Settings({"PRIOQUEUE_NAME": "books", "PRIOQUEUE_REDIS_URL": url}))


def topics_of_the_doctor(url: str, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """Return what the doctor warns of or finds to be wrong."""
    frontier(url, "doctor", "--json")
    findings = json.loads(capsys.readouterr().out)["findings"]
    return {found["topic"] for found in findings if found["level"] in ("warning", "wrong")}


REFUSALS = {
    "too-old": (Service(answers={"INFO": text("# Server\r\nredis_version:6.0.20\r\n")}), "use Redis 6.2 or later"),
    "no-scripts": (Service(without=["EVALSHA"]), "needs Lua scripts"),
    "no-loading": (Service(acl="-script|load"), "script"),
    "no-time": (Service(without=["TIME"]), "rename-command"),
    "no-time-for-this-user": (Service(acl="-time"), "+time"),
    "no-wait": (Service(without=["WAIT"], options={"wait_replicas": 1}), "PRIOQUEUE_WAIT_REPLICAS = 0"),
    "no-wait-for-this-user": (Service(acl="-wait", options={"wait_replicas": 1}), "+wait"),
    "undeclared-keys": (Service(answers={"EVALSHA": error(DRAGONFLY)}), "allow-undeclared-keys"),
    "no-scripts-in-a-cluster": (
        Service(answers={"EVALSHA": error("ERR command 'EVALSHA' is not supported in sharded clusters")}),
        "use another server",
    ),
}


@pytest.mark.parametrize(("service", "advice"), REFUSALS.values(), ids=REFUSALS)
def test_server_without_what_a_frontier_needs_is_refused_at_start_with_advice(
    redis_server_factory: StartServer, capsys: pytest.CaptureFixture[str], service: Service, advice: str
) -> None:
    with opened(service, redis_server_factory) as url:
        frontier = RedisFrontier(FrontierConfig("books", ("a",), "w1", **service.options), Connection(url))

        with pytest.raises(FrontierRefused) as caught:
            run(frontier.join())

        assert advice in caught.value.why
        assert "wait_replicas" in service.options or {"scripts", "version"} & topics_of_the_doctor(url, capsys)
        run(frontier.close())


@pytest.mark.any_server
def test_whole_crawl_without_what_managed_services_forbid(
    plain_crawls: Crawls,
    site: Site,
    redis_server_factory: StartServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    forbidden = ("CONFIG", "INFO", "CLIENT", "WAIT", "COMMAND", "OBJECT", "DEBUG", "MEMORY", "ROLE", "ACL", "CLUSTER")
    server = redis_server_factory(rename_command=[f'{name} ""' for name in forbidden])
    crawls = plain_crawls.having(PRIOQUEUE_REDIS_URL=server.url, PRIOQUEUE_FALLBACK="error")

    WholeCrawl(crawls, site, server.client(), tmp_path, capsys, {}).run()
