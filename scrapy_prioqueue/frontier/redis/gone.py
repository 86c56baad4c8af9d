"""Workers of this machine whose processes have ended: their leases are taken before they expire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scrapy_prioqueue.frontier.base import DeadLetter, FrontierConfig
from scrapy_prioqueue.frontier.processes import is_gone
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.session import Session
from scrapy_prioqueue.frontier.redis.wire import decoded, pieces, read_dead_letters, read_info, read_lease

_IDS_PER_CALL = 100
_LEASES_PER_CALL = 200


@dataclass(slots=True)
class Evicted:
    """What was taken from workers that have ended.

    Args:
        workers: their names.
        leases: the number of their leases.
        dead_letters: the requests among them that were given up.
    """

    workers: list[str] = field(default_factory=list)
    leases: int = 0
    dead_letters: list[DeadLetter] = field(default_factory=list)


async def take_from_gone(
    config: FrontierConfig, connection: Connection, keys: Keys, session: Session, taken: Evicted
) -> None:
    """End the leases of ended workers as their expiry would, forget the workers, and add all that to `taken`."""
    # The sessions are read first: a worker that begins another one after that is not evicted.
    sessions, infos = await connection.pipe(("HGETALL", keys.sessions), ("HGETALL", keys.of("info")))
    own = config.worker.encode()
    gone = {
        name: sessions[name]
        for name, info in infos.items()
        if name != own and name in sessions and is_gone(read_info(info), config.worker_info)
    }
    if not gone:
        return
    leases = await leases_by_worker(connection, keys, set(gone))
    for name, known in gone.items():
        ids = [lease_id for lease_id, _ in sorted(leases.get(name, ()))]
        for first in range(0, max(1, len(ids)), _IDS_PER_CALL):
            is_last = int(first + _IDS_PER_CALL >= len(ids))
            part = ids[first : first + _IDS_PER_CALL]
            arguments = (session.now(), name, config.max_attempts, is_last, known, *part)
            _, count, letters = await session.call("evict", arguments)
            taken.leases += count
            taken.dead_letters += read_dead_letters(letters)
        taken.workers.append(decoded(name))


async def leases_by_worker(
    connection: Connection, keys: Keys, workers: set[bytes]
) -> Mapping[bytes, Sequence[tuple[bytes, int]]]:
    """Return (id, attempt) of all leases of some workers, in no order."""
    names = sorted(workers)
    found: dict[bytes, Sequence[tuple[bytes, int]]] = {}
    (granted,) = await connection.pipe(("HMGET", keys.of("granted"), *names))
    for name, text in zip(names, granted, strict=True):
        ids = sorted({text[at : at + 8] for at in range(0, len(text or b""), 8)})
        leases: list[tuple[bytes, int]] = []
        for part in pieces(ids, _LEASES_PER_CALL):
            (values,) = await connection.pipe(("HMGET", keys.leased, *part))
            for lease_id, value in zip(part, values, strict=True):
                lease = None if value is None else read_lease(value)
                if lease is not None and lease.worker == name:
                    leases.append((lease_id, lease.attempt))
        found[name] = leases
    return found
