"""Where the server is, if Sentinels or the nodes of a cluster know it; each new connection asks."""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, TimeoutError, as_completed
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from threading import Lock, Thread
from time import monotonic
from typing import Any, TypeVar, cast

from redis import ConnectionPool, Redis
from redis.connection import AbstractConnection, Connection
from redis.crc import key_slot
from redis.exceptions import AuthenticationError, ClusterDownError, MovedError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from scrapy_prioqueue.address import Address, HostPort
from scrapy_prioqueue.errors import SettingError
from scrapy_prioqueue.frontier.redis.options import blocking_options, sentinel_options
from scrapy_prioqueue.frontier.redis.tls import TlsConnection
from scrapy_prioqueue.frontier.redis.troubles import is_not_offered, refuse_sentinel, without_arguments

ANSWER_S = 1.0
"""Longest time-out of a Sentinel or a node of a cluster, in seconds; then another one is asked."""

LONGEST_S = 3 * ANSWER_S
"""Longest time for all Sentinels: to look up their names, to connect, and to answer."""

ANNOUNCED_S, NEWS_S = 1.0, 10.0
"""Seconds for which what one Sentinel has announced counts without a question to the others, and as long as they don't
know it."""

logger = logging.getLogger(__name__)

T = TypeVar("T")


_MOVED = re.compile(r"(?:MOVED )+\d+ ([^?]+):(\d+)$")


class Locator(ABC):
    """Knows whom to ask where the server is.

    Its calls block; threads may share it.
    """

    @abstractmethod
    def locate(self) -> HostPort:
        """Return where the server is now.

        Raises:
            RedisError: nobody answers, or there is none now.
        """


@dataclass(frozen=True, slots=True)
class SentinelView:
    """What a Sentinel says of the primary.

    Args:
        epoch: number of the failover after which it is there; the Sentinel that says the highest one is up to date.
        is_up: the Sentinel can reach it.
        quorum: number of Sentinels that must miss it before a failover.
        sentinels: number of Sentinels, this one included.
        replicas: number of replicas.
        down_after_s: seconds of silence after which the Sentinel misses it.
    """

    epoch: int
    is_up: bool
    host: HostPort
    quorum: int
    sentinels: int
    replicas: int
    down_after_s: float


class _NobodyAnswers(RedisConnectionError):
    """None of those who know where the server is can be reached, which says nothing about the server."""


class AskingLocator(Locator):
    """Asks others where the server is; as long as nobody answers, it is where it was last.

    A server that has been replaced meanwhile refuses writes, unless it was cut off from the others, too.
    """

    _last: HostPort | None = None
    _is_alone = False

    def locate(self) -> HostPort:
        try:
            host = self._find()
        except _NobodyAnswers as error:
            if self._last is None:
                raise
            self._note_alone(error)
            return self._last
        except RedisError:
            # There is an answer, but it names no server.
            self._last = None
            raise
        self._is_alone, self._last = False, host
        return host

    def _note_alone(self, error: BaseException) -> None:
        if not self._is_alone and self._last is not None:
            self._is_alone = True
            name, port = self._last
            logger.warning("%s; until one does, connections go to the last known server, %s:%d", error, name, port)

    def forget(self) -> None:
        """Forget where the server was last, since it may be elsewhere by now."""
        self._last = None

    @abstractmethod
    def _find(self) -> HostPort:
        """Ask where the server is.

        Raises:
            RedisError: a `_NobodyAnswers` if nobody answers.
        """


class _UnknownPrimary(RedisError):
    """A Sentinel doesn't know the name."""


