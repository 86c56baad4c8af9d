"""All kinds of faults at once, chosen by a random seed; the long form is `benchmarks/chaos.py`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from shop_chaos.crawl import ChaosCrawl, Plan
from shop_chaos.faults import FAULTS

APPENDFSYNC = "everysec"
"""With "everysec" a killed server has forgotten its last second."""


@pytest.mark.timeout(300)
def test_invariant_1_chaos_loses_nothing_and_leaves_nothing(lottery: random.Random, tmp_path: Path) -> None:
    plan = Plan(
        faults=list(FAULTS),
        seed=str(lottery.randrange(2**32)),
        storm_s=15,
        workers=4,
        products=240,
        latency_s=0.8,
        appendfsync=APPENDFSYNC,
    )
    crawl = ChaosCrawl(tmp_path / "chaos", plan)

    outcome = crawl.run()

    print(plan)
    print(crawl.events)
    assert outcome.faults.total() > 0
    assert outcome.complaints == []
