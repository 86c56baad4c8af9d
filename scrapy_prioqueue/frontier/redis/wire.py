"""Conversion of operations to arguments of scripts, and of their replies to the frontier's data; pure functions."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import msgpack

from scrapy_prioqueue.errors import CrawlEnded, FrontierFull, PrioQueueError
from scrapy_prioqueue.frontier.base import (
    DEAD_REASONS,
    Ack,
    Batch,
    Claim,
    Committed,
    DeadLetter,
    Demand,
    Depth,
    Exchanged,
    Fail,
    Lease,
    Operation,
    Orders,
    Push,
    Refuse,
    Release,
)
from scrapy_prioqueue.frontier.kept import Kept
from scrapy_prioqueue.frontier.policy import Closing, HeldUp, Latency, Note, Policy
from scrapy_prioqueue.frontier.policy_parts import Change, Owner, PolicyChange, digests_of, plain_policy
from scrapy_prioqueue.frontier.redis.scripts import Argument
from scrapy_prioqueue.frontier.redis.seen.fingerprints import seen_argument
from scrapy_prioqueue.frontier.waits import Blocked, Holder, SlotWait, SlowPage, Waits

OK, OTHER_CRAWL, UNKNOWN_SESSION, OUT_OF_STEP, SUPERSEDED = range(5)
"""Reply codes of the scripts that a joined worker calls."""

ID = struct.Struct(">Q")
"""The stored form of an id."""

_LETTER_TEXTS = ("reason", "detail", "slot", "worker", "traceback", "lost_by", "epoch")
_LETTER_FIELDS = (
    *("reason", "detail", "attempts", "rank", "slot", "worker", "died_ms", "payload", "traceback", "lost_by", "epoch"),
)
"""The stored fields of a dead letter, in this order."""

_REASON_WIDTH = 2**42
"""Scores in `died` are the number of the reason, times this, plus the time of death: grouped by reason."""

DIED_RANGES = {
    reason: (number * _REASON_WIDTH, (number + 1) * _REASON_WIDTH - 1)
    for number, reason in enumerate(("", *DEAD_REASONS))
}
"""First and last score of each reason; the empty name stands for reasons that this version doesn't know."""


def died_score(reason: str, died_ms: int) -> int:
    """Return the score of a dead letter in `died`."""
    return DIED_RANGES.get(reason, DIED_RANGES[""])[0] + died_ms


def code_of(reply: Any) -> int | None:
    """Return the code of a reply, None if it is an error."""
    return reply[0] if isinstance(reply, list) else None


def operation_arguments(operations: Sequence[Operation]) -> Sequence[Argument]:
    """Return the operations of a batch as arguments of `commit`."""
    found: list[Argument] = []
    for operation in operations:
        if isinstance(operation, Push):
            found.append("P")
            found += push_arguments(operation)
        elif isinstance(operation, Claim):
            found.append("C")
            found += push_arguments(operation.push)
            found += (b"" if operation.lease_id is None else ID.pack(operation.lease_id), operation.attempt)
        else:
            found += _settled(operation)
    return found


def push_arguments(push: Push) -> Sequence[Argument]:
    """Return the arguments of a push for the scripts."""
    mark, delay = push.start_mark or "", f"{push.delay_ms},{push.not_before_ms}" if push.is_delayed else ""
    seen = seen_argument(push.fingerprint, push.revisit_s)
    return (push.rank, encoded(push.slot), push.is_start + push.is_lifo_start, push.payload, seen, mark, delay)


def _settled(operation: Ack | Release | Fail) -> Sequence[Argument]:
    token = (ID.pack(operation.lease_id), operation.attempt)
    if isinstance(operation, Refuse):
        return ("X", *token, operation.delay_ms)
    if isinstance(operation, Release):
        return ("R", *token)
    spent = operation.spent
    cost = "" if spent is None else f"{spent.bytes},{spent.time_ms}"
    if isinstance(operation, Ack):
        return ("A", *token, cost)
    return ("F", *token, cost, operation.reason, operation.detail, operation.traceback)


