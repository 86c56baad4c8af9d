"""Unconfirmed operations of a worker: requests and ends of leases, cut into numbered batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Generic, NamedTuple, TypeVar

from scrapy_prioqueue.frontier.base import Ack, Batch, Claim, Committed, Fail, Lease, Operation, Push, Release
from scrapy_prioqueue.frontier.operations import payload_size

Tag = TypeVar("Tag")


@dataclass(slots=True, eq=False)
class HeldRequest:
    """A request that this worker holds.

    Args:
        lease: its lease; replaced when a claim brings another one.
        is_claiming: the frontier has not granted the claim yet; the end of the lease waits for that.
        is_void: the claim was not granted: the request is done, or another worker has it. Its end is not sent.
        uncut_children: number of requests that may have been found on its page and are in no batch yet; the ack waits
            for them.
        kept: number of requests that stay in this process and may have been found on its page, or on a page of such a
            request; without those that are done. The ack waits for them, too.
        roots: pages that wait for this request, which runs without a lease; it counts as one of their `kept`.
        is_slow: it may never end, so it is given up if its lease is lost.
        started_at: start time, by the pump's clock.
    """

    lease: Lease
    is_claiming: bool = False
    is_void: bool = False
    uncut_children: int = 0
    kept: int = 0
    roots: Sequence[HeldRequest] = ()
    is_slow: bool = False
    started_at: float = 0.0

    @property
    def token(self) -> tuple[int, int]:
        """The frontier's key for the lease."""
        return self.lease.lease_id, self.lease.attempt

    @property
    def is_leased(self) -> bool:
        """Whether the frontier has the lease, as far as is known here."""
        return not (self.is_claiming or self.is_void)


BATCH_SIZE = 100
"""Number of operations in a batch: one script call then blocks the server for only a millisecond or two."""

REQUESTS_PER_BATCH = 75
"""Maximum number of requests among them, so that a long row of requests doesn't keep acks back."""

BATCH_BYTES = 512 * 1024
"""Payload size from which on a batch gets no further request, since the server copies every byte several times."""

LOOK_UPS = 500
"""Number of requests per look-up on a full server: about a millisecond of its time."""

MAX_BATCHES = 16
"""Maximum number of batches in one exchange."""


@dataclass(slots=True)
class Outcome(Generic[Tag]):
    """The outcome of an operation.

    Args:
        operation: as it was added.
        tag: the tag that was added with it.
        is_duplicate: a push whose fingerprint was seen before.
        is_repeated_start: a start request that was pushed before.
        is_void: an ack, release or fail that came too late, or a claim that was not granted.
    """

    operation: Operation
    tag: Tag | None
    is_duplicate: bool = False
    is_repeated_start: bool = False
    is_void: bool = False


class Unsent(NamedTuple):
    """Numbers of operations that the frontier has not confirmed.

    Args:
        found: requests that were, or may have been, found on pages.
        rootless: requests from no page, such as those of `start()`.
        acks: acks and failures of pages.
        releases: requests to be released.
    """

    found: int
    rootless: int
    acks: int
    releases: int


@dataclass(slots=True, eq=False)
class Entry(Generic[Tag]):
    """An operation.

    Args:
        operation: if it ends a lease, it gets the lease's current id and attempt when it is cut into a batch.
        tag: returned with the outcome.
        held: the held request that it claims or ends.
        parents: pages on which a request was, or may have been, found.
        is_cut: it is in a batch.
        is_known: a full server has confirmed that it has seen the request.
    """

    operation: Operation
    tag: Tag | None = None
    held: HeldRequest | None = None
    parents: Sequence[HeldRequest] = ()
    is_cut: bool = False
    is_known: bool = False

    @property
    def needs_memory(self) -> bool:
        """Whether a full server would reject it."""
        return not self.is_known and isinstance(self.operation, (Push, Claim))


