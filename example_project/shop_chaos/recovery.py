"""How long it takes until others take up what a killed worker held, as Redis shows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import redis

from shop_chaos.view import FrontierView, Lease


@dataclass(slots=True)
class Death:
    """A worker that was killed.

    Args:
        worker: its id.
        killed_at: by the monotonic clock.
        held: how many leases it had.
        leased: those that nobody has taken back yet; None if the server could not be asked.
        waiting: those that are taken back, and not yet leased again or done.
        back_s: seconds from the kill until all leases were taken back.
        again_s: seconds from the kill until all were leased again or done.
    """

    worker: str
    killed_at: float
    held: int = 0
    leased: set[Lease] | None = None
    waiting: set[bytes] | None = None
    back_s: float | None = None
    again_s: float | None = None


class Recoveries:
    """Watches over the deaths of one crawl.

    Args:
        server_url: of the server itself, past any proxy.
        name: of the frontier.
        say: takes note of each recovery.
    """

    def __init__(self, server_url: str, name: str, say: Callable[[str], None]) -> None:
        self._server_url = server_url
        self._name = name
        self._say = say
        self.deaths: list[Death] = []

    def watch(self, worker: str, killed_at: float) -> None:
        """Begin to watch what a worker held; `look` reads the leases."""
        self.deaths.append(Death(worker, killed_at))

    def look(self) -> None:
        """Compare with what the server says now; to be called often, and while it answers."""
        open_deaths = [death for death in self.deaths if death.again_s is None]
        if not open_deaths:
            return
        with redis.Redis.from_url(self._server_url, socket_timeout=10.0) as client:
            view = FrontierView(client, self._name)
            held, pending = view.held(), view.pending()
        now = time.monotonic()
        for death in open_deaths:
            if death.leased is None:
                death.leased = {
                    (key, attempt) for key, (attempt, name) in held.items() if name.decode() == death.worker
                }
                death.waiting = {key for key, _ in death.leased}
                death.held = len(death.leased)
            assert death.waiting is not None
            death.leased = {(key, attempt) for key, attempt in death.leased if _is_held(held, key, attempt, death)}
            still = {key for key, _ in death.leased}
            death.waiting = {key for key in death.waiting if key in still or key in pending}
            if not death.leased and death.back_s is None:
                death.back_s = now - death.killed_at
                self._say(f"{death.held} leases of the killed {death.worker} are back after {death.back_s:.1f} s")
            if not death.waiting:
                death.again_s = now - death.killed_at
                self._say(f"those of the killed {death.worker} are leased again or done after {death.again_s:.1f} s")


def _is_held(held: Mapping[bytes, tuple[int, bytes]], key: bytes, attempt: int, death: Death) -> bool:
    return held.get(key) == (attempt, death.worker.encode())
