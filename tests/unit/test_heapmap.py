"""The map of the in-process frontier returns the smallest value first, after any changes and deletions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scrapy_prioqueue.frontier.memory.heapmap import HeapMap

KEYS = st.integers(0, 9)


@given(st.lists(st.tuples(KEYS, st.integers(0, 9) | st.none())))
def test_the_first_key_is_always_that_of_the_smallest_value(changes: list[tuple[int, int | None]]) -> None:
    heap_map: HeapMap[int, int] = HeapMap()
    model: dict[int, int] = {}

    for key, value in changes:
        if value is not None:
            heap_map[key] = model[key] = value
        elif key in model:
            del heap_map[key], model[key]
        assert heap_map.first() == min(((value, key) for key, value in model.items()), default=None)
        assert len(heap_map) == len(model)


def test_changing_values_for_ever_does_not_fill_the_memory() -> None:
    heap_map: HeapMap[str, int] = HeapMap()
    heap_map["best"] = -1

    for value in range(10_000):
        heap_map[str(value % 10)] = value

    assert len(heap_map._heap) < 100  # noqa: SLF001  what it costs can't be seen from outside
    assert heap_map.first() == (-1, "best")


def test_changing_the_first_value_for_ever_leaves_nothing_behind() -> None:
    heap_map: HeapMap[str, int] = HeapMap()

    for value in range(10_000):
        heap_map["only"] = value

    assert len(heap_map._heap) == 1  # noqa: SLF001
    assert heap_map.first() == (9_999, "only")
