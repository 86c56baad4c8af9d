"""Reads the values of a frontier from which the number of useful workers is computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import inf

from scrapy_prioqueue.frontier.labels import label_of
from scrapy_prioqueue.frontier.redis.operators.budgets import BudgetFound
from scrapy_prioqueue.frontier.redis.operators.findings import Rates, SeedsFound, Status, WorkerFound
from scrapy_prioqueue.frontier.redis.operators.inspector import Inspector
from scrapy_prioqueue.frontier.redis.operators.lanes import SLOTS_PER_CALL, tier_range
from scrapy_prioqueue.frontier.redis.wire import decoded, encoded, pieces
from scrapy_prioqueue.monitoring.scaling import SlotWork, Work

SLOT_SAMPLE = 2000
"""Maximum number of slots that are read; of more slots, a random sample is read."""

SOON_S = 60.0
"""A delayed request that is due within this time needs a worker now, since a worker takes a while to start."""

STARTING_S = 60.0
"""Seconds after a worker's start in which it may not have stored its first requests yet."""

LEAST_MEASURED_S = 5.0
"""Minimum seconds over which a rate must have been counted."""

MOST_PLACES = 1000
"""Stands for any number of requests in progress."""

ENVELOPE_HEAD = 9
"""Bytes in front of the payload of a pending request."""


def read_work(inspector: Inspector, seeds_keys: Sequence[str], *, places: int, places_per_slot: int) -> Work:
    """Read the requests of a frontier and how fast its workers are; the cost hardly depends on its size.

    Args:
        seeds_keys: keys of seeds, which also need a worker.
        places: number of requests that a worker can have in progress, 0 for any number.
        places_per_slot: the same for each slot.
    """
    status = inspector.status(seeds_keys)
    if status is None:
        return Work(None, has_seeds=_has_seeds(inspector.seeds(seeds_keys)))
    at_work = [worker for worker in status.workers if worker.is_alive and not worker.stop and not worker.is_paused]
    slots = SlotReader(inspector, status).read() if status.counts["pending"] else ()
    in_slots = max(1, status.slots) * (places_per_slot or inf)
    return Work(
        phase=status.state.phase,
        epoch=status.state.epoch,
        is_paused="paused" in status.state.orders,
        pending=status.counts["pending"],
        leased=status.counts["leased"],
        is_due_soon=0 < status.next_due_ms <= status.now_ms + SOON_S * 1000,
        has_seeds=_has_seeds(status.seeds) and "drained" not in status.state.orders,
        is_starting=any(_is_starting(worker, status.now_ms) for worker in at_work),
        slots=slots,
        workers=len(at_work),
        known=sum(not (worker.stop or worker.is_paused) for worker in status.workers),
        satisfied=sum(not worker.is_hungry for worker in at_work),
        measured_workers=_average_number(at_work, status.pace),
        done_per_s=status.pace.done_per_s if _is_measured(status.pace) else None,
        places=int(min(places or inf, in_slots, MOST_PLACES)),
    )


def _has_seeds(found: Sequence[SeedsFound]) -> bool:
    return any(seeds.entries for seeds in found)


def _is_starting(worker: WorkerFound, now_ms: int) -> bool:
    has_just_joined = worker.is_busy and now_ms - worker.joined_ms < STARTING_S * 1000
    return worker.has_more_starts or worker.has_handlers or has_just_joined


def _is_measured(pace: Rates) -> bool:
    since_ms, until_ms = pace.counted_ms
    return until_ms - since_ms >= LEAST_MEASURED_S * 1000


def _average_number(workers: Sequence[WorkerFound], pace: Rates) -> float:
    """Return the average number of these workers in the time over which the rate was counted."""
    since_ms, until_ms = pace.counted_ms
    if not _is_measured(pace):
        return 0.0
    present_ms = (max(0, until_ms - max(since_ms, worker.joined_ms)) for worker in workers)
    return sum(present_ms) / (until_ms - since_ms)


