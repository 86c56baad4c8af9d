"""The outbox: acks come after the requests of their page, and numbered batches don't change until confirmed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_prioqueue.frontier.base import Ack, Batch, Claim, Committed, Fail, Lease, Operation, Push, Release
from scrapy_prioqueue.pump.outbox import (
    BATCH_BYTES,
    BATCH_SIZE,
    LOOK_UPS,
    MAX_BATCHES,
    REQUESTS_PER_BATCH,
    HeldRequest,
    Outbox,
    Outcome,
)
from tests.unit.outbox_machine import OutboxMachine, push_of, rank_of


def filled(pushes: int) -> Outbox[int]:
    outbox: Outbox[int] = Outbox()
    for number in range(pushes):
        outbox.push(push_of(number), number)
    return outbox


def held(lease_id: int = 1, attempt: int = 1) -> HeldRequest:
    return HeldRequest(Lease(lease_id, attempt, 0, "shop.example", b"payload"))


def settle(outbox: Outbox[int], hold: HeldRequest, kind: type[Ack | Release] = Ack) -> None:
    outbox.settle(kind(*hold.token), hold)


def begun(outbox: Outbox[int], at: int = 0, lease_id: int = -1) -> HeldRequest:
    hold = held(lease_id)
    outbox.begin(list(outbox.uncut_pushes())[at], hold)
    return hold


def confirmed(outbox: Outbox[int], batches: Sequence[Batch]) -> list[Outcome[int]]:
    return outbox.confirm([Committed(batch.number) for batch in batches])


def operations(batches: Sequence[Batch]) -> list[Operation]:
    return [operation for batch in batches for operation in batch.operations]


def tags(settled: Sequence[Outcome[int]]) -> list[int | None]:
    return [outcome.tag for outcome in settled]


# Cutting


def test_batches_are_numbered_from_one_and_hold_so_many_requests() -> None:
    batches = filled(REQUESTS_PER_BATCH + 1).batches()

    assert [(batch.number, len(batch.operations)) for batch in batches] == [(1, REQUESTS_PER_BATCH), (2, 1)]


def test_acks_fill_a_batch_whose_requests_leave_them_room() -> None:
    outbox = filled(2 * REQUESTS_PER_BATCH)
    for lease_id in range(BATCH_SIZE):
        settle(outbox, held(lease_id))

    batches = outbox.batches()

    kinds = [[isinstance(operation, Ack) for operation in batch.operations] for batch in batches]
    assert [(each.count(False), each.count(True)) for each in kinds] == [(75, 25), (75, 25), (0, 50)]
    assert all(each == sorted(each) for each in kinds)


def test_one_exchange_takes_so_many_batches_and_the_next_takes_the_rest() -> None:
    outbox = filled(REQUESTS_PER_BATCH * MAX_BATCHES + 1)

    first = outbox.batches()
    confirmed(outbox, first)
    second = outbox.batches()

    assert len(first) == MAX_BATCHES
    assert second == [Batch(MAX_BATCHES + 1, [push_of(REQUESTS_PER_BATCH * MAX_BATCHES)])]


def test_ack_is_not_in_an_earlier_batch_than_what_was_found_on_its_page() -> None:
    outbox = filled(REQUESTS_PER_BATCH - 1)
    page, leaf = held(1), held(2)
    for number in (1000, 1001):
        outbox.push(push_of(number), number, [page])
    settle(outbox, page)
    settle(outbox, leaf)

    first, second = outbox.batches()

    assert first.operations[-2:] == [push_of(1000), Ack(2, 1)]
    assert second.operations == [push_of(1001), Ack(1, 1)]


def test_large_requests_go_in_more_batches() -> None:
    outbox: Outbox[int] = Outbox()
    third = BATCH_BYTES // 3 + 1
    for number in range(7):
        outbox.push(replace(push_of(number), payload=bytes(third)), number)
    outbox.push(replace(push_of(7), payload=bytes(9 * BATCH_BYTES)), 7)

    assert [len(batch.operations) for batch in outbox.batches()] == [3, 3, 2]


def test_ack_of_a_page_that_may_be_where_a_request_was_found_waits_as_well() -> None:
    outbox: Outbox[int] = Outbox()
    pages = [held(1), held(2)]
    outbox.push(push_of(0), 0, pages)
    for page in pages:
        settle(outbox, page)

    assert operations(outbox.batches(with_requests=False)) == []
    assert operations(outbox.batches()) == [push_of(0), Ack(1, 1), Ack(2, 1)]


def test_release_waits_for_nothing_that_was_found_on_its_page() -> None:
    outbox: Outbox[int] = Outbox()
    page = held(1)
    outbox.push(push_of(0), 0, [page])
    settle(outbox, page, Release)

    assert operations(outbox.batches(with_requests=False)) == [Release(1, 1)]


def test_a_page_lingers_for_what_is_kept_of_it() -> None:
    outbox: Outbox[int] = Outbox()
    page, other = held(1), held(2)
    outbox.keep([page])
    outbox.keep([page, other])
    settle(outbox, page)
    settle(outbox, other)
    assert (list(outbox.lingering), len(outbox), outbox.has_free_entries()) == ([page, other], 0, False)
    assert list(outbox.waiting_settled()) == list(outbox.all_settled()) == [page, other]

    outbox.let_go([page, other])
    outbox.push(push_of(0), 0, [page])
    assert operations(outbox.batches(with_requests=False)) == [Ack(2, 1)]
    outbox.let_go([page])

    assert operations(outbox.batches()) == [Ack(2, 1), push_of(0), Ack(1, 1)]


def test_a_page_that_lingers_is_released() -> None:
    outbox: Outbox[int] = Outbox()
    page, released = held(1), held(2)
    outbox.keep([page, released])
    settle(outbox, page)
    settle(outbox, released, Release)

    assert outbox.release_lingering() == 1
    outbox.let_go([page, released])

    assert operations(outbox.batches()) == [Release(2, 1), Release(1, 1)]


def test_server_that_takes_no_requests_gets_the_acks_of_pages_without_waiting_children() -> None:
    outbox: Outbox[int] = Outbox()
    page, leaf = held(1), held(2)
    outbox.push(push_of(0), 0, [page])
    settle(outbox, page)
    assert not outbox.has_free_entries()
    settle(outbox, leaf)
    assert outbox.has_free_entries()

    assert outbox.batches(with_requests=False) == [Batch(1, [Ack(2, 1)])]

    assert not outbox.has_free_entries()
    assert outbox.pushes == 1


def test_full_server_gets_requests_that_it_has_seen_before_all_others_and_the_acks_that_waited_for_them() -> None:
    outbox = filled(2)
    page = held(1)
    outbox.push(push_of(2), 2, [page])
    settle(outbox, page)
    asked = outbox.next_look_up()
    assert [entry.operation for entry in asked] == [push_of(0), push_of(1), push_of(2)]

    outbox.put_forward(asked[2:])

    assert outbox.has_free_entries()
    (sent,) = outbox.batches(with_requests=False)
    assert sent == Batch(1, [push_of(2), Ack(1, 1)])
    assert not outbox.has_cut_requests()
    confirmed(outbox, [sent])
    assert outbox.batches() == [Batch(2, [push_of(0), push_of(1)])]


def test_requests_that_a_full_server_has_not_seen_after_all_wait_with_the_others() -> None:
    outbox = filled(2)
    outbox.put_forward(outbox.next_look_up())
    assert [len(batch.operations) for batch in outbox.batches(with_requests=False)] == [2]

    outbox.throttle()

    assert not outbox.has_free_entries()
    assert outbox.batches(with_requests=False) == []


def test_request_that_was_begun_meanwhile_is_not_put_forward() -> None:
    outbox = filled(2)
    asked = outbox.next_look_up()
    begun(outbox, at=1)

    outbox.put_forward(asked[1:])

    assert outbox.batches(with_requests=False) == []


def test_each_look_up_is_of_other_requests_until_all_were_asked_for() -> None:
    outbox = filled(2 * LOOK_UPS + 1)

    ranks = [[rank_of(entry.operation) for entry in outbox.next_look_up()] for _ in range(4)]

    numbers = list(range(2 * LOOK_UPS + 1))
    assert ranks == [numbers[:LOOK_UPS], numbers[LOOK_UPS:-1], numbers[-1:], numbers[:LOOK_UPS]]


def test_without_new_operations_only_existing_batches_are_returned() -> None:
    outbox = filled(1)
    assert outbox.batches(is_new=False) == []
    sent = outbox.batches()
    outbox.push(push_of(9), 9)

    assert outbox.batches(is_new=False) == sent


# Sending again


def test_batch_is_sent_again_unchanged_until_it_is_confirmed() -> None:
    outbox = filled(2)
    (sent,) = outbox.batches()
    outbox.note_failure(was_sent=True)
    outbox.push(push_of(9), 9)

    again, new = outbox.batches()

    assert again == sent
    assert new == Batch(2, [push_of(9)])


def test_unsent_batches_are_divided_anew_with_newer_operations() -> None:
    outbox = filled(1)
    outbox.batches()
    outbox.push(push_of(1), 1)

    outbox.note_failure(was_sent=False)

    assert [entry.tag for entry in outbox.uncut_pushes()] == [0, 1]
    assert outbox.batches() == [Batch(1, [push_of(0), push_of(1)])]


def test_failure_before_sending_leaves_what_was_sent_earlier_bound() -> None:
    outbox = filled(1)
    (sent,) = outbox.batches()
    outbox.note_failure(was_sent=True)
    outbox.push(push_of(1), 1)
    outbox.batches()

    outbox.note_failure(was_sent=False)

    assert [entry.tag for entry in outbox.uncut_pushes()] == [1]
    assert outbox.batches(is_new=False) == [sent]


def test_confirmed_batches_are_not_sent_again_and_the_others_keep_their_numbers() -> None:
    outbox = filled(1)
    outbox.batches()
    outbox.push(push_of(9), 9)
    outbox.batches()

    settled = outbox.confirm([Committed(1)])

    assert tags(settled) == [0]
    assert outbox.batches() == [Batch(2, [push_of(9)])]


def test_refused_requests_are_put_back_in_order_and_their_acks_wait_again() -> None:
    outbox = filled(REQUESTS_PER_BATCH)
    page = held(1)
    outbox.push(push_of(1000), 1000, [page])
    settle(outbox, page)
    first, second = outbox.batches()

    outbox.put_back(certainly=True)

    assert not outbox.has_free_entries()
    assert outbox.batches(with_requests=False) == []
    assert outbox.batches() == [first, second]


def test_number_of_a_refused_batch_is_given_to_the_next_one() -> None:
    outbox = filled(1)
    outbox.batches()
    outbox.put_back(certainly=True)
    settle(outbox, held(7))

    (acks,) = outbox.batches(with_requests=False)
    confirmed(outbox, [acks])

    assert acks == Batch(1, [Ack(7, 1)])
    assert outbox.batches() == [Batch(2, [push_of(0)])]


# Claims


def test_request_that_is_started_here_is_claimed_in_its_place() -> None:
    outbox = filled(3)

    hold = begun(outbox, at=1)

    assert not hold.is_leased
    assert [entry.tag for entry in outbox.uncut_pushes()] == [0, 2]
    assert operations(outbox.batches()) == [push_of(0), Claim(push_of(1)), push_of(2)]
    assert outbox.pushes == 3


def test_nothing_is_cut_behind_claims_until_they_are_answered() -> None:
    outbox = filled(REQUESTS_PER_BATCH + 1)
    hold = begun(outbox)

    first = outbox.batches()
    assert [batch.number for batch in first] == [1]
    outbox.confirm([Committed(1, claimed={0: (50, 1)})])

    assert hold.token == (50, 1)
    assert [batch.number for batch in outbox.batches()] == [2]


def test_ack_of_a_claimed_request_waits_for_the_claim_and_speaks_of_the_lease_it_has_brought() -> None:
    outbox = filled(1)
    hold = begun(outbox)
    settle(outbox, hold)

    assert operations(outbox.batches()) == [Claim(push_of(0))]
    assert not outbox.has_free_entries()
    (claim,) = outbox.confirm([Committed(1, claimed={0: (50, 2)})])

    assert not claim.is_void
    assert operations(outbox.batches()) == [Ack(50, 2)]


def test_the_end_of_a_request_whose_claim_was_rejected_is_never_sent() -> None:
    outbox = filled(1)
    hold = begun(outbox)
    settle(outbox, hold)
    outbox.batches()

    assert outbox.confirm([Committed(1, duplicates=[0])]) == []
    assert (outbox.has_rejected, hold.is_void, hold.is_leased, outbox.batches()) == (True, False, False, [])
    (claim,) = outbox.give_up_claims(outbox.take_rejected())
    assert (claim.is_void, hold.is_void, hold.is_leased, outbox.has_rejected) == (True, True, False, False)

    assert outbox.batches() == []
    (ack,) = outbox.confirm([])
    assert isinstance(ack.operation, Ack)
    assert ack.is_void
    assert not outbox


def test_the_end_of_a_request_that_was_pending_waits_for_its_claim_by_id() -> None:
    outbox = filled(1)
    hold = begun(outbox)
    settle(outbox, hold)
    outbox.batches()
    outbox.confirm([Committed(1)])
    (entry,) = outbox.take_rejected()

    hold.lease = hold.lease._replace(lease_id=70, attempt=2)
    assert isinstance(entry.operation, Claim)
    outbox.claim(entry.operation.push, hold)
    (batch,) = outbox.batches()
    assert (batch.operations, outbox.has_begun) == ([Claim(entry.operation.push, 70, 2)], False)
    outbox.confirm([Committed(2, claimed={0: (70, 2)})])

    assert operations(outbox.batches()) == [Ack(70, 2)]


def test_failure_of_a_claimed_request_keeps_its_reason_and_gets_the_lease_of_the_claim() -> None:
    outbox = filled(1)
    hold = begun(outbox)
    outbox.settle(Fail(*hold.token, "decode", "no such class"), hold)
    outbox.batches()
    outbox.confirm([Committed(1, claimed={0: (50, 1)})])

    assert operations(outbox.batches()) == [Fail(50, 1, "decode", "no such class")]


def test_lease_that_the_server_has_forgotten_is_claimed_by_its_old_id() -> None:
    outbox: Outbox[int] = Outbox()
    hold = held(5, attempt=3)
    settle(outbox, hold)

    outbox.claim(push_of(0), hold)

    assert list(outbox.all_settled()) == []
    assert operations(outbox.batches()) == [Claim(push_of(0), 5, 3)]
    outbox.confirm([Committed(1, claimed={0: (8, 3)})])
    assert operations(outbox.batches()) == [Ack(8, 3)]


def test_claim_to_a_forgotten_lease_goes_before_all_that_was_found() -> None:
    outbox = filled(REQUESTS_PER_BATCH)

    outbox.claim(push_of(1000), held(5))

    first, *_ = outbox.batches()
    assert first.operations[:2] == [Claim(push_of(1000), 5, 1), push_of(0)]


def test_a_refused_batch_is_sent_in_smaller_batches_down_to_one_request() -> None:
    outbox: Outbox[str] = Outbox()
    for number in range(1000):
        outbox.push(Push(0, "a", b"%d" % number), "tag")
    sizes = []
    for _ in range(4):
        batches = outbox.batches()
        sizes.append([len(batch.operations) for batch in batches])
        outbox.throttle()

    assert sizes == [[75] * 13 + [25], [9], [1], [1]]


def test_claim_that_was_put_back_is_sent_again() -> None:
    outbox = filled(1)
    hold = begun(outbox)
    outbox.batches()

    outbox.put_back(certainly=True)

    assert hold.is_claiming
    assert list(outbox.uncut_pushes()) == []
    assert operations(outbox.batches()) == [Claim(push_of(0))]


def test_holds_that_are_settled_and_not_confirmed_are_known() -> None:
    outbox: Outbox[int] = Outbox()
    sent, waiting = held(1), held(2)
    settle(outbox, sent)
    (batch,) = outbox.batches()
    settle(outbox, waiting)

    assert list(outbox.all_settled()) == [sent, waiting]
    confirmed(outbox, [batch])
    assert list(outbox.all_settled()) == [waiting]


# Outcomes


def test_outcomes_come_with_their_tags_and_operations() -> None:
    outbox = filled(3)
    settle(outbox, held(4))
    settle(outbox, held(5, 2))
    (batch,) = outbox.batches()

    settled = outbox.confirm([Committed(1, duplicates=[1], repeated_starts=[2], void=[3])])

    assert [outcome.operation for outcome in settled] == batch.operations
    assert tags(settled) == [0, 1, 2, None, None]
    assert [outcome.tag for outcome in settled if outcome.is_duplicate] == [1]
    assert [outcome.tag for outcome in settled if outcome.is_repeated_start] == [2]
    assert [outcome.operation for outcome in settled if outcome.is_void] == [Ack(4, 1)]


def test_answer_out_of_order_is_an_error_and_not_a_loss() -> None:
    outbox = filled(1)
    outbox.batches()

    with pytest.raises(AssertionError):
        outbox.confirm([Committed(2)])


def test_length_counts_what_is_not_confirmed_and_pushes_the_requests_among_it() -> None:
    outbox = filled(3)
    settle(outbox, held())
    assert (len(outbox), outbox.pushes) == (4, 3)

    outbox.batches()
    outbox.push(push_of(4), 4)
    assert (len(outbox), outbox.pushes) == (5, 4)

    outbox.confirm([Committed(1)])
    assert (len(outbox), outbox.pushes) == (1, 1)


# Giving up


def test_requests_that_are_given_up_let_their_pages_be_released_and_all_others_be_acked() -> None:
    outbox: Outbox[int] = Outbox()
    page, leaf = held(1), held(2)
    outbox.push(push_of(0), 0, [page])
    outbox.push(push_of(1), 1, [page])
    settle(outbox, page)
    settle(outbox, leaf)

    assert outbox.give_up_requests() == 2

    assert outbox.pushes == 0
    assert operations(outbox.batches()) == [Release(1, 1), Ack(2, 1)]


def test_page_of_a_request_that_was_begun_here_and_is_given_up_is_released_and_its_own_ack_is_void() -> None:
    outbox: Outbox[int] = Outbox()
    page = held(1)
    outbox.push(push_of(0), 0, [page])
    child = begun(outbox)
    settle(outbox, child)
    settle(outbox, page)

    assert outbox.give_up_requests() == 1

    (batch,) = outbox.batches()
    assert batch.operations == [Release(1, 1)]
    assert [outcome.is_void for outcome in confirmed(outbox, [batch])] == [True, False]
    assert not outbox


def test_abandoned_outbox_is_empty_says_how_many_requests_it_held_and_can_be_used_again() -> None:
    outbox = filled(REQUESTS_PER_BATCH + 1)
    settle(outbox, held())
    (first, _) = outbox.batches()

    assert outbox.abandon() == REQUESTS_PER_BATCH + 1
    assert (len(outbox), outbox.pushes, bool(outbox), outbox.batches()) == (0, 0, False, [])

    outbox.push(push_of(1), 1)
    (batch,) = outbox.batches()
    assert batch.number > first.number


def test_pages_that_run_while_their_requests_are_abandoned_can_be_settled_afterwards() -> None:
    outbox: Outbox[int] = Outbox()
    page, forgotten = held(1), held(2)
    outbox.push(push_of(0), 0, [page])
    outbox.push(push_of(1), 1)
    outbox.claim(push_of(2), forgotten)
    local = begun(outbox, at=1)

    outbox.abandon()
    for hold in (page, forgotten, local):
        settle(outbox, hold)
    batches = outbox.batches()
    confirmed(outbox, batches)

    assert operations(batches) == [Ack(1, 1)]
    assert not outbox


def test_pages_that_run_while_a_cut_claim_is_abandoned_can_be_settled_afterwards() -> None:
    outbox = filled(1)
    local = begun(outbox)
    outbox.batches()

    outbox.abandon()
    settle(outbox, local)

    assert outbox.batches() == []
    assert not outbox


# Properties


@given(st.lists(st.integers(1, 3 * BATCH_SIZE), max_size=6), st.data())
def test_any_mix_of_pushes_sends_and_confirmed_prefixes_settles_everything_once_and_in_order(
    sizes: list[int], data: st.DataObject
) -> None:
    outbox: Outbox[int] = Outbox()
    put, settled = 0, list[int | None]()
    for size in sizes:
        for _ in range(size):
            outbox.push(push_of(put), put)
            put += 1
        batches = outbox.batches()
        applied = data.draw(st.integers(0, len(batches)))
        settled += tags(confirmed(outbox, batches[:applied]))
        assert len(outbox) == put - len(settled)
    while outbox:
        settled += tags(confirmed(outbox, outbox.batches()))

    assert settled == list(range(put))


TestOutboxMachine = pytest.mark.slow(OutboxMachine.TestCase)


# What is too large for the server


def test_requests_known_to_be_too_large_are_taken_out_at_once() -> None:
    outbox = filled(3)
    outbox.push(replace(push_of(3), payload=b"x" * 1000), 3)
    outbox.batches()

    entries, claims = outbox.take_too_large(999)

    assert ([entry.tag for entry in entries], claims) == ([3], [])
    assert outbox.pushes == 3
    assert tags(confirmed(outbox, outbox.batches())) == [0, 1, 2]


def test_fewer_are_sent_until_the_one_that_is_too_large_is_alone() -> None:
    outbox, culprit = filled(200), push_of(100)
    stored, taken = [], []
    while outbox.pushes:
        batches = outbox.batches()
        refused = [index for index, batch in enumerate(batches) if culprit in batch.operations]
        stored += confirmed(outbox, batches[: refused[0]] if refused else batches)
        if refused:
            taken += outbox.take_too_large(sys.maxsize)[0]

    assert [entry.tag for entry in taken] == [100]
    assert tags(stored) == [number for number in range(200) if number != 100]


def test_page_that_has_ended_lingers_for_what_was_taken_out() -> None:
    outbox, hold = filled(0), held()
    (entry,) = [outbox.push(push_of(0), 0, [hold])]
    settle(outbox, hold)
    outbox.batches()

    entries, _ = outbox.take_too_large(sys.maxsize)

    assert entries == [entry]
    assert (list(outbox.lingering), outbox.batches()) == ([hold], [])
    outbox.let_go([hold])
    assert operations(outbox.batches()) == [Ack(*hold.token)]


def test_page_lingers_for_what_was_started_without_the_server_and_is_too_large_to_be_claimed() -> None:
    outbox, page = filled(0), held()
    outbox.push(push_of(0), 0, [page])
    child = begun(outbox)
    settle(outbox, page)
    outbox.batches()

    entries, claims = outbox.take_too_large(sys.maxsize)

    assert (entries, [(each.tag, each.is_void) for each in claims]) == ([], [(0, True)])
    assert (list(outbox.lingering), outbox.has_begun, outbox.pushes) == ([page], False, 0)
    settle(outbox, child)
    assert operations(outbox.batches()) == [Ack(*page.token)]
