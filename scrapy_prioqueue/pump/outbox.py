"""Operations of a worker that are not confirmed: requests and ends of leases, cut into numbered batches."""

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
class Hold:
    """A request that was handed to this worker.

    Args:
        lease: under which it is held; replaced when a claim gives it another one.
        is_claiming: the frontier has not agreed to the lease yet; what settles it waits until it has.
        is_void: the frontier has not agreed: the request is done, or another worker has it. Nothing settles it.
        uncut_children: requests that may have been found on its page and are in no batch yet; its ack waits for them.
        kept: requests of this process only that may have been found on its page, or on one that such a request has led
            to, and are not done yet; its ack waits for them, too.
        roots: pages that wait for this request, which is worked on without a lease; it is among their `kept`.
        is_slow: it may never end, so that it is given up where its lease is lost.
        started_at: when it was handed out, by the clock of the pump.
    """

    lease: Lease
    is_claiming: bool = False
    is_void: bool = False
    uncut_children: int = 0
    kept: int = 0
    roots: Sequence[Hold] = ()
    is_slow: bool = False
    started_at: float = 0.0

    @property
    def token(self) -> tuple[int, int]:
        """What the frontier knows the lease by."""
        return self.lease.lease_id, self.lease.attempt

    @property
    def is_leased(self) -> bool:
        """The frontier knows of the lease, as far as is known here."""
        return not (self.is_claiming or self.is_void)


BATCH_SIZE = 100
"""Operations of one batch, so that one script call takes the server a millisecond or two: others wait meanwhile."""

REQUESTS_PER_BATCH = 75
"""How many of them are requests at most, so that acks are not kept back by a long row of those."""

BATCH_BYTES = 512 * 1024
"""A batch takes no further request once those that it has are that large: the server copies every byte some times."""

LOOK_UPS = 500
"""Requests of which a full server is asked at a time whether it has seen them: about a millisecond of its time."""

MAX_BATCHES = 16
"""Batches of one exchange."""


