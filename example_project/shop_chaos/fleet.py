"""The workers of a crawl under fire: each has a proxy of its own before the server, and is replaced when it dies."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from children import Children

from shop_chaos.proxy import FaultProxy

HOST = "127.0.0.1"

COULD_NOT_BEGIN = "prioqueue_unavailable"
"""Why a spider is closed whose worker has not reached the server at its start; with PRIOQUEUE_FALLBACK = "error"."""

JOINED = " crawl in frontier "
"""What a worker logs once it takes part."""

CLOSED = re.compile(r"Spider closed \((\w+)\)")


@dataclass(slots=True)
class Seat:
    """A place for one worker at a time.

    Args:
        proxy: between the worker and the server.
        worker: id of the worker that sits there now.
        process: name of its process among the children, empty where there is none.
        is_stopped: by SIGSTOP.
        has_ended: its worker has said that the crawl is over.
    """

    proxy: FaultProxy
    worker: str = ""
    process: str = ""
    is_stopped: bool = False
    has_ended: bool = False

    @property
    def is_running(self) -> bool:
        """There is a process that was not stopped."""
        return bool(self.process) and not self.is_stopped and not self.has_ended


@dataclass(slots=True)
class Fleet:
    """All seats of a crawl.

    Args:
        children: start the processes.
        proxies: one per seat.
        settings: of every worker.
        say: takes note of events.
        processes: names of all processes there have ever been.
        deserters: those that ended by themselves for no good reason, in words.
        replaced: how many ended before the crawl did.
    """

    children: Children
    proxies: Sequence[FaultProxy]
    settings: Mapping[str, object]
    say: Callable[[str], None]
    processes: list[str] = field(default_factory=list)
    deserters: list[str] = field(default_factory=list)
    replaced: int = 0
    seats: Sequence[Seat] = field(init=False)
    _numbers: count[int] = field(init=False, default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self.seats = [Seat(proxy) for proxy in self.proxies]

    def open(self) -> None:
        """Start a worker in every seat."""
        for seat in self.seats:
            self.start(seat)

    def start(self, seat: Seat, worker: str | None = None) -> None:
        """Start a worker in an empty seat.

        Args:
            seat: where.
            worker: its id, None for a new one.
        """
        number = next(self._numbers)
        seat.worker = worker or f"worker-{number}"
        seat.process = f"{seat.worker}.{number}"
        self.processes.append(seat.process)
        options = {
            **self.settings,
            "PRIOQUEUE_REDIS_URL": f"redis://{HOST}:{seat.proxy.port}/0",
            "PRIOQUEUE_WORKER_ID": seat.worker,
        }
        words = [word for name, value in options.items() for word in ("-s", f"{name}={value}")]
        self.children.start(seat.process, "-m", "scrapy", "crawl", "shop", *words)

    def kill(self, seat: Seat) -> float:
        """End a worker with SIGKILL and return when that was, by the monotonic clock."""
        killed_at = time.monotonic()
        self.children.kill(seat.process)
        seat.process = ""
        return killed_at

    def stop(self, seat: Seat) -> None:
        """Stop a worker with SIGSTOP."""
        self.children.send(seat.process, signal.SIGSTOP)
        seat.is_stopped = True

    def go_on(self, seat: Seat) -> None:
        """Continue a stopped worker."""
        self.children.send(seat.process, signal.SIGCONT)
        seat.is_stopped = False

    def supervise(self) -> None:
        """Note which workers have ended, and replace those that did not end with the crawl."""
        for seat in self.seats:
            if not seat.process or seat.has_ended:
                continue
            code = self.children.exit_code(seat.process)
            if code is None:
                continue
            found = CLOSED.findall(self.children.log(seat.process))
            reason = found[-1] if found else None
            if (code, reason) == (0, "finished"):
                seat.has_ended = True
                self.say(f"{seat.process} has ended")
                continue
            what = f"{seat.process} ended by itself with code {code}, its spider closed as {reason}"
            self.say(what)
            self.replaced += 1
            if (code, reason) != (1, COULD_NOT_BEGIN):
                self.deserters.append(what)
            self.start(seat, seat.worker)

    @property
    def running(self) -> Sequence[Seat]:
        """Seats with a worker that can work."""
        return [seat for seat in self.seats if seat.is_running]

    @property
    def working(self) -> Sequence[Seat]:
        """Those among them whose worker has joined the crawl."""
        return [seat for seat in self.running if JOINED in self.children.log(seat.process)]

    @property
    def has_finished(self) -> bool:
        """All workers have ended with the crawl."""
        return all(seat.has_ended for seat in self.seats)
