"""A map that also yields the key of its smallest value."""

from __future__ import annotations

from collections.abc import ItemsView
from heapq import heapify, heappop, heappush, heapreplace
from typing import Generic, TypeVar

Key = TypeVar("Key", str, int)
Value = TypeVar("Value", int, float, tuple[int, int])


class HeapMap(Generic[Key, Value]):
    """Maps keys to values and finds the key of the smallest value; equal values are ordered by key.

    Changing or deleting a value that isn't on top leaves a stale entry in the heap, which is skipped later.
    Every operation takes O(log n) on average.
    """

    __slots__ = ("_heap", "_values")

    def __init__(self) -> None:
        self._values: dict[Key, Value] = {}
        self._heap: list[tuple[Value, Key]] = []

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, key: Key) -> Value:
        return self._values[key]

    def __setitem__(self, key: Key, value: Value) -> None:
        self._values[key] = value
        heap = self._heap
        if heap and heap[0][1] == key:
            heapreplace(heap, (value, key))
            return
        heappush(heap, (value, key))
        if len(heap) > 2 * len(self._values) + 64:
            self._heap = [(value, key) for key, value in self._values.items()]
            heapify(self._heap)

    def __delitem__(self, key: Key) -> None:
        del self._values[key]

    def discard(self, key: Key) -> None:
        """Delete a key if it is there."""
        self._values.pop(key, None)

    def items(self) -> ItemsView[Key, Value]:
        """Return keys and values, in no order."""
        return self._values.items()

    def first(self) -> tuple[Value, Key] | None:
        """Return the smallest value and its key, or None if the map is empty."""
        heap, values = self._heap, self._values
        while heap:
            value, key = heap[0]
            if values.get(key) == value:
                return value, key
            heappop(heap)
        return None