@dataclass(slots=True)
class Settled(Generic[Tag]):
    """What became of one operation.

    Args:
        operation: as it was put in.
        tag: what was put in with it.
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
    """Counts of operations that the frontier has not confirmed.

    Args:
        found: requests that were found on pages, or may have been.
        rootless: requests that come from no page, such as those of `start()`.
        acks: acks and failures of pages.
        releases: requests that were to be given back.
    """

    found: int
    rootless: int
    acks: int
    releases: int


@dataclass(slots=True, eq=False)
class Entry(Generic[Tag]):
    """One operation.

    Args:
        operation: that of a settling gets its lease id and attempt when it is cut into a batch.
        tag: what comes back with the outcome.
        hold: what is claimed or settled.
        parents: on whose pages a request was found, or may have been.
        is_cut: it is in a batch.
        is_known: a full server was asked whether it has seen the request, and said so.
    """

    operation: Operation
    tag: Tag | None = None
    hold: Hold | None = None
    parents: Sequence[Hold] = ()
    is_cut: bool = False
    is_known: bool = False

    @property
    def needs_memory(self) -> bool:
        """A full server rejects it."""
        return not self.is_known and isinstance(self.operation, (Push, Claim))


class Outbox(Generic[Tag]):
    """Two queues, and what was cut from them: requests in their order, and settlings, each behind its page's requests.

    A page of which this process keeps requests to itself *lingers*: what settles it is in no queue until they are done.

    A batch, once it may have been sent, keeps its number and its operations until the frontier has confirmed it,
    so that sending it again after a lost answer does no harm.
    """

    def __init__(self) -> None:
        self._requests: deque[Entry[Tag]] = deque()
        self._settlings: deque[Entry[Tag]] = deque()
        self._lingering: dict[Hold, Entry[Tag]] = {}
        self._cut: deque[tuple[Batch, Sequence[Entry[Tag]]]] = deque()
        self._void: list[Settled[Tag]] = []
        self._by_fingerprint: dict[bytes, Entry[Tag]] = {}
        self._next_number = 1
        self._requests_per_batch = REQUESTS_PER_BATCH
        self._last_sent = 0
        self._pushes = self._bytes = 0
        self._forgotten = self._begun = 0
        self._looked_up = 0
        self._rejected: list[Entry[Tag]] = []

    def __len__(self) -> int:
        waiting = len(self._requests) + len(self._settlings)
        return waiting + sum(len(entries) for _, entries in self._cut) if self._cut else waiting

    def __bool__(self) -> bool:
        return bool(self._requests or self._settlings or self._cut)

    @property
    def pushes(self) -> int:
        """Requests that are not confirmed yet."""
        return self._pushes

    @property
    def pushed_bytes(self) -> int:
        """Length of the payloads of those."""
        return self._bytes

    @property
    def claims_forgotten(self) -> bool:
        """Leases that the server has forgotten are claimed and not confirmed yet."""
        return self._forgotten > 0

    @property
    def has_begun(self) -> bool:
        """Requests that were found and begun here are to be claimed, and the frontier has not answered yet."""
        return self._begun > 0

    def push(self, push: Push, tag: Tag | None, parents: Sequence[Hold] = ()) -> Entry[Tag]:
        """Append a request.

        Args:
            tag: comes back with the outcome.
            parents: on whose pages it was found, or may have been; none of them is acked before it is stored.
        """
        entry = Entry(push, tag, parents=parents)
        self._requests.append(entry)
        self._pushes += 1
        self._bytes += len(push.payload)
        for parent in parents:
            parent.uncut_children += 1
        if push.fingerprint is not None:
            self._by_fingerprint.setdefault(push.fingerprint, entry)
        return entry

    def note_duplicate(self, fingerprint: bytes, parents: Sequence[Hold]) -> None:
        """Note that a request which `awaits` confirmation was found again: these pages wait for it, too."""
        entry = self._by_fingerprint[fingerprint]
        more = [hold for hold in parents if hold not in entry.parents]
        entry.parents = [*entry.parents, *more]
        if not entry.is_cut:
            for hold in more:
                hold.uncut_children += 1

    def awaits(self, fingerprint: bytes) -> bool:
        """Tell whether a request with this fingerprint is not confirmed yet."""
        return fingerprint in self._by_fingerprint

    def _forget_fingerprint(self, entry: Entry[Tag]) -> None:
        push = entry.operation.push if isinstance(entry.operation, Claim) else entry.operation
        fingerprint = push.fingerprint if isinstance(push, Push) else None
        if fingerprint is not None and self._by_fingerprint.get(fingerprint) is entry:
            del self._by_fingerprint[fingerprint]

    def claim(self, push: Push, hold: Hold) -> None:
        """Put the claim to a lease that the server has forgotten in front of all, before others get the request."""
        hold.is_claiming = True
        self._forgotten += 1
        self._pushes += 1
        self._bytes += len(push.payload)
        self._requests.appendleft(Entry(Claim(push, hold.lease.lease_id, hold.lease.attempt), hold=hold))

    def settle(self, operation: Ack | Release | Fail, hold: Hold) -> None:
        """Append the end of a lease; one that isn't given back lingers for what this process keeps of its page."""
        entry: Entry[Tag] = Entry(operation, hold=hold)
        if _lingers(entry):
            self._lingering[hold] = entry
        else:
            self._settlings.append(entry)
        if hold.roots:
            roots, hold.roots = hold.roots, ()
            self.let_go(roots)

    def keep(self, parents: Sequence[Hold]) -> None:
        """Note that this process keeps a request to itself that was found on these pages, or may have been."""
        for hold in parents:
            hold.kept += 1

    def let_go(self, parents: Sequence[Hold]) -> None:
        """Note that such a request is done."""
        for hold in parents:
            hold.kept -= 1
            entry = None if hold.kept else self._lingering.pop(hold, None)
            if entry is not None:
                self._settlings.append(entry)

    @property
    def lingering(self) -> Collection[Hold]:
        """The pages that are done, but for requests that this process keeps to itself."""
        return self._lingering.keys()

    def release_lingering(self) -> int:
        """Give those back, so that they are fetched again; return how many."""
        lingering, self._lingering = self._lingering, {}
        for hold in lingering:
            self._settlings.append(Entry(Release(*hold.token), hold=hold))
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
        """Return the requests that no batch holds; no frontier knows of them."""
        return (entry for entry in self._requests if isinstance(entry.operation, Push))

    def taken_requests(self) -> Iterable[Push]:
        """Return the unconfirmed requests that are worked on, or in a batch and so perhaps in the frontier."""
        cut = [entry.operation for _, entries in self._cut for entry in entries]
        yield from (operation for operation in cut if isinstance(operation, Push))
        for operation in chain(cut, (entry.operation for entry in self._requests)):
            if isinstance(operation, Claim):
                yield operation.push

    def begin(self, entry: Entry[Tag], hold: Hold) -> None:
        """Note that an uncut request is worked on already: it is claimed instead of being left to whoever asks."""
        assert isinstance(entry.operation, Push)
        hold.is_claiming = True
        self._begun += 1
        entry.operation, entry.hold, entry.is_known = Claim(entry.operation), hold, False

    def uncut_settled_holds(self) -> Iterable[Hold]:
        """Return all holds whose end is not in a batch yet."""
        waiting = (entry.hold for entry in self._settlings if entry.hold is not None)
        return chain(waiting, self._lingering)

    def waiting_holds(self) -> Iterable[Hold]:
        """Return the holds, each with a lease, that are settled here and surely not at the frontier."""
        return (hold for hold in self.uncut_settled_holds() if hold.is_leased)

    def settled_holds(self) -> Iterable[Hold]:
        """Return the holds, each with a lease, that an unconfirmed operation settles."""
        sent = (entry for _, entries in self._cut for entry in entries if not isinstance(entry.operation, Claim))
        holds = (entry.hold for entry in sent)
        return chain((hold for hold in holds if hold is not None and hold.is_leased), self.waiting_holds())

    # Cutting

    def has_free_entries(self) -> bool:
        """Tell whether something could be sent to a full server."""
        return self._starts_with_known() or any(self._may_go(entry) for entry in self._settlings)

    def batches(self, *, is_new: bool = True, with_requests: bool = True) -> Sequence[Batch]:
        """Return what is to be sent now: what may have been sent and is not confirmed, then new batches.

        Args:
            is_new: False where nothing new is to be cut.
            with_requests: False for a full server; then only what it takes is cut: requests that it has seen, and
                settlings that need not wait for others.
        """
        # The frontier remembers which claims it granted for the last batch only, in case that the answer is lost.
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
        """A full server has rejected requests: fewer are sent at a time, until it has taken them."""
        return self._requests_per_batch < REQUESTS_PER_BATCH

    def throttle(self) -> None:
        """Put back what a full server has rejected, and send less at a time: some may have room where all hasn't."""
        for _, entries in self._cut:
            for entry in entries:
                entry.is_known = False
        self.put_back(certainly=True)
        self._requests_per_batch = max(1, self._requests_per_batch // 8)

    def take_too_large(self, limit: int) -> tuple[list[Entry[Tag]], list[Settled[Tag]]]:
        """Take out the requests that a server can't take for their size; it has rejected what is cut for that reason.

        Where it isn't known which these are, fewer are sent at a time, down to one.

        Args:
            limit: bytes of the largest payload that it takes, as far as is known.

        Returns:
            requests that this process keeps to itself from now on, and outcomes of claims that are given up.
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
        # Of such a request the page may have ended already.
        lingering = [entry for entry in self._settlings if _lingers(entry)]
        for entry in lingering:
            assert entry.hold is not None
            self._settlings.remove(entry)
            self._lingering[entry.hold] = entry
        claims = self.give_up_claims([entry for entry in taken if isinstance(entry.operation, Claim)])
        return [entry for entry in taken if isinstance(entry.operation, Push)], claims

    def _take_out(self, entry: Entry[Tag]) -> None:
        self._requests.remove(entry)
        self._pushes -= 1
        self._bytes -= payload_size(entry.operation)
        self._forget_fingerprint(entry)
        hold = entry.hold
        if isinstance(entry.operation, Claim):
            self._forgotten -= entry.operation.lease_id is not None
            self._begun -= entry.operation.lease_id is None
        if hold is None or not any(settling.hold is hold for settling in self._settlings):
            self.keep(entry.parents)
            if hold is not None:
                hold.roots = entry.parents
        for parent in entry.parents:
            parent.uncut_children -= 1

    def next_look_up(self) -> Sequence[Entry[Tag]]:
        """Return requests of which a full server is to be asked whether it has seen them, others at each call."""
        first = self._looked_up if self._looked_up < len(self._requests) else 0
        self._looked_up = first + LOOK_UPS
        return [entry for entry in islice(self._requests, first, self._looked_up) if _may_be_known(entry.operation)]

    def put_forward(self, known: Sequence[Entry[Tag]]) -> None:
        """Send requests before all others, which a full server takes as it has seen them."""
        found = set(known)
        first = [entry for entry in self._requests if entry in found and isinstance(entry.operation, Push)]
        for entry in first:
            entry.is_known = True
        found = set(first)
        self._requests = deque([*first, *(entry for entry in self._requests if entry not in found)])

    def has_cut_requests(self) -> bool:
        """Tell whether a full server rejects something of what is to be sent now."""
        return any(entry.needs_memory for _, entries in self._cut for entry in entries)

    def _has_cut_claims(self) -> bool:
        return bool(self._cut) and any(isinstance(entry.operation, Claim) for entry in self._cut[-1][1])

    def _next_entries(self, *, with_requests: bool) -> list[Entry[Tag]]:
        entries: list[Entry[Tag]] = []
        size = 0
        # What needs memory would keep the rest of its batch from a full server.
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
            if entry.hold is not None and entry.hold.is_void:
                self._void.append(Settled(entry.operation, entry.tag, is_void=True))
            else:
                (entries if self._may_go(entry) else waiting).append(entry)
        self._settlings.extendleft(reversed(waiting))
        return entries

    def _may_go(self, entry: Entry[Tag]) -> bool:
        hold = entry.hold
        if hold is None or hold.is_void:
            return True
        has_children = hold.uncut_children > 0 and not isinstance(entry.operation, Release)
        return not (hold.is_claiming or has_children)

    # What became of it

    def note_failure(self, *, was_sent: bool) -> None:
        """Take note that an exchange has failed; what was certainly not sent is not bound to its batch."""
        if was_sent:
            self._last_sent = self._next_number - 1
        else:
            self.put_back()

    def put_back(self, *, certainly: bool = False) -> None:
        """Dissolve the batches that were not sent.

        Args:
            certainly: those that were sent, too: it is known that they were not applied.
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

    def confirm(self, committed: Sequence[Committed]) -> list[Settled[Tag]]:
        """Drop the batches that the frontier has applied and return the outcomes of their operations."""
        settled, self._void = self._void, []
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
                    self._pushes -= 1
                    self._bytes -= payload_size(entry.operation)
                    self._forget_fingerprint(entry)
                if isinstance(entry.operation, Claim):
                    is_first = entry.operation.lease_id is None
                    self._forgotten -= not is_first
                    self._begun -= is_first
                    token = answer.claimed.get(index)
                    if token is None and is_first and entry.operation.push.fingerprint is not None:
                        self._rejected.append(entry)
                        continue
                    is_void = not _granted(entry.hold, token)
                settled.append(Settled(entry.operation, entry.tag, index in duplicates, index in repeated, is_void))
        return settled

    @property
    def has_rejected(self) -> bool:
        """`take_rejected` has something to return."""
        return bool(self._rejected)

    def take_rejected(self) -> Sequence[Entry[Tag]]:
        """Return claims of what was found and begun here, and was seen before; it may be pending in the frontier.

        What settles them waits until they are claimed by their ids, or given up.
        """
        rejected, self._rejected = self._rejected, []
        return rejected

    def give_up_claims(self, entries: Sequence[Entry[Tag]]) -> list[Settled[Tag]]:
        """Return the outcomes of claims whose requests are done, or another worker's."""
        for entry in entries:
            _granted(entry.hold, None)
        return [Settled(entry.operation, entry.tag, is_void=True) for entry in entries]

    def give_up_requests(self) -> int:
        """Drop what a full server doesn't take; return how many requests that were.

        The pages that they may have been found on are released instead of acked, so nothing is lost.
        """
        for entry in self._settlings:
            if entry.hold is not None and entry.hold.uncut_children > 0:
                entry.operation = Release(*entry.hold.token)
            if entry.hold is not None and entry.hold.is_claiming:
                entry.hold.is_claiming, entry.hold.is_void = False, True
        given_up = len(self._requests)
        self._forgotten = self._begun = 0
        self._pushes -= given_up
        self._bytes -= sum(payload_size(entry.operation) for entry in self._requests)
        self._by_fingerprint.clear()
        self._requests.clear()
        return given_up

    def abandon(self) -> int:
        """Drop everything, when there is no crawl left to tell it to; return how many requests that were."""
        pushes, self._pushes, self._bytes = self._pushes, 0, 0
        self._forgotten = self._begun = 0
        # What is held must be free to be settled later.
        for entry in self._requests:
            for parent in entry.parents:
                parent.uncut_children -= 1
        for entry in chain(self._requests, self._rejected, *(entries for _, entries in self._cut)):
            if entry.hold is not None and entry.hold.is_claiming:
                entry.hold.is_claiming, entry.hold.is_void = False, True
        self._requests.clear()
        self._rejected.clear()
        self._by_fingerprint.clear()
        self._settlings.clear()
        self._lingering.clear()
        self._cut.clear()
        return pushes


def _lingers(entry: Entry[Tag]) -> bool:
    return entry.hold is not None and entry.hold.kept > 0 and not isinstance(entry.operation, Release)


def _may_be_known(operation: Operation) -> bool:
    return isinstance(operation, Push) and operation.fingerprint is not None and operation.start_mark is None


def _written(entry: Entry[Tag]) -> Operation:
    """Return the operation of an entry, a settling with its lease as it is now."""
    operation, hold = entry.operation, entry.hold
    if hold is None or isinstance(operation, (Push, Claim)):
        return operation
    lease_id, attempt = hold.token
    if operation.lease_id == lease_id and operation.attempt == attempt:
        return operation
    return replace(operation, lease_id=lease_id, attempt=attempt)


def _granted(hold: Hold | None, token: tuple[int, int] | None) -> bool:
    """Give a hold the lease that its claim has brought; False if it has brought none."""
    assert hold is not None
    hold.is_claiming = False
    if token is None:
        hold.is_void = True
        return False
    hold.lease = hold.lease._replace(lease_id=token[0], attempt=token[1])
    return True


UNKNOWN_ID = 0
"""Of a lease that the frontier has yet to give an id; an outbox fills it in."""


def bury(outbox: Outbox[Tag], push: Push, reason: str, detail: str, traceback: str = "") -> None:
    """Put a dead letter into the outbox; once the claim is settled it can't be lost."""
    hold = Hold(Lease(UNKNOWN_ID, 1, push.rank, push.slot, push.payload))
    outbox.begin(outbox.push(push, None), hold)
    outbox.settle(Fail(UNKNOWN_ID, 1, reason, detail, traceback), hold)
