"""Checks after every step what must be true of a crawl, independently of the package, from the server's data.

What is guaranteed, and checked, whatever happens to workers, line and server:

* No request is lost. One that the frontier has accepted is pending, delayed, leased, dead or done, and moves between
  these only by a call that is entitled to it. When a page is done, all requests found on it have been accepted: until
  then the page itself stays, is fetched again, and its requests are found again. What only a worker that died knew of
  comes back in this way, or from `start()`, which every worker reads.
* A delayed request is not served before its time.
* A page is done only after its worker has been through its callback.
* A lease is granted to one worker at a time, and ends by its holder's word or when its time is over.
* A worker holds no more suspects together than their groups allow.
* A batch is applied once and whole, or not at all; a filtered request is stored once.
* The counters are those of an independent count.
* The crawl ends when nothing is pending, delayed or leased and no worker that was heard of lately has anything to do or
  to tell.
  (Of one whose call was carried out after it had given it up, the server may believe for a while that it is idle.)
* In the end every request is done or a dead letter, the latter only with a reason.

A server that comes back without its newest writes comes back to an earlier moment at which all this was true.
Requests done since then are fetched again; leases that it has forgotten may be granted a second time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from scrapy_prioqueue.frontier.base import FrontierConfig
from scrapy_prioqueue.frontier.redis.scripts import Argument
from tests.simulation.audit import Audit, Held
from tests.simulation.operations import Finish, Operations, Store, operations_of
from tests.simulation.site import Site

HEARING = frozenset({"commit", "lease", "renew", "join"})
"""Scripts that report their worker as alive."""


class Violation(AssertionError):
    """Something is not as it must be.

    `schedule` is where it was found.
    """

    schedule: object = None


class Worker(Protocol):
    """What the ledger wants to know of a worker."""

    name: str
    worker_id: str

    @property
    def is_running(self) -> bool:
        """It has not ended in any way."""

    def tokens(self) -> Iterable[tuple[bytes, int]]:
        """Return id and attempt of every lease that it believes to hold."""

    def is_busy(self) -> bool:
        """Return whether it has something to do or to send."""


@dataclass(frozen=True)
class Step:
    """A script call that the server has carried out, or refused.

    Args:
        reply: an exception where it was refused.
        now_ms: the server's time; in the ledger, the frontier's.
        real_ms: the time by a clock that nobody sets.
        jumps: how often the server's clock was set forward before.
        is_late: its worker has given the call up before the server saw it.
        is_cut: an error was raised in the middle, unless the script came to its end before.
    """

    worker: Worker
    script: str
    arguments: Sequence[Argument]
    reply: Any
    now_ms: int
    real_ms: int
    jumps: int
    is_late: bool = False
    is_cut: bool = False

    @property
    def code(self) -> int | None:
        """First number of the reply, None where there is none."""
        return self.reply[0] if isinstance(self.reply, list) else None


@dataclass(frozen=True)
class Totals:
    """An independent count of what the server's counters count."""

    accepted: int = 0
    done: int = 0
    duplicates: int = 0
    void: int = 0
    reaped: int = 0
    marks: int = 0


