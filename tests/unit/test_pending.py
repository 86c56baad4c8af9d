"""Taking one pending request at a time gives the same order as taking many."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scrapy_prioqueue.frontier.memory.pending import Envelope, Pending

PLACES = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), max_size=20)


def filled(places: list[tuple[str, int]]) -> Pending:
    pending = Pending()
    for number, (slot, rank) in enumerate(places):
        pending.put(slot, Envelope(rank, number, 0, b""))
    return pending


@given(PLACES, st.sets(st.sampled_from("abc")))
def test_one_by_one_is_as_all_at_once(places: list[tuple[str, int]], full: set[str]) -> None:
    one_by_one, at_once = filled(places), filled(places)

    taken = []
    while (one := one_by_one.take_one(lambda slot: slot not in full)) is not None:
        taken.append(one)

    room = dict.fromkeys(full, 0)
    assert taken == at_once.take(99, slot_room=room, slot_limit=99, suspect_room=0, suspects_held=0)
    assert len(one_by_one) == len(at_once)
    rest = one_by_one.take(99, slot_room={}, slot_limit=99, suspect_room=0, suspects_held=0)
    assert rest == at_once.take(99, slot_room={}, slot_limit=99, suspect_room=0, suspects_held=0)
