"""Bytes that are not a request become a dead letter, and the counters balance."""

from __future__ import annotations

from scrapy_prioqueue.frontier.base import Demand, FrontierConfig, Push
from scrapy_prioqueue.frontier.memory import MemoryFrontier
from scrapy_prioqueue.pump.outbox import Outbox, push_dead_letter
from tests.support.coroutines import run
from tests.support.letters import letters_of


def test_it_is_stored_as_a_dead_letter_and_leased_to_no_worker() -> None:
    frontier, outbox = MemoryFrontier(FrontierConfig("books", ("a",), "w")), Outbox[str]()
    run(frontier.join())
    for data in (b"one", b"two"):
        push_dead_letter(outbox, Push(3, "seeds", data), "decode", f"why {data.decode()}")

    while outbox:
        outbox.confirm(run(frontier.exchange(outbox.batches(), Demand(9))).committed)

    depth = run(frontier.exchange((), Demand(9))).depth
    letters = run(letters_of(frontier))
    assert [(letter.payload, letter.reason, letter.detail) for letter in letters] == [
        (b"two", "decode", "why two"),
        (b"one", "decode", "why one"),
    ]
    assert (depth.accepted, depth.dead, depth.pending, depth.leased) == (2, 2, 0, 0)


def test_an_outbox_knows_which_requests_are_not_confirmed() -> None:
    frontier, outbox = MemoryFrontier(FrontierConfig("books", ("a",), "w")), Outbox[str]()
    run(frontier.join())
    outbox.push(Push(0, "slot", b"", b"f" * 20), "tag")
    before = outbox.awaits(b"f" * 20), outbox.awaits(b"g" * 20)

    outbox.confirm(run(frontier.exchange(outbox.batches(), None)).committed)

    assert before == (True, False)
    assert not outbox.awaits(b"f" * 20)
