"""The reference agrees with the code: settings, stats, meta keys, errors, Redis keys; and links work."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from scrapy_prioqueue import errors, signals, stats
from scrapy_prioqueue.frontier.base import (
    Ack,
    Batch,
    Claim,
    Demand,
    Fail,
    FrontierConfig,
    Lease,
    Push,
    Refuse,
    Report,
    Spent,
)
from scrapy_prioqueue.frontier.kept import Kept
from scrapy_prioqueue.frontier.labels import Label, labelled
from scrapy_prioqueue.frontier.policy import Budget, Closing, CrawlDelay, Latency, Note, Policy, SlotLimit, Throttle
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.frontier import RedisFrontier
from scrapy_prioqueue.frontier.redis.keys import LAYOUT, Keys
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.operator import Operator
from scrapy_prioqueue.frontier.redis.scripts import joined_sources
from scrapy_prioqueue.frontier.runs import Figures
from scrapy_prioqueue.frontier.seen import SeenPolicy
from scrapy_prioqueue.frontier.waits import SlowPage
from scrapy_prioqueue.monitoring.adviser import write_scale_key
from scrapy_prioqueue.monitoring.fleet import FRONTIER_METRICS, SERVER_METRICS
from scrapy_prioqueue.monitoring.metrics import Metric
from scrapy_prioqueue.monitoring.worker import WORKER_METRICS
from scrapy_prioqueue.settings import SETTINGS
from scrapy_prioqueue.settings.scrapy_redis import SCRAPY_REDIS_SETTINGS
from scrapy_prioqueue.stats import SCRAPY_STATS, STATS
from tests.docs.markdown import REFERENCE, REPOSITORY, anchors, links, names, pages, rows
from tests.support.clocks import UnixClock
from tests.support.coroutines import run
from tests.support.servers import RedisServer

PACKAGE = REPOSITORY / "scrapy_prioqueue"
README = REPOSITORY / "README.md"
ADDRESS = re.compile(r"[a-z]+:")

VARIABLES = {"PRIOQUEUE_TEST_REDIS", "PRIOQUEUE_DASHBOARD_TOKEN"}
"""Environment variables that are no settings."""


def strings_in_code() -> Iterator[str]:
    """Yield every text in the package's Python code, docstrings included."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(parsed(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


@cache
def parsed(source: str) -> ast.Module:
    # In a thread: the parser of Python 3.11 counts wrong in the greenlets in which pytest-twisted runs tests.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(ast.parse, source).result()


# Signals


def test_signals_are_those_of_the_module() -> None:
    page = REFERENCE / "signals.md"
    documented = [name.strip("`") for name, _ in rows(page, "signal")]
    with_arguments = {name.strip("`") for name, *_ in rows(page, "signal of this package")}

    assert documented == [name for name, value in vars(signals).items() if type(value) is object]
    assert with_arguments == {"all", *documented}


# Log records


