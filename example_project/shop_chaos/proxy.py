"""A TCP proxy before a server that cuts, delays, holds back, half-closes and redirects connections as it is told."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal

from hiredis import Reader, pack_command

HOST = "127.0.0.1"
ANSWER_WITHIN_S = 10.0
CHUNK = 65536

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER for a close that sends a RST instead of a FIN."""

Loss = Literal["server", "client", "answers", "both"]
"""What a connection loses while something of it goes on.

``server``: the connection to the server is closed, the client's stays open and silent.
``client``: the client's connection is closed, the server's stays open and silent.
``answers``: both stay open and commands arrive, but no answer does.
``both``: both stay open and nothing arrives any more, as when a firewall has forgotten the connection.
"""

Refuse = Callable[[bytes], "bytes | None"]

Command = tuple[bytes, ...]
"""A Redis command and its arguments."""

Rewrite = Callable[[Command], Command]


@dataclass(eq=False, slots=True)
class _End:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def close(self, *, reset: bool = False) -> None:
        if reset:
            # One that is closing may have no socket any more.
            with suppress(OSError, AttributeError):
                self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.writer.transport.abort()
        else:
            self.writer.close()


@dataclass(eq=False, slots=True)
class _Link:
    """A client's connection and its continuation to the server.

    Args:
        loss: set once the two no longer share their fate.
        commands: of the client, as far as they have come.
    """

    client: _End
    server: _End
    loss: Loss | None = field(default=None)
    commands: Reader = field(default_factory=Reader)

    def close(self, *, reset: bool = False) -> None:
        self.client.close(reset=reset)
        self.server.close(reset=reset)

    def lose(self, loss: Loss) -> None:
        self.loss = loss
        if loss in ("server", "client"):
            (self.server if loss == "server" else self.client).close()

    def end(self, source: _End) -> None:
        """Follow the close of one connection by that of the other, where they still belong together."""
        if self.loss in ("server", "client", "both"):
            source.close()
        else:
            self.close()


class FaultProxy:
    """Passes on everything until told otherwise; it runs in a thread of its own and obeys calls from any other.

    Args:
        server_port: where the server listens, on loopback; it need not be there yet, nor all the time.
        tls: what clients are met with; the server is always met in plain.
        refuse: given what a client has sent: None to pass it on, else the answer before the connection is closed.
        rewrite: given each command, returns the one that the server gets instead.
        port: where it listens; 0 for a free one, chosen when it begins.
    """

    def __init__(
        self,
        server_port: int,
        *,
        tls: ssl.SSLContext | None = None,
        refuse: Refuse = lambda _: None,
        rewrite: Rewrite | None = None,
        port: int = 0,
    ) -> None:
        self._server_port = server_port
        self._tls = tls
        self._refuse = refuse
        self._rewrite = rewrite
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault proxy", daemon=True)
        self._links: set[_Link] = set()
        self._flows = asyncio.Event()
        self._delay_s = 0.0
        self._refuses = False
        self._listener: asyncio.Server | None = None
        self.port = port

    def cut(self, *, reset: bool) -> None:
        """Close all connections, with a RST or in good order."""

        def cut_all() -> None:
            for link in list(self._links):
                link.close(reset=reset)

        self._do(cut_all)

    def lose(self, loss: Loss) -> None:
        """Make all existing connections lose one side, or the answers; new ones are whole."""

        def lose_all() -> None:
            for link in list(self._links):
                link.lose(loss)

        self._do(lose_all)

    def lead_to(self, server_port: int) -> None:
        """Lead new connections to another server, as a name does that has another address now."""
        self._do(lambda: setattr(self, "_server_port", server_port))

    @property
    def connections(self) -> int:
        """How many connections there are."""
        return len(self._links)

    def delay(self, seconds: float) -> None:
        """From now on hold each chunk back for so long, in each direction."""
        self._do(lambda: setattr(self, "_delay_s", seconds))

    def hold(self) -> None:
        """Hold everything back, as a network that is down; `resume` delivers what was sent meanwhile."""
        self._do(self._flows.clear)

    def resume(self) -> None:
        """Pass on everything again."""
        self._do(self._flows.set)

    def refuse(self, is_on: bool) -> None:
        """Close new connections at once, or no longer."""
        self._do(lambda: setattr(self, "_refuses", is_on))

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(ANSWER_WITHIN_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(ANSWER_WITHIN_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWER_WITHIN_S)
        self._loop.close()

    def _do(self, action: Callable[[], object]) -> None:
        async def act() -> None:
            action()

        asyncio.run_coroutine_threadsafe(act(), self._loop).result(ANSWER_WITHIN_S)

    async def _open(self) -> None:
        self._flows.set()
        self._listener = await asyncio.start_server(self._accept, HOST, self.port, ssl=self._tls)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        assert self._listener is not None
        self._listener.close()
        for link in list(self._links):
            link.close(reset=True)
        # Also those that are being accepted, whose link isn't there yet.
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = _End(reader, writer)
        if self._refuses:
            client.close(reset=True)
            return
        try:
            server = _End(*await asyncio.open_connection(HOST, self._server_port))
        except (OSError, asyncio.CancelledError):
            client.close(reset=True)
            return
        link = _Link(client, server)
        self._links.add(link)
        carriers = [
            self._loop.create_task(self._carry(link, client, server)),
            self._loop.create_task(self._carry(link, server, client)),
        ]
        await asyncio.wait(carriers)
        self._links.discard(link)

    async def _carry(self, link: _Link, source: _End, target: _End) -> None:
        """Take what comes from one end to the other until it is closed; read on where nobody listens any more."""
        with suppress(OSError):
            while data := await source.reader.read(CHUNK):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                await self._flows.wait()
                if target is link.server and (answer := self._refuse(data)) is not None:
                    await self._answer(source, answer)
                    break
                is_lost = link.loss is not None and (link.loss != "answers" or target is link.client)
                if not is_lost:
                    target.writer.write(self._rewritten(link, data) if target is link.server else data)
                    await target.writer.drain()
        link.end(source)

    def _rewritten(self, link: _Link, data: bytes) -> bytes:
        """Return what the server gets; the rest of an incomplete command follows with later data."""
        if self._rewrite is None:
            return data
        link.commands.feed(data)
        commands = []
        while (command := link.commands.gets()) is not False:
            commands.append(pack_command(self._rewrite(tuple(command))))  # type: ignore[arg-type]
        return b"".join(commands)

    async def _answer(self, client: _End, answer: bytes) -> None:
        """Answer in the server's place, and wait until the client has closed: else the answer might be lost."""
        if answer:
            client.writer.write(answer)
            client.writer.write_eof()
            while await client.reader.read(CHUNK):
                pass