class SlotReader:
    """Reads slots, with the limits, the flood and the budgets that hold them back."""

    def __init__(self, inspector: Inspector, status: Status) -> None:
        self._inspector = inspector
        self._status = status
        self._policy = status.state.policy

    def read(self) -> Sequence[SlotWork]:
        """Return the slots, or a sample of them; none if nothing holds any slot back."""
        policy = self._policy
        if not (policy.has_limits or policy.has_budgets or policy.is_flooded):
            return ()
        known = self._known() if policy.has_limits else []
        names, is_sampled = self._inspector.lanes.sample(SLOT_SAMPLE)
        others = list(set(names) - set(known))
        weight = max(1.0, (self._status.slots - len(known)) / max(1, len(others))) if is_sampled else 1.0
        names = [*known, *others]
        depths, flooded = self._depths(names)
        over = self._over_budget(names, depths, weight) if policy.has_budgets else [0.0] * len(names)
        weights = [1.0] * len(known) + [weight] * len(others)
        slots: Sequence[SlotWork] = [
            SlotWork(depth, held, more, weight=stands_for)
            for depth, held, more, stands_for in zip(depths, flooded, over, weights, strict=True)
        ]
        slots = self._limited(names, slots) if policy.has_limits else slots
        return [slot for slot in slots if slot.pending]

    def _known(self) -> list[bytes]:
        """Return slots with limits of their own, and closed slots, which a sample may miss; some may be empty."""
        named = [encoded(entry.pattern) for entry in self._inspector.limits.entries() if "*" not in entry.pattern]
        closed, now_ms = self._inspector.keys.of("closed"), self._status.now_ms
        (paused,) = self._inspector.link.pipe(("ZRANGEBYSCORE", closed, now_ms, "+inf", "LIMIT", 0, SLOT_SAMPLE))
        return list(dict.fromkeys((*named[:SLOT_SAMPLE], *paused)))

    def _depths(self, names: Sequence[bytes]) -> tuple[Sequence[int], Sequence[int]]:
        """Return the number of requests of each slot, and of those that a flood holds back."""
        ranges = [tier_range(tier) for tier in self._policy.discovery] if self._policy.is_flooded else []
        depths: list[int] = []
        flooded: list[int] = []
        for part in pieces(names, SLOTS_PER_CALL):
            queues = [self._inspector.keys.queue(name) for name in part]
            found = self._inspector.link.pipe(
                *(("ZCARD", queue) for queue in queues),
                *(("ZCOUNT", queue, *bounds) for queue in queues for bounds in ranges),
            )
            depths += found[: len(part)]
            counts = found[len(part) :]
            flooded += [sum(counts[at * len(ranges) : (at + 1) * len(ranges)]) for at in range(len(part))]
        return depths, flooded

    def _limited(self, names: Sequence[bytes], slots: Sequence[SlotWork]) -> Sequence[SlotWork]:
        """Return the slots with their limits."""
        now_ms, clocks = self._status.now_ms, self._inspector.limits.of([*map(decoded, names)])
        return [
            replace(
                slot,
                opens_in_s=max(clock.opens_ms - now_ms, (1 - clock.limit.burst) * clock.limit.interval_ms) / 1000,
                interval_s=clock.limit.interval_ms / 1000,
                concurrency=clock.limit.concurrency,
                running=clock.running,
            )
            for slot, clock in zip(slots, clocks, strict=True)
        ]

    def _over_budget(self, names: Sequence[bytes], depths: Sequence[int], weight: float) -> Sequence[float]:
        """Estimate how many requests of each slot exceed a budget, as if all had the budget keys of the best one."""
        keys_of = self._budget_keys(names)
        budgets = {found.key: found for found in self._inspector.budgets.of({key for keys in keys_of for key in keys})}
        rooms = {key: pages_left(budget) for key, budget in budgets.items()}
        tightest = [min(keys, key=lambda key: rooms[key], default=None) for keys in keys_of]
        wanted: Counter[str] = Counter()
        slots: Counter[str] = Counter()
        for key, depth in zip(tightest, depths, strict=True):
            if key is not None:
                wanted[key] += depth
                slots[key] += 1
        # The slots of a key that has several in a sample are a sample of the slots of that key.
        fits = {
            key: min(1.0, rooms[key] / (count * (weight if slots[key] > 1 else 1.0)))
            for key, count in wanted.items()
            if count
        }
        return [depth * (1 - fits.get(key or "", 1.0)) for key, depth in zip(tightest, depths, strict=True)]

    def _budget_keys(self, names: Sequence[bytes]) -> Sequence[Sequence[str]]:
        found: list[Sequence[str]] = []
        for part in pieces(names, SLOTS_PER_CALL):
            heads = self._inspector.link.pipe(*(("ZRANGE", self._inspector.keys.queue(name), 0, 0) for name in part))
            labels = [label_of(head[0][ENVELOPE_HEAD:]) if head else None for head in heads]
            found += [label.keys if label else () for label in labels]
        return found


def pages_left(budget: BudgetFound) -> float:
    """Estimate how many more pages a budget allows, at the average cost of those so far."""
    left = inf
    for what, cap in budget.caps.items():
        room = max(0.0, cap.value - budget.used[what])
        if what == "pages":
            left = min(left, room)
        elif what != "renders" and (not room or budget.used[what]):
            left = min(left, room and budget.used["pages"] * room / budget.used[what])
    return left