def demand_arguments(demand: Demand, max_attempts: int, reap_limit: int, ordered_ms: int) -> Iterable[Argument]:
    """Return a demand as arguments of `lease`, with those for reaping and the newest command that this worker knows."""
    yield from (demand.limit, demand.slot_limit)
    yield from (int(demand.is_idle), int(demand.is_fair), f"{demand.suspect_room},{demand.suspects_held}")
    yield from (demand.later_limit, demand.horizon_ms, demand.reserve_ms)
    yield from (max_attempts, reap_limit, demand.away_ms, ordered_ms)
    for slot, room in demand.slot_room.items():
        yield encoded(slot)
        yield room


def note_arguments(notes: Iterable[Note], worker: str) -> Iterable[Argument]:
    """Return notes as arguments of `note`."""
    for note in notes:
        if isinstance(note, Latency):
            yield from ("L", encoded(note.slot), f"{note.latency_ms},{int(note.is_success)}")
        elif isinstance(note, Closing):
            yield from ("W", encoded(note.slot), note.wait_ms)
        elif isinstance(note, HeldUp):
            yield from ("H", encoded(note.slot), "")
        elif isinstance(note, Kept):
            yield from ("K", worker, note.as_json())
        else:
            yield from ("C", encoded(note.slot), f"{note.delay_ms},{int(note.starts_now)}")


def memory_arguments(*, is_high: bool) -> Sequence[Argument]:
    """Return the state of the server's memory as arguments of `note`."""
    return ("M", "", int(is_high))


def policy_json(policy: Policy) -> str:
    """Return a policy as an argument of `join`."""
    return json.dumps({**plain_policy(policy), "digests": digests_of(policy)}, sort_keys=True)


def policy_digest(policy: str) -> str:
    """Return the digest of a policy in JSON."""
    return blake2b(policy.encode(), digest_size=16).hexdigest()


Item = TypeVar("Item")


