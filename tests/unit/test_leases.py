"""The leases of a worker, and what it does with leases that the server has lost."""

from __future__ import annotations

from collections.abc import Sequence

from scrapy_prioqueue.frontier.base import Ack, Claim, Committed, Lease, Operation, Push, Release
from scrapy_prioqueue.pump.inbox import Inbox
from scrapy_prioqueue.pump.leases import Leases
from scrapy_prioqueue.pump.outbox import HeldRequest, Outbox
from tests.unit.pumping import FakeDelegate


def lease(lease_id: int, attempt: int = 1) -> Lease:
    return Lease(lease_id, attempt, 0, "shop.example", b"%d" % lease_id)


class Bench:
    """A leases with all that belongs to it."""

    def __init__(self) -> None:
        self.delegate = FakeDelegate()
        self.inbox = Inbox(lambda: 0.0)
        self.outbox: Outbox[str] = Outbox()
        self.leases = Leases(self.inbox, self.outbox, self.delegate)

    def held(self, lease_id: int, attempt: int = 1) -> HeldRequest:
        """Let a request run."""
        hold = self.leases.held[lease_id] = HeldRequest(lease(lease_id, attempt))
        return hold

    def finish(self, lease_id: int) -> HeldRequest:
        """Finish a page whose ack is not sent yet."""
        hold = HeldRequest(lease(lease_id))
        self.outbox.settle(Ack(*hold.token), hold)
        return hold

    def told(self, claimed: dict[int, tuple[int, int]] | None = None) -> Sequence[Operation]:
        """Send what waits, and return it."""
        batches = self.outbox.batches()
        self.outbox.confirm([Committed(batch.number, claimed=claimed or {}) for batch in batches])
        return [operation for batch in batches for operation in batch.operations]


def claim(lease_id: int, attempt: int = 1) -> Claim:
    return Claim(Push(0, "shop.example", b"%d" % lease_id), lease_id, attempt)


def test_tokens_are_those_of_running_waiting_and_unreported_requests() -> None:
    bench = Bench()
    bench.held(1, attempt=2)
    bench.inbox.add([lease(2)])
    bench.finish(3)

    assert bench.leases.tokens() == [(2, 1), (1, 2)]
    assert bench.leases.all_tokens() == [(2, 1), (1, 2), (3, 1)]


def test_a_page_that_lingers_is_held_and_claimed() -> None:
    bench = Bench()
    bench.outbox.keep([page := HeldRequest(lease(3))])
    bench.outbox.settle(Ack(*page.token), page)
    assert bench.leases.unsent_tokens() == bench.leases.all_tokens() == [(3, 1)]

    bench.leases.claim_forgotten([3])
    assert bench.told({0: (9, 2)}) == [claim(3)]
    assert bench.leases.accept([lease(9, 3)._replace(payload=b"3")]) is False
    assert page.token == (9, 3)
    bench.outbox.let_go([page])
    assert bench.told() == [Ack(9, 3)]


def test_tokens_leave_out_what_is_being_claimed_and_what_was_not_granted() -> None:
    bench = Bench()
    bench.held(1).is_claiming = True
    bench.held(2).is_void = True
    bench.finish(3).is_void = True
    bench.held(4)

    assert bench.leases.all_tokens() == [(4, 1)]


def test_token_is_that_of_the_lease_a_claim_has_brought() -> None:
    bench = Bench()
    bench.held(-1).lease = lease(50, 2)

    assert bench.leases.tokens() == [(50, 2)]


def test_suspect_is_one_that_was_lost_so_often() -> None:
    bench = Bench()
    bench.held(1, attempt=2)
    assert bench.leases.suspects(2) == []

    bench.inbox.add([lease(2, attempt=3)])
    assert bench.leases.suspects(2) == [2]


def test_request_in_progress_continues_under_its_new_lease() -> None:
    bench = Bench()
    running = bench.held(1)

    assert not bench.leases.accept([lease(1, attempt=2)])

    assert list(bench.inbox) == []
    assert running.token == (1, 2)
    assert bench.told() == []


