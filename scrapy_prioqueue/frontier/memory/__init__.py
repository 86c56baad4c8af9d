"""The in-process frontier, on `heapq`; other packages import from this module."""

from __future__ import annotations

from scrapy_prioqueue.frontier.memory.frontier import MemoryFrontier
from scrapy_prioqueue.frontier.memory.store import MemoryStore

__all__ = ["MemoryFrontier", "MemoryStore"]
