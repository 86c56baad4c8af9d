"""Everything that may go wrong: how each fault begins, and how it ends."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import redis
from redis_server import RedisServer

from shop_chaos.aof import AppendOnlyFile
from shop_chaos.fleet import Fleet, Seat
from shop_chaos.proxy import FaultProxy, Loss
from shop_chaos.recovery import Recoveries
from shop_chaos.view import FrontierView

LEASE_TTL_S = 5.0
REDIS_TIMEOUT_S = 1.0
"""Settings of the workers, by which the faults last shorter or longer."""

ROOM = (0, 50_000)
"""Bytes that a server which becomes full may still take."""

MADE = b"created_ms"
"""What the first write of a frontier contains."""


@dataclass(slots=True)
class Scene:
    """What faults happen to.

    Args:
        fleet: the workers and their proxies.
        server: the one Redis server.
        name: of the frontier.
        aof: its append-only file; None if a killed server remembers everything.
        recoveries: hear of killed workers.
        lottery: draws whatever is drawn.
        server_is_free: nothing is wrong with the server now.
        server_answers: it can be asked how things are.
        data_limit: bytes that all keys may take, None for any number.
    """

    fleet: Fleet
    server: RedisServer
    name: str
    aof: AppendOnlyFile | None
    recoveries: Recoveries
    lottery: random.Random
    server_is_free: bool = True
    server_answers: bool = True
    data_limit: int | None = None

    def client(self) -> redis.Redis:
        """Return a new connection to the server itself, past the proxies."""
        return redis.Redis.from_url(self.server.url, socket_timeout=10.0)

    def keep_data_limit(self) -> None:
        """Let the server be full of data, and never of connections and scripts, which no crawl can make room for."""
        if self.data_limit is None or not self.server_is_free:
            return
        with self.client() as client:
            others = int(client.info("memory")["used_memory"]) - FrontierView(client, self.name).data_bytes()
            client.config_set("maxmemory", others + self.data_limit)

    def proxies(self) -> tuple[Sequence[FaultProxy], str]:
        """Draw those before one worker or before all; return them, and in words whose they are."""
        seat = self.lottery.choice([None, *self.fleet.seats])
        return ([seat.proxy], seat.worker) if seat else (self.fleet.proxies, "all workers")


class Fault:
    """One thing that goes wrong for a while.

    Args:
        scene: what it happens to.
    """

    lasts_s: ClassVar[tuple[float, float]]
    """Shortest and longest duration in seconds."""

    needs_server: ClassVar[bool] = False
    silences_server: ClassVar[bool] = False
    weight: ClassVar[int] = 1

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.lottery = scene.lottery

    def begin(self) -> str | None:
        """Begin it and return it in words; None if it can't happen now."""
        raise NotImplementedError

    def end(self) -> None:
        """Repair it."""


class Kill(Fault):
    """SIGKILL of a worker; one in two returns under its name, the other never does and a new one takes its seat.

    One that works always stays, to take over what the other held; some are killed before they have begun.
    """

    lasts_s = (0.0, 2.0)
    weight = 3
    starting_share = 0.2
    seat: Seat

    def begin(self) -> str | None:
        fleet, lottery = self.scene.fleet, self.lottery
        working = fleet.working
        starting = [seat for seat in fleet.running if seat not in working]
        candidates = starting if lottery.random() < self.starting_share else working
        if not candidates or (candidates is working and len(working) < 2):
            return None
        self.seat = lottery.choice(candidates)
        self.returns = lottery.random() < 0.5
        killed_at = fleet.kill(self.seat)
        if candidates is working:
            self.scene.recoveries.watch(self.seat.worker, killed_at)
        return f"SIGKILL of {self.seat.worker}, which returns {'soon' if self.returns else 'never'}"

    def end(self) -> None:
        self.scene.fleet.start(self.seat, self.seat.worker if self.returns else None)


class Stop(Fault):
    """SIGSTOP of a worker, for less or more than its leases last, then SIGCONT."""

    lasts_s = (0.5, 1.6 * LEASE_TTL_S)
    seat: Seat

    def begin(self) -> str | None:
        running = self.scene.fleet.running
        if len(running) < 2:
            return None
        self.seat = self.lottery.choice(running)
        self.scene.fleet.stop(self.seat)
        return f"SIGSTOP of {self.seat.worker}"

    def end(self) -> None:
        self.scene.fleet.go_on(self.seat)


class Restart(Fault):
    """The server ends in good order and is started again."""

    lasts_s = (0.0, 3.0)
    needs_server = silences_server = True

    def begin(self) -> str | None:
        self.scene.server.stop()
        return "the server is shut down"

    def end(self) -> None:
        self.scene.server.start()


