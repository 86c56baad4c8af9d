"""The schedulers that are compared, as Scrapy settings."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEMORY = "Scrapy's, in memory"
DISK = "Scrapy's, on disk"
NEAR = "ours, Redis near"

_OURS = {"SCHEDULER": "scrapy_prioqueue.Scheduler", "PRIOQUEUE_LEASE_TTL": 60}
_SCRAPY_REDIS = {
    "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
    "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
}
_NO_SERVER = "redis://127.0.0.1:1/0"
"""Nobody listens there, so the crawl falls back to the frontier in process."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One scheduler and one distance to Redis.

    Args:
        name: as it is printed.
        settings: Scrapy's.
        uses_redis: whether the server is involved.
        is_slow: it takes part in the first rounds only, so that the benchmark ends in minutes.
        has_job: it keeps its queue in a `JOBDIR`.
    """

    name: str
    settings: Mapping[str, Any]
    uses_redis: bool = True
    is_slow: bool = False
    has_job: bool = False

    def settings_in(self, directory: Path) -> Mapping[str, Any]:
        """Return the settings of a crawl whose files are in that directory."""
        return {**self.settings, "JOBDIR": str(directory / "job")} if self.has_job else self.settings

    def is_wanted(self, texts: Sequence[str]) -> bool:
        """Return whether its name has one of these texts, or there are none; the baseline is always wanted."""
        return self.name == MEMORY or not texts or any(text in self.name for text in texts)


def contenders(near_url: str, far_url: str, distance: str) -> Sequence[Contender]:
    """Return the schedulers to compare; the first is the baseline.

    Args:
        near_url: of the Redis server.
        far_url: of the proxy before it.
        distance: what the proxy adds, in words.
    """
    found = [
        Contender(MEMORY, {}, uses_redis=False),
        Contender(DISK, {}, uses_redis=False, has_job=True),
        Contender("ours, in process", {**_OURS, "PRIOQUEUE_REDIS_URL": _NO_SERVER}, uses_redis=False),
        Contender(NEAR, {**_OURS, "PRIOQUEUE_REDIS_URL": near_url}),
        Contender(f"ours, Redis {distance}", {**_OURS, "PRIOQUEUE_REDIS_URL": far_url}),
    ]
    if has_scrapy_redis():
        found += [
            Contender("scrapy-redis, near", {**_SCRAPY_REDIS, "REDIS_URL": near_url}),
            Contender(f"scrapy-redis, {distance}", {**_SCRAPY_REDIS, "REDIS_URL": far_url}, is_slow=True),
        ]
    return found


def with_policies(near_url: str) -> Mapping[str, Sequence[Contender]]:
    """Return our schedulers, each alone and then with each policy, so loose that nothing ever waits."""
    slots = {"*": {"delay": 1e-5, "concurrency": 1000, "burst": 1000}}
    budgets = {"*": {"pages": 10**9, "renders": 10**9, "bytes": 10**15, "seconds": 1e9}}
    policies: Mapping[str, Mapping[str, Any]] = {
        "no policy": {},
        "limits": {"PRIOQUEUE_SLOTS": slots},
        "budgets": {"PRIOQUEUE_BUDGETS": budgets},
        "weights": {"PRIOQUEUE_TIER_WEIGHTS": {"urgent": 8, "high": 4, "normal": 2, "low": 1}},
    }
    urls = {"in process": _NO_SERVER, "Redis near": near_url}
    return {
        where: [
            Contender(f"{where}, {name}", {**_OURS, "PRIOQUEUE_REDIS_URL": url, **policy}, uses_redis=url == near_url)
            for name, policy in policies.items()
        ]
        for where, url in urls.items()
    }


def has_scrapy_redis() -> bool:
    """Return whether it is installed, as the extra `bench` does."""
    return importlib.util.find_spec("scrapy_redis") is not None
