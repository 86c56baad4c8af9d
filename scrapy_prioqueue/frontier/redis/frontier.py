"""The frontier in Redis: turns the interface's calls into script calls, and their replies into its data."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from secrets import token_hex
from typing import Any

import msgpack
from redis.asyncio import Redis

from scrapy_prioqueue.errors import (
    CrawlEnded,
    FrontierFull,
    FrontierUnavailable,
    NotPermitted,
)
from scrapy_prioqueue.frontier.base import (
    Batch,
    Committed,
    DeadLetter,
    Demand,
    Exchanged,
    Frontier,
    FrontierConfig,
    Joined,
    Recall,
)
from scrapy_prioqueue.frontier.redis.checks import server_warnings
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.identity import ServerChanged
from scrapy_prioqueue.frontier.redis.journal import Journal, without_claims
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.refusals import CLEAR, WAIT, refusal_of
from scrapy_prioqueue.frontier.redis.scripts import Argument
from scrapy_prioqueue.frontier.redis.wire import (
    ID,
    OK,
    OTHER_CRAWL,
    OUT_OF_STEP,
    SUPERSEDED,
    UNKNOWN_SESSION,
    code_of,
    demand_arguments,
    operation_arguments,
    read_dead_letter,
    read_dead_letters,
    read_exchange,
)

LAYOUT = "1"
"""Version of the layout of keys and values, written in the frontier's state; see docs/architecture.md."""

REAP_LIMIT = 100
"""Expired leases that one exchange gives back, so that no script call runs for long."""

Calls = Sequence[tuple[str, Sequence[Argument]]]

_WAIT_FOR_CLEARING_S = 0.2
_KEYS_PER_CLEAR = 200
_IDS_PER_RECOVER = 200

_BATCHES_PER_RESEND = 8


@dataclass(frozen=True, slots=True)
class _Known:
    """What a server knows of this worker.

    Args:
        position: number of its last batch, None if it doesn't know the worker.
        is_emptied: the crawl isn't there.
        is_over: the crawl has ended.
    """

    position: int | None = None
    is_emptied: bool = False
    is_over: bool = False


