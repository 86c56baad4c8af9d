"""Log lines of a worker that has nothing to do."""

from __future__ import annotations

import pytest

from scrapy_prioqueue.frontier.waits import MOST_LOOKED_AT, Blocked, Holder, SlotWait, SlowPage, Waits
from scrapy_prioqueue.queues.idle import reasons_of

BLOCKED = Blocked("in parse of spiders/a.py, line 12", 40.0)
HUNG = SlowPage(7, "http://a.example/hung", "parse", "its callback", 312.0)


def said(waits: Waits) -> list[str]:
    return [reason.text for reason in reasons_of(waits, "shop")]


def holder(worker: str = "w1", leases: int = 12, heard_s: float = 1.0, **fields: object) -> Holder:
    return Holder(worker, "host-a", leases, 118.0, heard_s, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("waits", "texts"),
    [
        (Waits(), []),
        (
            Waits(leased=12, holders=[holder()]),
            ["12 requests leased by worker w1 at host-a (their leases expire within 118 s unless renewed)"],
        ),
        (
            Waits(leased=1, holders=[holder(leases=1, heard_s=80.0)]),
            [
                "1 request leased by worker w1 at host-a, without contact for 80 s"
                " (its lease expires within 118 s unless renewed)"
            ],
        ),
        (
            Waits(leased=1, holders=[Holder("w1", "", 1, -2.0, 62.0)]),
            ["1 request leased by worker w1, without contact for 62 s (expired, and given to others now)"],
        ),
        (
            Waits(leased=1, holders=[holder(leases=1, slow=[HUNG])]),
            [
                "1 request leased by worker w1 at host-a (its lease expires within 118 s unless renewed), which has"
                " been at http://a.example/hung for 312 s, now in its callback"
                " ('scrapy frontier release 7 --name shop' gives that page to others)"
            ],
        ),
        (
            Waits(leased=1, holders=[holder(leases=1, blocked=BLOCKED)]),
            [
                "1 request leased by worker w1 at host-a (its lease expires within 118 s unless renewed), whose event"
                " loop has been blocked for 40 s, in parse of spiders/a.py, line 12"
                " ('scrapy frontier workers --evict w1 --name shop' gives all its requests to others)"
            ],
        ),
        (
            Waits(busy=["w1"], blocked={"w1": BLOCKED}),
            [
                "worker w1, whose event loop has been blocked for 40 s, in parse of spiders/a.py, line 12"
                " ('scrapy frontier workers --evict w1 --name shop' lets the crawl continue without it)"
            ],
        ),
        (Waits(delayed=1, due_in_s=60.0), ["1 delayed request, due in 60 s"]),
        (Waits(delayed=1500, due_in_s=60.0), ["1,500 delayed requests, the first due in 60 s"]),
        (
            Waits(
                slots=4,
                first_slots=[SlotWait("a.example", 2.0, is_closed=False), SlotWait("b.example", 290.0, is_closed=True)],
                last_opens_in_s=400.0,
            ),
            [
                "slot a.example, held back by its limits for 2 s",
                "slot b.example, closed by Retry-After for 290 s",
                "2 more slots, the last of which opens in 400 s",
            ],
        ),
        (Waits(full_slots=1), ["1 slot at full concurrency, until a request there is done"]),
        (
            Waits(is_paused=True),
            ["an operator, who has paused the crawl ('scrapy frontier resume --name shop' resumes it)"],
        ),
    ],
)
def test_reasons_name_workers_and_times(waits: Waits, texts: list[str]) -> None:
    assert said(waits) == texts


def test_of_many_workers_those_with_the_most_leases_are_named() -> None:
    few = Waits(leased=35, holders=[holder(f"w{number}", 9 - number) for number in range(5)])
    many = Waits(leased=MOST_LOOKED_AT + 100, holders=few.holders)

    assert said(few)[3] == "11 requests leased by 2 other workers"
    assert said(many)[3] == f"{MOST_LOOKED_AT + 100 - 24} requests leased by 2 or more other workers"


def test_the_same_reason_keeps_its_key_when_its_numbers_change() -> None:
    before = Waits(
        leased=12,
        holders=[holder()],
        delayed=3,
        due_in_s=9.0,
        first_slots=[SlotWait("a", 9.0, is_closed=True)],
        slots=1,
    )
    after = Waits(
        leased=11,
        holders=[holder(leases=11)],
        delayed=2,
        due_in_s=4.0,
        first_slots=[SlotWait("a", 1.0, is_closed=True)],
        slots=1,
    )
    silent = Waits(leased=11, holders=[holder(leases=11, heard_s=30.0)])

    assert [reason.key for reason in reasons_of(before, "shop")] == [reason.key for reason in reasons_of(after, "shop")]
    assert {reason.key for reason in reasons_of(silent, "shop")}.isdisjoint(
        reason.key for reason in reasons_of(after, "shop")
    )