def pieces(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield items in lists of this size, the last of which may be shorter; they are read as needed."""
    rest = iter(items)
    while piece := list(islice(rest, size)):
        yield piece


def decoded_hash(stored: Mapping[bytes, bytes]) -> dict[str, str]:
    """Return a hash of texts."""
    return {decoded(name): decoded(value) for name, value in stored.items()}


def encoded(text: str) -> bytes:
    """Return a slot, key or other text as it is stored."""
    return text.encode("utf-8", "surrogatepass")


def decoded(stored: bytes) -> str:
    """Return what `encoded` has stored; another program may have written something that is no text."""
    try:
        return stored.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return stored.decode("utf-8", "backslashreplace")


def read_exchange(batches: Sequence[Batch], replies: list[Any], demand: Demand | None) -> Exchanged:
    """Return the answer to an exchange from its replies: one for each batch, then that of `lease` if demanded.

    Raises:
        FrontierFull: the server has refused the last one.
    """
    committed, rejection, has_ended = [], None, False
    for batch, reply in zip(batches, replies, strict=False):
        code = code_of(reply)
        if code == OK:
            committed.append(_committed(batch, reply))
            continue
        has_ended = has_ended or code == OTHER_CRAWL
        rejection = _batch_rejection(batch, reply)
        break
    if demand is None:
        return Exchanged(committed, rejection, has_ended=has_ended)
    leased = replies[-1]
    if isinstance(leased, FrontierFull):
        raise leased
    if leased[0] != OK:
        return Exchanged(committed, rejection, has_ended=leased[0] == OTHER_CRAWL)
    _, ended, next_due_ms, depth, flat, orders, reaped, dead_letters, starts, over, must_ask, refusals, held = leased
    is_paused, is_drained, stop_reason, flooded, _, letters_dropped, _ = orders
    return Exchanged(
        committed,
        rejection,
        leases=_leases(flat, starts, refusals),
        depth=Depth(*depth),
        has_ended=bool(ended),
        reaped=reaped,
        dead_letters=read_dead_letters(dead_letters),
        orders=Orders(bool(is_paused), bool(is_drained), stop_reason.decode() or None, flooded > 0, flooded > 1),
        next_due_s=None if next_due_ms < 0 else next_due_ms / 1000,
        over_budget=Counter(decoded(key) for key in over),
        must_ask=bool(must_ask),
        has_budgets=must_ask >= 2,
        held_back=held,
        letters_dropped=letters_dropped.decode().split(",") if letters_dropped else (),
    )


def ordered_ms_of(reply: Any) -> int:
    """Return the time of the newest command that the server has, from a reply of `lease`; 0 if that was refused."""
    return int(reply[5][4]) if code_of(reply) == OK else 0


def policy_ms_of(reply: Any) -> int:
    """Return when a worker last joined with another policy, from a reply of `lease`; 0 if that was refused."""
    return int(reply[5][6]) if code_of(reply) == OK else 0


def read_owners(found: Mapping[str, Any]) -> Mapping[str, Owner]:
    """Return the owners of the parts of a policy from their stored form."""
    return {part: Owner(each["digest"], each["by"], int(each["ms"])) for part, each in found.items()}


def read_policy_change(text: bytes) -> PolicyChange | None:
    """Return the changes of a worker that joined with another policy, None for none."""
    if not text:
        return None
    found = json.loads(text)
    flat = list(found["changes"])
    return PolicyChange(
        by=found["by"],
        ms=int(found["ms"]),
        owners=read_owners(found["owners"]),
        changes=[Change(*flat[first : first + 4]) for first in range(0, len(flat), 4)],
        kept=sorted(found["kept"]),
    )


def read_waits(reply: Sequence[Any]) -> Waits:
    """Return the data of a reply of `waits`."""
    _, counts, slots, holders, busy = reply
    pending, leased, delayed, due_in_ms, is_paused, waiting, last_opens_in_ms, full, now_ms = counts
    found = [_holder(now_ms, *holders[at : at + 6]) for at in range(0, len(holders), 6)]
    slow = {decoded(busy[at]): read_blocked(busy[at + 1], now_ms) for at in range(0, len(busy), 2)}
    return Waits(
        pending=pending,
        leased=leased,
        holders=sorted(found, key=lambda holder: (-holder.leases, holder.worker)),
        busy=sorted(slow),
        blocked={name: blocked for name, blocked in slow.items() if blocked is not None},
        delayed=delayed,
        due_in_s=due_in_ms / 1000,
        slots=waiting,
        first_slots=[
            SlotWait(decoded(slots[at]), slots[at + 1] / 1000, bool(slots[at + 2])) for at in range(0, len(slots), 3)
        ],
        last_opens_in_s=last_opens_in_ms / 1000,
        full_slots=full,
        is_paused=bool(is_paused),
    )


def _holder(
    now_ms: int, worker: bytes, leases: int, expires_in_ms: int, heard_ms: int, info: bytes, slow: bytes
) -> Holder:
    host = str(json.loads(info or b"{}").get("host", ""))
    name, heard_s = decoded(worker), heard_ms / 1000
    pages, blocked = read_slow(slow, now_ms), read_blocked(slow, now_ms)
    return Holder(name, host, leases, expires_in_ms / 1000, heard_s, pages, blocked)


def slow_json(pages: Sequence[SlowPage], blocked: Blocked | None = None) -> str:
    """Return slow pages and the blocking code as an argument of `slow`."""
    fields: list[dict[str, object]] = [
        {
            # As text, since Lua would round the number.
            "id": str(page.lease_id),
            "url": page.url,
            "callback": page.callback,
            "stage": page.stage,
            "age_ms": round(page.age_s * 1000),
        }
        for page in pages
    ]
    if blocked is not None:
        fields.append({"blocked": blocked.where, "is_idle": blocked.is_idle, "age_ms": round(blocked.age_s * 1000)})
    return json.dumps(fields) if fields else ""


def read_slow(stored: bytes, now_ms: int) -> Sequence[SlowPage]:
    """Return the slow pages of a worker from their stored form."""
    return [
        SlowPage(
            int(page["id"]),
            page["url"],
            page["callback"],
            page["stage"],
            max(0.0, (now_ms - page["since_ms"]) / 1000),
        )
        for page in json.loads(stored or b"[]")
        if "id" in page
    ]


def read_blocked(stored: bytes, now_ms: int) -> Blocked | None:
    """Return the blocking code of a worker from its stored form, None if there is none."""
    for found in json.loads(stored or b"[]"):
        if "blocked" in found:
            age_s = max(0.0, (now_ms - found["since_ms"]) / 1000)
            return Blocked(found["blocked"], age_s, found["is_idle"])
    return None


def _committed(batch: Batch, reply: Sequence[Any]) -> Committed:
    duplicates, repeated, void, flat = reply[1:]
    claimed = {flat[at]: (ID.unpack(flat[at + 1])[0], flat[at + 2]) for at in range(0, len(flat), 3)}
    return Committed(batch.number, duplicates, repeated, void, claimed)


def _batch_rejection(batch: Batch, reply: Any) -> Exception:
    if isinstance(reply, FrontierFull):
        return reply
    reasons = {
        OTHER_CRAWL: "its crawl is over",
        UNKNOWN_SESSION: "the server does not know this worker",
        OUT_OF_STEP: "the one before it is missing",
    }
    kind = CrawlEnded if code_of(reply) == OTHER_CRAWL else PrioQueueError
    return kind(f"batch {batch.number} was not applied: {reasons.get(reply[0], reply)}")


def _leases(flat: Sequence[Any], starts: Sequence[int], refusals: Sequence[Any]) -> Sequence[Lease]:
    leases = [_lease(flat[at : at + 5]) for at in range(0, len(flat), 5)]
    for at in range(0, len(starts), 3):
        index, start_in_ms, late_ms = starts[at : at + 3]
        leases[index] = leases[index]._replace(start_in_ms=start_in_ms, late_ms=None if late_ms < 0 else late_ms)
    if refusals:
        counts = {ID.unpack(key)[0]: count for key, count in zip(refusals[::2], refusals[1::2], strict=True)}
        leases = [lease._replace(refusals=counts.get(lease.lease_id, 0)) for lease in leases]
    return leases


def _lease(fields: Sequence[Any]) -> Lease:
    key, attempt, rank, slot, payload = fields
    return Lease(ID.unpack(key)[0], attempt, rank, decoded(slot), payload)


class StoredLease(NamedTuple):
    """A lease as the scripts store it."""

    attempt: int
    rank: float
    slot: bytes
    worker: bytes
    payload: bytes


def read_lease(value: bytes) -> StoredLease:
    """Return a lease from its stored form."""
    return StoredLease(*msgpack.unpackb(value, raw=True))


def read_info(value: bytes | None) -> Mapping[str, str]:
    """Return what a worker has stored about its process, empty if that is missing or can't be read."""
    try:
        found = json.loads(value or b"{}")
    except ValueError:
        return {}
    known = found if isinstance(found, dict) else {}
    return {name: str(each) for name, each in known.items() if each is not None}


def read_dead_letters(flat: Sequence[bytes]) -> list[DeadLetter]:
    """Return the dead letters of a reply, in which ids and values alternate."""
    return [read_dead_letter(flat[at], flat[at + 1]) for at in range(0, len(flat), 2)]


def read_dead_letter(key: bytes, value: bytes) -> DeadLetter:
    """Return a dead letter from its stored form."""
    fields = letter_fields(value)
    del fields["epoch"]
    return DeadLetter(ID.unpack(key)[0], **fields)


def letter_fields(value: bytes) -> dict[str, Any]:
    """Return the fields of a dead letter from its stored form."""
    fields = dict(zip(_LETTER_FIELDS, msgpack.unpackb(value, raw=True), strict=True))
    texts = {name: decoded(fields[name]) for name in _LETTER_TEXTS}
    return {**fields, **texts, "rank": int(fields["rank"]), "died_ms": int(fields["died_ms"])}


def stored_letter(fields: Mapping[str, Any]) -> bytes:
    """Return the stored form of a dead letter from its fields."""
    values = [encoded(fields[name]) if name in _LETTER_TEXTS else fields[name] for name in _LETTER_FIELDS]
    # The scripts use text only.
    stored: bytes = msgpack.packb(values, use_bin_type=False)
    return stored
