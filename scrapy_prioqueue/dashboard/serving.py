"""Runs the dashboard's HTTP server until it is interrupted."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection

import uvicorn

from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.dashboard.access import Access
from scrapy_prioqueue.dashboard.app import Page
from scrapy_prioqueue.dashboard.board import Board

MOST_CONNECTIONS = 300


class _Server(uvicorn.Server):
    """Ends the streams before it waits for its connections."""

    def __init__(self, config: uvicorn.Config, page: Page) -> None:
        super().__init__(config)
        self._page = page

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._page.live.close()
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens there.

    Raises:
        OSError: that is not possible.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=128)


def serve(
    context: Context,
    listener: socket.socket,
    *,
    token: str,
    host: str,
    allowed_hosts: Collection[str] = (),
    ready: Callable[[], object] = lambda: None,
) -> None:
    """Serve the dashboard until SIGINT or SIGTERM.

    Args:
        ready: called once before the first request is served.
    """
    port = listener.getsockname()[1]
    place = f"{context.name} at {context.link.address}, {socket.gethostname()}:{port}"
    page = Page(Board(context), Access(token, host, allowed_hosts, place))
    config = uvicorn.Config(
        page.app(),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=2,
    )
    ready()
    _Server(config, page).run(sockets=[listener])
