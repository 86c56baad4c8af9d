"""The frontier in Redis: makes script calls of the interface's calls, and reads their replies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any, TypeVar

from scrapy_prioqueue.errors import (
    CrawlEnded,
    FrontierFull,
    FrontierRefused,
    FrontierUnavailable,
    PrioQueueError,
    RequestTooLarge,
)
from scrapy_prioqueue.frontier.base import (
    ALWAYS_TAKEN,
    Batch,
    Committed,
    DeadLetter,
    Demand,
    Exchanged,
    Frontier,
    FrontierConfig,
    Joined,
    Lease,
    Push,
    Recall,
    Report,
)
from scrapy_prioqueue.frontier.kept import Kept
from scrapy_prioqueue.frontier.operations import payload_size
from scrapy_prioqueue.frontier.policy import LimitsInForce, SlotLimit
from scrapy_prioqueue.frontier.policy_parts import policy_warning
from scrapy_prioqueue.frontier.redis.checks import server_warnings
from scrapy_prioqueue.frontier.redis.clock import newest_ms
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.gone import Evicted, leases_by_worker, take_from_gone
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.lost import take_lost
from scrapy_prioqueue.frontier.redis.memory_watch import MemoryWatch
from scrapy_prioqueue.frontier.redis.orders import OrderBook
from scrapy_prioqueue.frontier.redis.recording import Recorder
from scrapy_prioqueue.frontier.redis.scripts import Argument, Call
from scrapy_prioqueue.frontier.redis.seen.fingerprints import seen_argument
from scrapy_prioqueue.frontier.redis.servers import ServerChanged
from scrapy_prioqueue.frontier.redis.session import Calls, Journal, Session, without_claims
from scrapy_prioqueue.frontier.redis.troubles import is_cut_off, is_moved, is_too_large
from scrapy_prioqueue.frontier.redis.wire import (
    ID,
    OK,
    OTHER_CRAWL,
    OUT_OF_STEP,
    SUPERSEDED,
    UNKNOWN_SESSION,
    code_of,
    decoded,
    demand_arguments,
    encoded,
    note_arguments,
    operation_arguments,
    ordered_ms_of,
    pieces,
    policy_ms_of,
    read_dead_letters,
    read_exchange,
    read_policy_change,
    read_waits,
    slow_json,
)
from scrapy_prioqueue.frontier.runs import FleetTotals
from scrapy_prioqueue.frontier.waits import MOST_LOOKED_AT, MOST_SLOTS, Blocked, SlowPage, Waits

logger = logging.getLogger(__name__)

T = TypeVar("T")


REAP_LIMIT = 50
"""Maximum number of expired leases that one exchange returns, so that no script call takes long."""

_IDS_PER_RECOVER = 100

_LEASES_PER_RENEW = 500
"""Leases per script call, so that it takes the server a millisecond or two."""

_BATCHES_PER_RESEND = 8

MOST_CLOSED = 1000
"""Maximum number of closed slots that a worker reads, for the case of an outage."""

CUT_OFFS = 3
"""Connections lost in a row over batches with requests, after which one of these is assumed to be too large."""

SORTS_PER_TRIP = 16
"""Maximum number of script calls in one round trip that move slots to their lanes; other clients wait until the server
has executed all of them."""

_MOVES = 2
"""Attempts to join for which it is no failure that the server is another one."""

_SORTING_ATTEMPTS = 5
_SORTING_PAUSE_S = 1.0


class RedisFrontier(Frontier):
    """One worker's view of a frontier in Redis.

    Args:
        config: settings of this worker.
        connection: to the server; closed with the frontier.
        nonce: of the session, if it has begun.
        epoch: of the session's crawl.
        heard_ms: when the server last heard of the session.
    """

    is_local = False

    def __init__(
        self,
        config: FrontierConfig,
        connection: Connection,
        *,
        nonce: str = "",
        epoch: str = "",
        heard_ms: int | None = None,
    ) -> None:
        self.config = config
        self._keys = Keys(config.name)
        self._connection = connection = connection.at(self._keys.state)
        self.address = connection.address
        self._session = Session(config, connection, self._keys, nonce, epoch, heard_ms)
        self._recorder = Recorder(config, self._session, connection, self._keys)
        self._applied = 0
        self._is_in_doubt = False
        self._may_lease_late = False
        self._cut_offs = 0
        self._journal = Journal(config.journal_s, config.journal_limit)
        self._orders = OrderBook()
        self._policy_ms = 0
        self._memory_watch = MemoryWatch(config.policy.memory_high_water)
        self._memory_notes: Sequence[Argument] = ()

    @property
    def payload_limit(self) -> int:
        return min(super().payload_limit, self._connection.argument_limit)

    async def join(self) -> Joined:
        for _ in range(_MOVES):
            try:
                return await self._join()
            except FrontierUnavailable as error:
                # The node that was asked had not heard of a move. Its error says where the frontier is; then another
                # server answers.
                if not (is_moved(error.__cause__) or isinstance(error, ServerChanged)):
                    raise
        return await self._join()

    async def _join(self) -> Joined:
        await self._connection.open()
        if self.config.wait_replicas:
            # Otherwise only the first commit would be refused.
            await self._connection.pipe(("WAIT", 0, 1))
        warnings = await server_warnings(self._connection, has_memory_mark=self.config.policy.memory_high_water > 0)
        self._applied = 0
        self._session.begin()
        self._journal = Journal(self.config.journal_s, self.config.journal_limit)
        self._orders = OrderBook()
        taken = Evicted()

        async def evict_gone() -> None:
            await take_from_gone(self.config, self._connection, self._keys, self._session, taken)

        reply = await self._session.enter(last_batch=0, flush=self.config.flush, evict_gone=evict_gone)
        self._policy_ms = int(reply[8])
        if change := read_policy_change(reply[9]):
            warnings = [*warnings, policy_warning(change, self.config.worker, self.config.name)]
        if reply[5].decode() != self.config.order:
            warnings = [*warnings, f"the frontier keeps the order {reply[5].decode()!r} until its crawl ends"]
        recovered, dead_letters = await self._recover(held=(), max_attempts=self.config.max_attempts)
        await evict_gone()
        answer = await self._put_slots_in_line()
        return Joined(
            answer.depth,
            is_new=bool(reply[2]),
            seen=reply[3],
            recovered=recovered,
            reaped=answer.reaped + taken.leases,
            dead_letters=[*dead_letters, *taken.dead_letters, *answer.dead_letters],
            has_forgotten=answer.has_forgotten,
            warnings=[*warnings, *answer.warnings],
            spider=reply[6].decode(),
            waits=await self.waits() if answer.depth.leased else None,
            gone=taken.workers,
            lost=await self._take_lost(replaced=self.config.worker),
            has_budgets=answer.has_budgets,
            identity=reply[10].decode(),
            last_ended_ms=int(reply[11] or 0),
            foreign=await self._foreign() if reply[2] and self.config.foreign_keys else (0, 0),
        )

    async def _foreign(self) -> tuple[int, int]:
        """Count the requests and fingerprints of scrapy-redis, as far as this user may read them."""
        queue, seen = self.config.foreign_keys
        # A queue is a sorted set or a list. The command for the other type gets an error as its answer.
        requests = await self._count(queue, "ZCARD", "LLEN")
        return requests, await self._count(seen, "SCARD")

    async def _count(self, key: str, *commands: str) -> int:
        connection = self._connection.at(key)
        try:
            answers = await connection.attempt(*((command, key) for command in commands))
        finally:
            if connection is not self._connection:
                await connection.close()
        return sum(answer for answer in answers if isinstance(answer, int))

    async def _take_lost(self, replaced: str | None = None) -> Mapping[str, Kept]:
        try:
            return await take_lost(self._connection, self._keys, self._session.ttl_ms, replaced)
        except PrioQueueError:
            # The result is only logged.
            return {}

    async def _put_slots_in_line(self) -> Exchanged:
        """Move all slots to the lanes of the newest policy, since only then tiers get their shares.

        If the crawl, or this worker's session, is lost meanwhile, an exchange handles it. After some attempts the rest
        is left to the exchanges of all workers. A short outage is waited out, since this worker has already joined.

        Returns:
            the last answer, with all that earlier ones have reaped and given up.

        Raises:
            FrontierUnavailable: the outage is longer, or won't pass by itself.
        """
        reaped, has_forgotten = 0, False
        dead_letters: list[DeadLetter] = []
        for attempts_left in reversed(range(_SORTING_ATTEMPTS)):
            try:
                are_in_line = await self._sort_slots()
                answer = await self.exchange((), Demand(0))
            except FrontierUnavailable as error:
                if isinstance(error, FrontierRefused) or not attempts_left:
                    raise
                await asyncio.sleep(_SORTING_PAUSE_S)
                continue
            reaped, has_forgotten = reaped + answer.reaped, has_forgotten or answer.has_forgotten
            dead_letters += answer.dead_letters
            if answer.has_ended or (are_in_line and answer.recall is None):
                break
        return replace(answer, reaped=reaped, dead_letters=dead_letters, has_forgotten=has_forgotten)

    async def _sort_slots(self) -> bool:
        """Move slots to their lanes; return whether all are there. False if a call was refused, so it isn't known."""
        calls = 1
        while True:
            try:
                replies = await self._session.run([("sort", self._session.arguments())] * calls)
            except ServerChanged:
                return False
            if any(code_of(reply) != OK for reply in replies):
                return False
            if not replies[-1][1]:
                return True
            calls = min(2 * calls, SORTS_PER_TRIP)

    async def exchange(self, batches: Sequence[Batch], demand: Demand | None) -> Exchanged:
        try:
            return await self._exchange(batches, demand)
        except CrawlEnded as ended:
            return Exchanged(rejection=ended if batches else None, has_ended=True)

    async def _exchange(self, batches: Sequence[Batch], demand: Demand | None) -> Exchanged:
        was_in_doubt = self._is_in_doubt
        self._is_in_doubt = was_in_doubt or bool(batches)
        self._memory_notes = await self._memory_watch.notes(self._connection)
        try:
            replies = await self._exchange_replies(batches, demand)
        except FrontierUnavailable as error:
            self._may_lease_late = self._may_lease_late or (error.was_sent and demand is not None)
            if not self._is_too_large(batches, error):
                raise
            return await self._without(batches, demand, error)
        self._cut_offs = 0
        if replies is None or _is_out_of_touch(replies, has_lease=demand is not None):
            return await self._recall(batches) or await self._exchange(batches, demand)
        if any(code_of(reply) == SUPERSEDED for reply in replies):
            await self._session.regain()
            return await self._exchange(batches, demand)
        answer = read_exchange(batches, replies, demand)
        if demand is not None and ordered_ms_of(replies[-1]) > self._orders.newest_ms:
            await self._orders.read(self._session)
        self._note_applied(batches[: len(answer.committed)])
        self._is_in_doubt = was_in_doubt and len(answer.committed) < len(batches)
        if answer.reaped:
            answer = replace(answer, lost=await self._take_lost())
        if demand is not None and (policy_ms := policy_ms_of(replies[-1])) > self._policy_ms:
            self._policy_ms = policy_ms
            answer = replace(answer, warnings=await self._policy_warnings())
        if not isinstance(answer.rejection, FrontierFull):
            return answer
        if self._is_in_doubt:
            # A batch that was sent before may still be applied later, although it is rejected now.
            await self._fence(self._applied)
        return replace(answer, rejection=await self._with_memory(answer.rejection))

    async def _fence(self, last_batch: int) -> None:
        await self._session.fence(last_batch)
        self._is_in_doubt = self._may_lease_late = False

    async def _policy_warnings(self) -> Sequence[str]:
        """Return the warning about a worker that has joined with another policy than the one in force."""
        (text,) = await self._connection.pipe(("HGET", self._keys.state, "policy_change"))
        change = read_policy_change(text or b"")
        return [] if change is None else [policy_warning(change, self.config.worker, self.config.name)]

    def _is_too_large(self, batches: Sequence[Batch], error: FrontierUnavailable) -> bool:
        """Return whether a call has failed because one of the batches is too large for the server."""
        sizes = [payload_size(operation) for batch in batches for operation in batch.operations]
        if not any(sizes):
            return False
        if is_too_large(error.__cause__):
            return True
        # Other servers just close the connection, which may have other causes, too.
        is_cut = sum(sizes) > ALWAYS_TAKEN and error.was_sent and is_cut_off(error.__cause__)
        self._cut_offs = self._cut_offs + 1 if is_cut else 0
        return self._cut_offs >= CUT_OFFS or (self._cut_offs > 0 and max(sizes) > self.payload_limit)

    async def _without(self, batches: Sequence[Batch], demand: Demand | None, error: FrontierUnavailable) -> Exchanged:
        """Find out which batches the server has applied, give up the others, and send the demand again.

        Raises:
            FrontierUnavailable: the server doesn't answer to that either, so the batches are not the cause.
        """
        found = await self._session.look_up()
        if found.last_batch is None or found.last_batch < self._applied:
            recalled = await self._recall(batches)
            if recalled is None:
                raise error
            return recalled
        await self._fence(found.last_batch)
        self._cut_offs = 0
        known = [batch for batch in batches if batch.number <= found.last_batch]
        committed = await self._confirmed(known) if known else ()
        answer = Exchanged() if demand is None else await self._exchange((), demand)
        return replace(answer, committed=committed, rejection=RequestTooLarge(error.why))

    async def _with_memory(self, full: FrontierFull) -> FrontierFull:
        info = await self._connection.info("memory")
        if info is None:
            return full
        return FrontierFull(f"{full} ({info['used_memory']:,} of {info['maxmemory']:,} bytes used)")

    async def _exchange_replies(self, batches: Sequence[Batch], demand: Demand | None) -> list[Any] | None:
        """Return the replies, None if nothing was sent because the server may have lost data."""
        if self._session.has_changed:
            return None
        try:
            return await self._session.run(self._exchange_calls(batches, demand), wait=bool(batches))
        except ServerChanged:
            return None

    def _note_applied(self, batches: Sequence[Batch]) -> None:
        if batches:
            self._applied = batches[-1].number
            self._journal.add(batches)

    async def _recall(self, batches: Sequence[Batch]) -> Exchanged | None:
        """Find out what the server knows of this worker, and send again only what it has lost.

        Returns None if the server has only dropped this worker, which was evicted or silent for long, and has let it
        join again.

        Raises:
            CrawlEnded: the crawl is over.
        """
        found = await self._session.look_up()
        if found.is_over:
            self._session.has_changed = False
            raise CrawlEnded(f"the crawl of frontier {self.config.name!r} is over")
        if found.last_batch is None and not (found.is_emptied or self._session.has_changed):
            if found.evicted_at is not None or self._session.may_be_dropped():
                last_batch = self._applied if found.evicted_at is None else found.evicted_at
                await self._session.enter(last_batch=last_batch, flush=False)
                return None
            # It has gone back to a time before this worker joined, under the same run id.
            self._session.has_changed = True
        oldest, known_batch = self._journal.start, found.last_batch or 0
        last_batch, missing = max(known_batch, oldest), max(0, oldest - known_batch)
        await self._fence(last_batch)
        resent = await self._resend(self._journal.after(last_batch))
        self._journal.renew(last_batch)
        reminded = await self._orders.remind(self._session)
        known = [batch for batch in batches if batch.number <= last_batch]
        committed = await self._confirmed(known) if known else ()
        self._session.has_changed = False
        return Exchanged(
            committed,
            has_forgotten=found.is_emptied,
            recall=Recall(resent, missing, reminded),
        )

    async def _resend(self, batches: Sequence[Batch]) -> int:
        batches = [Batch(batch.number, without_claims(batch.operations)) for batch in batches]
        for part in pieces(batches, _BATCHES_PER_RESEND):
            for reply in await self._session.run(self._exchange_calls(part, None), wait=True):
                if code_of(reply) == OTHER_CRAWL:
                    self._session.has_changed = False
                    raise CrawlEnded(f"the crawl of frontier {self.config.name!r} is over")
                if code_of(reply) != OK:
                    raise FrontierUnavailable(self.address, f"it has lost its newest writes, and refuses them: {reply}")
        return sum(len(batch.operations) for batch in batches)

    async def _confirmed(self, batches: Sequence[Batch]) -> Sequence[Committed]:
        """Send applied batches again for their confirmation, since only the server has the claims of the last one."""
        committed = read_exchange(batches, await self._session.run(self._exchange_calls(batches, None)), None).committed
        self._note_applied(batches[: len(committed)])
        return committed

    def _exchange_calls(self, batches: Sequence[Batch], demand: Demand | None) -> Calls:
        session = self._session
        calls: list[Call] = [
            ("commit", (*session.arguments(), batch.number, session.ttl_ms, *operation_arguments(batch.operations)))
            for batch in batches
        ]
        if demand is not None:
            calls += self._note_calls(demand)
            wishes = demand_arguments(demand, self.config.max_attempts, REAP_LIMIT, self._orders.newest_ms)
            calls.append(("lease", (*session.arguments(), self._applied, session.ttl_ms, *wishes)))
        return calls

    def _note_calls(self, demand: Demand) -> Calls:
        notes = (*note_arguments(demand.notes, self.config.worker), *self._memory_notes)
        return [("note", (self._session.now(), self._session.epoch, *notes))] if notes else []

    async def known(self, pushes: Sequence[Push]) -> Sequence[int]:
        fingerprints = [seen_argument(push.fingerprint, push.revisit_s) for push in pushes]
        try:
            _, found = await self._session.call("known", (self._session.now(), *fingerprints))
        except ServerChanged:
            # The next exchange finds out what the server has lost.
            return []
        return list(found)

    async def pending(self, slot: str, first: int, limit: int) -> Sequence[Lease]:
        queue = self._keys.queue(encoded(slot))
        last = first + limit - 1
        (found,) = await self._connection.pipe(("ZRANGE", queue, first, last, "WITHSCORES"))
        return [Lease(ID.unpack(member[:8])[0], member[8], int(rank), slot, member[9:]) for member, rank in found]

    async def workers(self) -> Sequence[str]:
        (found,) = await self._connection.pipe(("ZRANGE", self._keys.workers, 0, -1, "WITHSCORES"))
        # The time isn't read: the worker heard of last, perhaps this one, was heard of about now.
        since_ms = newest_ms(found) - self._session.ttl_ms
        return [name.decode() for name, heard_ms in found if heard_ms >= since_ms]

    def operators_limits(self) -> Mapping[str, SlotLimit]:
        return self._orders.limits()

    async def limits_in_force(self) -> LimitsInForce:
        policy, heard, closed = await self._connection.pipe(
            ("HGET", self._keys.state, "policy"),
            ("ZRANGE", self._keys.workers, -1, -1, "WITHSCORES"),
            ("ZREVRANGE", self._keys.of("closed"), 0, MOST_CLOSED - 1, "WITHSCORES"),
        )
        are_known = policy is not None and policy.decode() == self._session.policy_digest
        # The worker heard of last was heard of a moment ago, so pauses may seem longer by that.
        now_ms = newest_ms(heard)
        return LimitsInForce(are_known, {decoded(name): ceil(at - now_ms) for name, at in closed if at > now_ms})

    async def renew(self, held: Sequence[tuple[int, int]]) -> Sequence[int]:
        if self._session.has_changed:
            # The next exchange finds out what the server has lost.
            return []
        parts = [held[first : first + _LEASES_PER_RENEW] for first in range(0, max(1, len(held)), _LEASES_PER_RENEW)]
        try:
            replies = await self._session.run([self._renewal(part) for part in parts])
        except ServerChanged:
            return []
        lost: list[int] = []
        for part, reply in zip(parts, replies, strict=True):
            if isinstance(reply, FrontierFull):
                raise reply
            if reply[0] == OK:
                lost += [ID.unpack(each)[0] for each in reply[1]]
            elif reply[0] == OUT_OF_STEP:
                # The next exchange finds out what the server has lost.
                self._session.has_changed = True
            elif reply[0] != UNKNOWN_SESSION:  # then the next exchange enters again
                lost += [lease_id for lease_id, _ in part]
        return lost

    def _renewal(self, held: Sequence[tuple[int, int]]) -> Call:
        pairs = [part for lease_id, attempt in held for part in (ID.pack(lease_id), attempt)]
        return "renew", (*self._session.arguments(), self._applied, self._session.ttl_ms, *pairs)

    async def leases(self) -> Sequence[tuple[int, int]]:
        return [(ID.unpack(key)[0], attempt) for key, attempt in sorted(await self._own_leases())]

    async def waits(self) -> Waits:
        session = self._session
        arguments = (session.now(), self.config.worker, session.ttl_ms, MOST_LOOKED_AT, MOST_SLOTS)
        try:
            return read_waits(await session.call("waits", arguments))
        except ServerChanged:
            # The next exchange finds out what the server has lost.
            return Waits()

    async def report_slow(self, pages: Sequence[SlowPage], blocked: Blocked | None = None) -> None:
        is_idle = int(blocked is not None and blocked.is_idle)
        try:
            await self._session.call("slow", (*self._session.arguments(), slow_json(pages, blocked), is_idle))
        except ServerChanged:
            return

    async def reconcile(self, held: Sequence[tuple[int, int]]) -> int:
        if self._may_lease_late:
            try:
                await self._make_late_calls_void()
            except CrawlEnded:
                # The next exchange says so.
                return 0
        recovered, _ = await self._recover(held, max_attempts=0)
        return recovered

    async def _make_late_calls_void(self) -> None:
        """Fence, since a link that was cut may deliver a call when it is back, and nobody would know its leases."""
        last_batch = (await self._session.look_up()).last_batch if self._is_in_doubt else self._applied
        if last_batch is not None and last_batch >= self._applied:
            await self._fence(last_batch)

    async def record(self, report: Report) -> float:
        return await self._recorder.record(report)

    async def leave(self, report: Report | None = None) -> FleetTotals | None:
        if report is not None:
            await self._reported(self._recorder.record(report))
        reply = await self._session.call("leave", (*self._session.arguments(), self._session.ttl_ms))
        if reply[0] != OK or not reply[1]:
            return None
        totals = None if report is None else await self._reported(self._recorder.totals())
        await self._session.clear(reply[1].decode())
        return totals

    async def _reported(self, call: Awaitable[T]) -> T | None:
        """Return the result of a call that only reports on this run; one that fails is no reason to stay."""
        try:
            return await call
        except FrontierUnavailable:
            # The run will count as lost.
            return None
        except Exception:
            logger.exception("Unexpected error in the last report on this run")
            return None

    async def listen(self, ring: Callable[[], object]) -> None:
        await self._connection.listen(self._keys.bell, ring)

    async def follow(self, on_move: Callable[[], object]) -> None:
        await self._connection.follow(on_move)

    def twin(self) -> RedisFrontier:
        session, connection = self._session, self._connection.twin()
        return RedisFrontier(
            self.config, connection, nonce=session.nonce, epoch=session.epoch, heard_ms=session.heard_ms
        )

    async def count_letters(self) -> int:
        (count,) = await self._connection.pipe(("ZCARD", self._keys.died))
        return int(count)

    async def close(self) -> None:
        await self._recorder.close()
        await self._connection.close()

    async def _recover(self, held: Sequence[tuple[int, int]], *, max_attempts: int) -> tuple[int, list[DeadLetter]]:
        known = {(ID.pack(lease_id), attempt) for lease_id, attempt in held}
        # In the order of their ids, so that slots keep the turns that they would have had.
        lost = sorted(key for key, attempt in await self._own_leases() if (key, attempt) not in known)
        recovered = 0
        dead_letters: list[DeadLetter] = []
        for ids in pieces(lost, _IDS_PER_RECOVER):
            (expiries,) = await self._connection.pipe(("ZMSCORE", self._keys.leases, *ids))
            pairs = [part for key, at in zip(ids, expiries, strict=True) if at for part in (key, int(at))]
            reply = await self._session.call("recover", (*self._session.arguments(), max_attempts, *pairs))
            if reply[0] == OK:
                recovered += reply[1]
                dead_letters += read_dead_letters(reply[2])
        return recovered, dead_letters

    async def _own_leases(self) -> set[tuple[bytes, int]]:
        worker = self.config.worker.encode()
        found = await leases_by_worker(self._connection, self._keys, {worker})
        return set(found.get(worker, ()))


def _is_out_of_touch(replies: Sequence[Any], *, has_lease: bool) -> bool:
    """Return whether the server doesn't know the worker or its latest batch."""
    codes = [code_of(reply) for reply in replies]
    # After a batch that was rejected for another reason, the next one is out of step, too; a lease is never.
    ends = [*codes[:1], *(codes[-1:] if has_lease else ())]
    return OUT_OF_STEP in ends or UNKNOWN_SESSION in codes
