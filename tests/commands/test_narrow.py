"""The tables of all verbs on a narrow terminal."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from scrapy_prioqueue.frontier.labels import Label, labelled
from scrapy_prioqueue.frontier.policy import Budget, Policy, SlotLimit
from tests.commands.conftest import Run
from tests.commands.requests import page
from tests.contract.backends import RedisBackend, fail

VERBS = ("list", "status", "workers", "slots", "peek", "find .", "limit", "budget", "budget shop-1.example", "dead")

WITHOUT_HEADING = ("URL", "average", "done", "pid")
"""Columns whose cells below a row explain themselves, or are empty here."""

POLICY = Policy(
    slots={"*": SlotLimit(delay=30, concurrency=2, burst=3)},
    budgets={"*": Budget(pages=4_000_000, renders=3, bytes=10**9, seconds=90_000)},
)


@pytest.mark.parametrize("width", [60, 40])
def test_tables_fit_and_lose_no_column(run: Run, backend: RedisBackend, width: int) -> None:
    worker = backend.join("host-a.internal.example:4711:9f3c1d", tiers=("a", "b"), policy=POLICY, clock=None)
    for number in range(3):
        request = page(f"https://shop-{number}.with-a-long-name.example/a/path/to/product")
        worker.commit(replace(request, payload=labelled(request.payload, Label(False, (f"shop-{number}.example",)))))
    worker.commit(fail(worker.lease(2)[0], reason="callback", detail="ValueError: " + "x" * 90))

    for verb in VERBS:
        wide, narrow = (run(*verb.split(), columns=columns).out for columns in (300, width))
        assert max(map(len, narrow.splitlines())) <= width, narrow
        headings, _, rows = wide.partition("\n─")
        for heading in re.split(r" {3,}", headings.splitlines()[-1].strip()) if rows else ():
            is_shown = re.search(rf"(?<!\w){re.escape(heading)}(?!\w)", narrow)
            assert is_shown or heading in WITHOUT_HEADING, (heading, narrow)
