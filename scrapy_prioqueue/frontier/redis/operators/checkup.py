"""Checks whether a frontier is intact: its layout, its counters, its workers, and keys that belong together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from scrapy_prioqueue.frontier.policy_parts import moment
from scrapy_prioqueue.frontier.redis.keys import LAYOUT
from scrapy_prioqueue.frontier.redis.operators.audit import Audit, KeysFound, Misplacement, Progress
from scrapy_prioqueue.frontier.redis.operators.doctor import Finding
from scrapy_prioqueue.frontier.redis.operators.findings import State, Status, WorkerFound
from scrapy_prioqueue.frontier.redis.operators.frontiers import others_of
from scrapy_prioqueue.frontier.redis.operators.inspector import Inspector
from scrapy_prioqueue.frontier.redis.wire import decoded
from scrapy_prioqueue.hints import evict_command, frontier_command
from scrapy_prioqueue.printable import counted

MISPLACED: Mapping[Misplacement, str] = {
    "unreachable": "{} with requests, but in no lane",
    "twice": "{} waiting for limits, but in a lane, too",
    "empty": "{} in a lane without requests",
}
"""Descriptions of misplaced slots; `{}` is their number."""

HALVES = {
    "leased": ("lease without an expiry", "leases without an expiry"),
    "leases": ("expiry without a lease", "expiries without a lease"),
    "dead": ("dead letter without a time of death", "dead letters without a time of death"),
    "died": ("time of death without a dead letter", "times of death without a dead letter"),
}
"""Members without a counterpart, by the key's noun, in the singular and the plural."""

EXAMPLES = 3
MOST_NAMED = 10
RECOUNTS = 5
STALE_CLEARING_MS = 30_000


REBUILD = "rebuild the frontier with scrapy frontier export, reset --all and import"


def frontier_findings(
    inspector: Inspector, tiers: Sequence[str], progress: Progress | None = None, seeds_keys: Sequence[str] = ()
) -> Iterator[Finding]:
    """Check one frontier completely, in small pieces.

    Args:
        tiers: those of the settings.
        seeds_keys: keys from which workers take seeds.
        progress: called now and then with the current step, and the number of items done.
    """
    audit = Audit(inspector.link, inspector.keys, progress)
    keys = audit.all_keys()
    if keys.foreign:
        yield from _foreign(keys)
        return
    state = inspector.state(of_any_layout=True)
    if state is None:
        yield _missing(inspector)
        return
    yield _layout(state)
    if state.layout != LAYOUT:
        return
    yield from _tiers(state, tiers)
    yield from _phase(inspector, state)
    yield from _workers(inspector, audit, state)
    status = inspector.status(seeds_keys)
    if status is not None:
        yield from _awaited(status)
        yield from _unread(status)
    yield from _lost(state)
    yield from _books(audit)
    yield from _counts(audit)
    yield from _keys(audit, keys)


def _missing(inspector: Inspector) -> Finding:
    if inspector.import_age_s() is None:
        text = f"there is no frontier {inspector.name!r}{others_of(inspector.link, inspector.name)}"
        return Finding("frontier", "wrong", text, "correct the name, or start a worker, which creates the frontier")
    text = "an import is running, or was interrupted"
    drop = frontier_command("reset --all", inspector.name)
    return Finding("frontier", "warning", text, f"if it was interrupted, repeat it, or delete it: {drop}")


def _foreign(keys: KeysFound) -> Iterator[Finding]:
    """Report keys with a wrong type, which make all other checks impossible."""
    remedy = "another program has written it: rename or delete it, or use another PRIOQUEUE_NAME"
    for key, kind in keys.foreign[:MOST_NAMED]:
        yield Finding("keys", "wrong", f"{key} is a {kind}, which no worker can use", remedy)
    if more := len(keys.foreign[MOST_NAMED:]):
        what = counted(more, "more key has", "more keys have")
        yield Finding("keys", "wrong", f"{what} another type", remedy)


def _layout(state: State) -> Finding:
    if state.layout == LAYOUT:
        return Finding("layout", "fine", f"version {LAYOUT}")
    return Finding(
        "layout",
        "wrong",
        f"version {state.layout}, but this release supports {LAYOUT}",
        "finish the crawl with the release that began it, or start anew with PRIOQUEUE_FLUSH_ON_START",
    )


