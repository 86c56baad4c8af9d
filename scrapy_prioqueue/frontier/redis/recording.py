"""Writes the record of this worker's run, over a connection of its own, so that no exchange waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis

from scrapy_prioqueue.errors import FrontierFull, FrontierUnavailable
from scrapy_prioqueue.frontier.base import FrontierConfig, Report
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.scripts import Argument
from scrapy_prioqueue.frontier.redis.session import Session
from scrapy_prioqueue.frontier.redis.wire import OK, decoded
from scrapy_prioqueue.frontier.runs import FleetTotals, read_run, read_stats, record_json, stats_json, totals_of


class Recorder:
    """Stores the record of one run.

    Args:
        session: of the worker.
        connection: of its exchanges; this one uses it only when the worker leaves.
    """

    def __init__(self, config: FrontierConfig, session: Session, connection: Connection, keys: Keys) -> None:
        self._config = config
        self._session = session
        self._connection = connection
        self._keys = keys
        self._own: Connection | None = None
        self._crawl: tuple[str, str] = ("", "")
        """Epoch and id of the crawl, as read last."""

    async def record(self, report: Report) -> float:
        """Store a report; return the seconds until a sample is due.

        Raises:
            FrontierUnavailable: the server can't be used, or has lost the crawl.
        """
        if self._own is None:
            # Its view of the server is apart from that of the exchanges, which must notice a failover themselves.
            self._own = self._connection.twin()
        name, arguments = await self.call(report, self._own)
        (reply,) = await self._own.run([(name, self._keys.state, arguments)])
        if isinstance(reply, FrontierFull) or reply[0] != OK:
            raise FrontierUnavailable(self._own.address, f"it did not store the record of the run: {reply}")
        return int(reply[1]) / 1000

    async def call(self, report: Report, connection: Connection | None = None) -> tuple[str, Sequence[Argument]]:
        """Return the script call that stores a report."""
        session, config = self._session, self._config
        if self._crawl[0] != session.epoch:
            # A worker without an id of its own joins a crawl with any id.
            crawl_id = await (connection or self._connection).ask(
                lambda client: client.hget(self._keys.state, "crawl_id")
            )
            self._crawl = (session.epoch, decoded(crawl_id or b""))
        record = record_json(
            report.figures,
            worker=config.worker,
            epoch=session.epoch,
            joined_ms=session.joined_ms,
            crawl_id=self._crawl[1],
            host=config.worker_info.get("host", ""),
            pid=config.worker_info.get("pid", ""),
        )
        is_closing = int(bool(report.figures.reason))
        stats = stats_json(report.stats)
        return "record", (session.now(), session.epoch, session.run_id, record, stats, is_closing, session.ttl_ms)

    async def totals(self) -> FleetTotals | None:
        """Return the totals of all runs of this crawl, which have ended; None if they can't be read."""
        try:
            ids, runs, stats = await self._connection.ask(self._read_all)
        except FrontierUnavailable:
            return None
        found = [
            (run, read_stats(numbers))
            for (run_id, at), value, numbers in zip(ids, runs, stats, strict=True)
            if (run := read_run(decoded(run_id), value or b"", int(at), ())) is not None
            and run.epoch == self._session.epoch
        ]
        return totals_of([run for run, _ in found], [numbers for _, numbers in found])

    async def _read_all(self, client: Redis) -> tuple[Any, Any, Any]:
        since_ms, of = self._session.created_ms, self._keys.of
        ids: Any = await client.zrange(of("ran"), since_ms, "+inf", byscore=True, withscores=True)
        names = [run_id for run_id, _ in ids]
        if not names:
            return (), (), ()
        pipeline = client.pipeline(transaction=False)
        pipeline.hmget(of("runs"), names)
        pipeline.hmget(of("numbers"), names)
        runs, stats = await pipeline.execute()
        return ids, runs, stats

    async def close(self) -> None:
        """Close the connection."""
        if self._own is not None:
            await self._own.close()