class SentinelLocator(AskingLocator):
    """Asks Sentinels for the primary with this name.

    All are asked at once, and the newest answer counts as soon as most have answered. So one of three may be frozen,
    or cut off from the others and mistaken. redis-py's client would believe the first answer, wait for a frozen one,
    and learn of a promotion only after the other replicas follow the new primary, a second or more later.

    Args:
        options: of connections to Sentinels.
    """

    def __init__(self, hosts: Sequence[HostPort], primary: str, options: Mapping[str, Any]) -> None:
        try:
            _sentinel_pool(options, hosts[0]).make_connection()
        except (TypeError, ValueError) as error:
            raise SettingError("PRIOQUEUE_REDIS_OPTIONS", ["sentinel_kwargs"], str(error)) from error
        self.hosts = hosts
        self.primary = primary
        self.options = options
        self._newest: SentinelView | None = None
        self._heard_at = -inf

    def _find(self) -> HostPort:
        if self._newest is not None and self._newest.is_up and monotonic() < self._heard_at + ANNOUNCED_S:
            return self._newest.host
        views, errors = self._ask_all(enough=len(self.hosts) // 2 + 1)
        if not views:
            raise self._why_unknown(errors)
        known = [*views.values(), *([self._newest] if self._newest and monotonic() < self._heard_at + NEWS_S else [])]
        best = max(known, key=lambda view: (view.epoch, view.is_up))
        if not best.is_up:
            name, port = best.host
            raise RedisConnectionError(
                f"the primary {self.primary!r}, {name}:{port}, is down, and the Sentinels have promoted no replica yet"
            )
        return best.host

    def hear(self, sentinel: HostPort) -> None:
        """Ask one Sentinel that has sent news, which the others may not have yet.

        Raises:
            RedisError: it doesn't answer.
        """
        view = self._ask(sentinel)
        if self._newest is None or view.epoch >= self._newest.epoch or monotonic() >= self._heard_at + NEWS_S:
            self._newest, self._heard_at = view, monotonic()

    def views(self) -> tuple[Mapping[HostPort, SentinelView], Mapping[HostPort, BaseException]]:
        """Return what each Sentinel says, and the errors of the others."""
        views, errors = self._ask_all(enough=len(self.hosts))
        silent = {host: RedisConnectionError("no answer") for host in self.hosts if host not in {**views, **errors}}
        return views, {**errors, **silent}

    def _ask_all(self, enough: int) -> tuple[dict[HostPort, SentinelView], dict[HostPort, BaseException]]:
        """Ask all Sentinels at once; return without the others when so many have answered."""
        asked = {_in_thread(partial(self._ask, host)): host for host in self.hosts}
        views: dict[HostPort, SentinelView] = {}
        errors: dict[HostPort, BaseException] = {}
        with suppress(TimeoutError):
            for answer in as_completed(asked, LONGEST_S):
                try:
                    views[asked[answer]] = answer.result()
                except (RedisError, OSError) as error:
                    errors[asked[answer]] = error
                if len(views) >= enough:
                    break
        return views, errors

    def _ask(self, sentinel: HostPort) -> SentinelView:
        with Redis.from_pool(_sentinel_pool(self.options, sentinel)) as client:
            # Only the second command knows a replica that is promoted before the failover is over.
            state, found = (
                client.pipeline(transaction=False)
                .execute_command("SENTINEL", "MASTER", self.primary)
                .execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.primary)
                .execute(raise_on_error=False)
            )
            for answer in (found, state if found else None):
                if isinstance(answer, Exception):
                    raise answer
            if not found:
                raise _UnknownPrimary(", ".join(repr(each) for each in client.sentinel_masters()))
        fields = dict(zip(state[::2], state[1::2], strict=True))
        host, before = (str(found[0]), int(found[1])), (fields["ip"], int(fields["port"]))
        return SentinelView(
            epoch=int(fields["config-epoch"]),
            is_up=host != before or not {"s_down", "o_down"} & set(fields["flags"].split(",")),
            host=host,
            quorum=int(fields["quorum"]),
            sentinels=int(fields["num-other-sentinels"]) + 1,
            replicas=int(fields["num-slaves"]),
            down_after_s=int(fields["down-after-milliseconds"]) / 1000,
        )

    def _why_unknown(self, errors: Mapping[HostPort, BaseException]) -> RedisError:
        unknown = next((error for error in errors.values() if isinstance(error, _UnknownPrimary)), None)
        if unknown is not None:
            known = f"but {unknown}" if str(unknown) else "nor any other"
            return RedisConnectionError(f"the Sentinels know no primary {self.primary!r}, {known}")
        silent = [RedisConnectionError("no answer")] * (len(self.hosts) - len(errors))
        return _unknown("no Sentinel answers", [*errors.values(), *silent])


_REFUSALS = (ResponseError, AuthenticationError)
"""Answers of those who can be reached, but must not or can't say where the server is; redis-py counts a refused
password as a lost connection."""

_CONNECTING = re.compile(r"^Error -?\d+ connecting to \S+ ")


def _unknown(what: str, errors: Sequence[BaseException]) -> RedisConnectionError:
    """Return an error with the different reasons in a fixed order, without addresses, which the frontier's has."""
    reasons = {
        f"{type(error).__name__}: {_CONNECTING.sub('', without_arguments(str(error))).rstrip('.')}" for error in errors
    }
    is_refused = any(isinstance(error, _REFUSALS) for error in errors)
    return (RedisConnectionError if is_refused else _NobodyAnswers)(f"{what} ({'; '.join(sorted(reasons))})")


