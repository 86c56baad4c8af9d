"""The session of a worker in its crawl: joining, the common arguments of its calls, and its state on the server."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from secrets import token_hex
from time import monotonic
from typing import Any

from scrapy_prioqueue.errors import FrontierFull, FrontierRefused, NotPermitted
from scrapy_prioqueue.frontier.base import Batch, Claim, Fail, FrontierConfig, Operation
from scrapy_prioqueue.frontier.operations import payload_size
from scrapy_prioqueue.frontier.redis.clearing import FIELDS, WAIT_S, Clearing
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.key_types import refuse_wrong_types, search_wrong_type, type_questions
from scrapy_prioqueue.frontier.redis.keys import LAYOUT, Keys
from scrapy_prioqueue.frontier.redis.rejections import (
    ALIVE,
    BY_OTHERS,
    CLEAR,
    POLICY,
    WAIT,
    refuse_other_hash_slot,
    rejection_of,
)
from scrapy_prioqueue.frontier.redis.scripts import Argument, Call
from scrapy_prioqueue.frontier.redis.seen.bloom import needs_filters
from scrapy_prioqueue.frontier.redis.seen.offers import NO_FILTERS, Offers, offer_questions, offers_of
from scrapy_prioqueue.frontier.redis.seen.shapes import shape_text
from scrapy_prioqueue.frontier.redis.servers import ServerChanged
from scrapy_prioqueue.frontier.redis.troubles import is_of_wrong_type
from scrapy_prioqueue.frontier.redis.wire import OK, code_of, policy_digest, policy_json, read_info

JOURNAL_BYTES = 32 * 2**20
"""Maximum size of payloads and tracebacks in the journal."""


class Journal:
    """The newest confirmed batches, in order.

    Args:
        keep_s: seconds for which a batch is kept, before the newest one was confirmed.
        limit: maximum number of operations; large ones are also limited to `JOURNAL_BYTES` in total.
        clock: monotonic, in seconds.
    """

    def __init__(self, keep_s: float, limit: int, clock: Callable[[], float] = monotonic) -> None:
        self._keep_s = keep_s
        self._limit = limit
        self._clock = clock
        self._entries: deque[tuple[float, Batch, int]] = deque()
        """Time of the confirmation, batch, and size in bytes."""
        self._operations = self._bytes = 0
        self.start = 0
        """Number of the last batch that was dropped; all later ones are kept."""

    def add(self, batches: Iterable[Batch]) -> None:
        """Add batches that the server has just confirmed."""
        now = self._clock()
        for batch in batches:
            size = _size(batch)
            self._entries.append((now, batch, size))
            self._operations += len(batch.operations)
            self._bytes += size
        while self._entries and (self._is_too_large or self._entries[0][0] < now - self._keep_s):
            _, oldest, size = self._entries.popleft()
            self._operations -= len(oldest.operations)
            self._bytes -= size
            self.start = oldest.number

    @property
    def _is_too_large(self) -> bool:
        return self._operations > self._limit or self._bytes > JOURNAL_BYTES

    def renew(self, last_batch: int) -> None:
        """Restart the time of the batches with higher numbers, which were confirmed again and may be lost again."""
        now = self._clock()
        self._entries = deque(
            (now if batch.number > last_batch else at, batch, size) for at, batch, size in self._entries
        )

    def after(self, last_batch: int) -> list[Batch]:
        """Return the batches with higher numbers."""
        return [batch for _, batch, _ in self._entries if batch.number > last_batch]


def _size(batch: Batch) -> int:
    return sum(
        len(each.detail) + len(each.traceback) if isinstance(each, Fail) else payload_size(each)
        for each in batch.operations
    )


def without_claims(operations: Sequence[Operation]) -> list[Operation]:
    """Return the operations of a batch that are sent again.

    A repeated claim would get an id that nobody here knows; requests still held are claimed anew afterwards. But a
    request that was found here, and not leased from the server, must be stored.
    """
    kept: list[Operation] = []
    for operation in operations:
        if not isinstance(operation, Claim):
            kept.append(operation)
        elif operation.lease_id is None:
            kept.append(operation.push)
    return kept


Calls = Sequence[Call]

_SILENT_TTLS = 10
"""As in `forget_silent_workers` of the scripts."""

_HEARING = frozenset({"commit", "join", "lease", "renew"})
"""Scripts that report the worker as alive."""

_SHORT_POLICY = 2048
"""Maximum length of a policy that is sent with each join; a longer one is sent only if the server asks for it."""


def uptime_s() -> float:
    """Return seconds on a clock that can't be set and that, on Linux, runs on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


