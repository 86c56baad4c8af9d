"""Replays dead letters, for `scrapy frontier dead` and for the dashboard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from scrapy_prioqueue.codec.detached import DetachedCodec, without_counts
from scrapy_prioqueue.codec.plain import plain_or_none
from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.output import counted, number
from scrapy_prioqueue.commands.writing import identity_of, operator_of, plan_of
from scrapy_prioqueue.errors import DecodeError
from scrapy_prioqueue.frontier.redis.operators.findings import Stored
from scrapy_prioqueue.seeds.letters import key_of

PIECE = 1000
"""Dead letters held in memory at a time."""


class Replay:
    """Puts dead letters back into the queue, each request once; further letters of it are deleted.

    Raises:
        SettingError: the user's class of dupefilter or fingerprinter can't be used without a crawl.
    """

    def __init__(self, context: Context) -> None:
        self._codec, self._identity = DetachedCodec(), identity_of(context)
        self._operator, self._plan = operator_of(context), plan_of(context)
        self._known = set[bytes]()
        self._replayed = self._seeds = self._again = 0
        self.done = 0
        """Number of letters so far."""

    def __str__(self) -> str:
        parts = [f"{number(self._replayed + self._seeds)} put back, with attempts and retries counted anew"]
        if self._seeds:
            keys = "its seeds key" if self._seeds == 1 else "their seeds keys"
            parts.append(f"{number(self._seeds)} of them put back into {keys}")
        if self._again:
            older = counted(self._again, "older letter of the same request", "older letters of the same requests")
            parts.append(f"{older} deleted")
        return "; ".join(parts)

    def put_back(self, letters: Iterator[Stored]) -> None:
        """Put these letters back, the newest first."""
        while part := list(islice(letters, PIECE)):
            self._put_back(part)

    def _put_back(self, letters: Sequence[Stored]) -> None:
        made: list[tuple[Stored, bytes, bytes | None]] = []
        repeated: list[Stored] = []
        unread: list[tuple[str, Stored]] = []
        for stored in letters:
            fingerprint = self._fingerprint(stored)
            if (key := key_of(stored.reason, stored.slot, stored.detail)) is not None:
                unread.append((key, stored))
            elif fingerprint in self._known:
                repeated.append(stored)
            else:
                self._known.update(() if fingerprint is None else (fingerprint,))
                made.append((stored, without_counts(stored.payload, stored.slot), fingerprint))
        self._seeds += self._operator.give_back_seeds(unread)
        self._replayed += self._operator.replay(made, self._plan)
        self._again += self._operator.purge(repeated)
        self.done += len(letters)

    def _fingerprint(self, stored: Stored) -> bytes | None:
        plain = plain_or_none(stored.payload, stored.slot)
        if plain is None or plain.dont_filter:
            return None
        try:
            return self._identity(self._codec.decode(stored.payload, stored.slot))
        except DecodeError:
            # Its class of requests can only be imported with the spider's modules.
            return None
