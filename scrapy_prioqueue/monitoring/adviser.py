"""The advice to autoscalers: as an answer over HTTP, and as a key in Redis."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

from scrapy_prioqueue.errors import FrontierFull, PrioQueueError
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.inspector import Inspector
from scrapy_prioqueue.monitoring.reading import FrontierReading
from scrapy_prioqueue.monitoring.scaling import Advice, Goals, Scaler
from scrapy_prioqueue.monitoring.serving import App
from scrapy_prioqueue.monitoring.work import read_work
from scrapy_prioqueue.settings import Config

SCALE_PATH = "/api/v1/scale"

READ_EVERY_S = 15.0

EXPIRY_S = 300.0
"""Seconds after which the key expires, so that workers don't run for ever if nobody updates it."""


class FrontierMissing(PrioQueueError):
    """There is no frontier, and it isn't known whether there was one before: the server may have lost it just now."""


class Adviser:
    """Reads a frontier and says how many workers are useful."""

    def __init__(self, config: Config, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        goals = Goals(config.scale_drain_time_s, config.scale_min, config.scale_max)
        self._scaler = Scaler(goals, config.lease_ttl_s)

    def read(self, inspector: Inspector) -> Advice:
        """Read the frontier and return the advice.

        Raises:
            FrontierMissing: there is no frontier, and this adviser has run too briefly to know whether there was one.
        """
        config = self._config
        work = read_work(
            inspector,
            config.seeds_keys,
            places=config.concurrent_requests,
            places_per_slot=config.concurrent_requests_per_domain,
        )
        if self._scaler.is_unknown(work, self._clock()):
            raise FrontierMissing(
                f"there is no frontier {inspector.name!r} at {inspector.link.address}: no crawl has begun, or the"
                " server has lost it, and its workers restore it"
            )
        return self._scaler.advise(work, self._clock())

    def answer(self, reading: FrontierReading) -> tuple[int, dict[str, Any]]:
        """Return the status and the document of an answer over HTTP."""
        # The advice is kept for a while, but not beyond the beginning of an outage.
        reading.get("clock", Inspector.now_ms)
        found = reading.get("scale", self.read, interval_s=READ_EVERY_S)
        if found.value is None or found.trouble:
            return 503, {"error": found.trouble}
        return 200, asdict(found.value)


def scale_app(config: Config, reading_of: Callable[[str], FrontierReading | None]) -> App:
    """Return a WSGI application that answers with the advice about a frontier as JSON.

    Args:
        reading_of: returns the reading of a frontier, given its name, or an empty one for the only frontier; None if
            there is none.
    """
    advisers: dict[str, Adviser] = {}

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        name = parse_qs(environ.get("QUERY_STRING", "")).get("name", [""])[0]
        reading = reading_of(name)
        status, document = 404, {"error": f"which frontier? {SCALE_PATH}?name=NAME, one of those that are served here"}
        if reading is not None:
            status, document = advisers.setdefault(name, Adviser(config)).answer(reading)
        headers = [("Content-Type", "application/json"), ("Cache-Control", "no-store")]
        start_response(f"{status} {HTTPStatus(status).phrase}", headers)
        return [json.dumps(document).encode()]

    return answer


def write_scale_key(link: Link, name: str, workers: int) -> None:
    """Store the number of workers as the length of a list, which every release of KEDA can read.

    Raises:
        FrontierFull: the server has no memory for it; the number that is stored stays.
    """
    key = Keys(name).of("scale")
    link = link.at(key)
    if not workers:
        link.pipe(("DEL", key))
        return
    # Renaming replaces the list in one step, so that nobody reads a length in between.
    new, expiry_ms = f"{key}:new", int(EXPIRY_S * 1000)
    entries = ("RPUSH", new, *range(1, workers + 1))
    try:
        link.pipe(("DEL", new), entries, ("PEXPIRE", new, expiry_ms), ("RENAME", new, key))
    except FrontierFull:
        # The workers are needed to make room, so the number that is stored stays.
        link.pipe(("PEXPIRE", key, expiry_ms))
        raise