class RedisFrontier(Frontier):
    """One worker's view of a frontier in Redis.

    Args:
        config: what this worker brings along.
        connection: to the server; closed with the frontier.
        nonce: of the session, if it has begun.
        epoch: of the crawl that the session is in.
    """

    is_local = False

    def __init__(self, config: FrontierConfig, connection: Connection, *, nonce: str = "", epoch: str = "") -> None:
        self.config = config
        self._connection = connection
        self.address = connection.address
        self._keys = Keys(config.name)
        self._nonce = nonce
        self._epoch = epoch
        self._created_ms = b""
        self._applied = 0
        self._has_changed = False
        self._journal = Journal(config.journal_s, config.journal_limit)
        self._ttl_ms = int(config.lease_ttl_s * 1000)

    async def join(self) -> Joined:
        await self._connection.open()
        warnings = await server_warnings(self._connection)
        self._applied = 0
        self._nonce = token_hex(8)
        self._journal = Journal(self.config.journal_s, self.config.journal_limit)
        reply = await self._enter(position=0, flush=self.config.flush)
        if reply[5].decode() != self.config.order:
            warnings = [*warnings, f"the frontier keeps the order {reply[5].decode()!r} until its crawl ends"]
        recovered, buried = await self._recover(held=(), max_attempts=self.config.max_attempts)
        answer = await self.exchange((), Demand(0))
        return Joined(
            answer.depth,
            is_new=bool(reply[2]),
            seen=reply[3],
            recovered=recovered,
            buried=[*buried, *answer.buried],
            warnings=warnings,
        )

    async def exchange(self, batches: Sequence[Batch], demand: Demand | None) -> Exchanged:
        replies = await self._exchange_replies(batches, demand)
        if replies is None or _is_out_of_touch(replies):
            try:
                return await self._recall(batches) or await self.exchange(batches, demand)
            except CrawlEnded as ended:
                return Exchanged(refusal=ended if batches else None, has_ended=True)
        if any(code_of(reply) == SUPERSEDED for reply in replies):
            raise self._superseded()
        answer = read_exchange(batches, replies, demand)
        self._note_applied(batches[: len(answer.committed)])
        if isinstance(answer.refusal, FrontierFull):
            return replace(answer, refusal=await self._with_memory(answer.refusal))
        return answer

    async def _with_memory(self, full: FrontierFull) -> FrontierFull:
        info = await self._connection.info("memory")
        if info is None:
            return full
        return FrontierFull(f"{full} ({info['used_memory']:,} of {info['maxmemory']:,} bytes used)")

    async def _exchange_replies(self, batches: Sequence[Batch], demand: Demand | None) -> list[Any] | None:
        """Return the replies, None if nothing was sent since the server may have forgotten something."""
        if self._has_changed:
            return None
        try:
            return await self._run(self._exchange_calls(batches, demand), wait=bool(batches))
        except ServerChanged:
            return None

    def _note_applied(self, batches: Sequence[Batch]) -> None:
        if batches:
            self._applied = batches[-1].number
            self._journal.add(batches)

    async def _recall(self, batches: Sequence[Batch]) -> Exchanged | None:
        """Find out what the server knows of this worker, send again what it has forgotten, and nothing new.

        Returns None if it has only dropped a worker that was silent for very long, and lets it in again.

        Raises:
            CrawlEnded: there is no crawl left to take part in.
        """
        found = await self._look_up()
        if found.is_over:
            self._has_changed = False
            raise CrawlEnded(f"the crawl of frontier {self.config.name!r} is over")
        if found.position is None and not (found.is_emptied or self._has_changed):
            await self._enter(position=self._applied, flush=False)
            return None
        oldest, known_position = self._journal.start, found.position or 0
        position, missing = max(known_position, oldest), max(0, oldest - known_position)
        if position != found.position:
            await self._enter(position=position, flush=False)
        resent = await self._resend(self._journal.after(position))
        known = [batch for batch in batches if batch.number <= position]
        committed = await self._confirmed(known) if known else ()
        self._has_changed = False
        return Exchanged(
            committed,
            has_forgotten=found.is_emptied,
            recall=Recall(resent, missing),
        )

    async def _look_up(self) -> _Known:
        epoch, created_ms, phase = await self._connection.ask(
            lambda client: client.hmget(self._keys.state, ["epoch", "created_ms", "phase"])
        )
        session = await self._connection.ask(lambda client: client.hget(self._keys.sessions, self.config.worker))
        is_ours = created_ms == self._created_ms
        is_later = epoch is not None and int(epoch) > int(self._epoch)
        if not is_ours or session is None:
            return _Known(is_emptied=not (is_ours or is_later), is_over=is_later or (is_ours and phase == b"ended"))
        nonce, _, position = session.rpartition(b":")
        if nonce.decode() != self._nonce:
            if self._has_changed:
                # It has forgotten that we joined, and remembers the process before us.
                return _Known()
            raise self._superseded()
        return _Known(position=int(position))

    async def _resend(self, batches: Sequence[Batch]) -> int:
        batches = [Batch(batch.number, without_claims(batch.operations)) for batch in batches]
        for first in range(0, len(batches), _BATCHES_PER_RESEND):
            part = batches[first : first + _BATCHES_PER_RESEND]
            for reply in await self._run(self._exchange_calls(part, None), wait=True):
                if code_of(reply) == OTHER_CRAWL:
                    self._has_changed = False
                    raise CrawlEnded(f"the crawl of frontier {self.config.name!r} is over")
                if code_of(reply) != OK:
                    raise FrontierUnavailable(self.address, f"it has lost its newest writes, and refuses them: {reply}")
        return sum(len(batch.operations) for batch in batches)

    async def _confirmed(self, batches: Sequence[Batch]) -> Sequence[Committed]:
        """Let the server confirm batches that it has applied, since only it knows what the last one has claimed."""
        committed = read_exchange(batches, await self._run(self._exchange_calls(batches, None)), None).committed
        self._note_applied(batches[: len(committed)])
        return committed

    def _superseded(self) -> NotPermitted:
        return NotPermitted(
            f"another process has joined frontier {self.config.name!r} under PRIOQUEUE_WORKER_ID"
            f" {self.config.worker!r}; give each living worker an id of its own"
        )

    def _exchange_calls(self, batches: Sequence[Batch], demand: Demand | None) -> Calls:
        calls: list[tuple[str, Sequence[Argument]]] = [
            ("commit", (*self._session(), batch.number, self._ttl_ms, *operation_arguments(batch.operations)))
            for batch in batches
        ]
        if demand is not None:
            calls.append(("reap", (self._now(), self._epoch, self.config.max_attempts, REAP_LIMIT, self._ttl_ms)))
            calls.append(("lease", (*self._session(), self._ttl_ms, *demand_arguments(demand))))
        return calls

    async def renew(self, held: Sequence[tuple[int, int]]) -> Sequence[int]:
        if self._has_changed:
            # The next exchange finds out what the server has forgotten.
            return []
        pairs = [part for lease_id, attempt in held for part in (ID.pack(lease_id), attempt)]
        try:
            reply = await self._call("renew", (*self._session(), self._ttl_ms, *pairs))
        except ServerChanged:
            return []
        if reply[0] == UNKNOWN_SESSION:
            # The next exchange enters again.
            return []
        if reply[0] != OK:
            return [lease_id for lease_id, _ in held]
        return [ID.unpack(lost)[0] for lost in reply[1]]

    async def leases(self) -> Sequence[tuple[int, int]]:
        return [(ID.unpack(key)[0], attempt) for key, attempt in sorted(await self._own_leases())]

    async def reconcile(self, held: Sequence[tuple[int, int]]) -> int:
        recovered, _ = await self._recover(held, max_attempts=0)
        return recovered

    async def leave(self) -> None:
        reply = await self._call("leave", (*self._session(), self._ttl_ms))
        if reply[0] == OK and reply[1]:
            await self._clear(reply[1].decode())

    async def dead_letters(self, limit: int) -> Sequence[DeadLetter]:
        ids = limit > 0 and await self._connection.ask(lambda client: client.zrevrange(self._keys.died, 0, limit - 1))
        if not ids:
            return []
        values = await self._connection.ask(lambda client: client.hmget(self._keys.dead, ids))
        return [read_dead_letter(key, value) for key, value in zip(ids, values, strict=True) if value]

    async def listen(self, ring: Callable[[], object]) -> None:
        await self._connection.listen(self._keys.bell, ring)

    def twin(self) -> RedisFrontier:
        return RedisFrontier(self.config, self._connection.twin(), nonce=self._nonce, epoch=self._epoch)

    async def close(self) -> None:
        await self._connection.close()

    async def _enter(self, *, position: int, flush: bool) -> Sequence[Any]:
        has_cleared = False
        while True:
            reply = await self._call("join", self._membership(position, flush=flush, has_cleared=has_cleared))
            has_cleared = False
            if reply[0] == OK:
                self._epoch, self._created_ms = reply[1].decode(), reply[4]
                return list(reply)
            if reply[0] == CLEAR:
                flush = False
                has_cleared = await self._clear(reply[1].decode())
            elif reply[0] == WAIT:
                await asyncio.sleep(_WAIT_FOR_CLEARING_S)
            else:
                raise refusal_of(self.config, reply, layout=LAYOUT)

    def _membership(self, position: int, *, flush: bool, has_cleared: bool) -> Sequence[Argument]:
        config = self.config
        return (
            self._now(),
            config.worker,
            self._nonce,
            position,
            json.dumps(dict(config.worker_info)),
            self._ttl_ms,
            LAYOUT,
            json.dumps(list(config.tiers)),
            config.order,
            config.on_finish,
            config.crawl_id or "",
            int(flush),
            int(has_cleared),
            config.suspect_attempts,
            ",".join(config.dead_on),
            config.dead_limit,
        )

    async def _clear(self, scope: str) -> bool:
        """Drop what that scope names; return False if another worker has taken over."""
        async for keys in self._connection.scan(self._keys.pattern()):
            dropped = [key for key in keys if self._keys.is_cleared_by(key, scope)]
            for first in range(0, len(dropped), _KEYS_PER_CLEAR):
                if not await self._drop(dropped[first : first + _KEYS_PER_CLEAR], is_last=False):
                    return False
        return await self._drop((), is_last=True)

    async def _drop(self, keys: Sequence[bytes], *, is_last: bool) -> bool:
        return bool(await self._call("clear", (self._now(), self.config.worker, int(is_last), *keys)))

    async def _recover(self, held: Sequence[tuple[int, int]], *, max_attempts: int) -> tuple[int, list[DeadLetter]]:
        known = {(ID.pack(lease_id), attempt) for lease_id, attempt in held}
        # In the order of their ids, so that slots take their turns as if nothing had happened.
        lost = sorted(key for key, attempt in await self._own_leases() if (key, attempt) not in known)
        recovered = 0
        buried: list[DeadLetter] = []
        for first in range(0, len(lost), _IDS_PER_RECOVER):
            ids = lost[first : first + _IDS_PER_RECOVER]
            expiries = await self._connection.ask(partial(self._expiries, ids=ids))
            pairs = [part for key, at in zip(ids, expiries, strict=True) if at for part in (key, int(at))]
            reply = await self._call("recover", (*self._session(), max_attempts, *pairs))
            if reply[0] == OK:
                recovered += reply[1]
                buried += read_dead_letters(reply[2])
        return recovered, buried

    async def _own_leases(self) -> set[tuple[bytes, int]]:
        cursor, worker = 0, self.config.worker.encode()
        own: set[tuple[bytes, int]] = set()
        while True:
            cursor, found = await self._connection.ask(partial(self._scan_leases, cursor=cursor))
            leases = [(key, msgpack.unpackb(value, raw=True)) for key, value in found.items()]
            own.update((key, lease[0]) for key, lease in leases if lease[3] == worker)
            if not cursor:
                return own

    async def _expiries(self, client: Redis, *, ids: Sequence[bytes]) -> Any:
        return await client.zmscore(self._keys.leases, list(ids))  # type: ignore[arg-type]

    async def _scan_leases(self, client: Redis, *, cursor: int) -> Any:
        return await client.hscan(self._keys.leased, cursor, count=200)

    async def _call(self, name: str, arguments: Sequence[Argument]) -> Any:
        (reply,) = await self._run([(name, arguments)])
        if isinstance(reply, FrontierFull):
            raise reply
        return reply

    async def _run(self, calls: Calls, *, wait: bool = False) -> list[Any]:
        named = [(name, self._keys.state, arguments) for name, arguments in calls]
        try:
            return await self._connection.run(named, wait_replicas=self.config.wait_replicas if wait else 0)
        except ServerChanged:
            self._has_changed = True
            raise

    def _now(self) -> Argument:
        return "" if self.config.clock is None else self.config.clock()

    def _session(self) -> Sequence[Argument]:
        return (self._now(), self._epoch, self.config.worker, self._nonce)


def _is_out_of_touch(replies: Sequence[Any]) -> bool:
    """Tell whether the server doesn't know the worker, or not its latest batch."""
    codes = [code_of(reply) for reply in replies]
    return codes[:1] == [OUT_OF_STEP] or UNKNOWN_SESSION in codes
