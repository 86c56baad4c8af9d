"""A blocking connection to the server, for programs that aren't workers, such as the command line."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from math import inf
from typing import Any, TypeVar

from redis import Connection, ConnectionPool, Redis, exceptions
from redis.cluster import ClusterNode, RedisCluster

from scrapy_prioqueue.address import HostPort, address_of, parse_address
from scrapy_prioqueue.errors import FrontierFull, FrontierRefused, FrontierUnavailable, PrioQueueError
from scrapy_prioqueue.frontier.redis.locating import (
    ClusterLocator,
    FixedLocator,
    Locator,
    SentinelLocator,
    located,
    locator_of,
)
from scrapy_prioqueue.frontier.redis.options import blocking_options, unusable
from scrapy_prioqueue.frontier.redis.troubles import (
    NotAServer,
    explained,
    full,
    is_displaced,
    is_forbidden,
    is_full,
    is_moved,
    is_not_offered,
    is_read_only,
    refuse_sentinel,
)

FAILURES = (exceptions.RedisError, OSError)

Command = tuple[str | bytes | int | float, ...]
"""A Redis command and its arguments."""

FOLLOW_S = 1.0
"""Seconds after which Sentinels are asked again: the old primary, if it runs, takes commands for seconds more."""

KEYS_PER_SCAN = 1000
"""Number of keys of the server that one call looks at."""

_MAKE_ROOM = (
    "raise it (CONFIG SET maxmemory, and in redis.conf), or wait until workers have fetched pending requests, which"
    " makes room"
)

T = TypeVar("T")


class Link:
    """Blocking connections to a server; created at first use.

    Args:
        url: one of the kinds in `address.SCHEMES`, with the database.
        timeout_s: time-out of connecting, and of each answer, in seconds.
        options: further keyword arguments of the client, which override those of the URL; those that only an asyncio
            client can use are ignored.
        name: of the connections on the server, unless the options set it, or set up connections themselves.
        locator: who knows where the server is, if not those whom the URL names.
        root: the link of which this is one to a node of a cluster.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 5.0,
        options: Mapping[str, Any] | None = None,
        name: str = "",
        locator: Locator | None = None,
        root: Link | None = None,
    ) -> None:
        self.url = url
        self.address = address_of(url)
        self._parts = parse_address(url)
        self._timeout_s = timeout_s
        self._options = dict(options or {})
        self._has_worked = False
        self._name = name
        self._locator = locator or locator_of(self._parts, self._options, timeout_s)
        self._host: HostPort | None = None
        self._located_at = time.monotonic()
        self._others: dict[Locator, Link] = {}
        self.root = root or self
        """The link to any node of a cluster; else this one."""

    def at(self, key: str) -> Link:
        """Return the link to the node of a cluster that has a key, closed with the root; else this one."""
        if self.root is not self:
            return self.root.at(key)
        return self._through(self._locator.at(key)) if isinstance(self._locator, ClusterLocator) else self

    @property
    def in_cluster(self) -> bool:
        """Whether the URL names nodes of a cluster."""
        return isinstance(self._locator, ClusterLocator)

    @property
    def sentinels(self) -> SentinelLocator | None:
        """Those who know where the server is, if the URL names Sentinels."""
        return self._locator if isinstance(self._locator, SentinelLocator) else None

    def place(self) -> str:
        """Return the host and the port of the server, in a cluster or with Sentinels as they are now.

        Raises:
            FrontierUnavailable: nobody who knows it answers.
        """
        if self._locator is None:
            return self.address
        try:
            host, port = self._locator.locate()
        except FAILURES as error:
            raise self._explained(error) from error
        return f"{host}:{port}"

    def _nodes(self) -> Sequence[Link]:
        """Return links to all primaries of a cluster; else this one."""
        if not isinstance(self._locator, ClusterLocator) or self.root is not self:
            return [self]
        try:
            primaries = self._locator.primaries()
        except FAILURES as error:
            raise self._explained(error) from error
        return [self._through(FixedLocator(host)) for host in primaries]

    def _through(self, locator: Locator) -> Link:
        if locator not in self._others:
            self._others[locator] = Link(
                self.url,
                timeout_s=self._timeout_s,
                options=self._options,
                name=self._name,
                locator=locator,
                root=self.root,
            )
        return self._others[locator]

    @cached_property
    def client(self) -> Redis:
        """The client of `redis`; it raises its own errors, not ours."""
        options = blocking_options(self._parts, self._options, self._timeout_s)
        try:
            if self._name and not {"client_name", "redis_connect_func"} & options.keys():
                options["redis_connect_func"] = self._greet
            if self._locator is not None:
                options["connection_class"] = located(options.get("connection_class", Connection), self._locator)
            # By another pool, since a connection that was made counts, even if it isn't used.
            ConnectionPool(**options).make_connection()
            pool = ConnectionPool(**options)
        except (TypeError, ValueError, LookupError, AttributeError, exceptions.RedisError) as error:
            raise unusable(self._options, error) from error
        return Redis(connection_pool=pool)

    def client_of_all_keys(self) -> Any:
        """Return a client of `redis` that, in a cluster, sends each command to the node that has its key."""
        if not isinstance(self._locator, ClusterLocator):
            return self.client
        options = blocking_options(self._parts, self._options, self._timeout_s)
        options |= {"ssl": self._parts.url.startswith("rediss:")}
        for name in ("host", "port", "db", "connection_class", "retry"):
            options.pop(name, None)
        nodes = [ClusterNode(*host) for host in self._parts.hosts]  # type: ignore[no-untyped-call]
        return RedisCluster(startup_nodes=nodes, **options)

    def _greet(self, connection: Any) -> None:
        connection.on_connect()
        connection.send_command("CLIENT", "SETNAME", self._name, check_health=False)
        with suppress(exceptions.ResponseError):
            # The user may not use the command, or a proxy doesn't know it.
            connection.read_response()

    def ask(self, command: Callable[[Any], T]) -> T:
        """Run a command of the client and return the reply; if another server must run it, once more, there.

        Args:
            command: runs one command, or some as a transaction.

        Raises:
            FrontierUnavailable: the connection failed or the server refused.
            FrontierFull: the server has no memory for the write.
        """
        try:
            try:
                found = self._ask(command)
            except exceptions.ResponseError as error:
                if not self._is_elsewhere(error):
                    raise
                self._note(error)
                found = self._ask(command)
        except FAILURES as error:
            raise self._explained(error) from error
        self._has_worked = True
        return found

    def _ask(self, command: Callable[[Any], T]) -> T:
        client = self.client
        self._leave_old_primary()
        return command(client)

    def _is_elsewhere(self, answer: Any) -> bool:
        """Return whether a reply says that another server must run the command, which this one has not run."""
        return isinstance(answer, Exception) and ((self.in_cluster and is_moved(answer)) or is_read_only(answer))

    def _leave_old_primary(self) -> None:
        now = time.monotonic()
        if not isinstance(self._locator, SentinelLocator) or now < self._located_at + FOLLOW_S:
            return
        pool, self._located_at = self.client.connection_pool, now
        try:
            host = self._locator.locate()
        except FAILURES:
            # As long as the server that was known answers, that is no failure.
            return
        if host != self._host:
            pool.disconnect(inuse_connections=False)
        self._host = host

    def _explained(self, error: BaseException) -> PrioQueueError:
        """Return our error, and look for the server anew next time if another one may have taken over its address."""
        self._note(error)
        error = self._sentinels_error(error)
        if is_full(error):
            return full(self.address, _MAKE_ROOM)
        return explained(error, self.address, has_worked=self._has_worked)

    def _note(self, error: BaseException) -> None:
        if isinstance(self._locator, ClusterLocator):
            self._locator.learn(error)
        if is_displaced(error) and "client" in self.__dict__:
            self.client.connection_pool.disconnect(inuse_connections=False)

    def _sentinels_error(self, error: BaseException) -> BaseException:
        """Return another error if a Sentinel has refused a command that only servers have; else the same one."""
        if not is_not_offered(error) or "client" not in self.__dict__:
            return error
        pool = self.client.connection_pool
        # A Sentinel has no databases.
        options = {**pool.connection_kwargs, "db": 0}
        with Redis.from_pool(ConnectionPool(connection_class=pool.connection_class, **options)) as client:
            try:
                refuse_sentinel(client.info("server"))
            except NotAServer as found:
                return found
            except FAILURES:
                pass
        return error

    def pipe(self, *commands: Command, is_transaction: bool = False) -> list[Any]:
        """Run commands in one round trip, as a transaction if `is_transaction` and the server lets this user use one.

        Returns:
            their replies.

        Raises:
            FrontierUnavailable: as `ask`.
            FrontierFull: likewise.
        """
        if commands and is_transaction:
            try:
                transaction: list[Any] = self.ask(lambda client: pipeline_of(client, commands, True).execute())
                return transaction
            except (FrontierRefused, FrontierFull) as error:
                # This user may not use transactions, or the server is full: it refuses MULTI even for commands that
                # only read. Without a transaction the replies are from slightly different times.
                if isinstance(error, FrontierRefused) and not is_forbidden(error.__cause__):
                    raise
        found = self.replies(*commands) if commands else []
        self.refuse(found)
        return found

    def scan(
        self, pattern: str = "*", *, within_s: float = inf, on_silent: Callable[[str], object] | None = None
    ) -> Iterator[Sequence[bytes]]:
        """Yield the keys of the server that match, a list for each thousand keys looked at.

        Args:
            within_s: seconds after which the scan ends early.
            on_silent: called with the address of each node of a cluster that can't be used now, and why; None to raise.
        """
        until = time.monotonic() + within_s
        for node in self._nodes():
            try:
                yield from node.scan_node(pattern, until)
            except FrontierUnavailable as error:
                if on_silent is None or not self.in_cluster or isinstance(error, FrontierRefused):
                    raise
                on_silent(f"{node.place()}: {error.why}")

    def scan_node(self, pattern: str, until: float) -> Iterator[Sequence[bytes]]:
        """As `scan`, of this node alone, until a time by the monotonic clock."""
        cursor = 0
        while True:
            ((cursor, found),) = self.pipe(("SCAN", cursor, "MATCH", pattern, "COUNT", KEYS_PER_SCAN))
            yield found
            if not int(cursor) or time.monotonic() > until:
                break

    def pages(self, command: str, key: str | bytes, count: int) -> Iterator[Any]:
        """Yield what each call of `HSCAN`, `SSCAN` or `ZSCAN` has found, until the whole key was read."""
        cursor = 0
        while True:
            ((cursor, found),) = self.pipe((command, key, cursor, "COUNT", count))
            yield found
            if not cursor:
                return

    def info(self, section: str | None = None) -> dict[str, Any] | None:
        """Return a section of the server's `INFO`, or the usual ones; None if the user may not use that."""
        try:
            found: dict[str, Any] = self.ask(lambda client: client.info(section))
        except FrontierUnavailable as error:
            if is_forbidden(error.__cause__):
                return None
            raise
        return found

    @cached_property
    def round_trip_s(self) -> float:
        """Shortest of three round trips to the server in seconds, 0 if unknown."""
        taken = []
        for _ in range(3):
            begun = time.perf_counter()
            (answer,) = self.attempt(("PING",))
            taken.append(0.0 if isinstance(answer, Exception) else time.perf_counter() - begun)
        return min(taken)

    def attempt(self, *commands: Command) -> list[Any]:
        """Run commands in one round trip and return their replies; a refused command's is an exception.

        Raises:
            FrontierUnavailable: the connection failed, or another server has the keys or takes the writes now.
        """
        answers = self.replies(*commands)
        self.refuse(answer for answer in answers if isinstance(answer, Exception) and is_displaced(answer))
        return answers

    def replies(self, *commands: Command) -> list[Any]:
        """Run commands in one round trip and return their replies as they are, each error reply as an exception.

        If another server must run all of them, they are run there.

        Raises:
            FrontierUnavailable: the connection failed; some may have been executed.
        """

        def run(client: Any) -> Any:
            return pipeline_of(client, commands).execute(raise_on_error=False)

        found: list[Any] = self.ask(run)
        if found and all(map(self._is_elsewhere, found)):
            self._note(found[0])
            found = self.ask(run)
        for answer in found:
            if isinstance(answer, Exception):
                self._note(answer)
        return found

    def refuse(self, answers: Iterable[Any]) -> None:
        """Raise the error that `ask` would, if a reply to `attempt` is an exception."""
        for answer in answers:
            if isinstance(answer, Exception):
                raise self._explained(answer) from answer

    def close(self) -> None:
        """Close all connections."""
        for other in self._others.values():
            other.close()
        if "client" in self.__dict__:
            self.client.connection_pool.disconnect()


def pipeline_of(client: Any, commands: Iterable[Command], is_transaction: bool = False) -> Any:
    """Return a pipeline with these commands, of a client that blocks or one of asyncio."""
    pipeline = client.pipeline(transaction=is_transaction)
    for command in commands:
        # redis-py needs this option to make pairs of the reply.
        pipeline.execute_command(*command, **({"withscores": True} if command[-1] == "WITHSCORES" else {}))
    return pipeline
