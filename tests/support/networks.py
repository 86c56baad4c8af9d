"""Places with a network each behind one router, in Linux namespaces, whose links are cut, slow or lossy as told.

They belong to a user namespace of their own, which grants the rights that this takes, so no test needs those of root.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import redis
from redis_server import ends_with_this_process

from tests.support.forks import PR_SET_PDEATHSIG, Program
from tests.support.processes import ChildProcess, StartProcess
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

NETWORK = "10.77"
TUN = Path("/dev/net/tun")
BAD_LINE, BAD_TABLE = "bad", 77
BAD_LINE_PROGRAM = Path(__file__).with_name("bad_line.py")

NEW_USER, NEW_NET = 0x10000000, 0x40000000
"""Kinds of namespaces for `setns`."""

_PROBE = "ip link add probe type veth peer name other && ip rule add from 10.0.0.1 to 10.0.0.2 blackhole"


@cache
def why_no_networks() -> str:
    """Return why this machine can't have networks for tests, nothing if it can."""
    missing = [program for program in ("unshare", "nsenter", "ip") if shutil.which(program) is None]
    if sys.platform != "linux" or missing:
        return f"network namespaces need Linux with util-linux and iproute2; not found: {', '.join(missing)}"
    words = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", _PROBE]
    probe = subprocess.run(words, check=False, capture_output=True, text=True)
    return f"this machine allows no network namespaces: {probe.stderr.strip()}" if probe.returncode else ""


def why_no_bad_line() -> str:
    """Return why this machine can't delay packets for tests, nothing if it can."""
    return "" if os.access(TUN, os.R_OK | os.W_OK) else f"{TUN} can't be opened, which delays packets"


