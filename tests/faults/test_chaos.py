"""All kinds of faults at once, chosen by a random seed; the long form is `benchmarks/chaos.py`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from shop_chaos.crawl import ChaosCrawl, Plan
from shop_chaos.faults import FAULTS

APPENDFSYNC = "everysec"
"""With "everysec" a killed server has forgotten its last second."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("faults", "workers"),
    [
        pytest.param(list(FAULTS), 4, id="everything"),
        pytest.param(["cut", "delay", "hold", "halfclose"], 2, id="network"),
    ],
)
def test_invariant_1_chaos_loses_nothing_and_leaves_nothing(
    faults: Sequence[str], workers: int, lottery: random.Random, tmp_path: Path
) -> None:
    plan = Plan(
        faults=faults,
        seed=str(lottery.randrange(2**32)),
        storm_s=15,
        workers=workers,
        products=240,
        latency_s=0.2 * workers,
        appendfsync=APPENDFSYNC,
    )
    crawl = ChaosCrawl(tmp_path / "chaos", plan)

    outcome = crawl.run()

    print(plan)
    print(crawl.events)
    assert outcome.faults.total() > 0
    assert outcome.complaints == []