class Crash(Restart):
    """SIGKILL of the server; it may have forgotten what was not yet on disk, but not that there is a frontier.

    Of one that was made in the last second nothing would be left, and then workers close as they should, with an error.
    """

    def begin(self) -> str | None:
        aof = self.scene.aof
        if aof is not None and not aof.would_keep(MADE):
            return None
        self.scene.server.kill()
        forgotten = aof.forget_newest() if aof else 0
        return f"SIGKILL of the server, which forgets {forgotten} bytes"


class Freeze(Fault):
    """SIGSTOP of the server, for less or more than the workers' time-out, then SIGCONT."""

    lasts_s = (0.2, 4 * REDIS_TIMEOUT_S)
    needs_server = silences_server = True

    def begin(self) -> str | None:
        self.scene.server.freeze()
        return "SIGSTOP of the server"

    def end(self) -> None:
        self.scene.server.thaw()


class Full(Fault):
    """The server has no memory for anything new, until an operator gives it more."""

    lasts_s = (1.0, 6.0)
    needs_server = True

    def begin(self) -> str | None:
        with self.scene.client() as client:
            used = int(client.info("memory")["used_memory"])
            room = self.lottery.randint(*ROOM)
            client.config_set("maxmemory", used + room)
        return f"maxmemory is {used + room}, {room} more than used"

    def end(self) -> None:
        with self.scene.client() as client:
            client.config_set("maxmemory", 0)


class Overfull(Fault):
    """The server becomes full in mid-crawl, and nobody ever gives it more memory: the crawl has to make room itself."""

    lasts_s = (0.0, 0.0)
    pending_at_least = 100
    needs_server = True

    def begin(self) -> str | None:
        scene = self.scene
        with scene.client() as client:
            view = FrontierView(client, scene.name)
            if scene.data_limit is not None or view.counts().get("pending", 0) < self.pending_at_least:
                return None
            room = self.lottery.randint(*ROOM)
            scene.data_limit = view.data_bytes() + room
        scene.keep_data_limit()
        return f"maxmemory lets the keys grow by {room}, for ever"


class Cut(Fault):
    """Connections are closed, in good order or by a reset, and for a while no new one is let through."""

    lasts_s = (0.0, 2.0)

    def begin(self) -> str | None:
        self._proxies, whose = self.scene.proxies()
        reset = self.lottery.random() < 0.5
        for proxy in self._proxies:
            proxy.refuse(is_on=True)
            proxy.cut(reset=reset)
        return f"connections of {whose} are {'reset' if reset else 'closed'}, new ones refused"

    def end(self) -> None:
        for proxy in self._proxies:
            proxy.refuse(is_on=False)


class Delay(Fault):
    """The way to the server takes long."""

    lasts_s = (1.0, 5.0)

    def begin(self) -> str | None:
        self._proxies, whose = self.scene.proxies()
        delay_s = self.lottery.uniform(0.02, 0.8 * REDIS_TIMEOUT_S)
        for proxy in self._proxies:
            proxy.delay(delay_s)
        return f"the server is {delay_s * 1000:.0f} ms away from {whose}, each way"

    def end(self) -> None:
        for proxy in self._proxies:
            proxy.delay(0)


class Hold(Fault):
    """Nothing comes through in either direction; what was sent comes late."""

    lasts_s = (0.2, 4 * REDIS_TIMEOUT_S)

    def begin(self) -> str | None:
        self._proxies, whose = self.scene.proxies()
        for proxy in self._proxies:
            proxy.hold()
        return f"nothing comes through from and to {whose}"

    def end(self) -> None:
        for proxy in self._proxies:
            proxy.resume()


class HalfClose(Fault):
    """Connections lose one side and the other doesn't hear of it, or commands arrive and answers don't."""

    lasts_s = (0.0, 0.0)
    losses: ClassVar[Sequence[Loss]] = ("server", "client", "answers")

    def begin(self) -> str | None:
        proxies, whose = self.scene.proxies()
        loss = self.lottery.choice(self.losses)
        for proxy in proxies:
            proxy.lose(loss)
        return f"connections of {whose} have lost their {loss}"


FAULTS: Mapping[str, type[Fault]] = {
    "kill": Kill,
    "stop": Stop,
    "restart": Restart,
    "crash": Crash,
    "freeze": Freeze,
    "full": Full,
    "overfull": Overfull,
    "cut": Cut,
    "delay": Delay,
    "hold": Hold,
    "halfclose": HalfClose,
}
"""All faults, by the names that the command line knows them by."""
