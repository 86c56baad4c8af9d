"""The in-process frontier, on `heapq`; only the names other rooms may use are listed here."""

from __future__ import annotations

from scrapy_prioqueue.frontier.memory.frontier import MemoryFrontier
from scrapy_prioqueue.frontier.memory.store import MemoryStore

__all__ = ["MemoryFrontier", "MemoryStore"]
