"""Every script's header agrees with its body and with the Python call."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import pytest

from scrapy_prioqueue.frontier.base import (
    Ack,
    Batch,
    Demand,
    Fail,
    FrontierConfig,
    Lease,
    Push,
    Refuse,
    Release,
    Report,
)
from scrapy_prioqueue.frontier.policy import CrawlDelay
from scrapy_prioqueue.frontier.processes import process_info
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.frontier import RedisFrontier
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.operator import Operator
from scrapy_prioqueue.frontier.redis.scripts import LIBRARY, NAMES, OPERATOR_NAMES, Argument, text_of
from scrapy_prioqueue.frontier.runs import Figures
from tests.lua.headers import FIELDS, Header, own_text, parse
from tests.support.coroutines import run
from tests.support.servers import RedisServer

NEED_MEMORY = ("adopt", "commit", "complete", "push", "restore")

LIBRARY_ARGUMENTS = {1, 2}

"""`lib/core.lua` reads the clock in ARGV[1], and the epoch in ARGV[2] where a script asks it to."""


@pytest.fixture(params=[*NAMES, *OPERATOR_NAMES])
def header(request: pytest.FixtureRequest) -> Header:
    return parse(request.param)


def test_first_line_is_one_sentence(header: Header) -> None:
    assert re.fullmatch(r"[A-Z][^.]*\.", header.sentence)


def test_fields_are_there_in_the_order_of_the_house(header: Header) -> None:
    assert [field for field, _ in groupby(field for field, _ in header.fields)] == list(FIELDS)


def test_guarantee_reply_and_cost_are_not_empty(header: Header) -> None:
    assert all(header.field(field) for field in ("guarantee", "reply", "cost"))
    assert "O(" in header.field("cost")


def test_only_key_is_the_state(header: Header) -> None:
    assert header.field("KEYS[1]") == "{prioqueue:<name>}:state hash"
    assert not re.search(r"KEYS\[[^1]", header.body)


def test_arguments_are_numbered_without_gaps_and_only_the_last_stands_for_more(header: Header) -> None:
    assert [argument.number for argument in header.arguments] == list(range(1, len(header.arguments) + 1))
    assert not any(argument.is_rest for argument in header.arguments[:-1])


def test_time_comes_first(header: Header) -> None:
    assert header.arguments[0].meaning == "now_ms"


def test_every_documented_argument_is_used_and_every_used_one_is_documented(header: Header) -> None:
    used = {int(number) for number in re.findall(r"ARGV\[(\d+)", header.body)} | {1}
    if "refusal_of" in header.body or "last_batch_in" in header.body:
        used.add(2)
    fixed = {argument.number for argument in header.arguments if not argument.is_rest}

    assert used - {header.fixed + 1} == fixed
    assert header.takes_more == ("#ARGV" in header.body)


def test_rest_begins_where_the_body_begins_to_read_it(header: Header) -> None:
    starts = {int(number) for number in re.findall(r"for i = (\d+), #ARGV", header.body)}
    starts |= {int(number) for number in re.findall(r"local at, index(?:, last)? = (\d+), 0", header.body)}

    assert starts == ({header.fixed + 1} if header.takes_more else set())


def test_library_reads_only_the_arguments_that_all_scripts_share() -> None:
    library = "".join(text_of(part) for part in LIBRARY)

    assert {int(number) for number in re.findall(r"ARGV\[(\d+)", library)} <= LIBRARY_ARGUMENTS


def test_codes_in_the_reply_are_those_that_the_body_returns(header: Header) -> None:
    names = {"OK": 0, "OTHER_CRAWL": 1, "UNKNOWN_SESSION": 2, "OUT_OF_STEP": 3, "SUPERSEDED": 4}
    own = re.search(r"local ([A-Z, ]+)\s+= ([\d, ]+)\n", header.body)
    if own and header.name != "lease":
        names |= dict(zip(own[1].split(", "), map(int, own[2].split(", ")), strict=True))
    returned = {names[name] for name in re.findall(r"return \{([A-Z_]+)\b", header.body)}
    if "refusal_of" in header.body:
        returned |= {names["OTHER_CRAWL"], names["UNKNOWN_SESSION"]}
    if "last_batch_in" in header.body:
        returned |= {names["OTHER_CRAWL"], names["UNKNOWN_SESSION"], names["SUPERSEDED"]}
    documented = {int(code) for code in re.findall(r"(?:^|[ ;:])(\d+) [a-z]", header.field("reply"))}

    if header.name != "clear":
        assert documented == returned


def test_only_what_brings_new_requests_may_be_refused_when_memory_is_full(header: Header) -> None:
    assert header.field("flags") == ("" if header.name in NEED_MEMORY else "allow-oom")


# What the frontier calls them with


class RecordingConnection(Connection):
    """Writes down the arguments of every script call, and makes it."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.recorded: defaultdict[str, list[Sequence[Argument]]] = defaultdict(list)

    def twin(self) -> RecordingConnection:
        twin = RecordingConnection(self.url)
        twin.recorded = self.recorded
        return twin

    async def run(self, calls: Sequence[tuple[str, str, Sequence[Argument]]], *, wait_replicas: int = 0) -> list[Any]:
        for name, _, arguments in calls:
            self.recorded[name].append(tuple(arguments))
        return await super().run(calls, wait_replicas=wait_replicas)


