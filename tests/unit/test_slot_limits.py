"""Limits of slots in the in-process frontier."""

from __future__ import annotations

import pytest

from scrapy_prioqueue.frontier.memory import limits
from scrapy_prioqueue.frontier.memory.limits import IDLE_MS, SlotLimits
from scrapy_prioqueue.frontier.policy import CrawlDelay, Latency, Policy, Throttle

MOST, SLOTS = 50, 400


def test_learned_delays_of_idle_slots_are_dropped_if_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_LEARNT", MOST)
    found = SlotLimits({"waits"}.__contains__)
    found.adopt(Policy(throttle=Throttle(), awaits_crawl_delay=True))
    now_ms = 1_700_000_000_000
    found.charge("runs", now_ms)
    busy, idle = ("runs", "waits"), [f"idle-{number}" for number in range(SLOTS)]
    for slot in (*busy, *idle):
        now_ms += IDLE_MS // 10
        found.note(CrawlDelay(slot, 0), now_ms)
        found.note(Latency(slot, 1000, is_success=True), now_ms)

    # A slot whose crawl delay isn't known is served one request at a time.
    known = [slot for slot in (*busy, *idle) if not is_full_with_one(found, slot, now_ms)]
    assert known == [*busy, *idle[-MOST + len(busy) :]]


def is_full_with_one(found: SlotLimits, slot: str, now_ms: int) -> bool:
    found.charge(slot, now_ms)
    is_full = found.is_full(slot)
    found.discharge(slot)
    return is_full
