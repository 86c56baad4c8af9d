"""Which drawings the pages have; nothing else lives here."""

from __future__ import annotations

import fleet
import workers
from crawl import SPEED
from plots import Plot
from sizing import PENDING, SEEN

DRAWINGS = (
    Plot(
        name="crawl",
        benchmark="crawl",
        table=SPEED,
        y=("speed", "processor time"),
        y_label="ratio to Scrapy's, in memory",
        goals=((1.0, ""),),
    ),
    Plot(
        name="scheduler",
        benchmark="scheduler",
        table="Processor time against Scrapy's memory scheduler",
        y=("enqueue, new", "enqueue, known here", "dequeue and done"),
        y_label="ratio to Scrapy's, in memory",
        goals=((1.0, ""),),
    ),
    Plot(
        name="flat",
        benchmark="flat",
        table="What push, lease and ack cost by size",
        y=("push, µs", "lease, µs", "ack, µs"),
        y_label="Redis's processor time, µs per request",
    ),
    Plot(
        name="fleet",
        benchmark="fleet",
        table=fleet.SPEED,
        x="workers",
        y=("requests/s",),
        by="",
        x_label="workers, pages that take no time",
        y_label="requests/s",
    ),
    Plot(
        name="exchanges",
        benchmark="fleet",
        table=fleet.SIGHT,
        x="workers",
        y=("p50, ms", "p99, ms"),
        x_label="workers, pages that take time",
        y_label="ms per exchange, as a worker sees it",
    ),
    Plot(
        name="workers",
        benchmark="workers",
        table=workers.SPEED,
        y=("pages/s",),
        labels=("scheduler", "workers"),
        x_label="scheduler and number of workers",
        y_label="pages/s",
    ),
    Plot(
        name="seen",
        benchmark="seen",
        table=SEEN,
        x="URLs",
        y=("bytes per URL",),
        by="mode",
        x_label="URLs",
        y_label="bytes of Redis's memory per URL",
        is_log=True,
        is_log_y=True,
    ),
    Plot(
        name="seen-time",
        benchmark="seen",
        table=SEEN,
        x="URLs",
        y=("insert, µs",),
        by="mode",
        x_label="URLs",
        y_label="Redis's time per insert, µs",
        is_log=True,
    ),
    Plot(
        name="pending",
        benchmark="pending",
        table=PENDING,
        y=("bytes per request",),
        by="",
        labels=("requests", "slots"),
        x_label="requests, and number of slots",
        y_label="bytes of Redis's memory",
    ),
)
