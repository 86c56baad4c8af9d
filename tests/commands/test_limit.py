"""`scrapy frontier limit` and `budget`: list, show, change."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from scrapy_prioqueue.frontier.base import Ack, Demand, Spent
from scrapy_prioqueue.frontier.policy import Budget, Closing, Policy, SlotLimit, Throttle
from scrapy_prioqueue.frontier.redis.keys import Keys
from tests.commands.conftest import Run
from tests.commands.requests import page, with_budgets
from tests.contract.backends import RedisBackend, Worker
from tests.support.servers import RedisServer

LIMITS = Policy(
    slots={"*.shop.example": SlotLimit(delay=0.5, concurrency=2, burst=3), "*": SlotLimit(concurrency=8)},
    throttle=Throttle(start_delay_s=0.2),
)


def lines(text: str) -> list[list[str]]:
    """Return the words of each line."""
    return [line.split() for line in text.splitlines()]


# Limits


def test_limits_of_all_sources_are_listed(
    run: Run, backend: RedisBackend, redis_server: RedisServer, frontier_name: str
) -> None:
    backend.join("w1", policy=LIMITS)
    assert run("limit", "slow.example", "--delay", "90").code == 0
    redis_server.client().hset(Keys(frontier_name).of("delays"), mapping={"ca.example": 7000, "ta.example": 250})

    ran = run("limit", columns=80)

    assert max(map(len, ran.out.splitlines())) <= 80
    assert lines(ran.out)[2:] == [
        ["*", "-", "8", "-", "settings"],
        ["*", "0.2", "s", "-", "-", "throttle"],
        ["*.shop.example", "0.5", "s", "2", "3", "settings"],
        ["slow.example", "1", "min", "30", "s", "-", "-", "operator"],
        ["a.example", "7", "s", "-", "-", "robots.txt"],
        ["a.example", "0.25", "s", "-", "-", "throttle"],
    ]
    assert "… and 4 more: --limit 20" in run("limit", "-n", "2").out
    found = run("limit", "--json").json
    assert found[2] == {
        "slot": "*.shop.example",
        "source": "settings",
        "delay": 0.5,
        "concurrency": 2,
        "burst": 3,
    }


def test_no_slot_has_a_limit(run: Run, backend: RedisBackend) -> None:
    backend.join("w1")

    assert run("limit").out == "no slot has a limit\n"
    assert run("limit", "--json").json == []
    assert lines(run("limit", "a.example").out)[1:] == [
        ["source", "none"],
        ["in", "force", "no", "limit"],
        ["leased", "0"],
        ["next", "at", "any", "time"],
    ]


def test_limit_of_a_slot_is_shown_with_all_its_sources(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1", policy=LIMITS, clock=None)
    worker.commit(*(page(f"https://a.shop.example/{number}") for number in range(9)))
    assert len(worker.lease(9)) == 2

    shown = run("limit", "a.shop.example", columns=80).out

    assert max(map(len, shown.splitlines())) <= 80
    assert "settings  delay 0.5 s, concurrency 2, burst 3 (as *.shop.example)" in shown
    assert "settings  concurrency 8 (as *)" in shown
    assert "in force  a request every 0.5 s (2/s), from the settings; 2 at a time" in shown
    assert "leased    2 of 2" in shown
    assert "next      when a lease has ended" in shown
    found = run("limit", "a.shop.example", "--json").json
    assert [entry["slot"] for entry in found["entries"]] == ["*.shop.example", "*"]
    assert found["now"]["limit"] == {"delay": 0.5, "concurrency": 2, "burst": 3, "delay_by": "settings"}


def test_limit_is_changed_bit_by_bit_and_taken_back(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1", policy=LIMITS, clock=None)
    worker.commit(*(page(f"https://a.shop.example/{number}") for number in range(9)))

    shown = run("limit", "a.shop.example", "--delay", "0.3", "--concurrency", "0").out
    assert shown.startswith("a.shop.example, from now on for all workers:\n")
    assert "operator  delay 0.3 s, concurrency any" in shown
    assert "operator  delay 0.3 s, concurrency any, burst 9" in run("limit", "a.shop.example", "--burst", "9").out
    assert len(worker.lease(20)) == 9
    assert run("limit", "*.shop.example", "--concurrency", "3").code == 0
    shown = run("limit", "a.shop.example", "--reset").out
    assert "0.3" not in shown
    assert "operator  concurrency 3 (as *.shop.example)" in shown
    assert "operator  concurrency 3" in run("limit", "*.shop.example").out
    assert "now" in run("limit", "*.shop.example", "--json").json


def test_a_slot_that_its_site_has_closed_is_shown_and_opened(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1", clock=None)
    worker.commit(page("https://a.example/1"), page("https://a.example/2"))
    worker.exchange(demand=Demand(0, notes=[Closing("a.example", 90_000)]))

    shown = run("limit", "a.example", "--delay", "0.01").out
    assert "is        closed until 20" in shown
    assert "more, by Retry-After; --open opens it" in shown
    assert not worker.lease(1)
    assert run("limit", "a.example", "--json").json["now"]["closed_until_ms"] > 0
    shown = run("limit", "a.example", "--open").out

    assert shown.startswith("a.example, from now on for all workers:\n")
    assert "closed" not in shown
    assert "next      at any time" in shown
    assert len(worker.lease(1)) == 1
    worker.exchange(demand=Demand(0, notes=[Closing("a.example", 90_000)]))
    assert "concurrency 1" in run("limit", "a.example", "--open", "--concurrency", "1").out
    assert "when a lease has ended" in run("limit", "a.example").out


@pytest.mark.parametrize("slot", ["http://me@10.0.0.1:8080", "Proxy 1"])
def test_a_slot_is_limited_and_opened_by_any_name_that_a_spider_gave_it(
    run: Run, backend: RedisBackend, slot: str
) -> None:
    worker = backend.join("w1", clock=None)
    assert "can't be a slot" in run("limit", slot, "--delay", "90").err
    worker.commit(*(replace(page(f"https://a.example/{number}"), slot=slot) for number in range(3)))
    worker.exchange(demand=Demand(0, notes=[Closing(slot, 90_000)]))

    assert "delay 1 min 30 s" in run("limit", slot, "--delay", "90").out
    assert "next      at any time" in run("limit", slot, "--open").out

    assert len(worker.lease(2)) == 1
    assert "source" in run("limit", slot, "--reset").out


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("--delay", "1"), "which slot"),
        (("--open",), "which slot"),
        (("*.a.test", "--open"), "opens a single slot"),
        (("--reset",), "which slot"),
        (("a*", "--delay", "1"), "'a*' must be a slot"),
        (("!a", "--delay", "1"), "must be a non-empty string"),
        (("", "--delay", "1"), "must be a non-empty string"),
        (("http://a.test/page", "--delay", "1"), "a slot is a host, not a URL; write 'a.test'"),
        (("a.test:80",), "write 'a.test'"),
        (("A.test",), "write 'a.test'"),
        (("a.test ", "--reset"), "write 'a.test'"),
        (("a", "--delay", "-1"), "--delay = '-1'"),
        (("a", "--burst", "0"), "--burst = '0'"),
        (("a", "--concurrency", "some"), "--concurrency = 'some'"),
        (("a", "--reset", "--delay", "1"), "give no values with it"),
    ],
)
def test_an_invalid_limit_is_wrong_use(run: Run, backend: RedisBackend, args: tuple[str, ...], text: str) -> None:
    backend.join("w1")

    ran = run("limit", *args)

    assert (ran.code, ran.out) == (2, "")
    assert text in ran.err


def test_a_crawl_that_is_over_takes_neither_limits_nor_budgets(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1")
    assert worker.ask(0, is_idle=True).has_ended

    for verb, *options in (("limit", "--delay", "1"), ("limit", "--open"), ("budget", "--pages", "1")):
        ran = run(verb, "a", *options)
        assert (ran.code, ran.out) == (1, "")
        assert re.search(
            r"the crawl of frontier 'test-.*' ended at 20.*; (limits|caps) that operators set last", ran.err
        )
    assert run("limit").out.startswith("no slot has a limit; the crawl of frontier")
    for args in (("limit",), ("limit", "a"), ("budget",), ("budget", "a")):
        ran = run(*args)
        assert (ran.code, "ended at 20" in ran.out) == (1, True)
        assert run(*args, "--json").code == 1


# Budgets


@pytest.fixture
def worker(backend: RedisBackend) -> Worker:
    """On a crawl in which two keys have been used."""
    policy = Policy(budgets={"*": Budget(pages=4, bytes=1_000_000_000), "big.example": Budget(renders=2, seconds=90)})
    worker = backend.join("w1", policy=policy, clock=None)
    worker.commit(
        *(with_budgets(f"https://www.small.example/{number}", "small.example") for number in range(6)),
        *(with_budgets(f"https://big.example/{number}", "big.example", is_rendered=True) for number in range(1)),
    )
    leases = worker.lease(3)
    worker.send(*(Ack(lease.lease_id, 1, Spent(500_000_000, 60_000)) for lease in leases), demand=None)
    worker.lease(9)
    return worker


def test_budgets_are_listed_those_nearest_to_their_caps_first(run: Run, worker: Worker) -> None:
    ran = run("budget", columns=80)

    assert max(map(len, ran.out.splitlines())) <= 80
    assert [line[0] for line in lines(ran.out)[2:]] == ["small.example", "big.example"]
    assert "1 of 2" in run("budget").out
    found = run("budget", "--json").json
    assert [budget["key"] for budget in found] == ["small.example", "big.example"]
    assert found[1]["caps"]["renders"] == {"value": 2, "source": "settings", "pattern": "big.example"}
    assert found[1]["used"]["renders"] == 1
    assert "… and 1 more: --limit 10" in run("budget", "-n", "1").out


def test_budget_of_a_key_is_shown(run: Run, worker: Worker) -> None:
    shown = lines(run("budget", "big.example", columns=80).out)

    assert shown[0] == ["big.example:"]
    assert shown[3:] == [
        ["pages", "1", "4", "settings", "(as", "*)"],
        ["renders", "1", "2", "settings"],
        ["bytes", "500.0", "MB", "1.0", "GB", "settings", "(as", "*)"],
        ["seconds", "1", "min", "1", "min", "30", "s", "settings"],
    ]
    ran = run("budget", "unknown.example")
    assert (ran.code, lines(ran.out)[3]) == (1, ["pages", "0", "4", "settings", "(as", "*)"])
    assert "*, every key without caps of its own" in run("budget", "*").out


def test_budget_that_is_raised_shows_what_to_put_back(run: Run, worker: Worker, frontier_name: str) -> None:
    assert "requests given up over it" in run("budget", "small.example").out

    shown = run("budget", "small.example", "--pages", "50", "--bytes", "5e12").out

    (said,) = [line for line in shown.splitlines() if "dead letter" in line]
    assert said.endswith(f": scrapy frontier dead replay --reason budget --name {frontier_name} puts them back")
    assert ["bytes", "5.0", "TB", "operator"] in [[*line[:1], *line[3:]] for line in lines(shown)]
    count = int(said.split()[0])
    assert f"{count} of them over small.example" in said
    ran = run("dead", "replay", "--reason", "budget", "--yes")
    assert ran.out.startswith(f"{count} put back")
    assert len(worker.lease(9)) == count
    assert "dead letter" not in run("budget", "small.example", "--reset").out


def test_dead_letters_over_other_budgets_are_no_advice_about_this_one(run: Run, worker: Worker) -> None:
    assert "dead letter" in run("budget", "*", "--pages", "3").out

    assert "dead letter" not in run("budget", "other.example", "--pages", "3").out
    assert "dead letter" not in run("budget", "other.example", "--reset").out


def test_all_keys_are_no_key_that_may_have_been_used(run: Run, backend: RedisBackend) -> None:
    policy = Policy(budgets={"small.example": Budget(pages=1)})
    worker = backend.join("w1", policy=policy, clock=None)
    worker.commit(with_budgets("https://www.small.example/", "small.example"))
    assert len(worker.lease(1)) == 1

    shown = run("budget", "*", "--reset").out

    assert "fetched" not in shown
    assert shown.splitlines()[-1] == "no caps are set for it"


def test_budget_without_budgets_of_the_workers_is_warned_of(run: Run, backend: RedisBackend) -> None:
    backend.join("w1")

    assert run("budget").out == "no budget key has been used yet\n"
    assert "no worker sets PRIOQUEUE_BUDGETS" in run("budget", "a", "--pages", "9").out
    assert run("budget", "--json").json[0]["caps"]["pages"]["source"] == "operator"


def test_odd_keys_are_shown_so_that_a_row_stays_a_row(run: Run, backend: RedisBackend) -> None:
    keys = ("a\nb", "\x1b[2J", "  ", " c")
    worker = backend.join("w1", policy=Policy(budgets={"*": Budget(pages=1)}), clock=None)
    worker.commit(*(with_budgets(f"https://www.small.example/{number}", key) for number, key in enumerate(keys * 2)))
    worker.lease(9)

    listed = run("budget").out.splitlines()[2:]

    shown = ["a\\nb", "\\x1b[2J", "'  '", "' c'"]
    assert sorted(line.split("  1 ")[0].rstrip() for line in listed) == sorted(shown)
    status = run("status").out
    assert any(f"{name} 100% of pages" in status for name in shown)
    assert "\x1b" not in status + run("top", "--count", "1").out
    assert run("budget", "a\nb", "--pages", "3").out.startswith("a\\nb:\n")
    assert "of them over ' c': scrapy" in run("budget", " c", "--pages", "3").out
    assert {budget["key"] for budget in run("budget", "--json").json} == set(keys)
    assert "over budget \\x1b[2J (pages 1 of 1)" in run("explain", "https://www.small.example/1").out
    (blank,) = [letter for letter in run("dead", "--json").json if letter["budgets"] == ["  "]]
    assert "budgets   '  '" in run("show", str(blank["id"])).out


def test_push_gives_requests_their_keys_where_the_settings_have_budgets(run: Run) -> None:
    budgets = {"PRIOQUEUE_BUDGETS": {"*": {"pages": 3}}}

    assert run("push", "https://www.a.com/", settings=budgets).code == 0
    assert run("push", "https://www.b.com/").code == 0

    keys = {found["request"]["url"]: found["budgets"] for found in run("peek", "--json").json}
    assert keys == {"https://www.a.com/": ["a.com"], "https://www.b.com/": []}


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("--pages", "1"), "which budget"),
        (("!a", "--pages", "1"), "must be a non-empty string"),
        (("a", "--pages", "1.5"), "--pages = '1.5'"),
        (("a", "--bytes", "many"), "--bytes = 'many'"),
        (("a", "--bytes", "inf"), "--bytes = 'inf'"),
        (("a", "--seconds", "-1"), "--seconds = '-1'"),
        (("a", "--reset", "--pages", "1"), "give no values with it"),
    ],
)
def test_an_invalid_budget_is_wrong_use(run: Run, backend: RedisBackend, args: tuple[str, ...], text: str) -> None:
    backend.join("w1")

    ran = run("budget", *args)

    assert (ran.code, ran.out) == (2, "")
    assert text in ran.err