class Namespace:
    """A network namespace, with the user namespace of the first; it ends with this process, too.

    Args:
        words: make it, before a command.
    """

    def __init__(self, words: Sequence[str]) -> None:
        # It ends at the end of its input, so it needs no one to kill it.
        self._holder = subprocess.Popen([*words, "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._holder.stdin is not None and self._holder.stdout is not None
        self._holder.stdin.write(b"entered\n")
        self._holder.stdin.flush()
        assert self._holder.stdout.readline() == b"entered\n", "there is no namespace"
        pid = str(self._holder.pid)
        self.entry = ("nsenter", "--preserve-credentials", "--user", "--net", "--target", pid)
        """Words before a command that runs inside."""

    @property
    def pid(self) -> int:
        """Of a process inside."""
        return self._holder.pid

    def configure(self, *commands: str) -> None:
        """Run commands of `ip` inside."""
        text = "\n".join(commands)
        done = subprocess.run(
            [*self.entry, "ip", "-batch", "-"], input=text, check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{text}\n{done.stderr}"

    def close(self) -> None:
        """End it, once no other process is in it."""
        self._holder.communicate()


class Place(Namespace):
    """A namespace that is connected to the router only.

    Args:
        name: of the router's end of the cable.
        number: of its network.
        addresses: how many it has.
    """

    def __init__(self, router: Namespace, name: str, number: int, addresses: int) -> None:
        super().__init__((*router.entry, "unshare", "--net"))
        self.name = name
        self.network = f"{NETWORK}.{number}.0/24"
        self.addresses = [f"{NETWORK}.{number}.{10 + index}" for index in range(addresses)]
        gateway = f"{NETWORK}.{number}.1"
        router.configure(
            f"link add {name} type veth peer name cable netns {self.pid}",
            f"address add {gateway}/24 dev {name}",
            f"link set {name} up",
        )
        own = [f"address add {address}/24 dev cable" for address in self.addresses]
        self.configure("link set lo up", *own, "link set cable up", f"route add default via {gateway}")

    def inside(self, program: Program) -> Program:
        """Return a program for a fork that runs inside."""
        return partial(_run_inside, self.pid, program)

    def start_with(self, start_process: StartProcess) -> StartProcess:
        """Return what starts processes inside."""

        def start(command: Sequence[str | Path], **keywords: Any) -> ChildProcess:
            # The change of user namespace makes a process forget with which other one it is to end.
            return start_process([*self.entry, *ends_with_this_process(), *command], **keywords)

        return start


def _run_inside(pid: int, program: Program, argument: Path) -> None:
    c = ctypes.CDLL(None, use_errno=True)
    for name, kind in (("user", NEW_USER), ("net", NEW_NET)):
        with Path(f"/proc/{pid}/ns/{name}").open() as namespace:
            assert c.setns(namespace.fileno(), kind) == 0, os.strerror(ctypes.get_errno())
    c.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    program(argument)


class PlacedServer(RedisServer):
    """A Redis server in a place; the tests reach it past the network, over a socket in its folder.

    Args:
        place: where it is.
    """

    def __init__(self, place: Place, directory: Path, **config: Any) -> None:
        config = {"bind": "0.0.0.0", "protected_mode": False, "unixsocket": "redis.sock", **config}
        super().__init__(directory, **config)
        self._place = place

    @property
    def url(self) -> str:
        """What workers use."""
        return f"redis://{self._place.addresses[0]}:{self.port}/0"

    def client(self) -> redis.Redis:
        """Return a client for the tests."""
        return redis.Redis(unix_socket_path=str(self.directory / "redis.sock"), socket_timeout=10.0)

    def launcher(self) -> Sequence[str]:
        """Return the words before the command."""
        return [*self._place.entry, *super().launcher()]


N = TypeVar("N", bound=Namespace)


class Network:
    """A router, the places behind it, and what it does to packets between them.

    Args:
        start_process: starts the program of a bad line.
    """

    def __init__(self, start_process: StartProcess, ends: ExitStack) -> None:
        self._start_process = start_process
        self._ends = ends
        self._places = 0
        self._rules: list[str] = []
        self._unplugged: list[Place] = []
        self._line: ChildProcess | None = None
        self._router = self._kept(Namespace(("unshare", "--user", "--map-root-user", "--net")))
        self._router.configure("link set lo up")
        self._write("/proc/sys/net/ipv4/ip_forward", "1")

    def add(self, name: str, *, addresses: int = 1) -> Place:
        """Add a place."""
        self._places += 1
        return self._kept(Place(self._router, name, self._places, addresses))

    def cut(self, source: Place, target: Place, *, one_way: bool = False) -> None:
        """Drop all packets from one to the other, without a word to either; unless told otherwise, and back."""
        self._rule(f"from {source.network} to {target.network} blackhole")
        if not one_way:
            self._rule(f"from {target.network} to {source.network} blackhole")

    def forget(self, address: str, port: int) -> None:
        """Drop all packets of one connection, as a NAT does that has forgotten it; new ones work."""
        self._rule(f"from {address} ipproto tcp sport {port} blackhole")
        self._rule(f"to {address} ipproto tcp dport {port} blackhole")

    def refuse(self, source: Place, target: Place) -> None:
        """Refuse all packets from one to the other, as a firewall does that says so."""
        self._rule(f"from {source.network} to {target.network} prohibit")

    def unplug(self, place: Place) -> None:
        """Pull a place's cable."""
        self._unplugged.append(place)
        self._router.configure(f"link set {place.name} down")

    def disturb(self, places: Sequence[Place], other: Place, *, delay_s: float, jitter_s: float, loss: float) -> None:
        """Delay packets between places and another one, and lose some.

        Few kernels for virtual machines have `netem`, so a program does that.

        Args:
            delay_s: seconds for each way.
            jitter_s: that these may be more or less; packets keep their order.
            loss: part of the packets.
        """
        assert self._line is None, "there is one bad line"
        words = [*self._router.entry, *ends_with_this_process(), sys.executable, str(BAD_LINE_PROGRAM)]
        self._line = line = self._start_process([*words, BAD_LINE, str(delay_s), str(jitter_s), str(loss)])
        wait_until(lambda: "ready" in line.log, what="the bad line is there", within=20)
        self._router.configure(f"link set {BAD_LINE} up", f"route add default dev {BAD_LINE} table {BAD_TABLE}")
        for source, target in [*((place, other) for place in places), *((other, place) for place in places)]:
            # Not for packets that come from the line.
            self._rule(f"from {source.network} to {target.network} iif {source.name} lookup {BAD_TABLE}")

    def heal(self) -> None:
        """Pass on all packets at once."""
        self._router.configure(
            *(f"rule del {rule}" for rule in self._rules), *(f"link set {place.name} up" for place in self._unplugged)
        )
        self._rules, self._unplugged = [], []
        if self._line is not None:
            self._line.kill()
            self._line = None

    def _rule(self, rule: str) -> None:
        self._router.configure(f"rule add {rule}")
        self._rules.append(rule)

    def _write(self, path: str, text: str) -> None:
        subprocess.run([*self._router.entry, "sh", "-c", f"echo {text} >{path}"], check=True)

    def _kept(self, namespace: N) -> N:
        self._ends.callback(namespace.close)
        return namespace


@contextmanager
def network(start_process: StartProcess) -> Iterator[Network]:
    """Yield a router without places; all are gone at the end."""
    with ExitStack() as ends:
        yield Network(start_process, ends)