def test_other_request_under_an_id_that_is_in_use_here_is_released() -> None:
    bench = Bench()
    running = bench.held(1)

    assert bench.leases.accept([lease(1, attempt=1)._replace(payload=b"another"), lease(2)])

    assert [each.lease_id for each in bench.inbox] == [2]
    assert bench.leases.held == {1: running}
    assert bench.told() == [Release(1, 1)]
    assert bench.delegate.stats == {"prioqueue/lease/released": 1}


def test_lease_that_is_being_claimed_is_neither_started_nor_released() -> None:
    bench = Bench()
    bench.held(1)
    bench.leases.claim_forgotten([1])

    bench.leases.accept([lease(1)])

    assert len(bench.inbox) == 0
    assert bench.told({0: (1, 1)}) == [claim(1)]
    assert bench.leases.tokens() == [(1, 1)]


def test_at_the_end_everything_that_is_not_finished_is_released() -> None:
    bench = Bench()
    bench.held(1)
    bench.inbox.add([lease(2)])
    bench.finish(3)

    bench.leases.give_all_back()

    assert (bench.leases.held, len(bench.inbox)) == ({}, 0)
    assert set(bench.told()) == {Release(1, 1), Release(2, 1), Ack(3, 1)}
    assert bench.delegate.stats == {"prioqueue/lease/released": 2}


def test_forgotten_leases_are_claimed_wherever_they_are_and_no_others() -> None:
    bench = Bench()
    running = [bench.held(1), bench.held(2)]
    bench.inbox.add([lease(3), lease(4)])
    finished = [bench.finish(5), bench.finish(6)]

    bench.leases.claim_forgotten([1, 3, 5, 99])

    assert [each.lease_id for each in bench.inbox] == [4]
    assert [hold.is_claiming for hold in [*running, *finished]] == [True, False, True, False]
    assert bench.told({0: (70, 1), 1: (50, 1), 2: (1, 1)}) == [claim(3), claim(5), claim(1), Ack(6, 1)]
    # The first of them was never started, the second is finished.
    assert set(bench.told()) == {Release(70, 1), Ack(50, 1)}


def test_lease_that_is_claimed_already_is_not_claimed_again() -> None:
    bench = Bench()
    bench.held(1)
    bench.leases.claim_forgotten([1])

    bench.leases.claim_forgotten([1])

    assert bench.told() == [claim(1)]


def test_lease_under_the_id_that_a_claim_has_brought_is_claimed_by_that_one() -> None:
    bench = Bench()
    bench.held(-1).lease = lease(50, 2)

    bench.leases.claim_forgotten([50])

    assert bench.told() == [claim(50, 2)]


def test_a_slow_page_whose_lease_is_lost_is_given_up_and_another_is_not() -> None:
    bench = Bench()
    bench.held(1)
    bench.held(2)
    bench.leases.note_slow([2, 3])

    bench.leases.lose([1, 2])

    assert bench.delegate.lost_pages == [2]
    assert list(bench.leases.held) == [1]


def test_a_slow_page_that_returns_is_started_again_if_no_other_worker_wants_it() -> None:
    bench = Bench()
    bench.held(1)
    bench.leases.note_slow([1])

    has_got_one = bench.leases.accept([lease(1, attempt=2)])

    assert (has_got_one, bench.delegate.lost_pages) == (True, [1])
    assert [each.attempt for each in bench.inbox] == [2]
    assert not bench.leases.held


def test_a_slow_page_that_returns_is_left_to_others_first() -> None:
    bench = Bench()
    bench.held(1)
    bench.leases.note_slow([1])
    bench.delegate.gives_way = True

    assert not bench.leases.accept([lease(1, attempt=2)])
    assert bench.told() == [Release(1, 2)]
    # Once is enough: what nobody has taken is taken here.
    assert bench.leases.accept([lease(1, attempt=2)])