def _in_thread(call: Callable[[], T]) -> Future[T]:
    """Run a call in a thread of its own, which a process that ends doesn't wait for."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, name="prioqueue sentinel", daemon=True).start()
    return future


def _sentinel_pool(options: Mapping[str, Any], sentinel: HostPort) -> ConnectionPool:
    """Return a pool of connections of our kind, which redis-py's client wouldn't make from these options."""
    name, port = sentinel
    kind = TlsConnection if options["ssl"] else Connection
    own = {name: value for name, value in options.items() if options["ssl"] or not name.startswith("ssl_")}
    del own["ssl"]
    return ConnectionPool(**{**own, "connection_class": kind, "host": name, "port": port})


@dataclass(frozen=True)
class FixedLocator(Locator):
    """Knows the address."""

    host: HostPort

    def locate(self) -> HostPort:
        return self.host


class ClusterLocator(AskingLocator):
    """Asks nodes of a cluster for the primary that has a hash slot.

    Args:
        hosts: of some of the nodes; the others are known from their answers.
        options: of connections to nodes.
        slot: None for any node.
    """

    def __init__(self, hosts: Sequence[HostPort], options: Mapping[str, Any], slot: int | None = None) -> None:
        self._lock = Lock()
        self._named, self._known = list(hosts), list(hosts)
        self._options = options
        self._slot = slot
        self._others: dict[int, ClusterLocator] = {}

    def learn(self, error: BaseException) -> None:
        """If this is a ``MOVED``, ask the node that it names next, which may know more than others."""
        # redis-py 5 makes a MovedError only for its own clients of clusters, without the word in its text.
        found = _MOVED.match(f"MOVED {error}" if isinstance(error, MovedError) else str(error))
        if found is None:
            return
        host = found[1], int(found[2])
        with self._lock:
            self._known = [host, *(known for known in self._known if known != host)]

    def at(self, key: str) -> ClusterLocator:
        """Return the one for the hash slot of a key, always the same one."""
        slot = key_slot(key.encode())
        if slot == self._slot:
            return self
        return self._others.setdefault(slot, ClusterLocator(self._named, self._options, slot))

    def _find(self) -> HostPort:
        with self._lock:
            ranges = self._ranges()
        for first, last, primary in ranges:
            if self._slot is None or first <= self._slot <= last:
                return primary
        raise ClusterDownError(f"CLUSTERDOWN no node has hash slot {self._slot}")

    def primaries(self) -> Sequence[HostPort]:
        """Return where the primaries are, of all hash slots.

        Raises:
            RedisError: nobody answers.
        """
        with self._lock:
            return sorted({primary for _, _, primary in self._ranges()})

    def _ranges(self) -> Sequence[tuple[int, int, HostPort]]:
        errors = []
        until = monotonic() + LONGEST_S
        for asked in list(self._known):
            if self._last is not None and monotonic() > until:
                break
            # Another one is asked first next time, since one that is cut off from the others may be mistaken.
            self._known.remove(asked)
            self._known.append(asked)
            try:
                found = _ask_for_slots(asked, self._options)
            except (RedisError, OSError) as error:
                errors.append(error)
                continue
            nodes = [_host_of(node, asked) for _, _, *nodes in found for node in nodes]
            living = dict.fromkeys([*nodes, *self._named])
            self._known = [*(known for known in self._known if known in living), *(living.keys() - set(self._known))]
            return [(first, last, _host_of(nodes[0], asked)) for first, last, *nodes in found]
        refusals = [error for error in errors if isinstance(error, _REFUSALS)]
        if refusals:
            # Why the others don't answer is no reason to look elsewhere.
            raise refusals[0]
        raise _unknown("no node of the cluster answers", errors)


def _ask_for_slots(asked: HostPort, options: Mapping[str, Any]) -> Any:
    pool = ConnectionPool(**{**options, "host": asked[0], "port": asked[1]})
    client = Redis(connection_pool=pool)
    try:
        return client.execute_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call]
    except ResponseError as error:
        if is_not_offered(error):
            refuse_sentinel(_server_info(client))
        raise
    finally:
        pool.disconnect()


def _server_info(client: Redis) -> Mapping[str, Any]:
    """Return a server's `INFO`, empty if the user may not use that."""
    with suppress(ResponseError):
        return client.info("server")
    return {}


def _host_of(node: Sequence[Any], asked: HostPort) -> HostPort:
    """Return the address of a node; one without a name is at that of the node that was asked."""
    name, port, *rest = node
    if name == b"?":
        # Nodes are to be called by host names, but this one has announced none.
        more = rest[1] if len(rest) > 1 else []
        name = dict(zip(more[::2], more[1::2], strict=False)).get(b"ip")
    return name.decode() if name else asked[0], int(port)


def locator_of(address: Address, options: Mapping[str, Any], timeout_s: float) -> Locator | None:
    """Return who knows where the server is, None if the URL says it.

    Args:
        options: the user's.
        timeout_s: time-out of connecting to the server, of which half is left when nobody has answered.
    """
    answer_s = min(timeout_s / 2, ANSWER_S)
    if address.kind == "sentinel":
        return SentinelLocator(address.hosts, address.primary, sentinel_options(address, options, answer_s))
    if address.kind == "cluster":
        times = {"socket_timeout": answer_s, "socket_connect_timeout": answer_s}
        return ClusterLocator(address.hosts, {**blocking_options(address, options, answer_s), **times})
    return None


def located(kind: type[AbstractConnection], locator: Locator) -> type[AbstractConnection]:
    """Return a class of blocking connections each of which asks where the server is before it connects."""

    class LocatedConnection(kind):  # type: ignore[misc, valid-type]
        def connect(self) -> None:
            if self._sock is None:
                self.host, self.port = locator.locate()
            super().connect()

    return cast(type[AbstractConnection], LocatedConnection)