def _tiers(state: State, tiers: Sequence[str]) -> Iterator[Finding]:
    if tuple(state.tiers) != tuple(tiers) and not state.has_ended:
        text = f"the frontier has {', '.join(state.tiers)}, but PRIOQUEUE_TIERS is {', '.join(tiers)}"
        yield Finding(
            "tiers", "warning", text, "set PRIOQUEUE_TIERS to those of the frontier until its crawl has ended"
        )


def _phase(inspector: Inspector, state: State) -> Iterator[Finding]:
    if state.phase == "clearing" and inspector.now_ms() - state.cleaning_ms > STALE_CLEARING_MS:
        text = "a worker that is gone has cleared an earlier crawl only in part"
        yield Finding("phase", "warning", text, "start a worker, which finishes the clearing")
        return
    phase = f"ended at {moment(state.ended_ms)}" if state.has_ended else state.phase
    text = f"{phase}, crawl {state.epoch}" + (f" ({state.crawl_id})" if state.crawl_id else "")
    yield Finding("phase", "fine", text)
    for order, remedy in (("paused", "resume"), ("drained", "resume")):
        if order in state.orders:
            yield Finding("crawl", "note", f"the crawl is {order}", frontier_command(remedy, inspector.name))


def _lost(state: State) -> Iterator[Finding]:
    if state.seen_mode == "bloom":
        lost = counted(round(state.seen_lost), "new page was", "new pages were")
        text = f"a Bloom filter of {counted(state.seen, 'fingerprint')}: about {lost} taken for duplicates"
        yield Finding("seen", "note", text, "with PRIOQUEUE_SEEN = 'compact' or 'exact' none are")


def _workers(inspector: Inspector, audit: Audit, state: State) -> Iterator[Finding]:
    workers = inspector.workers()
    silent = [worker.name for worker in workers if not worker.is_alive]
    alive = len(workers) - len(silent)
    expired = audit.expired_leases(inspector.now_ms())
    if expired and not alive:
        what = counted(expired, "request is", "requests are")
        text = f"{what} leased to workers that are gone, and no worker is alive to take them"
        yield Finding("workers", "warning", text, "start a worker")
    elif silent:
        yield Finding("workers", "note", f"{alive} alive, silent: {_some(silent)}", "their requests go to the others")
    elif alive:
        yield Finding("workers", "fine", f"{alive} alive")
    elif state.phase == "open":
        yield Finding("workers", "note", "no worker is running", "start one")
    yield from _unstorable(workers)
    for worker in workers:
        if worker.blocked is not None and worker.is_alive:
            text = f"the event loop of {worker.name} has been blocked for {worker.blocked.age_s:,.0f} s,"
            remedy = f"end that process, or give its requests to others: {evict_command(worker.name, inspector.name)}"
            yield Finding("blocked worker", "warning", f"{text} {worker.blocked.where}", remedy)
        for page in worker.slow:
            text = f"{page.url} ({page.callback}) at {worker.name} for {page.age_s:,.0f} s, now in {page.stage}"
            release = frontier_command(f"release {page.lease_id}", inspector.name)
            yield Finding("slow page", "warning", text, f"if it never ends, give it to other workers: {release}")


def _unstorable(workers: Sequence[WorkerFound]) -> Iterator[Finding]:
    """Find requests that only one worker can fetch, since they can't be stored."""
    found = [worker for worker in workers if worker.is_alive and worker.unstorable]
    if found:
        count, names = sum(worker.unstorable for worker in found), _some([worker.name for worker in found])
        what = f"{counted(count, 'request')} could not be stored and stayed in {names}"
        text = f"{what}, so no other worker can fetch {'it' if count == 1 else 'them'}"
        yield Finding("local requests", "wrong", text, "scrapy frontier check SPIDER names the code that makes them")


