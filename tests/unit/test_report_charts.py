"""The charts of a report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scrapy_prioqueue.commands.reporting.charts import (
    Chart,
    brief,
    charts_of,
    per_second,
    rounded_up,
    seconds,
    thinned_out,
)
from scrapy_prioqueue.frontier.redis.operators.history import History, Sample, with_rates

pytestmark = pytest.mark.in_process

SAMPLE = Sample(0, tiers=(1, 2), slots=3, waiting=1)


def drawn(*samples: Sample) -> dict[str, Chart]:
    return {chart.title: chart for chart in charts_of(History(("high", "low"), 2.0, samples))}


def test_one_sample_makes_no_chart() -> None:
    assert drawn(SAMPLE) == {}


def test_areas_are_stacked_with_the_best_tier_on_top() -> None:
    chart = drawn(SAMPLE, replace(SAMPLE, ms=1000, tiers=(4, 4), delayed=2))["Waiting requests by tier"]

    assert [(each.name, each.most) for each in chart.series] == [("high", "4"), ("low", "4"), ("delayed", "2")]
    assert [each.latest for each in chart.series] == ["4", "4", "2"]
    assert chart.top == "10"
    high, low, delayed = (each.path for each in chart.series)
    assert high == "M0 140L720 0L720 80L0 160Z"
    assert low == "M0 160L720 80L720 160L0 200Z"
    assert delayed == "M0 200L720 160L720 200L0 200Z"


def test_a_line_has_gaps_where_nothing_is_known() -> None:
    times = [replace(SAMPLE, ms=1000 * number, latency=[1]) for number in range(5)]
    known = [replace(each, latency_p50_s=value) for each, value in zip(times, [1, 2, None, 1, None], strict=True)]

    chart = drawn(*known)["Latency of exchanges"]

    assert chart.series[0].path == "M0 100L180 0 M540 100h.1"
    assert (chart.series[0].most, chart.series[1].path) == ("2.0 s", "")


def test_charts_of_what_never_happened_are_left_out() -> None:
    quiet = drawn(SAMPLE, replace(SAMPLE, ms=1))
    busy = drawn(SAMPLE, replace(SAMPLE, ms=1, retries=1, letters={"download": 2}, memory=1, latency=[1]))

    assert set(busy) - set(quiet) == {
        *("Latency of exchanges", "Retries per second", "Dead letters by reason", "Memory of Redis"),
    }


@pytest.mark.parametrize(
    ("value", "top"),
    [(0, 1), (0.003, 0.004), (0.07, 0.08), (1, 1), (3, 4), (9, 10), (10, 10), (11, 20), (99.9, 100), (1.1e9, 2e9)],
)
def test_the_scale_ends_with_a_round_number(value: float, top: float) -> None:
    assert rounded_up(value) == pytest.approx(top)


def test_values_are_short() -> None:
    assert [brief(value) for value in (0, 0.5, 7, 9999, 12_345, 999_999, 1_234_567, 2.5e9)] == [
        *("0", "0.5", "7", "9,999", "12.3 k", "1 M", "1.23 M", "2.5 G"),
    ]
    assert [per_second(value) for value in (0, 0.123, 4.5, 1234)] == ["0/s", "0.12/s", "4.5/s", "1,234/s"]
    assert [seconds(value) for value in (0.0004, 0.12, 3)] == ["0.4 ms", "120 ms", "3.0 s"]


def test_small_charts_have_fewer_samples_with_rates_over_longer_times() -> None:
    samples = with_rates([replace(SAMPLE, ms=1000 * number, done=number**2) for number in range(10)])

    found = thinned_out(samples, 4)

    assert [(each.ms, each.done_per_s) for each in found] == [(0, None), (3000, 3), (6000, 9), (9000, 15)]
    assert thinned_out(samples, 10) is samples
