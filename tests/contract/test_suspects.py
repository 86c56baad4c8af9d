"""Invariant 1: requests that were lost twice are separated, so that one which kills workers takes no others with it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest

from scrapy_prioqueue.frontier.base import ANY_NUMBER, Lease, Order, Push
from tests.contract.backends import TTL_S, Backend, Worker, ack, push, release


def lose(backend: Backend, worker: Worker, times: int, *pushes: Push) -> None:
    """Push requests to a frontier where nothing else is pending, and let their leases expire so often."""
    worker.commit(*pushes)
    for _ in range(times):
        assert len(worker.lease(len(pushes))) == len(pushes)
        backend.clock.advance(TTL_S)
        assert worker.ask(0).reaped == len(pushes)


def make_suspects(backend: Backend, worker: Worker, *pushes: Push) -> None:
    """Push requests and let them be lost twice."""
    lose(backend, worker, 2, *pushes)


# Who is a suspect


def test_requests_lost_once_are_leased_together(backend: Backend) -> None:
    worker = backend.join()
    lose(backend, worker, 1, push("1"), push("2"), push("3"))

    assert worker.lease_payloads() == ["3", "2", "1"]


@pytest.mark.parametrize("loss", ["expiry", "return"])
def test_requests_lost_twice_are_leased_one_an_exchange(backend: Backend, loss: str) -> None:
    worker = backend.join()
    worker.commit(push("1"), push("2"), push("3"))
    for _ in range(2):
        assert len(worker.lease(3)) == 3
        if loss == "expiry":
            backend.clock.advance(TTL_S)
        else:
            worker.join()

    assert [worker.lease_payloads() for _ in range(4)] == [["3"], ["2"], ["1"], []]


def test_a_suspect_keeps_what_was_pushed_and_its_attempts(backend: Backend) -> None:
    worker = backend.join()
    payload = bytes(range(256))
    worker.commit(Push(-7, "b.example", payload))
    leases: list[Lease] = []
    for _ in range(3):
        leases += worker.lease()
        backend.clock.advance(TTL_S)

    assert [lease.attempt for lease in leases] == [1, 2, 3]
    assert {(lease.lease_id, lease.rank, lease.slot, lease.payload) for lease in leases} == {
        (leases[0].lease_id, -7, "b.example", payload)
    }


def test_giving_back_its_second_lease_makes_no_suspect(backend: Backend) -> None:
    worker = backend.join()
    lose(backend, worker, 1, push("1"), push("2"), push("3"))
    released, *_ = worker.lease(3)
    worker.commit(release(released))
    worker.reconcile()

    assert [(lease.payload, lease.attempt) for lease in worker.lease(9)] == [(b"3", 2), (b"2", 2), (b"1", 2)]


# Whether one is handed out


def test_a_suspect_counts_as_pending(backend: Backend) -> None:
    worker = backend.join()
    make_suspects(backend, worker, push("1"), push("2"))
    worker.commit(push("3"))

    before = worker.depth()
    leases = worker.lease(9)
    after = worker.depth()

    assert (before.accepted, before.pending, before.leased) == (3, 3, 0)
    assert len(leases) == 2
    assert (after.accepted, after.pending, after.leased) == (3, 1, 2)


def test_a_suspect_is_counted_where_the_pending_are_shared_out(backend: Backend) -> None:
    worker = backend.join("w1")
    make_suspects(backend, worker, push("1"), push("2"))
    backend.join("w2")
    worker.commit(push("3"), push("4"))

    assert worker.lease_payloads(9, is_fair=True) == ["2", "4"]


def test_no_suspect_comes_to_a_worker_that_may_not_take_one(backend: Backend) -> None:
    worker, other = backend.join("w1"), backend.join("w2")
    make_suspects(backend, worker, push("1"), push("2"))
    worker.commit(push("3", 1))

    assert worker.lease_payloads(may_take_suspect=False) == ["3"]
    assert worker.lease_payloads(may_take_suspect=False) == []
    assert worker.depth().pending == 2
    assert other.lease_payloads() == ["2"]


def test_two_suspects_go_to_two_workers(backend: Backend) -> None:
    first, second = backend.join("w1"), backend.join("w2")
    make_suspects(backend, first, push("1"), push("2"))

    served = [first.lease_payloads(), first.lease_payloads(may_take_suspect=False), second.lease_payloads()]

    assert served == [["2"], [], ["1"]]


def test_a_demand_of_nothing_leases_no_suspect(backend: Backend) -> None:
    worker = backend.join()
    make_suspects(backend, worker, push("1"))

    assert worker.lease_payloads(0) == []
    assert worker.lease_payloads(0, is_fair=True) == []
    assert worker.depth().pending == 1


def test_a_crawl_does_not_end_while_a_suspect_waits(backend: Backend) -> None:
    worker = backend.join()
    make_suspects(backend, worker, push("1"))

    waits = worker.ask(0, is_idle=True).has_ended
    (lease,) = worker.lease()
    worker.commit(ack(lease))

    assert not waits
    assert worker.depth().done == 1
    assert worker.ask(0, is_idle=True).has_ended


def test_a_flush_drops_the_suspects(backend: Backend) -> None:
    worker = backend.join()
    make_suspects(backend, worker, push("1"))
    worker.leave()

    again = backend.join(flush=True)

    assert again.lease_payloads() == []
    assert again.depth().pending == 0


# Its place


@pytest.mark.parametrize(("order", "expected"), [("lifo", "0cba23"), ("fifo", "0abc23")])
def test_suspects_are_ordered_by_rank_then_by_id_in_all_slots(backend: Backend, order: Order, expected: str) -> None:
    worker = backend.join(order=order)
    others = [push("3", 1, "x"), push("a", 0, "x"), push("b", 0, "y"), push("c", 0, "x"), push("0", -1, "y")]
    make_suspects(backend, worker, push("2", 0, "y", is_start=True), *others)

    assert "".join(payload for _ in range(6) for payload in worker.lease_payloads()) == expected


def test_a_suspect_goes_before_ordinary_requests_of_equal_and_higher_rank(backend: Backend) -> None:
    worker = backend.join()
    make_suspects(backend, worker, push("suspect", 1, "b"))
    worker.commit(push("equal", 1, "a"), push("same slot", 1, "b"), push("higher", 2, "b"))

    assert worker.lease_payloads() == ["suspect", "equal", "same slot", "higher"]


def test_a_suspect_waits_for_the_next_exchange_while_an_ordinary_request_ranks_lower(backend: Backend) -> None:
    worker = backend.join()
    make_suspects(backend, worker, push("suspect", 1, "a"))
    worker.commit(push("lower", 0, "b"), push("higher", 2, "b"), push("highest", 3, "b"))

    assert [worker.lease_payloads(2) for _ in range(2)] == [["lower", "higher"], ["suspect", "highest"]]


@pytest.mark.parametrize("lower", ["a", "b"])
def test_a_lower_rank_in_a_full_slot_does_not_hold_a_suspect_back(backend: Backend, lower: str) -> None:
    worker = backend.join()
    make_suspects(backend, worker, push("suspect", 1, "c"))
    worker.commit(*(push("full", 0 if slot == lower else 2, slot) for slot in "ab"))

    assert worker.lease_payloads(slot_room={"a": 0, "b": 0}) == ["suspect"]


def test_many_full_slots_do_not_hide_the_lower_rank_that_goes_before_a_suspect(backend: Backend) -> None:
    worker = backend.join()
    make_suspects(backend, worker, push("suspect", 2, "c"))
    full = {f"full {number}": 0 for number in range(50)}
    worker.commit(*(push("", 0, slot) for slot in full), push("lower", 1, "free"))

    assert worker.lease_payloads(slot_room=full) == ["lower"]
    assert worker.lease_payloads(slot_room=full) == ["suspect"]


# Room and limit


def test_a_suspect_whose_slot_is_full_waits_and_no_other_steps_in(backend: Backend) -> None:
    worker = backend.join()
    make_suspects(backend, worker, push("first", 0, "a"), push("second", 1, "b"))
    worker.commit(push("ordinary", 2, "b"))

    assert worker.lease_payloads(slot_room={"a": 0}) == ["ordinary"]
    assert worker.lease_payloads(slot_room={"a": 0}) == []
    assert worker.lease_payloads(slot_room={"a": 1}) == ["first"]


@pytest.mark.parametrize(("limit", "expected"), [(1, ["suspect"]), (2, ["suspect", "1"]), (3, ["suspect", "1", "2"])])
def test_a_suspect_uses_up_one_of_the_limit(backend: Backend, limit: int, expected: Sequence[str]) -> None:
    worker = backend.join()
    make_suspects(backend, worker, push("suspect"))
    worker.commit(*(push(str(number), number) for number in range(1, 4)))

    assert worker.lease_payloads(limit) == expected


@pytest.mark.parametrize("room", [1, 2, 3])
def test_a_suspect_uses_up_room_of_its_slot(backend: Backend, room: int) -> None:
    worker = backend.join()
    make_suspects(backend, worker, push("suspect", 0, "a"))
    worker.commit(*(push(slot, rank, slot) for rank, slot in enumerate("aaabbb")))

    assert worker.lease_payloads(slot_room={"a": room}) == ["suspect", *"a" * (room - 1), *"bbb"]


@pytest.mark.parametrize("slot_limit", [1, 2, 3])
def test_a_suspect_counts_towards_the_slot_limit(backend: Backend, slot_limit: int) -> None:
    worker = backend.join()
    make_suspects(backend, worker, push("suspect", 0, "a"))
    worker.commit(*(push(slot, rank, slot) for rank, slot in enumerate("aaabbb")))

    served = worker.lease_payloads(slot_limit=slot_limit)

    assert served == ["suspect", *"a" * (slot_limit - 1), *"b" * slot_limit]


def test_a_suspect_that_fills_its_slot_leaves_the_rest_of_the_limit_to_others(backend: Backend) -> None:
    worker = backend.join()
    make_suspects(backend, worker, push("suspect", 0, "a"))
    worker.commit(*(push(slot, rank, slot) for rank, slot in enumerate("abcd")))

    assert worker.lease_payloads(3, slot_room={"b": 0}, slot_limit=1) == ["suspect", "c", "d"]


# Turns


def test_a_suspect_is_served_out_of_turn(backend: Backend) -> None:
    worker = backend.join()
    make_suspects(backend, worker, push("A", 0, "a"), push("B", 0, "b"))
    worker.commit(*(push(slot, 0, slot) for slot in "aaabbb"))

    assert "".join(worker.lease_payloads(2)) == "Ba"
    assert "".join(worker.lease_payloads(2)) == "Ab"
    assert "".join(worker.lease_payloads()) == "abab"


def test_a_returned_suspect_gives_its_slot_no_turn(backend: Backend) -> None:
    worker = backend.join()
    make_suspects(backend, worker, push("A", 0, "a"))
    worker.commit(push("b", 0, "b"), push("a", 0, "a"))

    (lease,) = worker.lease(1)
    worker.commit(release(lease))

    assert "".join(worker.lease_payloads(may_take_suspect=False)) == "ba"


# Its end


def test_a_released_suspect_stays_a_suspect_with_its_attempts(backend: Backend) -> None:
    worker = backend.join()
    make_suspects(backend, worker, push("1"), push("2"))

    found = []
    for give_back in (lambda lease: worker.commit(release(lease)), lambda _: worker.reconcile()):
        (lease,) = worker.lease(9)
        found.append((lease.payload, lease.attempt))
        give_back(lease)
        assert worker.lease_payloads(may_take_suspect=False) == []
    found += [(lease.payload, lease.attempt) for _ in range(2) for lease in worker.lease(9)]

    assert found == [(b"2", 3), (b"2", 3), (b"2", 3), (b"1", 3)]


def test_a_suspect_lost_again_is_a_suspect_until_it_is_lost_too_often(backend: Backend) -> None:
    worker = backend.join(max_attempts=4)
    make_suspects(backend, worker, push("1"), push("2"))

    attempts = []
    for _ in range(4):
        attempts += [(lease.payload, lease.attempt) for lease in worker.lease(9)]
        backend.clock.advance(TTL_S)
    depth = worker.depth()

    assert attempts == [(b"2", 3), (b"2", 4), (b"1", 3), (b"1", 4)]
    assert (depth.pending, depth.leased, depth.dead) == (0, 0, 2)
    assert [(letter.payload, letter.reason, letter.attempts) for letter in worker.dead_letters()] == [
        (b"1", "lease", 4),
        (b"2", "lease", 4),
    ]


def test_one_loss_makes_a_suspect_where_two_are_too_many(backend: Backend) -> None:
    worker = backend.join(max_attempts=2)
    lose(backend, worker, 1, push("1"), push("2"))

    assert len(worker.lease_payloads()) == 1
    assert (worker.depth().pending, worker.depth().leased) == (1, 1)


def test_an_acked_suspect_is_done_and_its_late_ack_void(backend: Backend) -> None:
    worker = backend.join()
    make_suspects(backend, worker, push("1"))
    (expired,) = worker.lease()
    backend.clock.advance(TTL_S)
    (lease,) = worker.lease()

    assert list(worker.commit(ack(expired), ack(lease)).void) == [0]
    assert (worker.depth().done, worker.depth().pending) == (1, 0)


# Names of slots


@pytest.mark.parametrize(
    "slot",
    ["", " ", ":", "a:b:c", "{a}", "*?[a]", "bücher.example", "🕷", "\ud800", "\0", "\0\1a", "\n", "%s", "x" * 70_000],
    ids=lambda slot: ascii(slot[:20]),
)
def test_a_suspect_may_be_of_a_slot_of_any_name(backend: Backend, slot: str) -> None:
    worker = backend.join()
    make_suspects(backend, worker, push("suspect", 0, slot), Push(1, slot, b"\0\xff"), push("", 2, slot))
    worker.commit(push("ordinary", 3, slot))

    assert worker.lease_payloads(slot_room={slot: 0}) == []
    (first,) = worker.lease(9, slot_room={slot: 1})
    (second, ordinary) = worker.lease(9)
    (third,) = worker.lease(9)

    assert [lease.slot == slot for lease in (first, second, third, ordinary)] == [True] * 4
    assert [lease.payload for lease in (first, second, third, ordinary)] == [b"suspect", b"\0\xff", b"", b"ordinary"]


# Those beside it


def work_until_killed(worker: Worker, poisons: Collection[str]) -> bool:
    """Fetch until nothing comes, or a request comes that kills the worker; return whether it was killed."""
    worker.join()
    while leases := worker.lease(4):
        if any(lease.payload.decode() in poisons for lease in leases):
            return True
        worker.commit(*map(ack, leases))
    return False


@pytest.mark.parametrize("order", ["lifo", "fifo"])
@pytest.mark.parametrize(
    ("max_attempts", "ranks"), [(5, [-1]), (5, [0]), (5, [1]), (5, [0, 0]), (5, [-1, 1]), (3, [0]), (2, [0])], ids=str
)
def test_requests_lost_beside_one_that_kills_its_workers_survive_it(
    backend: Backend, order: Order, max_attempts: int, ranks: Sequence[int]
) -> None:
    worker = backend.worker(order=order, max_attempts=max_attempts)
    worker.join()
    poisons = [f"poison {number}" for number in range(len(ranks))]
    innocents = [push(f"{slot}{number}", 0, slot) for number in range(8) for slot in "abc"]
    worker.commit(*innocents[:12], *map(push, poisons, ranks), *innocents[12:])

    deaths = 0
    while work_until_killed(worker, poisons):
        deaths += 1
        assert deaths <= max_attempts * len(poisons)

    depth = worker.depth()
    assert (depth.done, depth.dead, depth.pending, depth.leased) == (len(innocents), len(poisons), 0, 0)
    letters = worker.dead_letters()
    assert sorted(letter.payload.decode() for letter in letters) == poisons
    assert {(letter.reason, letter.attempts) for letter in letters} == {("lease", max_attempts)}


# Groups of them


GROUPS = (8, 4, 4, 2, 2)


def lease_beside(worker: Worker, held: Sequence[Lease]) -> Sequence[Lease]:
    """Lease as much as can be held beside that, as the pump does."""
    config = worker.frontier.config
    suspects = [lease.attempt - 1 for lease in held if lease.attempt > config.suspect_attempts]
    group = min(map(config.group, suspects), default=ANY_NUMBER)
    return worker.lease(16 - len(held), suspect_room=max(0, group - len(suspects)), suspects_held=len(suspects))


def kill(worker: Worker) -> list[str]:
    """Lease as much as can be held, and come back as another process; return what was leased."""
    held: list[Lease] = []
    while found := lease_beside(worker, held):
        held += found
    worker.join()
    return [lease.payload.decode() for lease in held]


def test_fewer_suspects_are_held_together_the_more_often_they_were_lost(backend: Backend) -> None:
    worker = backend.join(suspect_groups=GROUPS)
    worker.commit(*(push(str(number), number) for number in range(16)))

    assert [len(kill(worker)) for _ in range(9)] == [16, 16, 8, 4, 4, 2, 2, 1, 1]


def test_the_suspect_lost_most_often_limits_how_many_are_held_together(backend: Backend) -> None:
    worker = backend.join(suspect_groups=GROUPS)
    worker.commit(push("a"), push("b"))
    for _ in range(5):
        assert kill(worker) == ["b", "a"]
    worker.commit(push("c", -1), push("d", -1), push("e", -1))
    for _ in range(2):
        assert len(worker.lease(3, may_take_suspect=False)) == 3
        worker.join()

    assert kill(worker) == ["e", "d", "c"]


def test_three_long_pages_are_held_together_through_six_kills(backend: Backend) -> None:
    worker = backend.join(suspect_groups=GROUPS)
    worker.commit(push("1"), push("2"), push("3"))

    assert min(len(kill(worker)) for _ in range(7)) > 1
    assert (worker.depth().dead, worker.depth().pending) == (0, 3)


@pytest.mark.parametrize("max_attempts", [1, 2, 3, 5])
def test_a_request_lost_alone_is_given_up_after_max_attempts(backend: Backend, max_attempts: int) -> None:
    worker = backend.join(suspect_groups=GROUPS, max_attempts=max_attempts)
    worker.commit(push("1"))
    for _ in range(max_attempts):
        assert worker.depth().dead == 0
        assert kill(worker) == ["1"]

    assert (worker.depth().dead, worker.depth().pending) == (1, 0)


@pytest.mark.parametrize("order", ["lifo", "fifo"])
@pytest.mark.parametrize(("max_attempts", "kills"), [(2, 5), (3, 7), (5, 9)])
@pytest.mark.parametrize("ranks", [[-1], [0], [1], [0, 0]], ids=str)
def test_a_request_that_kills_workers_is_found_among_many_and_no_other_is_given_up(
    backend: Backend, order: Order, max_attempts: int, kills: int, ranks: Sequence[int]
) -> None:
    worker = backend.join(order=order, max_attempts=max_attempts, suspect_groups=GROUPS)
    poisons = [f"poison {number}" for number in range(len(ranks))]
    innocents = [push(f"{slot}{number}", 0, slot) for number in range(8) for slot in "abc"]
    worker.commit(*innocents[:12], *map(push, poisons, ranks), *innocents[12:])

    deaths = 0
    held: list[Lease] = []
    while True:
        held += lease_beside(worker, held)
        if any(lease.payload.decode() in poisons for lease in held):
            deaths, held = deaths + 1, []
            worker.join()
        elif held:
            worker.commit(ack(held.pop(0)))
        else:
            break

    depth = worker.depth()
    assert deaths <= kills * len(poisons)
    assert (depth.done, depth.dead, depth.pending, depth.leased) == (len(innocents), len(poisons), 0, 0)
    assert sorted(letter.payload.decode() for letter in worker.dead_letters()) == poisons
