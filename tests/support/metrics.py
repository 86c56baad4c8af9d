"""Reads metrics as Prometheus does."""

from __future__ import annotations

from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families


def metrics_at(url: str) -> dict[tuple[str, ...], float]:
    """Return the values that an endpoint serves, by the name of the metric and the values of its labels."""
    with urlopen(url) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}
