"""The frontier in Redis: turns the interface's calls into script calls, and their replies into its data."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from secrets import token_hex
from typing import Any

import msgpack
from redis.asyncio import Redis

from scrapy_prioqueue.errors import (
    CrawlEnded,
    FrontierFull,
    LayoutMismatch,
    NotPermitted,
    PrioQueueError,
)
from scrapy_prioqueue.frontier.base import (
    Ack,
    Batch,
    Committed,
    DeadLetter,
    Demand,
    Depth,
    Exchanged,
    Fail,
    Frontier,
    FrontierConfig,
    Joined,
    Lease,
    Operation,
    Push,
    Release,
)
from scrapy_prioqueue.frontier.redis.checks import server_warnings
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.fingerprints import bucket_and_member
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.scripts import Argument

LAYOUT = "1"
"""Version of the layout of keys and values, written in the frontier's state; see docs/architecture.md."""

REAP_LIMIT = 100
"""Expired leases that one exchange gives back, so that no script call runs for long."""

Calls = Sequence[tuple[str, Sequence[Argument]]]

_WAIT_FOR_CLEARING_S = 0.2
_KEYS_PER_CLEAR = 200
_IDS_PER_RECOVER = 200

_OK, _OTHER_CRAWL, _UNKNOWN_SESSION, _OUT_OF_STEP, _SUPERSEDED = range(5)
_CLEAR, _WAIT, _ENDED, _ALIVE, _UNFINISHED, _LAYOUT, _TIERS = range(10, 17)

_ID = struct.Struct(">Q")


