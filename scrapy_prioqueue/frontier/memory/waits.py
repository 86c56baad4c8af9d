"""Computes what a worker of an in-process frontier waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scrapy_prioqueue.frontier.memory.store import MemoryStore, Worker
from scrapy_prioqueue.frontier.waits import MOST_SLOTS, Blocked, Holder, SlotWait, SlowPage, Waits


def waits_of(store: MemoryStore, worker: str, now_ms: int, ttl_ms: int) -> Waits:
    """Return why there is nothing for a worker."""
    holders = _holders(store, worker, now_ms)
    others = {name: session for name, session in store.living(now_ms - ttl_ms).items() if name != worker}
    held_by = {holder.worker for holder in holders}
    busy = {name: session for name, session in others.items() if not session.is_idle and name not in held_by}
    blocked = {name: _blocked(session, now_ms) for name, session in busy.items()}
    due_ms, waiting, limits = store.delayed.first_due_ms(), store.pending.waiting, store.limits
    opening: list[tuple[float, str]] = []
    first: list[SlotWait] = []
    full = 0
    if waiting is not None and limits is not None:
        waiting.update_all(now_ms, 0)
        opening, full = waiting.waiting_ms(), waiting.full()
        first = [SlotWait(slot, (at - now_ms) / 1000, limits.is_closed(slot, now_ms)) for at, slot in opening]
    return Waits(
        pending=len(store.pending),
        leased=len(store.leases),
        holders=holders,
        busy=sorted(busy),
        blocked={name: found for name, found in blocked.items() if found is not None},
        delayed=len(store.delayed),
        due_in_s=(due_ms - now_ms) / 1000 if due_ms is not None else 0.0,
        slots=len(opening),
        first_slots=first[:MOST_SLOTS],
        last_opens_in_s=(opening[-1][0] - now_ms) / 1000 if opening else 0.0,
        full_slots=full,
    )


def _holders(store: MemoryStore, worker: str, now_ms: int) -> Sequence[Holder]:
    found: dict[str, list[int]] = {}
    for held, expiry_ms in store.leases.expiries_ms():
        if held.worker != worker:
            found.setdefault(held.worker, []).append(expiry_ms)
    holders = [_holder(store, name, expiries, now_ms) for name, expiries in found.items()]
    return sorted(holders, key=lambda holder: (-holder.leases, holder.worker))


def _holder(store: MemoryStore, name: str, expiries_ms: Sequence[int], now_ms: int) -> Holder:
    session = store.workers.get(name)
    expires_in_s = (max(expiries_ms) - now_ms) / 1000
    if session is None:
        return Holder(name, "", len(expiries_ms), expires_in_s, -1.0)
    age_s = (now_ms - session.slow_ms) / 1000
    slow: list[SlowPage] = [replace(page, age_s=page.age_s + age_s) for page in session.slow]
    heard_s = (now_ms - session.heard_ms) / 1000
    return Holder(name, session.host, len(expiries_ms), expires_in_s, heard_s, slow, _blocked(session, now_ms))


def _blocked(session: Worker, now_ms: int) -> Blocked | None:
    age_s = (now_ms - session.slow_ms) / 1000
    return session.blocked and replace(session.blocked, age_s=session.blocked.age_s + age_s)
