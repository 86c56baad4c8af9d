"""The test of the tests: each bug that is planted in the package is found."""

from __future__ import annotations

import pytest

from tests.simulation.planted import BUGS, Bug
from tests.simulation.runs import first_failure, in_a_thread
from tests.simulation.schedule import Options
from tests.simulation.server import RealServer

MOST_SEEDS = 400


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Bug, real: RealServer) -> None:
    options = bug.options(real.scripts)

    seeds = range(bug.first_seed, bug.first_seed + MOST_SEEDS)
    failure = in_a_thread(lambda: first_failure(seeds, real, options))

    assert failure is not None


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_schedules_that_find_a_bug_pass_without_it(bug: Bug, real: RealServer) -> None:
    options = Options(focus=bug.focus, has_policies=bug.has_policies)

    failure = in_a_thread(lambda: first_failure(range(bug.first_seed, bug.first_seed + 2), real, options))

    assert failure is None, f"with {options}: {failure}"