class Ledger:
    """Follows the server from step to step.

    Args:
        site: what is crawled.
        config: what all workers have in common.
        workers: all that have been started.
        nothing: what an empty server holds.
    """

    def __init__(self, site: Site, config: FrontierConfig, workers: Sequence[Worker], nothing: Audit) -> None:
        self._site = site
        self._ttl_ms = int(config.lease_ttl_s * 1000)
        self._config = config
        self._workers = workers
        self._found = nothing
        self._done: list[tuple[bytes, str]] = []
        self._marks: list[Argument] = []
        self._known: set[str] = set()
        self._totals = Totals()
        self._history: list[Totals] = []
        self._deadlines: dict[bytes, int] = {}
        self._promises: dict[tuple[str, bytes, int], int] = {}
        self._real_promises: dict[tuple[str, bytes, int], tuple[int, int]] = {}
        self._clock_ms = 0
        self._finished: set[tuple[str, str]] = set()
        self._sessions: dict[str, Worker] = {}
        self._heard_ms: dict[str, int] = {}
        self._was_rolled_back = False

    @property
    def done(self) -> list[str]:
        """Pages that the server knows to be done."""
        return [payload for _, payload in self._done]

    @property
    def has_ended(self) -> bool:
        """The crawl is over."""
        return self._found.phase == "ended"

    def note_finished(self, worker: Worker, payload: str) -> None:
        """A worker has been through the callback of a page that it holds."""
        self._finished.add((worker.worker_id, payload))

    def check(self, step: Step, found: Audit) -> None:
        """Compare what the server holds now with what it held before this step.

        Raises:
            Violation: the step was not entitled to that.
        """
        before, self._found = self._found, found
        step = self._in_frontier_time(step)
        self._note_time(step)
        if found.replies != before.replies:
            self._check_moves(step, before, found)
        if step.script == "commit":
            self._check_commit(step, before, found)
        if step.is_cut:
            # A lease whose end was taken back has its time anew.
            later = {key: at for key, at in found.expiries.items() if at >= self._deadlines.get(key, at)}
            self._deadlines.update(later)
        if found.replies != before.replies:
            self._check_books(found)
            self._check_end(step, before, found)
        if not isinstance(step.reply, Exception) or step.is_cut:
            self._history.append(self._totals)

    def roll_back(self, found: Audit, kept: int) -> None:
        """The server holds what it held after so many steps."""
        del self._history[kept:]
        self._totals = self._history[-1] if self._history else Totals()
        del self._done[self._totals.done :]
        del self._marks[self._totals.marks :]
        self._found = found
        self._known = {held.payload for held in found.requests.values()} | set(self.done)
        self._deadlines = dict(found.expiries)
        self._promises.clear()
        self._real_promises.clear()
        self._clock_ms = 0
        self._was_rolled_back = True
        self._check_books(found)

    def check_at_the_end(self) -> None:
        """Check that the crawl is over and complete.

        Raises:
            Violation: it isn't.
        """
        found = self._found
        _demand(found.phase == "ended", f"the crawl is {found.phase or 'lost'!r} when all workers have gone")
        left = [held for held in found.requests.values() if held.state != "dead"]
        _demand(not left, f"left over when the crawl has ended: {left}")
        missing = [name for name in self._site.starts if name not in self._known]
        _demand(not missing, f"start requests lost: {missing}")
        for payload in self.done:
            self._check_children(payload)

    # Times

    def _in_frontier_time(self, step: Step) -> Step:
        now_ms = step.now_ms + self._found.ahead_ms
        if step.script in HEARING and step.code == 0:
            _demand(now_ms >= self._clock_ms, f"the frontier's clock goes back by {self._clock_ms - now_ms} ms")
            self._clock_ms = now_ms
        return replace(step, now_ms=now_ms)

    def _note_time(self, step: Step) -> None:
        worker_id = step.worker.worker_id
        if step.code != 0:
            return
        if step.is_late and step.script == "lease":
            # It may say that the worker is idle, though that has got something to do since.
            self._heard_ms[worker_id] = 0
        elif step.script == "lease" or (step.script in HEARING and self._heard_ms.get(worker_id, 1)):
            self._heard_ms[worker_id] = step.now_ms
        if step.script == "join":
            self._sessions[worker_id] = step.worker
        if step.script == "renew":
            for at in range(7 - 1, len(step.arguments), 2):
                key, attempt = _as_bytes(step.arguments[at]), int(step.arguments[at + 1])
                held = self._found.requests.get(key)
                if held and held.state == "leased" and (held.worker, held.attempts) == (worker_id, attempt):
                    self._promise(step, key, attempt)

    def _promise(self, step: Step, key: bytes, attempt: int) -> None:
        lease = step.worker.worker_id, key, attempt
        self._deadlines[key] = self._promises[lease] = step.now_ms + self._ttl_ms
        self._real_promises[lease] = step.real_ms + self._ttl_ms, step.jumps

    # Moves

    def _check_moves(self, step: Step, before: Audit, found: Audit) -> None:
        old, new = before.requests, found.requests
        operations = operations_of(step.arguments) if step.script == "commit" else Operations()
        for key in sorted(old.keys() | new.keys()):
            was, now = old.get(key), new.get(key)
            if was == now:
                continue
            if was is None:
                self._check_new(step, operations, now)
            elif step.script == "commit" and now == _leased(was, step.worker.worker_id):
                _demand(key in operations.claims, f"{_shown(key)} was {was} and is {now} without a claim")
            elif was.state == "pending" and now is not None and now.state == "leased":
                self._check_grant(step, key, was, now)
            elif step.script == "lease" and was.state in ("delayed", "leased"):
                self._check_time(step, before, key, was, now)
            elif was.state == "leased":
                self._check_lease_end(step, operations, key, was, now)
            else:
                raise Violation(f"{_shown(key)} was {was} and is {now} after {step.script} of {step.worker.name}")

    def _check_time(self, step: Step, before: Audit, key: bytes, was: Held, now: Held | None) -> None:
        """A lease call first does what time has brought, and may then hand that very request out."""
        until_ms = before.due_ms[key] if was.state == "delayed" else self._deadlines.get(key, 0)
        _demand(until_ms <= step.now_ms, f"{_shown(key)} was {was} and is {now} after lease, before its time")
        found = Held(was.payload, "pending", was.attempts)
        if was.state == "leased":
            self._check_real_time(step, key, was)
            if self._may_be_dead(was) and (self._must_be_dead(was) or now == _in_state(was, "dead")):
                found = _in_state(was, "dead")
            self._totals = replace(self._totals, reaped=self._totals.reaped + 1)
            self._deadlines.pop(key, None)
            self._promises.pop((was.worker, key, was.attempts), None)
        if now != found:
            _demand(now is not None and found.state == "pending", f"{_shown(key)} was {was} and is {now} after lease")
            assert now is not None
            self._check_grant(step, key, found, now)

    def _check_real_time(self, step: Step, key: bytes, was: Held) -> None:
        """A lease has lasted for its time, less a third for each time that the server's clock was set forward."""
        real_ms, jumps = self._real_promises.get((was.worker, key, was.attempts), (0, 0))
        early_ms = real_ms - (step.jumps - jumps) * self._ttl_ms // 3 - step.real_ms
        _demand(early_ms <= 0, f"{was.payload} is taken from {was.worker} {early_ms} ms before its time")

    def _check_new(self, step: Step, operations: Operations, now: Held | None) -> None:
        assert now is not None
        delayed = {store.payload for store in operations.stores if store.is_delayed}
        is_pushed = (now.state, now.attempts) == ("delayed" if now.payload in delayed else "pending", 0)
        claimed = [store.attempts for store in operations.stores if store.payload == now.payload]
        is_claimed = (now.state, now.worker) == ("leased", step.worker.worker_id) and now.attempts in claimed
        is_right = step.script == "commit" and (is_pushed or is_claimed)
        _demand(is_right, f"{now} comes out of nothing after {step.script} of {step.worker.name}")

    def _check_grant(self, step: Step, key: bytes, was: Held, now: Held) -> None:
        worker_id = step.worker.worker_id
        is_right = step.script == "lease" and now == Held(was.payload, "leased", was.attempts + 1, worker_id)
        _demand(is_right, f"{_shown(key)} was {was} and is {now} after {step.script} of {step.worker.name}")
        for other in self._workers:
            if other is step.worker or not other.is_running or self._sessions.get(other.worker_id) is not other:
                continue
            for other_key, attempt in other.tokens():
                deadline = self._promises.get((other.worker_id, other_key, attempt), 0)
                _demand(
                    other_key != key or deadline <= step.now_ms,
                    f"{was.payload} is leased to {step.worker.name} while {other.name} holds it",
                )
        least = self._config.suspect_attempts
        suspects = [attempt - 1 for _, attempt in step.worker.tokens() if attempt > least]
        group = (
            min(map(self._config.group, [*suspects, now.attempts - 1])) if now.attempts > least else len(suspects) + 1
        )
        _demand(
            step.is_late or len(suspects) < group,
            f"{step.worker.name} is handed {was.payload}, one suspect too many",
        )
        self._promise(step, key, now.attempts)

    def _check_lease_end(self, step: Step, operations: Operations, key: bytes, was: Held, now: Held | None) -> None:
        worker_id = step.worker.worker_id
        if step.script == "commit":
            letter = operations.finishes.get((key, was.attempts))
            is_right = was.worker == worker_id and {
                "A": now is None,
                "R": now == Held(was.payload, "pending", was.attempts - 1),
                "F": now == _in_state(was, "dead"),
            }.get(letter or "", False)
        else:
            is_right = (
                step.script == "recover"
                and was.worker == worker_id
                and (self._is_lost_rightly(was, now) or now == Held(was.payload, "pending", was.attempts - 1))
            )
            holder = self._sessions.get(worker_id)
            is_held = holder is not None and holder.is_running and (key, was.attempts) in list(holder.tokens())
            _demand(not is_held, f"{was.payload} is given back by {step.script} while {worker_id} holds it")
        _demand(is_right, f"{_shown(key)} was {was} and is {now} after {step.script} of {step.worker.name}")
        self._deadlines.pop(key, None)
        self._promises.pop((was.worker, key, was.attempts), None)
        if now is None:
            self._note_done(step, key, was)

    def _is_lost_rightly(self, was: Held, now: Held | None) -> bool:
        if self._may_be_dead(was) and now == _in_state(was, "dead"):
            return True
        return now == Held(was.payload, "pending", was.attempts) and not self._must_be_dead(was)

    def _may_be_dead(self, was: Held) -> bool:
        return was.attempts >= self._config.max_attempts

    def _must_be_dead(self, was: Held) -> bool:
        """It was lost alone often enough."""
        config = self._config
        isolated = config.suspect_attempts + len(config.groups) + config.lone_losses
        return was.attempts >= max(config.max_attempts, isolated)

    def _note_done(self, step: Step, key: bytes, was: Held) -> None:
        is_finished = (step.worker.worker_id, was.payload) in self._finished
        _demand(is_finished, f"{was.payload} is done, but {step.worker.name} has not been through it")
        self._done.append((key, was.payload))
        self._totals = replace(self._totals, done=len(self._done))

    # Batches

    def _check_commit(self, step: Step, before: Audit, found: Audit) -> None:
        number, worker_id = int(step.arguments[4]), step.worker.worker_id
        position = before.positions.get(worker_id, 0)
        if step.code != 0 or number <= position:
            is_same = found.requests == before.requests and found.counters == before.counters
            _demand(is_same, f"batch {number} of {step.worker.name} has changed something: {step.reply}")
            return
        _demand(number == position + 1, f"batch {number} of {step.worker.name} was applied after {position}")
        operations = operations_of(step.arguments)
        again = self._note_claims(step, operations.stores, before)
        stored, duplicates, repeated = self._sort_out(operations.stores, before, again)
        void = [finish.place for finish in operations.each_finish if not _fits(before, finish, worker_id)]
        new = [held.payload for key, held in found.requests.items() if key not in before.requests]
        _demand(Counter(new) == Counter(stored), f"batch {number} of {step.worker.name} has stored {new}, not {stored}")
        _demand(
            step.reply[1:4] == [duplicates, repeated, void],
            f"batch {number} of {step.worker.name}: {step.reply[1:4]}, not {[duplicates, repeated, void]}",
        )
        self._totals = replace(
            self._totals,
            accepted=self._totals.accepted + len(stored),
            duplicates=self._totals.duplicates + len(duplicates),
            void=self._totals.void + len(void),
            marks=len(self._marks),
        )
        for key, held in before.requests.items():
            if held.state == "leased" and key not in found.requests:
                self._check_children(held.payload)

    def _note_claims(self, step: Step, stores: Sequence[Store], before: Audit) -> set[int]:
        """Return the places of claims that were granted what was there.

        Two of them in one batch may be for one request, which has got the id again that it had before a loss of writes.
        """
        flat = step.reply[4]
        places = {store.place: store for store in stores}
        again = set()
        there = set(before.requests)
        for at in range(0, len(flat), 3):
            place, key, attempts = flat[at : at + 3]
            self._promise(step, key, attempts)
            if places[place].key == key and key in there:
                again.add(place)
            there.add(key)
        return again

    def _sort_out(
        self, stores: Sequence[Store], before: Audit, granted_again: set[int]
    ) -> tuple[list[str], list[int], list[int]]:
        """Return what is to be stored, and the indexes of duplicates and of repeated start requests."""
        stored: list[str] = []
        duplicates: list[int] = []
        repeated: list[int] = []
        for store in stores:
            held = before.requests.get(store.key) if store.key else None
            is_there = held is not None and held.payload == store.payload and _is_claimable(held, store)
            if is_there or store.place in granted_again:
                continue
            if store.mark and store.mark in self._marks:
                repeated.append(store.place)
                continue
            if store.mark:
                self._marks.append(store.mark)
            if store.is_filtered and store.payload in self._known:
                duplicates.append(store.place)
            else:
                stored.append(store.payload)
                self._known.add(store.payload)
        return stored, duplicates, repeated

    def _check_children(self, payload: str) -> None:
        lost = [link for link in self._site.pages[payload].links if link not in self._known]
        _demand(not lost, f"{payload} is done, but {lost} that it leads to are unknown")

    # Books

    def _check_books(self, found: Audit) -> None:
        counters = found.counters
        dead = found.sizes["dead"]
        totals = self._totals
        expected = {
            "accepted": totals.accepted,
            "pending": found.sizes["pending"],
            "delayed": found.sizes["delayed"],
            "leased": found.sizes["leased"],
            "dead": dead,
            "done": totals.done,
            "duplicates": totals.duplicates,
            "void": totals.void,
            "reaped": totals.reaped,
        }
        _demand(counters == expected, f"the counters are {counters}, not {expected}")
        total = sum(counters[name] for name in ("pending", "delayed", "leased", "dead", "done"))
        _demand(counters["accepted"] == total, f"the counters don't add up: {counters}")
        _demand(len(found.requests) == sum(found.sizes.values()), "a request is in two places")
        _demand(not found.unready, f"the slots {found.unready} are not served in their turn")
        _demand(not found.miscounted, f"of the slots {found.miscounted} other numbers are out than limits count")
        _demand(found.expiries == self._deadlines, f"leases expire at {found.expiries}, not {self._deadlines}")

    def _check_end(self, step: Step, before: Audit, found: Audit) -> None:
        if found.phase != "ended" or before.phase == "ended" or self._was_rolled_back:
            return
        for worker in self._workers:
            is_known = self._sessions.get(worker.worker_id) is worker and worker.is_running
            is_alive = is_known and self._heard_ms.get(worker.worker_id, 0) >= step.now_ms - self._ttl_ms
            _demand(not (is_alive and worker.is_busy()), f"the crawl has ended while {worker.name} is busy")


def _is_claimable(held: Held, store: Store) -> bool:
    """Return whether a claim finds this request; not if the request was lost again since then."""
    return held.state == "leased" or (held.state in ("pending", "delayed") and held.attempts <= store.attempts)


def _leased(held: Held, worker_id: str) -> Held:
    return Held(held.payload, "leased", held.attempts + 1, worker_id)


def _in_state(held: Held, state: Any) -> Held:
    return Held(held.payload, state, held.attempts, held.worker)


def _fits(before: Audit, finish: Finish, worker_id: str) -> bool:
    held = before.requests.get(finish.key)
    return held is not None and held[1:] == ("leased", finish.attempts, worker_id)


def _demand(is_right: bool, otherwise: str) -> None:
    if not is_right:
        raise Violation(otherwise)


def _shown(key: bytes) -> str:
    return f"request {int.from_bytes(key, 'big')}"


def _as_bytes(argument: Argument) -> bytes:
    return argument if isinstance(argument, bytes) else str(argument).encode()