async def every_call(url: str, name: str) -> Mapping[str, Sequence[Sequence[Argument]]]:
    """Let a frontier make every call it knows: each with as few arguments as there can be, and with more."""
    connection = RecordingConnection(url)
    frontier = RedisFrontier(FrontierConfig(name, ("a",), "w1", flush=True), connection)
    await frontier.join()
    pushes = [Push(number, "slot", b"payload", bytes([number]) * 20) for number in range(5)]
    leases = (
        await frontier.exchange([Batch(1, pushes)], Demand(5, slot_room={"other": 1}, notes=[CrawlDelay("slot", 0)]))
    ).leases
    await frontier.exchange([Batch(2, settled(leases[:4]))], Demand(0))
    await frontier.known([])
    await frontier.known(pushes)
    await frontier.renew([])
    await frontier.renew([(leases[4].lease_id, leases[4].attempt)])
    await frontier.reconcile([])
    await frontier.waits()
    await frontier.report_slow([])
    await frontier.record(Report(Figures()))
    rest = (await frontier.exchange([Batch(3, [])], Demand(9))).leases
    await frontier.exchange([Batch(4, [Ack(lease.lease_id, lease.attempt) for lease in rest])], Demand(0, is_idle=True))
    await order_and_forget(frontier, url, name)
    await frontier.leave()
    await frontier.close()
    await join_behind_the_gone(url, name, connection.recorded)
    return connection.recorded


async def order_and_forget(frontier: RedisFrontier, url: str, name: str) -> None:
    """Give two orders, of which the server forgets the first before it is asked for the second."""
    link = Link(url)
    operator = Operator(link, name)
    operator.order(paused=False)
    await frontier.exchange([], Demand(0))
    link.ask(lambda client: client.delete(operator.keys.of("ordered")))
    operator.order(drained=False)
    await frontier.exchange([], Demand(0))
    link.close()


async def join_behind_the_gone(url: str, name: str, recorded: defaultdict[str, list[Sequence[Argument]]]) -> None:
    """Let each of three workers find that the process of the one before is gone, one of them without a lease."""
    info = process_info("here")
    for worker, limit in (("w2", 0), ("w3", 1), ("w4", 0)):
        connection = RecordingConnection(url)
        connection.recorded = recorded
        config = FrontierConfig(name, ("a",), worker, worker_info={**info, "started": "long ago"})
        frontier = RedisFrontier(config, connection)
        await frontier.join()
        await frontier.exchange([Batch(1, [Push(0, "slot", b"payload")])], Demand(limit))
        await frontier.close()


def settled(leases: Sequence[Lease]) -> Sequence[Ack | Release | Fail]:
    """Return an operation of each kind that ends a lease."""
    tokens = [(lease.lease_id, lease.attempt) for lease in leases]
    return [Ack(*tokens[0]), Release(*tokens[1]), Fail(*tokens[2], "decode", "why"), Refuse(*tokens[3], 0)]


@pytest.fixture
def recorded(redis_server: RedisServer, frontier_name: str) -> Mapping[str, Sequence[Sequence[Argument]]]:
    return run(every_call(redis_server.url, frontier_name))


def test_every_script_is_called_with_the_documented_number_of_arguments(
    recorded: Mapping[str, Sequence[Sequence[Argument]]],
) -> None:
    assert set(recorded) == set(NAMES)
    for name, calls in recorded.items():
        header, counts = parse(name), {len(arguments) for arguments in calls}
        if header.takes_more:
            assert min(counts) >= header.fixed, name
            assert name in {"recover", "note"} or min(counts) == header.fixed, name
            assert max(counts) > header.fixed, name
        else:
            assert counts == {header.fixed}, name


def test_time_is_left_to_the_server(recorded: Mapping[str, Sequence[Sequence[Argument]]]) -> None:
    times = {arguments[0] for calls in recorded.values() for arguments in calls}

    assert "" in times
    assert all(re.fullmatch(r"|\+\d+ w\d", str(time)) for time in times)


def test_operations_have_the_documented_number_of_parts(
    recorded: Mapping[str, Sequence[Sequence[Argument]]],
) -> None:
    documented: dict[str, int] = {}
    for letter, parts in re.findall(r"^--   ([A-Z]) (.*)$", own_text("commit"), re.MULTILINE):
        names = re.split(r" {2,}", parts)[0]
        same = re.match(r"\(as ([A-Z])\)", names)
        documented[letter] = 1 + len(re.sub(r"\(.*?\)", "", names).split()) + (documented[same[1]] - 1 if same else 0)
    fixed = parse("commit").fixed

    with_all_ends = recorded["commit"][1][fixed:]

    assert set(documented) == {"P", "C", "A", "R", "X", "F"}
    assert len(recorded["commit"][0][fixed:]) == 5 * documented["P"]
    assert len(with_all_ends) == sum(documented[letter] for letter in "ARFX")
