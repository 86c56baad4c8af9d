"""Writes the record of this worker's run, over a connection of its own, so that no exchange waits for it."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from scrapy_prioqueue.errors import FrontierFull, FrontierUnavailable
from scrapy_prioqueue.frontier.base import FrontierConfig, Report
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.servers import ServerChanged
from scrapy_prioqueue.frontier.redis.session import Session
from scrapy_prioqueue.frontier.redis.wire import OK, decoded
from scrapy_prioqueue.frontier.runs import (
    Figures,
    FleetTotals,
    read_dropped,
    read_run,
    read_stats,
    record_json,
    stats_json,
    totals_of,
)


class Recorder:
    """Stores the record of one run.

    Args:
        session: of the worker.
        connection: of its exchanges.
    """

    def __init__(self, config: FrontierConfig, session: Session, connection: Connection, keys: Keys) -> None:
        self._config = config
        self._session = session
        # Its view of the server is apart from that of the exchanges, which must notice a failover themselves.
        self._twin = connection.twin
        self._keys = keys
        self._crawl: tuple[str, str] = ("", "")
        """Epoch and id of the crawl, as read last."""

    @cached_property
    def _connection(self) -> Connection:
        return self._twin()

    async def record(self, report: Report) -> float:
        """Store a report; return the seconds until a sample is due.

        Raises:
            FrontierUnavailable: the server can't be used, or has lost the crawl.
        """
        session, figures = self._session, report.figures
        if self._crawl[0] != session.epoch:
            # A worker without an id of its own joins a crawl with any id.
            (crawl_id,) = await self._connection.pipe(("HGET", self._keys.state, "crawl_id"))
            self._crawl = (session.epoch, decoded(crawl_id or b""))
        record, stats = self._json(figures), stats_json(report.stats)
        fields = (
            session.now(),
            session.epoch,
            session.run_id,
            record,
            stats,
            int(bool(figures.reason)),
            session.ttl_ms,
        )
        calls = [("record", self._keys.state, fields)]
        try:
            (reply,) = await self._connection.run(calls)
        except ServerChanged:
            # A report replaces the last one, so it doesn't matter what the server may have lost.
            (reply,) = await self._connection.run(calls)
        if isinstance(reply, FrontierFull) or reply[0] != OK:
            raise FrontierUnavailable(self._connection.address, f"it did not store the record of the run: {reply}")
        return int(reply[1]) / 1000

    def _json(self, figures: Figures) -> str:
        info = self._config.worker_info
        return record_json(
            figures,
            worker=self._config.worker,
            epoch=self._session.epoch,
            joined_ms=self._session.joined_ms,
            crawl_id=self._crawl[1],
            host=info.get("host", ""),
            pid=info.get("pid", ""),
        )

    async def totals(self) -> FleetTotals | None:
        """Return the totals of all runs of this crawl, which have ended; None if they can't be read."""
        try:
            ids, runs, stats, dropped = await self._read_all()
        except FrontierUnavailable:
            return None
        found = [
            (run, read_stats(numbers))
            for (run_id, at), value, numbers in zip(ids, runs, stats, strict=True)
            if (run := read_run(decoded(run_id), value or b"", int(at), ())) is not None
            and run.epoch == self._session.epoch
        ]
        return totals_of([run for run, _ in found], [numbers for _, numbers in found], read_dropped(dropped))

    async def _read_all(self) -> tuple[Any, Any, Any, Any]:
        since_ms, of = self._session.created_ms, self._keys.of
        (ids,) = await self._connection.pipe(("ZRANGEBYSCORE", of("ran"), since_ms, "+inf", "WITHSCORES"))
        names = [run_id for run_id, _ in ids]
        if not names:
            return (), (), (), None
        runs, stats, dropped = await self._connection.pipe(
            ("HMGET", of("runs"), *names), ("HMGET", of("numbers"), *names), ("HGET", of("history"), "dropped")
        )
        return ids, runs, stats, dropped

    async def close(self) -> None:
        """Close the connection."""
        if "_connection" in self.__dict__:
            await self._connection.close()
