"""State machine of an outbox: a worker pushes, starts and ends requests on a server that may forget writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scrapy_prioqueue.frontier.base import Ack, Batch, Claim, Committed, Fail, Lease, Operation, Push, Release
from scrapy_prioqueue.pump.outbox import BATCH_SIZE, HeldRequest, Outbox, Outcome

Fate = Literal["answered", "answer lost", "not sent"]

CLAIMED_AGAIN = 10**6
"""Ranks from here on are those of claims to forgotten leases, which no push brought."""


def push_of(rank: int) -> Push:
    """Return a request that is known by its rank."""
    return Push(rank, "shop.example", b"payload", b"%020d" % rank)


@dataclass(eq=False)
class Page:
    """What the test knows of a held request: the ranks of what was found on it, and how much of it the worker keeps."""

    held: HeldRequest
    children: set[int] = field(default_factory=set)
    kept: int = 0


class Server:
    """Applies each batch once and in order, or rejects it; grants the claims that the test chooses."""

    def __init__(self) -> None:
        self.position = 0
        self.stored: list[int] = []
        self.seen: set[int] = set()
        self.leases: dict[tuple[int, int], Page] = {}
        self.last_claimed: dict[int, tuple[int, int]] = {}
        self.ids = count(1)

    def grant(self, page: Page) -> tuple[int, int]:
        """Lease a request with a new id."""
        token = (next(self.ids), 1)
        self.leases[token] = page
        return token

    def apply(self, batch: Batch, pages: dict[int, Page], grants: Sequence[bool]) -> Committed:
        """Apply a batch unless it was; `pages` says by rank what a claim is for."""
        if batch.number <= self.position:
            return Committed(batch.number, claimed=self.last_claimed if batch.number == self.position else {})
        assert batch.number == self.position + 1
        self.position = batch.number
        self.last_claimed = {}
        for at, operation in enumerate(batch.operations):
            if isinstance(operation, Push):
                if operation.rank not in self.seen:
                    self.stored.append(operation.rank)
            elif isinstance(operation, Claim):
                rank = operation.push.rank
                if rank < CLAIMED_AGAIN and rank not in self.seen:
                    self.stored.append(rank)
                if grants[at % len(grants)]:
                    self.last_claimed[at] = self.grant(pages[rank])
            else:
                self.settle(operation)
        return Committed(batch.number, claimed=self.last_claimed)

    def settle(self, operation: Ack | Release | Fail) -> None:
        """End a lease; everything found on its page must be here by now, unless the page is fetched again."""
        page = self.leases.pop((operation.lease_id, operation.attempt))
        if not isinstance(operation, Release):
            assert page.children <= self.seen.union(self.stored)
            assert not page.kept

    def has_room(self, batch: Batch) -> bool:
        """Return whether a full server accepts a batch."""
        others = [operation for operation in batch.operations if rank_of(operation) not in self.seen]
        return batch.number <= self.position or not has_claims(batch) and all(rank_of(each) is None for each in others)


class OutboxMachine(RuleBasedStateMachine):
    """Nothing is lost, nothing comes twice, and no page is acked before what was found on it is stored."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox: Outbox[int] = Outbox()
        self.server = Server()
        self.pushed = 0
        self.again = count(CLAIMED_AGAIN)
        self.claims = 0
        self.live: list[Page] = []
        self.lingering: list[Page] = []
        self.kept: list[list[Page]] = []
        self.pages: dict[int, Page] = {}
        self.settlings = 0
        self.settled: list[Outcome[int]] = []
        self.sent: dict[int, Batch] = {}

    # What the worker does

    @rule(number=st.integers(1, BATCH_SIZE), data=st.data())
    def find(self, number: int, data: st.DataObject) -> None:
        parents = data.draw(st.sets(st.sampled_from(self.live))) if self.live else set()
        for _ in range(number):
            self.outbox.push(push_of(self.pushed), self.pushed, [page.held for page in parents])
            for page in parents:
                page.children.add(self.pushed)
            self.pushed += 1

    @rule()
    def take(self) -> None:
        page = Page(HeldRequest(Lease(0, 0, 0, "shop.example", b"")))
        lease_id, attempt = self.server.grant(page)
        page.held.lease = Lease(lease_id, attempt, 0, "shop.example", b"")
        self.live.append(page)

    @precondition(lambda self: any(self.outbox.uncut_pushes()))
    @rule(data=st.data())
    def take_what_was_found_here(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(list(self.outbox.uncut_pushes())[:50]))
        assert isinstance(entry.operation, Push)
        page = Page(HeldRequest(Lease(-1 - entry.operation.rank, 1, 0, "shop.example", b"")))
        self.pages[entry.operation.rank] = page
        self.outbox.begin(entry, page.held)
        self.live.append(page)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), kind=st.sampled_from([Ack, Release, Fail]))
    def finish(self, data: st.DataObject, kind: type[Ack | Release | Fail]) -> None:
        page = data.draw(st.sampled_from(self.live))
        self.live.remove(page)
        if page.kept and kind is not Release:
            self.lingering.append(page)
        self.settlings += 1
        operation = Fail(*page.held.token, "", "") if kind is Fail else kind(*page.held.token)  # type: ignore[call-arg]
        self.outbox.settle(operation, page.held)

    @precondition(lambda self: self.live or self.kept)
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        """Find a request that can't be stored, on pages that run or on one of its kind."""
        runs = st.sets(st.sampled_from(self.live)).map(list) if self.live else st.nothing()
        roots = data.draw(runs | (st.sampled_from(self.kept) if self.kept else st.nothing()))
        self.kept.append(roots)
        self.outbox.keep([page.held for page in roots])
        for page in roots:
            page.kept += 1

    @precondition(lambda self: self.kept)
    @rule(number=st.integers(0, 9), is_done=st.booleans(), data=st.data())
    def work_on_what_is_kept(self, number: int, is_done: bool, data: st.DataObject) -> None:
        roots = data.draw(st.sampled_from(self.kept))
        for _ in range(number):
            self.outbox.push(push_of(self.pushed), self.pushed, [page.held for page in roots])
            for page in roots:
                page.children.add(self.pushed)
            self.pushed += 1
        if is_done:
            self.let_go(roots)

    def let_go(self, roots: list[Page]) -> None:
        """Have done with what is kept."""
        self.kept.remove(roots)
        self.outbox.let_go([page.held for page in roots])
        for page in roots:
            page.kept -= 1
        self.lingering = [page for page in self.lingering if page.kept]

    # What the line does

    @rule(
        is_new=st.booleans(),
        with_requests=st.booleans(),
        reached=st.integers(0, 9),
        fate=st.sampled_from(["answered", "answer lost", "not sent"]),
        grants=st.lists(st.booleans(), min_size=1, max_size=5),
    )
    def exchange(self, is_new: bool, with_requests: bool, reached: int, fate: Fate, grants: list[bool]) -> None:
        batches = self.batches(is_new=is_new, with_requests=with_requests)
        if fate == "not sent":
            self.outbox.note_failure(was_sent=False)
            return
        committed = [self.server.apply(batch, self.pages, grants) for batch in batches[:reached]]
        self.sent = {batch.number: batch for batch in batches}
        if fate == "answer lost":
            self.outbox.note_failure(was_sent=True)
        else:
            # The answer tells that the others were not applied.
            self.sent = {number: batch for number, batch in self.sent.items() if number <= self.server.position}
            self.confirm(committed)

    @rule(grants=st.lists(st.booleans(), min_size=1, max_size=5))
    def exchange_with_a_full_server(self, grants: list[bool]) -> None:
        batches = self.batches(is_new=True, with_requests=True)
        committed = []
        for batch in batches:
            if not self.server.has_room(batch):
                break
            committed.append(self.server.apply(batch, self.pages, grants))
        self.confirm(committed)
        if len(committed) < len(batches):
            self.outbox.throttle()
        self.sent = {}

    @precondition(lambda self: any(self.outbox.uncut_pushes()))
    @rule(data=st.data())
    def see_elsewhere(self, data: st.DataObject) -> None:
        """Another worker stores some of what waits here, and the server is asked."""
        entries = self.outbox.next_look_up()
        if not entries:
            return
        known = data.draw(st.lists(st.sampled_from(entries), unique_by=id, max_size=9))
        self.server.seen |= {rank for entry in known if (rank := rank_of(entry.operation)) is not None}
        self.outbox.put_forward(known)

    @precondition(lambda self: any(page.held.is_leased for page in [*self.live, *self.lingering]))
    @rule(data=st.data())
    def learn_of_a_forgotten_lease(self, data: st.DataObject) -> None:
        """Happens after an answer with the server's position: nothing is divided."""
        self.confirm([self.server.apply(batch, self.pages, [True]) for batch in self.batches(is_new=False)])
        leased = [page for page in [*self.live, *self.lingering] if page.held.is_leased]
        page = data.draw(st.sampled_from(leased))
        del self.server.leases[page.held.token]
        rank = next(self.again)
        self.pages[rank] = page
        self.outbox.claim(push_of(rank), page.held)
        self.claims += 1

    def confirm(self, committed: Sequence[Committed]) -> None:
        """Confirm batches; a claim that was refused is not looked for."""
        outcomes = self.outbox.confirm(committed)
        outcomes += self.outbox.give_up_claims(self.outbox.take_rejected())
        # Refused claims are settled after what came behind them.
        self.settled += sorted(outcomes, key=lambda outcome: rank_of(outcome.operation) or 0)

    def batches(self, *, is_new: bool, with_requests: bool = True) -> Sequence[Batch]:
        """Return what is to be sent, having looked at it."""
        batches = self.outbox.batches(is_new=is_new, with_requests=with_requests)
        numbers = [batch.number for batch in batches]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
        assert not numbers or numbers[0] <= self.server.position + 1
        assert [batch.number for batch in batches if has_claims(batch)] in ([], numbers[-1:])
        for batch in batches:
            assert 0 < len(batch.operations) <= BATCH_SIZE
            # What was confirmed isn't offered again, so what is in `sent` may or may not have arrived.
            assert batch.number not in self.sent or batch == self.sent[batch.number]
        return batches

    # What must be true

    @invariant()
    def pages_linger_for_what_is_kept(self) -> None:
        assert list(self.outbox.lingering) == [page.held for page in self.lingering]

    @invariant()
    def server_has_the_first_of_what_was_found_in_order(self) -> None:
        stored = self.server.stored
        assert stored == [rank for rank in range(stored[-1] + 1 if stored else 0) if rank not in self.server.seen]

    @invariant()
    def requests_are_settled_once_and_in_order(self) -> None:
        ranks = [rank for outcome in self.settled if (rank := rank_of(outcome.operation)) is not None]
        found = [rank for rank in ranks if rank < CLAIMED_AGAIN]
        new = [rank for rank in found if rank not in self.server.seen]
        assert new == sorted(new)
        assert len(found) == len(set(found))
        assert len(ranks) + self.outbox.pushes == self.pushed + self.claims

    @invariant()
    def bytes_are_those_of_what_is_not_confirmed(self) -> None:
        assert self.outbox.pushed_bytes == len(b"payload") * self.outbox.pushes

    def teardown(self) -> None:
        """Send everything."""
        for page in self.live:
            self.outbox.settle(Ack(*page.held.token), page.held)
        self.settlings += len(self.live)
        for roots in self.kept[::2]:
            self.let_go(roots)
        self.outbox.release_lingering()
        while self.outbox:
            before = len(self.outbox)
            answer = [self.server.apply(batch, self.pages, [True]) for batch in self.batches(is_new=True)]
            self.confirm(answer)
            assert len(self.outbox) < before
        self.confirm([])
        self.requests_are_settled_once_and_in_order()
        others = [outcome for outcome in self.settled if rank_of(outcome.operation) is None]
        assert len(others) == self.settlings
        assert not self.server.leases


def has_claims(batch: Batch) -> bool:
    """Return whether a batch has a claim."""
    return any(isinstance(operation, Claim) for operation in batch.operations)


def rank_of(operation: Operation) -> int | None:
    """Return the rank of a request, None for what settles one."""
    if isinstance(operation, Claim):
        return operation.push.rank
    return operation.rank if isinstance(operation, Push) else None