def _awaited(status: Status) -> Iterator[Finding]:
    """Find what keeps a crawl open that has no requests."""
    if not status.waiting_workers or "paused" in status.state.orders:
        return
    names = _some([worker.name for worker in status.waiting_workers])
    text = f"no request is left, but the crawl is open: {names} waiting for {status.awaited}"
    hanging = [worker.name for worker in status.waiting_workers if worker.has_handlers]
    remedy = f"if a handler never ends, fix it, and stop {_some(hanging)}" if hanging else ""
    yield Finding("open crawl", "warning" if hanging else "note", text, remedy)


def _unread(status: Status) -> Iterator[Finding]:
    """Find a fleet that idles until slots open although there is more to read."""
    if not status.is_idle:
        return
    names = [worker.name for worker in status.workers if worker.is_alive and worker.has_more_starts]
    unread = [f"the rest of start() at {_some(names)}"] if names else []
    unread += [f"seeds in {found.key}" for found in status.seeds if found.entries]
    policy = status.state.policy
    is_at_limit = 0 < policy.pending_limit <= status.counts["pending"]
    if not unread or not (is_at_limit or policy.is_memory_high):
        return
    wait_s = (status.idle_until_ms - status.now_ms) / 1000
    requests = "the only request" if status.left == 1 else f"all {counted(status.left, 'request')}"
    text = (
        f"{requests} of the frontier must wait for at least {wait_s:,.0f} s; not read meanwhile: {' and '.join(unread)}"
    )
    why = (
        f"raise PRIOQUEUE_PENDING_LIMIT, {policy.pending_limit:,}, for all workers"
        if is_at_limit
        else "raise the server's maxmemory, or PRIOQUEUE_MEMORY_HIGH_WATER for all workers"
    )
    slots = frontier_command("slots", status.name)
    yield Finding(
        "idle fleet", "warning", text, f"{why}, or move or remove requests of the slots that hold most: {slots}"
    )


def _books(audit: Audit) -> Iterator[Finding]:
    found = audit.books()
    for _ in range(RECOUNTS):
        if not found.differences():
            break
        # A busy fleet may have created or emptied slots in between.
        found = audit.books()
    differences = found.differences()
    if not differences:
        yield Finding("counters", "fine", f"{found.accepted:,} accepted, all accounted for")
    for text in differences:
        yield Finding("counters", "wrong", text, REBUILD)


def _counts(audit: Audit) -> Iterator[Finding]:
    slots, keys = _lasting(audit.miscounted_slots), _lasting(audit.miscounted_budgets)
    if slots:
        what = counted(len(slots), "slot has", "slots have")
        text = f"{what} another count of leased requests than leases: {_some(slots)}"
        yield Finding("limits", "wrong", text, REBUILD)
    if keys:
        text = (
            f"{counted(len(keys), 'budget key has', 'budget keys have')} a use below that of the leases: {_some(keys)}"
        )
        yield Finding("budgets", "wrong", text, REBUILD)


def _lasting(count: Callable[[], Sequence[str]]) -> Sequence[str]:
    """Return what each count finds; without the right to transactions a single one also finds changes in between."""
    found = count()
    for _ in range(RECOUNTS):
        if not found:
            break
        again = count()
        found = [name for name in found if name in again]
    return found


def _keys(audit: Audit, keys: KeysFound) -> Iterator[Finding]:
    yield Finding("keys", "fine", counted(keys.count, "key"))
    if keys.unknown:
        what = counted(len(keys.unknown), "key")
        text = f"{what} that no release up to this one writes: {_some(sorted(set(keys.unknown)))}"
        yield Finding("keys", "warning", text, "find the program that writes them, and change its prefix")
    for what, slots in audit.misplaced(keys.queues).items():
        yield from _slots(slots, MISPLACED[what])
    for noun, surplus in audit.halves().items():
        if surplus > 0:
            yield Finding("keys", "wrong", counted(surplus, *HALVES[noun]), REBUILD)


def _slots(slots: Sequence[bytes], what: str) -> Iterator[Finding]:
    if slots:
        text = f"{what.format(counted(len(slots), 'slot'))}: {_some([decoded(slot) for slot in slots])}"
        yield Finding("slots", "wrong", text, "push a request with that slot, which repairs it")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:EXAMPLES]) + (", …" if len(names) > EXAMPLES else "")
