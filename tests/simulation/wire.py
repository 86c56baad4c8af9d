"""A synchronous connection to the real Redis server, with commands, replies and the bell; without faults."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from typing import Any

import hiredis

from scrapy_prioqueue.frontier.redis.scripts import Argument

REPLY_WITHIN_S = 20.0


class Wire:
    """One connection that speaks RESP3, so that messages of a channel come on the same line, in order.

    Args:
        path: of the server's unix socket.
    """

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(REPLY_WITHIN_S)
        self._socket.connect(path)
        self._reader = hiredis.Reader()
        self.messages = 0
        """How many messages have come so far."""
        self.ask(("HELLO", "3"))

    def ask(self, *commands: Sequence[Argument]) -> list[Any]:
        """Run commands in one round trip; errors are among the replies."""
        return self.ask_packed(pack(commands), len(commands))

    def ask_packed(self, commands: bytes, count: int) -> list[Any]:
        """Do the same with commands that were packed before."""
        self._socket.sendall(commands)
        return [self._next_reply() for _ in range(count)]

    def subscribe(self, channel: str) -> None:
        """Subscribe to a channel; `messages` returns what was published."""
        self._socket.sendall(pack([("SUBSCRIBE", channel), ("PING",)]))
        self._next_reply()
        self.messages = 0

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _next_reply(self) -> Any:
        while True:
            reply = self._reader.gets()
            if isinstance(reply, hiredis.PushNotification):
                self.messages += 1
            elif reply is not False:
                return reply
            else:
                self._receive()

    def _receive(self) -> None:
        received = self._socket.recv(65536)
        if not received:
            raise ConnectionError("the Redis server of the simulation has gone")
        self._reader.feed(received)


def pack(commands: Iterable[Sequence[Argument]]) -> bytes:
    """Return commands as the server reads them."""
    return b"".join(hiredis.pack_command(tuple(command)) for command in commands)  # type: ignore[arg-type]
