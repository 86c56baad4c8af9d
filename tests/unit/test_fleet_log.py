"""The log line about the whole crawl."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest
from scrapy import Spider

from scrapy_prioqueue.frontier.base import Depth
from scrapy_prioqueue.logs import name_crawl
from scrapy_prioqueue.queues.fleet import COUNTS_AGE_S, FleetLog
from tests.support.clocks import Clock

JOINED = Depth(accepted=10, pending=10, workers=1)
MORE = Depth(accepted=130, pending=60, delayed=1, leased=8, done=60, dead=1, workers=3)


class Bench:
    """A log, the pump from which it gets its counts, and the time."""

    def __init__(self, interval_s: float = 60.0) -> None:
        self.clock = Clock()
        self.pump = SimpleNamespace(
            depth=JOINED,
            is_away=False,
            is_paused=False,
            asked=[],
            is_current=True,
            frontier=SimpleNamespace(config=SimpleNamespace(name="books")),
        )
        self.pump.refresh = self.refresh
        self.spider = Spider("books")
        name_crawl(self.spider, "books", "w1")
        self.log = FleetLog(self.spider, cast("Any", self.pump), interval_s, self.clock)
        self.log.begin(JOINED)

    def refresh(self, max_age_s: float) -> bool:
        self.pump.asked.append(max_age_s)
        return bool(self.pump.is_current)

    def look(self, seconds: float, depth: Depth) -> None:
        """Look after this time, with these counts."""
        self.clock.advance(seconds)
        self.pump.depth = depth
        self.log.look()


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.INFO)
    return lambda: [record.getMessage().partition("books: ")[2] for record in caplog.records]


def test_a_line_has_counts_rates_since_the_last_one_and_the_time_left(lines: Any) -> None:
    bench = Bench()
    bench.look(59, JOINED)
    bench.look(1, MORE)
    bench.look(61, Depth(accepted=160, pending=20, leased=9, done=130, dead=1, workers=3))

    assert lines() == [
        "60 pending, 1 delayed, 8 leased, 60 done (at 60/min), 1 dead, 130 accepted (at 120/min), workers alive: 3;"
        " growing",
        "20 pending, 0 delayed, 9 leased, 130 done (at 69/min), 1 dead, 160 accepted (at 30/min), workers alive: 3;"
        " about 44 s left at this rate",
    ]


def test_fields_of_a_line_name_the_crawl_and_are_no_attributes_of_other_records(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench()
    bench.look(60, MORE)

    fields = {name: value for name, value in vars(caplog.records[0]).items() if name.startswith("prioqueue_")}
    assert fields == {
        "prioqueue_frontier": "books",
        "prioqueue_worker": "w1",
        "prioqueue_event": "fleet",
        "prioqueue_pending": 60,
        "prioqueue_delayed": 1,
        "prioqueue_leased": 8,
        "prioqueue_done": 60,
        "prioqueue_dead": 1,
        "prioqueue_accepted": 130,
        "prioqueue_workers": 3,
        "prioqueue_done_per_s": 1.0,
        "prioqueue_accepted_per_s": 2.0,
        "prioqueue_drained_per_s": pytest.approx(-59 / 60),
        "prioqueue_left_s": None,
        "prioqueue_is_current": True,
    }


def test_counts_that_are_old_are_asked_for_first(lines: Any) -> None:
    bench = Bench()
    bench.pump.is_current = False
    bench.look(60, JOINED)
    assert (bench.pump.asked, lines()) == ([COUNTS_AGE_S], [])

    bench.pump.is_current = True
    bench.look(1, MORE)
    assert len(lines()) == 1


@pytest.mark.parametrize(
    ("depth", "state", "outlook"),
    [
        (MORE, {"is_away": True}, "as last known, since the server doesn't answer"),
        (MORE, {"is_paused": True}, "paused by an operator"),
        (JOINED, {}, "time left unknown"),
        (Depth(accepted=10, done=10, workers=1), {}, "nothing left"),
        (Depth(accepted=3, pending=3, workers=1), {}, "time left unknown"),
    ],
)
def test_a_line_ends_with_what_is_to_be_expected(
    lines: Any, depth: Depth, state: dict[str, bool], outlook: str
) -> None:
    bench = Bench()
    vars(bench.pump).update(state)
    bench.look(60, depth)

    assert lines()[0].endswith(f"; {outlook}")


def test_counters_that_began_anew_have_no_rates(lines: Any) -> None:
    bench = Bench()
    bench.look(60, Depth(accepted=3, pending=3, workers=1))

    assert "0 done, 0 dead, 3 accepted, workers alive: 1;" in lines()[0]


def test_rates_after_an_outage_are_those_since_its_beginning(lines: Any) -> None:
    bench = Bench()
    bench.pump.is_away = True
    bench.look(60, JOINED)
    bench.look(60, JOINED)
    bench.pump.is_away = False
    bench.look(60, MORE)

    assert "0 done, 0 dead, 10 accepted, workers alive: 1; as last known" in lines()[1]
    assert "60 done (at 20/min)" in lines()[2]


def test_without_an_interval_there_is_no_line(lines: Any) -> None:
    Bench(interval_s=0.0).look(1e6, MORE)

    assert not lines()
