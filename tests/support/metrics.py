"""Reads metrics as Prometheus does."""

from __future__ import annotations

import re
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

ADDRESS = re.compile(r"The metrics of this worker are at (\S+)")


def metrics_at(url: str) -> dict[tuple[str, ...], float]:
    """Return the values that an endpoint serves, by the name of the metric and the values of its labels."""
    with urlopen(url) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}


def metrics_of_worker(log: str) -> dict[tuple[str, ...], float]:
    """Return the values that a worker serves at the address in its log, without the label of the frontier."""
    found = ADDRESS.search(log)
    assert found is not None
    # That label comes first.
    return {(name[0], *name[2:]): value for name, value in metrics_at(found[1]).items()}
