"""Hundreds of random schedules of faults: no request is lost and the crawl ends."""

from __future__ import annotations

import pytest

from tests.simulation.runs import first_failure, in_a_thread, trace_of
from tests.simulation.server import RealServer

SEEDS_PER_TEST = 25
SEEDS = 150
"""Bugs that need nothing to be frequent show themselves within 90; test_planted_bugs.py has what finds the others."""


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_no_request_is_lost_and_the_crawl_ends(first: int, real: RealServer) -> None:
    failure = in_a_thread(lambda: first_failure(range(first, first + SEEDS_PER_TEST), real))

    assert failure is None, failure


@pytest.mark.parametrize("seed", [3, 22, 165])
def test_a_seed_replays_exactly(seed: int, real: RealServer) -> None:
    once, again = (in_a_thread(lambda: trace_of(seed, real)) for _ in range(2))

    assert once == again
    assert len(once[0]) > 50
