"""Outages cause few repeated pages: several workers on a site with many links, without other faults."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from scrapy_prioqueue.pump.outage import Repeats
from scrapy_prioqueue.pump.shares import Shares
from tests.simulation import worker as worker_module
from tests.simulation.ledger import Worker
from tests.simulation.runs import in_a_thread
from tests.simulation.schedule import Options, Schedule, run_schedule
from tests.simulation.server import RealServer
from tests.simulation.site import SLOTS, Page

PAGES, LINKS = 120, 6
ABSENCE_S = 8.0
SEEDS = range(4)

EACH_TAKES_ALL: Sequence[tuple[Any, str, object]] = [
    (Shares, "is_mine", lambda *_: True),
    (Repeats, "may_start", lambda _: True),
]
"""A planted bug: what a worker finds without the server it starts."""


class Outage(Schedule):
    """A crawl by two to four workers, in the middle of which the server is away."""

    def __init__(self, seed: int, real: RealServer, options: Options) -> None:
        super().__init__(seed, real, options)
        self.fetched: Counter[str] = Counter()
        self.events = {}
        self.weather.calm_down()
        chance = random.Random(seed)
        names = [f"p{number}" for number in range(PAGES)]
        pages = {name: Page(name, 0, SLOTS[number % 2], 0.2, 0.0) for number, name in enumerate(names)}
        for number, name in enumerate(names):
            pages[name].links.extend({*names[number + 1 : number + 3], *chance.sample(names, LINKS - 2)})
        self.site.pages, self.site.starts = pages, names[:1]
        note = self.ledger.note_finished

        def note_finished(worker: Worker, name: str) -> None:
            note(worker, name)
            self._note(name)

        self.ledger.note_finished = note_finished  # type: ignore[method-assign,assignment]

    async def run(self) -> None:
        for _ in range(1 + self.seed % 3):
            self._start_worker_in(0.5)
        await super().run()

    def _note(self, name: str) -> None:
        self.fetched[name] += 1
        if self.fetched.total() == PAGES // 3:
            self.server.go_away(ABSENCE_S)


def repeats(real: RealServer, patches: Sequence[tuple[Any, str, object]] = ()) -> list[int]:
    """Return how many pages were fetched again, by seed."""
    options = Options(patches=[(worker_module, "OUTBOX_LIMIT", 1000), *patches], has_policies=False)
    found = []
    for seed in SEEDS:
        schedule = run_schedule(seed, real, options, Outage)
        assert isinstance(schedule, Outage)
        found.append(schedule.fetched.total() - len(schedule.fetched))
    return found


def test_outage_costs_few_repeats_and_many_where_each_worker_takes_all(real: RealServer) -> None:
    few = in_a_thread(lambda: repeats(real))
    many = in_a_thread(lambda: repeats(real, EACH_TAKES_ALL))

    print(f"repeats of {PAGES} pages by seed: {few}, and {many} with the planted bug")
    allowed = 0.05 * PAGES * len(SEEDS)
    assert sum(few) <= allowed
    assert sum(many) > allowed