@dataclass(frozen=True, slots=True)
class Known:
    """What a server knows of this worker.

    Args:
        last_batch: number of its last batch, None if the server doesn't know the worker.
        is_emptied: the server doesn't have the crawl.
        is_over: the crawl has ended.
        evicted_at: number of its last batch when an operator evicted it; None if none did.
    """

    last_batch: int | None = None
    is_emptied: bool = False
    is_over: bool = False
    evicted_at: int | None = None


class Session:
    """A worker's session in a crawl in Redis.

    Its nonce distinguishes its calls from those of another process under the same worker id, and from its own before a
    `fence`.

    Args:
        nonce: of a session that has begun.
        epoch: of its crawl.
        heard_ms: when the server last heard of it, by `uptime_s`.
    """

    def __init__(
        self,
        config: FrontierConfig,
        connection: Connection,
        keys: Keys,
        nonce: str,
        epoch: str,
        heard_ms: int | None = None,
    ) -> None:
        self._config = config
        self._connection = connection
        self._keys = keys
        self.nonce = nonce
        self._fences = 0
        self.epoch = epoch
        self._created_ms = b""
        self.joined_ms = 0
        """When this process joined first."""
        self.heard_ms = heard_ms
        self.ttl_ms = int(config.lease_ttl_s * 1000)
        self._offers = Offers()
        self.has_changed = False
        """Whether another server answers, or the same one after a restart, so that data may be lost."""

    @cached_property
    def _policy(self) -> str:
        return policy_json(self._config.policy)

    @cached_property
    def policy_digest(self) -> str:
        """Digest of this worker's policy."""
        return policy_digest(self._policy)

    @property
    def run_id(self) -> str:
        """Id of this process's run, which fences don't change."""
        return self.nonce.partition(".")[0]

    @property
    def created_ms(self) -> int:
        """When the crawl began."""
        return int(self._created_ms)

    def begin(self) -> None:
        """Begin a new session, as another process would."""
        self.nonce, self._fences = f"{token_hex(8)}.0", 0
        self.epoch, self._created_ms = "", b""
        self.has_changed = False

    async def fence(self, last_batch: int) -> None:
        """Join again under another nonce, so that calls still under way are void.

        Otherwise a batch that was given up, for example in the buffer of a frozen server, could be applied after its
        operations have been put into other batches.
        """
        self._fences += 1
        before, self.nonce = self.nonce, f"{self.run_id}.{self._fences}"
        try:
            await self.enter(last_batch=last_batch, flush=False)
        except BaseException:
            # If it was executed, the server will refuse the old nonce.
            self.nonce = before
            raise

    def _is_own(self, nonce: str) -> bool:
        return nonce.partition(".")[0] == self.run_id

    async def look_up(self) -> Known:
        fields = ["epoch", "created_ms", "phase", f"evicted:{self._config.worker}"]
        (epoch, created_ms, phase, evicted_at), session = await self._connection.pipe(
            ("HMGET", self._keys.state, *fields), ("HGET", self._keys.sessions, self._config.worker)
        )
        is_ours = created_ms == self._created_ms
        is_later = epoch is not None and int(epoch) > int(self.epoch)
        if not is_ours or session is None:
            is_over = is_later or (is_ours and phase == b"ended")
            last_batch = int(evicted_at) if is_ours and evicted_at is not None else None
            return Known(is_emptied=not (is_ours or is_later), is_over=is_over, evicted_at=last_batch)
        nonce, _, last_batch = session.rpartition(b":")
        if not self._is_own(nonce.decode()):
            if self.has_changed or await self._is_of_earlier_process():
                # The server has lost this process's join and remembers the process before.
                return Known()
            raise self.superseded()
        self.nonce = nonce.decode()
        return Known(last_batch=int(last_batch))

    def may_be_dropped(self) -> bool:
        """Return whether the server has not heard of this worker for so long that it has dropped it."""
        return self.heard_ms is not None and self._clock_ms() - self.heard_ms >= _SILENT_TTLS * self.ttl_ms

    def _clock_ms(self) -> int:
        return round(uptime_s() * 1000) if self._config.clock is None else self._config.clock()

    async def regain(self) -> None:
        """Adopt the nonce of a fence whose reply was lost.

        Raises:
            NotPermitted: another process has changed the session.
        """
        (session,) = await self._connection.pipe(("HGET", self._keys.sessions, self._config.worker))
        nonce = "" if session is None else session.rpartition(b":")[0].decode()
        if self._is_own(nonce) and nonce != self.nonce:
            self.nonce = nonce
        elif await self._is_of_earlier_process():
            self.has_changed = True
        else:
            raise self.superseded()

    async def _is_of_earlier_process(self) -> bool:
        """Return whether the process that the server knows under this worker's id joined before this one."""
        (info,) = await self._connection.pipe(("HGET", self._keys.of("info"), self._config.worker))
        return int(read_info(info).get("joined_ms", self.joined_ms)) < self.joined_ms

    def superseded(self) -> NotPermitted:
        """Return the error for a session that another process has taken over."""
        return NotPermitted(
            f"another process has joined frontier {self._config.name!r} under PRIOQUEUE_WORKER_ID"
            f" {self._config.worker!r}; give each living worker an id of its own"
        )

    async def enter(
        self, *, last_batch: int, flush: bool, evict_gone: Callable[[], Awaitable[None]] | None = None
    ) -> Sequence[Any]:
        """Join, and clear the data of an earlier crawl if the server asks for that; return the reply.

        Args:
            evict_gone: forgets workers of this machine that were killed; called if living workers prevent the join.
        """
        if self._connection.in_cluster:
            refuse_other_hash_slot(self._config.name, self._config.seen_name)
        # Checked at each join, since a server that has lost its data may be another one now.
        types, offers = type_questions(self._keys), offer_questions(self._keys, self._config.seen.mode)
        answers = await self._connection.attempt(*types, *offers)
        refuse_wrong_types(self._keys, answers[: len(types)])
        self._offers = offers_of(answers[len(types) :])
        if self._config.seen.mode == "bloom" and not self._offers.has_filters:
            await self._check_shape()
        has_cleared, with_policy = False, len(self._policy) <= _SHORT_POLICY
        while True:
            policy = self._policy if with_policy else ""
            reply = await self.call(
                "join", (*self._membership(last_batch, flush=flush, has_cleared=has_cleared), policy)
            )
            if reply[0] == POLICY:
                with_policy = True
                continue
            has_cleared = False
            if reply[0] == OK:
                self.epoch, self._created_ms, self.joined_ms = reply[1].decode(), reply[4], int(reply[7])
                return list(reply)
            if reply[0] == CLEAR:
                flush = False
                has_cleared = await self.clear(reply[1].decode())
            elif reply[0] == WAIT:
                await asyncio.sleep(WAIT_S)
            elif reply[0] in BY_OTHERS and evict_gone is not None:
                await evict_gone()
                evict_gone = None
            elif reply[0] == ALIVE and self._config.flush_if_alone:
                flush = False
            else:
                raise rejection_of(self._config, reply, layout=LAYOUT)

    async def _check_shape(self) -> None:
        """Raise an error if this server can't look up the frontier's fingerprints.

        Raises:
            NotPermitted: they are in filters of RedisBloom.
        """
        home = self._keys if self._config.seen_name is None else Keys(self._config.seen_name)
        (shape,) = await self._connection.pipe(("HGET", home.state, "seen_shape"))
        if shape is not None and needs_filters(shape.decode()):
            raise NotPermitted(f"frontier {self._config.name!r} can't be joined: {NO_FILTERS}")

    def _membership(self, last_batch: int, *, flush: bool, has_cleared: bool) -> Sequence[Argument]:
        config = self._config
        return (
            self.now(),
            config.worker,
            self.nonce,
            last_batch,
            json.dumps({**config.worker_info, **({"joined_ms": self.joined_ms} if self.epoch else {})}),
            self.ttl_ms,
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
            config.seen_name or "",
            self.policy_digest,
            shape_text(config.seen, self._offers.limits, has_filters=self._offers.has_filters),
            "" if config.seen.revisit_s is None else config.seen.revisit_s,
            config.spider,
            self.epoch,
            self._created_ms,
            " ".join(map(str, config.groups)),
        )

    async def clear(self, scope: str) -> bool:
        """Drop the keys of a scope; return False if another worker has taken the clearing over."""
        (fields,) = await self._connection.pipe(("HMGET", self._keys.state, *FIELDS))
        clearing = Clearing(self._keys, self._config.worker, scope, fields, self.now)
        if clearing.must_scan:
            async for found in self._connection.scan(self._keys.pattern()):
                if not (await self.call(*clearing.found(found)))[0]:
                    return False
        are_gone = False
        while not are_gone:
            replies = await self.run(clearing.queues())
            if not replies[-1][0]:
                return False
            are_gone = clearing.are_gone(replies)
        for trip in clearing.trips():
            if not all(is_clearing for is_clearing, _ in await self.run(trip)):
                return False
        return True

    async def call(self, name: str, arguments: Sequence[Argument]) -> Any:
        """Call one script."""
        (reply,) = await self.run([(name, arguments)])
        if isinstance(reply, FrontierFull):
            raise reply
        return reply

    async def run(self, calls: Calls, *, wait: bool = False) -> list[Any]:
        """Call scripts in one round trip and return their replies.

        Raises:
            WrongKeyType: another program has written one of the keys.
        """
        named = [(name, self._keys.state, arguments) for name, arguments in calls]
        sent_ms = self._clock_ms()
        try:
            replies = await self._connection.run(named, wait_replicas=self._config.wait_replicas if wait else 0)
        except ServerChanged:
            self.has_changed = True
            raise
        except FrontierRefused as error:
            if is_of_wrong_type(error.__cause__):
                await search_wrong_type(self._connection, self._keys, *self._home_of_seen())
            raise
        if any(name in _HEARING and code_of(reply) == OK for (name, _), reply in zip(calls, replies, strict=True)):
            self.heard_ms = sent_ms
        return replies

    def _home_of_seen(self) -> Sequence[Keys]:
        return [] if self._config.seen_name is None else [Keys(self._config.seen_name)]

    def now(self) -> Argument:
        """Return the time argument of scripts: the longest time since the server heard of this worker.

        With it the server notices that its clock was set forward. A quarter of a lease's time covers the call itself.
        """
        if self._config.clock is not None:
            return self._config.clock()
        if self.heard_ms is None or self.has_changed:
            return ""
        return f"+{self._clock_ms() - self.heard_ms + self.ttl_ms // 4} {self._config.worker}"

    def arguments(self) -> Sequence[Argument]:
        """Return the common arguments of all scripts of a session."""
        return (self.now(), self.epoch, self._config.worker, self.nonce)
