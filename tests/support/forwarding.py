"""A proxy in front of a server on this machine, in the loop of `tests.support.coroutines`."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tests.support.coroutines import run

CHUNK = 65536

Refuse = Callable[[bytes], "bytes | None"]
"""Given what a client has sent: None to pass it on, else what is answered before the connection is closed."""


@contextmanager
def forwarding(to_port: int, *, tls: ssl.SSLContext | None = None, refuse: Refuse = lambda _: None) -> Iterator[int]:
    """Pass on what clients send and what the server answers; yield the port."""
    proxy = _Proxy(to_port, refuse)
    server = run(asyncio.start_server(proxy.lead, "127.0.0.1", 0, ssl=tls))
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        run(proxy.close())


class _Proxy:
    def __init__(self, to_port: int, refuse: Refuse) -> None:
        self._to_port = to_port
        self._refuse = refuse
        self._links: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        for link in self._links:
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.current_task()
        assert link is not None
        self._links.add(link)
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
        answers = asyncio.create_task(self._carry(server_reader, writer))
        with suppress(OSError, asyncio.CancelledError):
            refusal = await self._carry_commands(reader, server_writer)
            if refusal:
                writer.write(refusal)
                writer.write_eof()
                # Closed with something unread, the connection would be reset, and the answer lost.
                while await reader.read(CHUNK):
                    pass
        answers.cancel()
        for end in (writer, server_writer):
            end.close()
        await asyncio.gather(answers, writer.wait_closed(), server_writer.wait_closed(), return_exceptions=True)
        self._links.discard(link)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()

    async def _carry_commands(self, reader: asyncio.StreamReader, server: asyncio.StreamWriter) -> bytes:
        while data := await reader.read(CHUNK):
            answer = self._refuse(data)
            if answer is not None:
                return answer
            server.write(data)
            await server.drain()
        return b""