class RedisFrontier(Frontier):
    """One worker's view of a frontier in Redis.

    Args:
        config: what this worker brings along.
        connection: to the server; closed with the frontier.
    """

    is_local = False

    def __init__(self, config: FrontierConfig, connection: Connection) -> None:
        self.config = config
        self._connection = connection
        self.address = connection.address
        self._keys = Keys(config.name)
        self._nonce = token_hex(8)
        self._epoch = ""
        self._created_ms = b""
        self._applied = 0
        self._ttl_ms = int(config.lease_ttl_s * 1000)

    async def join(self) -> Joined:
        await self._connection.open()
        warnings = await server_warnings(self._connection)
        self._applied = 0
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
        created_ms = self._created_ms
        replies = await self._run(self._exchange_calls(batches, demand))
        if any(_code(reply) == _UNKNOWN_SESSION for reply in replies):
            # The server was emptied, or has forgotten a worker that was silent for long: enter again and repeat.
            await self._enter(position=batches[0].number - 1 if batches else self._applied, flush=False)
            replies = await self._run(self._exchange_calls(batches, demand))
        if any(_code(reply) == _SUPERSEDED for reply in replies):
            raise NotPermitted(
                f"another process has joined frontier {self.config.name!r} under PRIOQUEUE_WORKER_ID"
                f" {self.config.worker!r}; give each living worker an id of its own"
            )
        answer = _exchanged(batches, replies, demand)
        self._applied = answer.committed[-1].number if answer.committed else self._applied
        return replace(answer, has_forgotten=created_ms != self._created_ms)

    def _exchange_calls(self, batches: Sequence[Batch], demand: Demand | None) -> Calls:
        calls: list[tuple[str, Sequence[Argument]]] = [
            ("commit", (*self._session(), batch.number, *_arguments(batch.operations))) for batch in batches
        ]
        if demand is not None:
            calls.append(("reap", (self._now(), self._epoch, self.config.max_attempts, REAP_LIMIT, self._ttl_ms)))
            calls.append(("lease", (*self._session(), self._ttl_ms, *_demanded(demand))))
        return calls

    async def renew(self, held: Sequence[tuple[int, int]]) -> Sequence[int]:
        pairs = [part for lease_id, attempt in held for part in (_ID.pack(lease_id), attempt)]
        reply = await self._call("renew", (*self._session(), self._ttl_ms, *pairs))
        if reply[0] == _UNKNOWN_SESSION:
            # The next exchange enters again.
            return []
        if reply[0] != _OK:
            return [lease_id for lease_id, _ in held]
        return [_ID.unpack(lost)[0] for lost in reply[1]]

    async def reconcile(self, held: Sequence[tuple[int, int]]) -> int:
        recovered, _ = await self._recover(held, max_attempts=0)
        return recovered

    async def leave(self) -> None:
        reply = await self._call("leave", (*self._session(), self._ttl_ms))
        if reply[0] == _OK and reply[1]:
            await self._clear(reply[1].decode())

    async def dead_letters(self, limit: int) -> Sequence[DeadLetter]:
        ids = limit > 0 and await self._connection.ask(lambda client: client.zrevrange(self._keys.died, 0, limit - 1))
        if not ids:
            return []
        values = await self._connection.ask(lambda client: client.hmget(self._keys.dead, ids))
        return [_dead_letter(key, value) for key, value in zip(ids, values, strict=True) if value]

    async def listen(self, ring: Callable[[], object]) -> None:
        await self._connection.listen(self._keys.bell, ring)

    async def close(self) -> None:
        await self._connection.close()

    async def _enter(self, *, position: int, flush: bool) -> Sequence[Any]:
        has_cleared = False
        while True:
            reply = await self._call("join", self._membership(position, flush=flush, has_cleared=has_cleared))
            has_cleared = False
            if reply[0] == _OK:
                self._epoch, self._created_ms = reply[1].decode(), reply[4]
                return list(reply)
            if reply[0] == _CLEAR:
                flush = False
                has_cleared = await self._clear(reply[1].decode())
            elif reply[0] == _WAIT:
                await asyncio.sleep(_WAIT_FOR_CLEARING_S)
            else:
                raise self._refusal(reply)

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
        )

    def _refusal(self, reply: Sequence[Any]) -> PrioQueueError:
        name, config = self.config.name, self.config
        code, details = reply[0], reply[1:]
        if code == _ENDED:
            return CrawlEnded(f"crawl {config.crawl_id!r} of frontier {name!r} has ended")
        if code == _ALIVE:
            names = ", ".join(sorted(other.decode() for other in details[0]))
            return NotPermitted(
                f"PRIOQUEUE_FLUSH_ON_START: frontier {name!r} has other living workers ({names}); stop them first,"
                f" or wait {config.lease_ttl_s:g} s (PRIOQUEUE_LEASE_TTL) if they were killed"
            )
        if code == _UNFINISHED:
            return NotPermitted(_unfinished(name, config.crawl_id, details))
        if code == _LAYOUT:
            return LayoutMismatch(
                f"frontier {name!r} was written with layout version {details[0].decode()}, this release writes"
                f" {LAYOUT}: use another PRIOQUEUE_NAME, or PRIOQUEUE_FLUSH_ON_START to drop what it holds"
            )
        if code == _TIERS:
            return LayoutMismatch(
                f"PRIOQUEUE_TIERS: frontier {name!r} holds {details[1]} pending and {details[2]} leased requests in"
                f" the tiers {details[0].decode()}, not {json.dumps(list(config.tiers))}: finish that crawl with its"
                " own tiers, or use another PRIOQUEUE_NAME, or PRIOQUEUE_FLUSH_ON_START to drop what it holds"
            )
        return PrioQueueError(f"frontier {name!r} answered with the unknown code {code}")

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
        known = {(_ID.pack(lease_id), attempt) for lease_id, attempt in held}
        # In the order of their ids, so that slots take their turns as if nothing had happened.
        lost = sorted(key for key, attempt in await self._own_leases() if (key, attempt) not in known)
        recovered = 0
        buried: list[DeadLetter] = []
        for first in range(0, len(lost), _IDS_PER_RECOVER):
            ids = lost[first : first + _IDS_PER_RECOVER]
            reply = await self._call("recover", (*self._session(), max_attempts, *ids))
            if reply[0] == _OK:
                recovered += reply[1]
                buried += _dead_letters(reply[2])
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

    async def _scan_leases(self, client: Redis, *, cursor: int) -> Any:
        return await client.hscan(self._keys.leased, cursor, count=200)

    async def _call(self, name: str, arguments: Sequence[Argument]) -> Any:
        (reply,) = await self._run([(name, arguments)])
        if isinstance(reply, FrontierFull):
            raise reply
        return reply

    async def _run(self, calls: Calls) -> list[Any]:
        return await self._connection.run([(name, self._keys.state, arguments) for name, arguments in calls])

    def _now(self) -> Argument:
        return "" if self.config.clock is None else self.config.clock()

    def _session(self) -> Sequence[Argument]:
        return (self._now(), self._epoch, self.config.worker, self._nonce)


