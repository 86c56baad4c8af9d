"""A TCP proxy that makes another program's port as far away as wished: adds a round-trip latency, in order, per chunk.

It prints its port and ends when its input ends. It has no limit of its own for what is under way; for benchmarks only.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import selectors
from collections import deque

from processes import HOST, serve_until_input_ends


class Delayed:
    """What is written here reaches the transport later, in order.

    Args:
        delay_s: how much later.
        jitter_s: by how much each chunk may come earlier or later than that.
    """

    def __init__(self, delay_s: float, jitter_s: float) -> None:
        self._delay_s = delay_s
        self._jitter_s = jitter_s
        self._transport: asyncio.Transport | None = None
        self._chunks: deque[bytes] = deque()

    def lead_to(self, transport: asyncio.Transport) -> None:
        """Name the transport; what came earlier than this is passed on now."""
        self._transport = transport
        for _ in range(len(self._chunks)):
            self._pass_on()

    def write(self, data: bytes) -> None:
        """Send that later; empty data closes."""
        self._chunks.append(data)
        delay_s = self._delay_s + random.uniform(-self._jitter_s, self._jitter_s)
        asyncio.get_running_loop().call_later(delay_s, self._pass_on)

    def _pass_on(self) -> None:
        if self._transport is None or not self._chunks:
            return
        data = self._chunks.popleft()
        if data:
            self._transport.write(data)
        else:
            self._transport.close()


class End(asyncio.Protocol):
    """One of the two connections of a pair.

    Args:
        received: where what comes in here goes.
        sent: what goes out here.
    """

    def __init__(self, received: Delayed, sent: Delayed) -> None:
        self._received = received
        self._sent = sent

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._sent.lead_to(transport)

    def data_received(self, data: bytes) -> None:
        self._received.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._received.write(b"")


class ClientEnd(End):
    """The connection that a client has made; it opens the one to the server."""

    def __init__(self, server_port: int, delay_s: float, jitter_s: float) -> None:
        super().__init__(received=Delayed(delay_s, jitter_s), sent=Delayed(delay_s, jitter_s))
        self._server_port = server_port
        self._connecting: asyncio.Task[object]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connecting = asyncio.get_running_loop().create_task(self._connect(transport))

    async def _connect(self, transport: asyncio.BaseTransport) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: End(self._sent, self._received), HOST, self._server_port)
        except OSError:
            transport.close()


async def run(server_port: int, round_trip_s: float, jitter_s: float) -> None:
    """Serve until the input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: ClientEnd(server_port, round_trip_s / 2, jitter_s / 2), HOST, 0)
    await serve_until_input_ends(server)


def precise_loop() -> asyncio.AbstractEventLoop:
    """Return a loop whose timers are exact to some 0.1 ms; those of the default one are rounded up to 1 ms."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


def main() -> None:
    """Serve from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server_port", type=int, help="where the other program listens, on loopback")
    parser.add_argument("--round-trip-ms", type=float, default=4.0, help="added to every round trip")
    parser.add_argument("--jitter-ms", type=float, default=0.0, help="by how much that varies, up or down")
    options = parser.parse_args()
    loop = precise_loop()
    try:
        loop.run_until_complete(run(options.server_port, options.round_trip_ms / 1000, options.jitter_ms / 1000))
    finally:
        loop.close()


if __name__ == "__main__":
    main()