def test_events_of_log_records_are_those_of_the_code() -> None:
    documented = {
        name.strip("`"): set(re.findall(r"`(\w+)`", fields)) for name, _, fields in rows(REFERENCE / "logs.md", "event")
    }
    logged: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(parsed(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "event":
                (name,) = node.args
                assert isinstance(name, ast.Constant)
                logged.setdefault(str(name.value), set()).update(each.arg for each in node.keywords if each.arg)

    assert set(documented) == set(logged)
    assert all(fields <= documented[name] for name, fields in logged.items())


# Settings


def test_settings_are_those_of_the_code_with_defaults_and_meaning() -> None:
    documented = [
        (name.strip("`"), default, meaning) for name, default, meaning in rows(REFERENCE / "settings.md", "setting")
    ]

    assert [name for name, _, _ in documented] == list(SETTINGS)
    for name, default, meaning in documented:
        assert ast.literal_eval(default.strip("`")) == SETTINGS[name].default, name
        assert meaning == SETTINGS[name].doc, name


def test_settings_in_the_readme_are_settings_with_their_defaults() -> None:
    for name, default, *_ in rows(README, "setting"):
        assert ast.literal_eval(default.strip("`")) == SETTINGS[name.strip("`")].default, name


def test_settings_of_scrapy_redis_are_those_of_the_code() -> None:
    documented = [tuple(row) for row in rows(REPOSITORY / "docs" / "migrating.md", "scrapy-redis")]

    assert documented == [
        (f"`{name}`", f"`{theirs.ours}`" if theirs.ours else "", theirs.doc)
        for name, theirs in SCRAPY_REDIS_SETTINGS.items()
    ]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_no_page_names_a_setting_that_does_not_exist(page: Path) -> None:
    named = set(re.findall(r"\bPRIOQUEUE_[A-Z_]*[A-Z]", page.read_text("utf-8")))

    assert named - VARIABLES <= set(SETTINGS)


# Stats


@pytest.mark.parametrize(("heading", "table"), [("stat", STATS), ("stat of Scrapy", SCRAPY_STATS)])
def test_stats_are_those_of_the_table_with_their_meanings(heading: str, table: dict[str, str]) -> None:
    documented = [tuple(row) for row in rows(REFERENCE / "stats.md", heading)]

    assert documented == [(f"`{name}`", meaning) for name, meaning in table.items()]


def test_every_stat_of_the_table_is_counted_under_its_constant() -> None:
    sources = [(path, path.read_text("utf-8")) for path in PACKAGE.rglob("*.py") if path.name != "stats.py"]
    used = set().union(*(re.findall(r"\b[A-Z_]+_STATS?\b", source) for _, source in sources))

    assert used >= {name for name in vars(stats) if name.endswith(("_STAT", "DEAD_STATS"))}
    literal = re.compile(r'"(?:prioqueue|scheduler)/[a-z]+')
    assert [path for path, source in sources if literal.search(source)] == []


# Metrics

METRICS = [
    ("metric of a worker", WORKER_METRICS),
    ("metric of a frontier", FRONTIER_METRICS),
    ("metric of the server", SERVER_METRICS),
]


@pytest.mark.parametrize(("heading", "table"), METRICS)
def test_metrics_are_those_of_the_table_with_their_meanings(heading: str, table: Sequence[Metric[Any]]) -> None:
    documented = [tuple(row) for row in rows(REFERENCE / "metrics.md", heading)]

    assert documented == [
        (f"`{metric.name}`", metric.kind, ", ".join(f"`{label}`" for label in metric.labels), metric.doc)
        for metric in table
    ]


# Meta keys


def test_meta_keys_are_those_of_the_code() -> None:
    constants = set()
    for path in PACKAGE.rglob("*.py"):
        constants |= set(re.findall(r'^\w+_META = "(\w+)"$', path.read_text("utf-8"), re.MULTILINE))

    assert constants == set(names(REFERENCE / "meta.md", "key"))


def test_every_meta_key_that_the_code_reads_is_in_the_reference() -> None:
    read = set()
    for path in PACKAGE.rglob("*.py"):
        read |= set(re.findall(r'\bmeta(?:\.get\(|\.pop\(|\[)"(\w+)"', path.read_text("utf-8")))

    assert all(f"`{key}`" in (REFERENCE / "meta.md").read_text("utf-8") for key in read)


# Errors


def test_errors_are_those_of_the_code() -> None:
    classes = [name for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, Exception)]

    assert names(REFERENCE / "errors.md", "error") == classes


def test_reasons_for_closing_are_those_of_the_code() -> None:
    used = {
        text
        for text in strings_in_code()
        if re.fullmatch(r"prioqueue_(unavailable|rejected|frontier_lost|start_failed|seeds_unread|undecodable)", text)
    }

    assert used | {"finished"} == set(names(REFERENCE / "errors.md", "reason"))


# Keys of Redis


def nouns_in_scripts() -> set[str]:
    source = "".join(joined_sources().values())
    return set(re.findall(r'key\("([a-z]+)', source)) | set(re.findall(r'in_chunks\("[A-Z]+", "([a-z]+)"', source))


def documented_keys() -> dict[str, str]:
    """Return the type of each key by its noun."""
    return {cells[0].strip("`").partition(":")[0]: cells[1] for cells in rows(REFERENCE / "keys.md", "key")}


def fields_of(section: str) -> list[str]:
    """Return the fields of a hash that a section describes."""
    text = (REFERENCE / "keys.md").read_text("utf-8")
    part = text.split(f"\n## {section}\n")[1].split("\n## ")[0]
    heads = re.findall(r"^\| (`.*?`) \|", part, re.MULTILINE)
    return [field for head in heads for field in re.findall(r"`(\w+)`", head)]


def test_every_key_of_the_scripts_is_in_the_reference_and_no_other() -> None:
    # A command writes `scale`, without a script.
    assert nouns_in_scripts() | {"state", "scale"} == set(documented_keys()) | {"bell"}


def test_layout_version_is_that_of_the_code() -> None:
    assert f"layout version {LAYOUT}," in (REFERENCE / "keys.md").read_text("utf-8")


def test_keys_of_a_real_crawl_are_of_the_documented_types_with_the_documented_fields(
    redis_server: RedisServer, frontier_name: str
) -> None:
    client: Any = redis_server.client()
    keys = Keys(frontier_name)
    found: dict[str, str] = {}
    fields: dict[str, set[str]] = {"state": set(), "stats": set()}

    def look() -> None:
        for key in client.scan_iter(keys.pattern(), count=1000):
            noun = key.decode().removeprefix(keys.prefix).partition(":")[0]
            found[noun] = client.type(key).decode()
        for noun, seen in fields.items():
            seen |= {field.decode() for field in client.hkeys(keys.prefix + noun)}

    def order() -> None:
        told: dict[str, str | int] = {
            "paused": 1,
            "drained": 1,
            "has_stops": 1,
            "stop_reason": "enough",
            "ordered_ms": 1,
            "is_unjoined": 1,
            "memory_high": 1,
            "seen_sets": 1,
            "seen_moved": 1,
            "seen_swept": "0 0",
            "cleared": "all 0",
            "delays_cursor": "0",
        }
        # There where a crawl was moved from other software.
        told["identity"] = "scrapy-redis"
        told["reopen"] = "0 a.example"
        # There while more leases are counted than a call counts; a cursor of 0 begins with the first of them.
        told["counting"] = '{"limits": "0"}'
        client.sadd(keys.prefix + "counted:limits", b"id")
        # There while workers are awaited after an outage.
        told["returning_ms"] = 0
        client.sadd(keys.prefix + "returning", "w1")
        client.hset(keys.state, mapping=told)
        client.hset(keys.prefix + "stops", "w1", "enough")
        client.zadd(keys.prefix + "ordered", {"paused": 1})

    write_scale_key(Link(redis_server.url), frontier_name, 1)
    run(live_with_limits(redis_server.url, frontier_name, look))
    run(live(redis_server.url, frontier_name, look, order))

    assert found == documented_keys()
    assert fields == {"state": set(fields_of("State")), "stats": set(fields_of("Counters"))}


async def live(url: str, name: str, look: Any, order: Any) -> None:
    """Let two processes of a worker go through all that can happen to requests, and look in between."""
    clock = UnixClock()
    first = frontier(url, name, clock)
    await first.join()
    pushes = [Push(0, "slot", bytes([number]), bytes([number // 2]) * 20) for number in range(8)]
    leases = (await first.exchange([Batch(1, [*pushes, Push(0, "slot", b"", start_mark=b"m")])], Demand(3))).leases
    look()
    await first.exchange([], Demand(99))
    look()
    await first.exchange(
        [Batch(2, [ack(leases[0]), ack(leases[0]), *(Fail(*token(lease), "decode", "") for lease in leases[1:])])],
        Demand(99),
    )
    await first.exchange(
        [Batch(3, [Claim(Push(0, "slot", b"found in an outage")), Push(0, "slot", b"later", delay_ms=100_000)])],
        Demand(0),
    )
    await first.record(Report(Figures(latency=[1])))
    await first.report_slow([SlowPage(1, "https://a.example", "parse", "its callback", 200.0)])
    look()
    remove_delayed(url, name)
    look()
    clock.now_ms += 61_000
    await first.exchange([], Demand(1))
    clock.now_ms += 61_000
    await first.exchange([], Demand(0, notes=[Kept(1)]))
    look()
    await first.close()
    second = frontier(url, name, clock)
    await second.join()
    await second.exchange([], Demand(1))
    await second.join()
    look()
    unread, *rest = (await second.exchange([], Demand(99))).leases
    rest += (await second.exchange([Batch(1, [Refuse(*token(unread), 0)])], Demand(99))).leases
    look()
    await second.exchange([Batch(2, [ack(lease) for lease in rest])], Demand(0, is_idle=True))
    order()
    look()
    await second.leave()
    look()
    await second.close()


async def live_with_limits(url: str, name: str, look: Any) -> None:
    """Let a worker meet limits, budgets and a mark, and another one do without."""
    clock = UnixClock()
    policy = Policy(
        slots={"slot": SlotLimit(delay=1)},
        throttle=Throttle(),
        awaits_crawl_delay=True,
        weights=(1,),
        budgets={"*": Budget(pages=1)},
        high_water=2,
        low_water=1,
        pending_limit=20,
        memory_high_water=0.9,
        discovery=(0,),
    )
    first = frontier(url, name, clock, "sunday", policy)
    await first.join()
    pushes = [Push(0, slot, b"", bytes([number]) * 20) for number, slot in enumerate(["a", "b", "c", "slot"])]
    pushes[0] = replace(pushes[0], payload=labelled(b"", Label(True, ["shop"])))
    notes: list[Note] = [CrawlDelay("slot", 10), Latency("slot", 5, is_success=True), Closing("slot", 5)]
    (lease,) = (await first.exchange([Batch(1, pushes)], Demand(1, notes=notes))).leases
    look()
    await first.exchange([Batch(2, [Ack(*token(lease), Spent(1, 2))])], Demand(1))
    look()
    # More slots than find their lines at once when the policy changes.
    many = [Push(0, f"many-{number}", b"", b"%020d" % number) for number in range(1200)]
    for number in range(6):
        await first.exchange([Batch(3 + number, many[number * 200 : number * 200 + 200])], None)
    await first.close()
    second = frontier(url, name, clock, "sunday")
    await second._session.enter(last_batch=0, flush=False)  # noqa: SLF001 - as far as one comes that is killed in `join`
    look()
    await second.join()
    clock.now_ms += 10_000
    rest = list[Lease]()
    while leases := (await second.exchange([], Demand(2000, is_fair=False))).leases:
        rest += leases
    await second.exchange([Batch(1, [ack(lease) for lease in rest])], Demand(0, is_idle=True))
    await second.leave()
    await second.close()


def remove_delayed(url: str, name: str) -> None:
    """Do what only an operator does."""
    link = Link(url)
    operator = Operator(link, name)
    assert operator.remove([stored for stored in operator.requests.each() if stored.state == "delayed"]) == 1
    link.close()


def frontier(
    url: str, name: str, clock: UnixClock, crawl: str = "monday", policy: Policy | None = None
) -> RedisFrontier:
    config = FrontierConfig(name, ("a",), "w1", crawl_id=crawl, clock=clock, dead_limit=1, seen_name=name)
    config = replace(config, seen=SeenPolicy(revisit_s=60), spider="{}")
    return RedisFrontier(replace(config, policy=policy or Policy()), Connection(url))


def token(lease: Lease) -> tuple[int, int]:
    return lease.lease_id, lease.attempt


def ack(lease: Lease) -> Ack:
    return Ack(*token(lease))


# Links


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    for target in links(page):
        if ADDRESS.match(target):
            continue
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


# Figures


def test_figures_quoted_from_the_performance_page_are_those_of_its_tables() -> None:
    crawling = (REPOSITORY / "docs" / "performance.md").read_text("utf-8").split("\n## ")[1]
    speeds, _, trips = (
        dict(re.findall(r"^\| (ours, Redis .*?|scrapy-redis, .*?) +\| +([\d.]+)", table, re.MULTILINE))
        for table in crawling.split("\n| scheduler ")[1:4]
    )
    figures = {*speeds.values(), f"{float(trips['ours, Redis near']):.2f}", f"{float(trips['scrapy-redis, near']):.0f}"}

    for page in (README, REPOSITORY / "docs" / "comparison.md"):
        assert figures <= set(re.findall(r"\d+(?:\.\d+)?", page.read_text("utf-8"))), page
