"""The outbox: one ordered log, cut into numbered batches that stay as they are until confirmed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scrapy_prioqueue.frontier.base import Ack, Batch, Committed, Operation, Push, Release
from scrapy_prioqueue.pump.outbox import BATCH_SIZE, MAX_BATCHES, Outbox, Settled


def push(number: int) -> Push:
    return Push(number, "shop.example", b"payload")


def filled(pushes: int) -> Outbox[int]:
    outbox: Outbox[int] = Outbox()
    for number in range(pushes):
        outbox.put(push(number), number)
    return outbox


def tags(settled: Sequence[Settled[int]]) -> list[int | None]:
    return [outcome.tag for outcome in settled]


def test_batches_are_numbered_from_one_and_no_longer_than_a_script_call_may_take() -> None:
    batches = filled(BATCH_SIZE + 1).batches()

    assert [(batch.number, len(batch.operations)) for batch in batches] == [(1, BATCH_SIZE), (2, 1)]


def test_one_exchange_takes_so_many_batches_and_the_next_takes_the_rest() -> None:
    outbox = filled(BATCH_SIZE * MAX_BATCHES + 1)

    first = outbox.batches()
    outbox.confirm([Committed(batch.number) for batch in first])
    second = outbox.batches()

    assert len(first) == MAX_BATCHES
    assert [(batch.number, batch.operations) for batch in second] == [
        (MAX_BATCHES + 1, [push(BATCH_SIZE * MAX_BATCHES)])
    ]


def test_operations_keep_the_order_in_which_they_were_put() -> None:
    outbox: Outbox[str] = Outbox()
    operations: list[Operation] = [push(1), Ack(1, 1), Release(2, 1), push(2), Ack(3, 1)]
    for operation in operations:
        outbox.put(operation)

    (batch,) = outbox.batches()

    assert batch.operations == operations


def test_batch_is_sent_again_unchanged_until_it_is_confirmed() -> None:
    outbox = filled(2)
    (sent,) = outbox.batches()
    outbox.put(push(9), 9)

    again, new = outbox.batches()

    assert again == sent
    assert new == Batch(2, [push(9)])


def test_confirmed_batches_are_not_sent_again() -> None:
    outbox = filled(1)
    outbox.batches()
    outbox.put(push(9), 9)
    outbox.batches()

    settled = outbox.confirm([Committed(1)])

    assert tags(settled) == [0]
    assert [batch.number for batch in outbox.batches()] == [2]


def test_outcomes_come_with_their_tags_and_operations() -> None:
    outbox: Outbox[str] = Outbox()
    operations: list[Operation] = [push(0), push(1), push(2), Ack(4, 1), Ack(5, 2)]
    for operation, tag in zip(operations, ["new", "duplicate", "repeated", "void", "fine"], strict=True):
        outbox.put(operation, tag)
    outbox.batches()

    settled = outbox.confirm([Committed(1, duplicates=[1], repeated_starts=[2], void=[3])])

    assert [outcome.operation for outcome in settled] == operations
    assert [outcome.tag for outcome in settled if outcome.is_duplicate] == ["duplicate"]
    assert [outcome.tag for outcome in settled if outcome.is_repeated_start] == ["repeated"]
    assert [outcome.tag for outcome in settled if outcome.is_void] == ["void"]


def test_answer_out_of_order_is_an_error_and_not_a_loss() -> None:
    outbox = filled(1)
    outbox.batches()

    with pytest.raises(AssertionError):
        outbox.confirm([Committed(2)])


def test_length_counts_what_is_not_confirmed_and_pushes_the_requests_among_it() -> None:
    outbox = filled(3)
    outbox.put(Ack(1, 1))
    assert (len(outbox), outbox.pushes) == (4, 3)

    outbox.batches()
    outbox.put(push(4), 4)
    assert (len(outbox), outbox.pushes) == (5, 4)

    outbox.confirm([Committed(1)])
    assert (len(outbox), outbox.pushes) == (1, 1)


def test_abandoned_outbox_is_empty_says_how_many_requests_it_held_and_can_be_used_again() -> None:
    outbox = filled(BATCH_SIZE + 1)
    outbox.put(Ack(1, 1))
    (first, _) = outbox.batches()

    assert outbox.abandon() == BATCH_SIZE + 1
    assert (len(outbox), outbox.pushes, bool(outbox), outbox.batches()) == (0, 0, False, [])

    outbox.put(push(1), 1)
    (batch,) = outbox.batches()
    assert batch.number > first.number


@given(st.lists(st.integers(1, 3 * BATCH_SIZE), max_size=6), st.data())
def test_any_mix_of_puts_sends_and_confirmed_prefixes_settles_everything_once_and_in_order(
    sizes: list[int], data: st.DataObject
) -> None:
    outbox: Outbox[int] = Outbox()
    put, settled = 0, list[int | None]()
    for size in sizes:
        for _ in range(size):
            outbox.put(push(put), put)
            put += 1
        batches = outbox.batches()
        applied = data.draw(st.integers(0, len(batches)))
        settled += tags(outbox.confirm([Committed(batch.number) for batch in batches[:applied]]))
        assert len(outbox) == put - len(settled)
    while outbox:
        settled += tags(outbox.confirm([Committed(batch.number) for batch in outbox.batches()]))

    assert settled == list(range(put))


class OutboxMachine(RuleBasedStateMachine):
    """Puts and exchanges in any order, some of them unanswered, against a server that applies each batch once."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox: Outbox[int] = Outbox()
        self.put = 0
        self.settled: list[int | None] = []
        self.applied: dict[int, Batch] = {}
        self.ranks: list[int] = []

    @rule(count=st.integers(1, 2 * BATCH_SIZE))
    def put_some(self, count: int) -> None:
        for _ in range(count):
            self.outbox.put(push(self.put), self.put)
            self.put += 1

    @precondition(lambda self: len(self.outbox) > 0)
    @rule(data=st.data(), is_answer_lost=st.booleans())
    def exchange(self, data: st.DataObject, is_answer_lost: bool) -> None:
        batches = self.outbox.batches()
        reached = batches[: data.draw(st.integers(0, len(batches)))]
        for batch in reached:
            if batch.number in self.applied:
                assert batch == self.applied[batch.number]
            else:
                assert batch.number == len(self.applied) + 1
                self.applied[batch.number] = batch
                self.ranks += [operation.rank for operation in batch.operations if isinstance(operation, Push)]
        if not is_answer_lost:
            self.settled += tags(self.outbox.confirm([Committed(batch.number) for batch in reached]))

    @invariant()
    def server_has_a_prefix_of_what_was_put_and_nothing_twice(self) -> None:
        assert self.ranks == list(range(len(self.ranks)))
        assert len(self.ranks) >= len(self.settled)

    @invariant()
    def nothing_is_lost(self) -> None:
        assert self.settled == list(range(len(self.settled)))
        assert len(self.settled) + len(self.outbox) == self.put
        assert self.outbox.pushes == len(self.outbox)


TestOutboxMachine = OutboxMachine.TestCase
