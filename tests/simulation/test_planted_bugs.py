"""The simulation finds each bug that is planted in the package."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.simulation.planted import BUGS, Bug
from tests.simulation.runs import first_failure, in_a_thread
from tests.simulation.schedule import Options
from tests.simulation.server import RealServer

MOST_SEEDS = 400


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found_and_nothing_without_it(bug: Bug, real: RealServer) -> None:
    def failing_seed(seeds: Iterable[int], options: Options) -> int | None:
        return next((seed for seed in seeds if first_failure([seed], real, options)), None)

    seeds = range(bug.first_seed, bug.first_seed + MOST_SEEDS)
    seed = in_a_thread(lambda: failing_seed(seeds, bug.options(real.scripts)))

    assert seed is not None
    print(f"found by seed {seed}")
    without = Options(focus=bug.focus, has_policies=bug.has_policies)
    failure = in_a_thread(lambda: first_failure([seed], real, without))
    assert failure is None, f"with {without}: {failure}"