class Outbox(Generic[Tag]):
    """Two queues and the batches cut from them: requests in order, and settlings, each after its page's requests.

    A *settling* is the end of a lease. A page *lingers* while requests that it led to stay in this process: its
    settling joins the queue only when they are done.

    Once a batch may have been sent, it keeps its number and operations until the frontier has confirmed it, so it can
    be sent again safely after a lost answer.
    """

    def __init__(self) -> None:
        self._requests: deque[Entry[Tag]] = deque()
        self._settlings: deque[Entry[Tag]] = deque()
        self._lingering: dict[HeldRequest, Entry[Tag]] = {}
        self._cut: deque[tuple[Batch, Sequence[Entry[Tag]]]] = deque()
        self._void: list[Outcome[Tag]] = []
        self._by_fingerprint: dict[bytes, Entry[Tag]] = {}
        self._next_number = 1
        self._requests_per_batch = REQUESTS_PER_BATCH
        self._last_sent = 0
        self.pushes = self.pushed_bytes = 0
        """Number of unconfirmed requests, and the total size of their payloads."""
        self._forgotten = self._begun = 0
        self._looked_up = 0
        self._rejected: list[Entry[Tag]] = []

    def __len__(self) -> int:
        waiting = len(self._requests) + len(self._settlings)
        return waiting + sum(len(entries) for _, entries in self._cut) if self._cut else waiting

    def __bool__(self) -> bool:
        return bool(self._requests or self._settlings or self._cut)

    @property
    def claims_forgotten(self) -> bool:
        """Whether claims of leases that the server has lost are unconfirmed."""
        return self._forgotten > 0

    @property
    def has_begun(self) -> bool:
        """Whether claims of requests that were found and started here are unconfirmed."""
        return self._begun > 0

    def push(self, push: Push, tag: Tag | None, parents: Sequence[HeldRequest] = ()) -> Entry[Tag]:
        """Append a request.

        Args:
            tag: returned with the outcome.
            parents: pages on which it was, or may have been, found; none is acked before the request is stored.
        """
        entry = Entry(push, tag, parents=parents)
        self._requests.append(entry)
        self.pushes += 1
        self.pushed_bytes += len(push.payload)
        for parent in parents:
            parent.uncut_children += 1
        if push.fingerprint is not None:
            self._by_fingerprint.setdefault(push.fingerprint, entry)
        return entry

    def note_duplicate(self, fingerprint: bytes, parents: Sequence[HeldRequest]) -> None:
        """Note that an unconfirmed request was found again: these pages wait for it, too."""
        entry = self._by_fingerprint[fingerprint]
        more = [held for held in parents if held not in entry.parents]
        entry.parents = [*entry.parents, *more]
        if not entry.is_cut:
            for held in more:
                held.uncut_children += 1

    def awaits(self, fingerprint: bytes) -> bool:
        """Return whether a request with this fingerprint is unconfirmed."""
        return fingerprint in self._by_fingerprint

    def _forget_fingerprint(self, entry: Entry[Tag]) -> None:
        push = entry.operation.push if isinstance(entry.operation, Claim) else entry.operation
        fingerprint = push.fingerprint if isinstance(push, Push) else None
        if fingerprint is not None and self._by_fingerprint.get(fingerprint) is entry:
            del self._by_fingerprint[fingerprint]

    def claim(self, push: Push, held: HeldRequest) -> None:
        """Claim a lease that the server has lost, ahead of all other requests, before another worker gets it."""
        held.is_claiming = True
        self._forgotten += 1
        self.pushes += 1
        self.pushed_bytes += len(push.payload)
        self._requests.appendleft(Entry(Claim(push, held.lease.lease_id, held.lease.attempt), held=held))

    def settle(self, operation: Ack | Release | Fail, held: HeldRequest) -> None:
        """Append the end of a lease; unless it is a release, it lingers for requests of its page in this process."""
        entry: Entry[Tag] = Entry(operation, held=held)
        if _lingers(entry):
            self._lingering[held] = entry
        else:
            self._settlings.append(entry)
        if held.roots:
            roots, held.roots = held.roots, ()
            self.let_go(roots)

    def keep(self, parents: Sequence[HeldRequest]) -> None:
        """Note that a request stays in this process that was, or may have been, found on these pages."""
        for held in parents:
            held.kept += 1

    def let_go(self, parents: Sequence[HeldRequest]) -> None:
        """Note that such a request is done."""
        for held in parents:
            held.kept -= 1
            entry = None if held.kept else self._lingering.pop(held, None)
            if entry is not None:
                self._settlings.append(entry)

    @property
    def lingering(self) -> Collection[HeldRequest]:
        """Pages that are done except for requests staying in this process."""
        return self._lingering.keys()

    def release_lingering(self) -> int:
        """Release the lingering pages, so that they are fetched again; return their number."""
        lingering, self._lingering = self._lingering, {}
        for held in lingering:
            self._settlings.append(Entry(Release(*held.token), held=held))
        return len(lingering)

    def unsent(self) -> Unsent:
        """Return the numbers of unconfirmed operations, by kind."""
        found = rootless = acks = releases = 0
        for entry in chain(self._requests, self._settlings, *(entries for _, entries in self._cut)):
            if isinstance(entry.operation, (Push, Claim)):
                found, rootless = found + bool(entry.parents), rootless + (not entry.parents)
            elif isinstance(entry.operation, Release):
                releases += 1
            else:
                acks += 1
        return Unsent(found, rootless, acks, releases)

    def uncut_pushes(self) -> Iterable[Entry[Tag]]:
        """Return the requests that are in no batch, so that the frontier can't have them."""
        return (entry for entry in self._requests if isinstance(entry.operation, Push))

    def taken_requests(self) -> Iterable[Push]:
        """Return the unconfirmed requests that are running here, or in a batch and so perhaps in the frontier."""
        cut = [entry.operation for _, entries in self._cut for entry in entries]
        yield from (operation for operation in cut if isinstance(operation, Push))
        for operation in chain(cut, (entry.operation for entry in self._requests)):
            if isinstance(operation, Claim):
                yield operation.push

    def begin(self, entry: Entry[Tag], held: HeldRequest) -> None:
        """Replace an uncut request, which starts running here, by a claim."""
        assert isinstance(entry.operation, Push)
        held.is_claiming = True
        self._begun += 1
        entry.operation, entry.held, entry.is_known = Claim(entry.operation), held, False

    def uncut_settled(self) -> Iterable[HeldRequest]:
        """Return all held requests whose ends are in no batch yet."""
        waiting = (entry.held for entry in self._settlings if entry.held is not None)
        return chain(waiting, self._lingering)

    def waiting_settled(self) -> Iterable[HeldRequest]:
        """Return the leased requests whose ends certainly have not been sent."""
        return (held for held in self.uncut_settled() if held.is_leased)

    def all_settled(self) -> Iterable[HeldRequest]:
        """Return the leased requests whose ends are unconfirmed."""
        sent = (entry for _, entries in self._cut for entry in entries if not isinstance(entry.operation, Claim))
        sent_ends = (entry.held for entry in sent)
        return chain((held for held in sent_ends if held is not None and held.is_leased), self.waiting_settled())

    # Cutting

    def has_free_entries(self) -> bool:
        """Return whether any operation could be sent to a full server."""
        return self._starts_with_known() or any(self._may_go(entry) for entry in self._settlings)

    def batches(self, *, is_new: bool = True, with_requests: bool = True) -> Sequence[Batch]:
        """Return the batches to send now: unconfirmed ones, then new ones.

        Args:
            is_new: whether new batches may be cut.
            with_requests: False for a full server. Then only operations that it accepts are cut: requests that it has
                seen, and settlings that don't wait for others.
        """
        # The frontier remembers granted claims only of the last batch, in case that the answer is lost.
        while is_new and len(self._cut) < MAX_BATCHES and not self._has_cut_claims():
            may_add = with_requests and not (self.is_throttled and self.has_cut_requests())
            entries = self._next_entries(with_requests=may_add)
            if not entries:
                break
            self._cut.append((Batch(self._next_number, [_written(entry) for entry in entries]), entries))
            self._next_number += 1
        return [batch for batch, _ in self._cut]

    def _starts_with_known(self) -> bool:
        return bool(self._requests) and self._requests[0].is_known

    @property
    def is_throttled(self) -> bool:
        """Whether fewer requests are sent at a time, because a full server has rejected some."""
        return self._requests_per_batch < REQUESTS_PER_BATCH

    def throttle(self) -> None:
        """Put back the batches that a full server has rejected, and cut smaller ones, which it may have room for."""
        for _, entries in self._cut:
            for entry in entries:
                entry.is_known = False
        self.put_back(certainly=True)
        self._requests_per_batch = max(1, self._requests_per_batch // 8)

    def take_too_large(self, limit: int) -> tuple[list[Entry[Tag]], list[Outcome[Tag]]]:
        """Remove requests that are too large for the server, after it has rejected the batches for that reason.

        If they can't be identified, smaller batches are sent, down to one request.

        Args:
            limit: maximum size of a payload for the server, as far as is known.

        Returns:
            requests that stay in this process from now on, and outcomes of claims that are given up.
        """
        sent = [entry for _, entries in self._cut for entry in entries if isinstance(entry.operation, (Push, Claim))]
        culprit = sent[0] if len(sent) == 1 else None
        if culprit is not None or any(payload_size(entry.operation) > limit for entry in sent):
            self.put_back(certainly=True)
        else:
            self.throttle()
        taken = [entry for entry in self._requests if entry is culprit or payload_size(entry.operation) > limit]
        for entry in taken:
            self._take_out(entry)
        # The page of such a request may have ended already; then it lingers from now on.
        lingering = [entry for entry in self._settlings if _lingers(entry)]
        for entry in lingering:
            assert entry.held is not None
            self._settlings.remove(entry)
            self._lingering[entry.held] = entry
        claims = self.give_up_claims([entry for entry in taken if isinstance(entry.operation, Claim)])
        return [entry for entry in taken if isinstance(entry.operation, Push)], claims

    def _take_out(self, entry: Entry[Tag]) -> None:
        self._requests.remove(entry)
        self.pushes -= 1
        self.pushed_bytes -= payload_size(entry.operation)
        self._forget_fingerprint(entry)
        held = entry.held
        if isinstance(entry.operation, Claim):
            self._forgotten -= entry.operation.lease_id is not None
            self._begun -= entry.operation.lease_id is None
        if held is None or not any(settling.held is held for settling in self._settlings):
            self.keep(entry.parents)
            if held is not None:
                held.roots = entry.parents
        for parent in entry.parents:
            parent.uncut_children -= 1

    def next_look_up(self) -> Sequence[Entry[Tag]]:
        """Return the next requests to look up on a full server; each call returns others."""
        first = self._looked_up if self._looked_up < len(self._requests) else 0
        self._looked_up = first + LOOK_UPS
        return [entry for entry in islice(self._requests, first, self._looked_up) if _may_be_known(entry.operation)]

    def put_forward(self, known: Sequence[Entry[Tag]]) -> None:
        """Move requests that a full server has seen, and so accepts, to the front."""
        found = set(known)
        first = [entry for entry in self._requests if entry in found and isinstance(entry.operation, Push)]
        for entry in first:
            entry.is_known = True
        found = set(first)
        self._requests = deque([*first, *(entry for entry in self._requests if entry not in found)])

    def has_cut_requests(self) -> bool:
        """Return whether a full server would reject an operation of the cut batches."""
        return any(entry.needs_memory for _, entries in self._cut for entry in entries)

    def _has_cut_claims(self) -> bool:
        return bool(self._cut) and any(isinstance(entry.operation, Claim) for entry in self._cut[-1][1])

    def _next_entries(self, *, with_requests: bool) -> list[Entry[Tag]]:
        entries: list[Entry[Tag]] = []
        size = 0
        # A full server rejects a batch with any operation that needs memory, so known requests get their own batches.
        are_known = self._starts_with_known()
        most = REQUESTS_PER_BATCH if are_known else self._requests_per_batch if with_requests else 0
        while self._requests and len(entries) < most and size < BATCH_BYTES:
            if self._requests[0].is_known != are_known:
                break
            entry = self._requests.popleft()
            entry.is_cut = True
            size += payload_size(entry.operation)
            for parent in entry.parents:
                parent.uncut_children -= 1
            entries.append(entry)
        waiting: list[Entry[Tag]] = []
        while self._settlings and len(entries) < BATCH_SIZE:
            entry = self._settlings.popleft()
            if entry.held is not None and entry.held.is_void:
                self._void.append(Outcome(entry.operation, entry.tag, is_void=True))
            else:
                (entries if self._may_go(entry) else waiting).append(entry)
        self._settlings.extendleft(reversed(waiting))
        return entries

    def _may_go(self, entry: Entry[Tag]) -> bool:
        held = entry.held
        if held is None or held.is_void:
            return True
        has_children = held.uncut_children > 0 and not isinstance(entry.operation, Release)
        return not (held.is_claiming or has_children)

    # Outcomes

    def note_failure(self, *, was_sent: bool) -> None:
        """Note that an exchange has failed; if it was certainly not sent, its batches are dissolved."""
        if was_sent:
            self._last_sent = self._next_number - 1
        else:
            self.put_back()

    def put_back(self, *, certainly: bool = False) -> None:
        """Dissolve unsent batches.

        Args:
            certainly: sent batches, too, since they are known not to have been applied.
        """
        while self._cut and (certainly or self._cut[-1][0].number > self._last_sent):
            batch, entries = self._cut.pop()
            self._next_number = batch.number
            for entry in reversed(entries):
                is_request = isinstance(entry.operation, (Push, Claim))
                (self._requests if is_request else self._settlings).appendleft(entry)
                entry.is_cut = False
                for parent in entry.parents:
                    parent.uncut_children += 1
        self._last_sent = min(self._last_sent, self._next_number - 1)

    def confirm(self, committed: Sequence[Committed]) -> list[Outcome[Tag]]:
        """Drop the batches that the frontier has applied and return the outcomes of their operations."""
        outcomes, self._void = self._void, []
        self._last_sent = self._next_number - 1
        for answer in committed:
            batch, entries = self._cut.popleft()
            assert batch.number == answer.number, "the frontier answers batches in order"
            if any(entry.needs_memory for entry in entries):
                self._requests_per_batch = min(REQUESTS_PER_BATCH, 2 * self._requests_per_batch)
            duplicates, repeated, void = set(answer.duplicates), set(answer.repeated_starts), set(answer.void)
            for index, entry in enumerate(entries):
                is_void = index in void
                if isinstance(entry.operation, (Push, Claim)):
                    self.pushes -= 1
                    self.pushed_bytes -= payload_size(entry.operation)
                    self._forget_fingerprint(entry)
                if isinstance(entry.operation, Claim):
                    is_first = entry.operation.lease_id is None
                    self._forgotten -= not is_first
                    self._begun -= is_first
                    token = answer.claimed.get(index)
                    if token is None and is_first and entry.operation.push.fingerprint is not None:
                        self._rejected.append(entry)
                        continue
                    is_void = not _granted(entry.held, token)
                outcomes.append(Outcome(entry.operation, entry.tag, index in duplicates, index in repeated, is_void))
        return outcomes

    @property
    def has_rejected(self) -> bool:
        """Whether `take_rejected` has claims to return."""
        return bool(self._rejected)

    def take_rejected(self) -> Sequence[Entry[Tag]]:
        """Return rejected claims of requests started here but seen before; they may be pending in the frontier.

        Their settlings wait until they are claimed by id, or given up.
        """
        rejected, self._rejected = self._rejected, []
        return rejected

    def give_up_claims(self, entries: Sequence[Entry[Tag]]) -> list[Outcome[Tag]]:
        """Give up claims of requests that are done, or another worker's; return their outcomes."""
        for entry in entries:
            _granted(entry.held, None)
        return [Outcome(entry.operation, entry.tag, is_void=True) for entry in entries]

    def give_up_requests(self) -> int:
        """Drop the requests that a full server doesn't accept; return their number.

        The pages on which they may have been found are released instead of acked, so nothing is lost.
        """
        for entry in self._settlings:
            if entry.held is not None and entry.held.uncut_children > 0:
                entry.operation = Release(*entry.held.token)
            if entry.held is not None and entry.held.is_claiming:
                entry.held.is_claiming, entry.held.is_void = False, True
        given_up = len(self._requests)
        self._forgotten = self._begun = 0
        self.pushes -= given_up
        self.pushed_bytes -= sum(payload_size(entry.operation) for entry in self._requests)
        self._by_fingerprint.clear()
        self._requests.clear()
        return given_up

    def abandon(self) -> int:
        """Drop all operations, since the crawl has ended; return the number of requests among them."""
        pushes, self.pushes, self.pushed_bytes = self.pushes, 0, 0
        self._forgotten = self._begun = 0
        # Held requests must not wait for dropped operations when they end later.
        for entry in self._requests:
            for parent in entry.parents:
                parent.uncut_children -= 1
        for entry in chain(self._requests, self._rejected, *(entries for _, entries in self._cut)):
            if entry.held is not None and entry.held.is_claiming:
                entry.held.is_claiming, entry.held.is_void = False, True
        self._requests.clear()
        self._rejected.clear()
        self._by_fingerprint.clear()
        self._settlings.clear()
        self._lingering.clear()
        self._cut.clear()
        return pushes


def _lingers(entry: Entry[Tag]) -> bool:
    return entry.held is not None and entry.held.kept > 0 and not isinstance(entry.operation, Release)


def _may_be_known(operation: Operation) -> bool:
    return isinstance(operation, Push) and operation.fingerprint is not None and operation.start_mark is None


def _written(entry: Entry[Tag]) -> Operation:
    """Return the operation of an entry; a settling gets its current lease."""
    operation, held = entry.operation, entry.held
    if held is None or isinstance(operation, (Push, Claim)):
        return operation
    lease_id, attempt = held.token
    if operation.lease_id == lease_id and operation.attempt == attempt:
        return operation
    return replace(operation, lease_id=lease_id, attempt=attempt)


def _granted(held: HeldRequest | None, token: tuple[int, int] | None) -> bool:
    """Give a held request the lease that its claim has brought; False if the claim was not granted."""
    assert held is not None
    held.is_claiming = False
    if token is None:
        held.is_void = True
        return False
    held.lease = held.lease._replace(lease_id=token[0], attempt=token[1])
    return True


UNKNOWN_ID = 0
"""Id of a lease that has no id from the frontier yet; the outbox replaces it."""


def push_dead_letter(outbox: Outbox[Tag], push: Push, reason: str, detail: str, traceback: str = "") -> None:
    """Add a dead letter to the outbox; it is safe once the claim is confirmed."""
    held = HeldRequest(Lease(UNKNOWN_ID, 1, push.rank, push.slot, push.payload))
    outbox.begin(outbox.push(push, None), held)
    outbox.settle(Fail(UNKNOWN_ID, 1, reason, detail, traceback), held)
