"""Seeds in Redis: scripts take them from plain keys and store them beside these until they are settled."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from itertools import groupby
from secrets import token_hex
from typing import Any

from redis.asyncio import Redis

from scrapy_prioqueue.errors import FrontierRefused, FrontierUnavailable
from scrapy_prioqueue.frontier.redis.clock import clock_of, clock_questions
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.scripts import guarded, text_of
from scrapy_prioqueue.frontier.redis.troubles import full, is_cluster, is_forbidden, is_full, is_moved
from scrapy_prioqueue.frontier.redis.wire import pieces
from scrapy_prioqueue.frontier.seeds import Seed, SeedStore, Taken

NAMES = ("give_back", "settle", "take")
"""The scripts; each has three keys with the same hash slot."""

TOKENS_PER_CALL = 200

KINDS = frozenset({"list", "zset", "set", "none"})


class SeedKeys:
    """Names of the keys beside a key of seeds.

    They have the same hash slot: the key's name becomes their hash tag, or they repeat its own tag.

    Args:
        key: the key of seeds.
        frontier: name of the frontier; other frontiers that read the same key have other keys.
    """

    def __init__(self, key: str, frontier: str) -> None:
        self.source = key
        tagged = key if "{" in key else f"{{{key}}}"
        self.takers = f"{tagged}:takers:{frontier}"
        self._taken = f"{tagged}:taken:{frontier}:"

    def taken(self, worker: str) -> str:
        """Return the key of the entries that a worker has taken."""
        return self._taken + worker

    @property
    def acl_rules(self) -> str:
        """ACL rules that a Redis user needs to read the seeds."""
        return f"~{self.source} ~{self.takers.partition(':takers:')[0]}:take*"


class RedisSeeds(SeedStore):
    """One worker's view of the keys of seeds.

    Args:
        connection: to the server; closed with this.
        frontier: its name.
        worker: id of this worker.
        keys: names, best first.
        lease_ttl_s: seconds without contact after which a worker is lost.
    """

    def __init__(
        self, connection: Connection, *, frontier: str, worker: str, keys: Sequence[str], lease_ttl_s: float
    ) -> None:
        self._frontier = Keys(frontier)
        self._home = connection.at(self._frontier.state)
        self._nodes = {key: connection.at(key) for key in keys}
        self._worker = worker
        self._keys = {key: SeedKeys(key, frontier) for key in keys}
        self._ttl_ms = int(lease_ttl_s * 1000)
        self._nonce = token_hex(8)
        self._next = 0
        self._held: set[tuple[str, str]] = set()
        self._has_recovered = False
        self._is_unsure = False
        self._scripts: dict[str, Any] = {}

    async def exchange(self, settled: Sequence[Seed], limit: int) -> Taken:
        given_back = 0 if self._has_recovered else await self._recover()
        self._has_recovered = True
        await self._settle(settled)
        if limit < 1:
            return Taken(given_back=given_back)
        seeds = await self._unreported() if self._is_unsure else []
        # If a later step fails, entries may have been taken; the next call looks for them.
        self._is_unsure = True
        wrong_types = {}
        for key in self._keys:
            if len(seeds) >= limit:
                break
            kind, found = await self._take(key, limit - len(seeds))
            seeds += found
            if kind not in KINDS:
                wrong_types[key] = kind
        others_hold, rescued = (False, 0) if seeds else await self._rescue()
        self._held.update((seed.key, seed.token) for seed in seeds)
        self._is_unsure = False
        return Taken(seeds, bool(seeds or rescued or others_hold), given_back + rescued, wrong_types)

    async def leave(self, settled: Sequence[Seed]) -> int:
        await self._settle(settled)
        given_back = 0
        for key in self._keys:
            given_back += await self._give_back(key, self._worker, await self._tokens(key, self._worker))
        return given_back

    async def close(self) -> None:
        self._scripts = {}
        for connection in {self._home, *self._nodes.values()}:
            await connection.close()

    async def _take(self, key: str, limit: int) -> tuple[str, list[Seed]]:
        first, self._next = self._next, self._next + limit
        kind, entries = await self._run("take", key, self._worker, [limit, self._nonce, first])
        return kind.decode(), [
            Seed(key, f"{self._nonce}:{number}", entry) for number, entry in enumerate(entries, start=first)
        ]

    async def _settle(self, seeds: Sequence[Seed]) -> None:
        for key, group in groupby(sorted(seeds, key=lambda seed: seed.key), key=lambda seed: seed.key):
            for tokens in pieces([seed.token for seed in group], TOKENS_PER_CALL):
                await self._run("settle", key, self._worker, tokens)
                self._held.difference_update((key, token) for token in tokens)

    async def _unreported(self) -> list[Seed]:
        """Return entries taken by calls whose replies were lost."""
        found = []
        for key, names in self._keys.items():
            values = await self._read(key, "HGETALL", names.taken(self._worker))
            for token in self._sorted(values):
                if token.startswith(self._nonce) and (key, token) not in self._held:
                    found.append(Seed(key, token, values[token.encode()].partition(b" ")[2]))
        return found

    async def _recover(self) -> int:
        """Put back the entries that an earlier process under this worker's id has left."""
        given_back = 0
        for key in self._keys:
            left = [token for token in await self._tokens(key, self._worker) if not token.startswith(self._nonce)]
            given_back += await self._give_back(key, self._worker, left)
        return given_back

    async def _rescue(self) -> tuple[bool, int]:
        """Put back the entries of lost workers; return whether living ones hold entries, and how many were put back."""
        others_hold, given_back = False, 0
        for key, names in self._keys.items():
            members = await self._read(key, "SMEMBERS", names.takers)
            others = {member.decode() for member in members} - {self._worker}
            living = await self._living() if others else frozenset()
            others_hold = others_hold or bool(others & living)
            for worker in sorted(others - living):
                given_back += await self._give_back(key, worker, await self._tokens(key, worker))
        return others_hold, given_back

    async def _living(self) -> frozenset[str]:
        oldest = clock_of(*await self._home.pipe(*clock_questions(self._frontier))) - self._ttl_ms
        (found,) = await self._home.pipe(("ZRANGEBYSCORE", self._frontier.workers, oldest, "+inf"))
        return frozenset(worker.decode() for worker in found)

    async def _tokens(self, key: str, worker: str) -> list[str]:
        return self._sorted(await self._read(key, "HKEYS", self._keys[key].taken(worker)))

    def _sorted(self, tokens: Iterable[bytes]) -> list[str]:
        def place(token: str) -> tuple[str, int]:
            nonce, _, number = token.partition(":")
            return nonce, int(number)

        return sorted((token.decode() for token in tokens), key=place)

    async def _give_back(self, key: str, worker: str, tokens: Sequence[str]) -> int:
        given_back = 0
        # The last chunk goes first, so that the first entry ends at the head. Without tokens only takers are updated.
        for chunk in reversed(list(pieces(tokens, TOKENS_PER_CALL)) or [[]]):
            given_back += await self._run("give_back", key, worker, chunk)
        return given_back

    async def _run(self, name: str, key: str, worker: str, arguments: Sequence[Any]) -> Any:
        names = self._keys[key]
        keys = [names.source, names.taken(worker), names.takers]
        reply = self._nodes[key].ask(
            lambda client: self._script(client, name)(keys=keys, args=[worker, *arguments], client=client)
        )
        return await self._reply(key, reply)

    async def _read(self, key: str, command: str, name: str) -> Any:
        (found,) = await self._reply(key, self._nodes[key].pipe((command, name)))
        return found

    def _script(self, client: Redis, name: str) -> Any:
        if name not in self._scripts:
            text = text_of(f"seeds/{name}")
            # They declare their keys, but use some again after deleting them.
            self._scripts[name] = client.register_script(guarded(text) if self._home.in_cluster else text)
        return self._scripts[name]

    async def _reply(self, key: str, reply: Awaitable[Any]) -> Any:
        connection = self._nodes[key]
        try:
            return await reply
        except FrontierUnavailable as error:
            cause = error.__cause__
            if cause is not None and is_full(cause):
                raise full(connection.address) from error
            if is_forbidden(cause):
                rules = self._keys[key].acl_rules
                why = f"{cause}; give the Redis user access to the seeds: ACL SETUSER <user> {rules}"
                raise FrontierRefused(connection.address, why) from error
            if is_moved(cause) and not is_cluster(connection.address):
                raise FrontierRefused(connection.address, f"the key of seeds {key}: {error.why}") from error
            raise