def _unfinished(name: str, crawl_id: str | None, details: Sequence[Any]) -> str:
    found = details[0].decode()
    held = f"the unfinished crawl {found!r}" if found else "an unfinished crawl without an id"
    finish = f"finish it with PRIOQUEUE_CRAWL_ID = {found!r}" if found else "finish it without PRIOQUEUE_CRAWL_ID"
    return (
        f"PRIOQUEUE_CRAWL_ID = {crawl_id!r}: frontier {name!r} holds {held}"
        f" ({details[1]} pending, {details[2]} leased): {finish},"
        " or use another PRIOQUEUE_NAME, or PRIOQUEUE_FLUSH_ON_START to drop what it holds"
    )


def _code(reply: Any) -> int | None:
    return reply[0] if isinstance(reply, list) else None


def _arguments(operations: Sequence[Operation]) -> Iterable[Argument]:
    for operation in operations:
        if isinstance(operation, Push):
            bucket, member = bucket_and_member(operation.fingerprint)
            yield from ("P", operation.rank, _slot_bytes(operation.slot), int(operation.is_start), operation.payload)
            yield from (bucket, member, operation.start_mark or "")
        else:
            yield {Ack: "A", Release: "R", Fail: "F"}[type(operation)]
            yield _ID.pack(operation.lease_id)
            yield operation.attempt
            if isinstance(operation, Fail):
                yield operation.reason
                yield operation.detail


def _demanded(demand: Demand) -> Iterable[Argument]:
    yield from (demand.limit, demand.slot_limit)
    yield from (int(demand.is_idle), int(demand.is_fair), int(demand.may_take_suspect))
    for slot, room in demand.slot_room.items():
        yield _slot_bytes(slot)
        yield room


def _slot_bytes(slot: str) -> bytes:
    return slot.encode("utf-8", "surrogatepass")


def _exchanged(batches: Sequence[Batch], replies: list[Any], demand: Demand | None) -> Exchanged:
    committed, refusal, has_ended = [], None, False
    for batch, reply in zip(batches, replies, strict=False):
        code = _code(reply)
        if code == _OK:
            committed.append(Committed(batch.number, *reply[1:]))
            continue
        has_ended = has_ended or code == _OTHER_CRAWL
        refusal = _batch_refusal(batch, reply)
        break
    if demand is None:
        return Exchanged(committed, refusal, has_ended=has_ended)
    reaped, leased = replies[-2:]
    for reply in (reaped, leased):
        if isinstance(reply, FrontierFull):
            raise reply
    if leased[0] != _OK:
        return Exchanged(committed, refusal, has_ended=leased[0] == _OTHER_CRAWL)
    _, ended, next_expiry_ms, depth, flat = leased
    return Exchanged(
        committed,
        refusal,
        leases=[_lease(flat[at : at + 5]) for at in range(0, len(flat), 5)],
        depth=Depth(*depth),
        has_ended=bool(ended),
        reaped=reaped[1],
        buried=_dead_letters(reaped[2]),
        next_expiry_s=None if next_expiry_ms < 0 else next_expiry_ms / 1000,
    )


def _batch_refusal(batch: Batch, reply: Any) -> Exception:
    if isinstance(reply, FrontierFull):
        return reply
    reasons = {
        _OTHER_CRAWL: "its crawl is over and another one has begun",
        _UNKNOWN_SESSION: "the server does not know this worker",
        _OUT_OF_STEP: "the one before it is missing",
    }
    kind = CrawlEnded if _code(reply) == _OTHER_CRAWL else PrioQueueError
    return kind(f"batch {batch.number} was not applied: {reasons.get(reply[0], reply)}")


def _lease(fields: Sequence[Any]) -> Lease:
    key, attempt, rank, slot, payload = fields
    return Lease(_ID.unpack(key)[0], attempt, rank, slot.decode("utf-8", "surrogatepass"), payload)


def _dead_letters(flat: Sequence[bytes]) -> list[DeadLetter]:
    return [_dead_letter(flat[at], flat[at + 1]) for at in range(0, len(flat), 2)]


def _dead_letter(key: bytes, value: bytes) -> DeadLetter:
    reason, detail, attempts, rank, slot, worker, died_ms, payload = msgpack.unpackb(value, raw=True)
    texts = [text.decode("utf-8", "replace") for text in (reason, detail, slot, worker)]
    return DeadLetter(_ID.unpack(key)[0], texts[0], texts[1], attempts, rank, texts[2], texts[3], int(died_ms), payload)
