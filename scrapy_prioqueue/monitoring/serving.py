"""A small HTTP server in threads, for metrics and other answers to programs; it needs no event loop."""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

logger = logging.getLogger(__name__)

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
"""A WSGI application."""

IDLE_S = 15.0
"""Seconds after which a connection without a request is closed."""

METRICS_PATH = "/metrics"


def missing() -> str:
    """Return what to install before metrics can be served, empty if it is installed."""
    return "" if find_spec("prometheus_client") else 'needs prometheus-client: pip install "scrapy-prioqueue[metrics]"'


class _Handler(WSGIRequestHandler):
    timeout = IDLE_S

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug("%s " + format, self.address_string(), *args)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, host: str, port: int, app: App) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)
        self.set_app(app)

    def server_bind(self) -> None:
        # The base class would look up the name of this machine, which may take long.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that goes away early is no error.
        logger.debug("Error while answering %s", client_address, exc_info=True)


class Endpoint:
    """A server with its threads.

    Args:
        host: an IP address.
        ports: the first one that is free is used; 0 for any.

    Raises:
        OSError: it can't listen there.
    """

    def __init__(self, app: App, host: str, ports: Sequence[int]) -> None:
        self._server = _listen(app, host, ports)
        self.port = self._server.server_port
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        threading.Thread(target=self._server.serve_forever, name="prioqueue metrics", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _listen(app: App, host: str, ports: Sequence[int]) -> _Server:
    *others, last = ports
    for port in others:
        try:
            return _Server(host, port, app)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    return _Server(host, last, app)


def routed(routes: Mapping[str, App]) -> App:
    """Return an application that answers each path with another one, and `/` with a list of them."""
    index = "".join(f'<p><a href="{path}">{path}</a></p>' for path in routes).encode()

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "HEAD":
            return _head(answer, environ, start_response)
        path = environ["PATH_INFO"] or "/"
        if path in routes:
            return routes[path](environ, start_response)
        status, text = ("200 OK", index) if path == "/" else ("404 Not Found", b"there is no such page; / lists all")
        start_response(status, [("Content-Type", "text/html; charset=utf-8")])
        return [text]

    return answer


def _head(app: App, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer as to GET, without the body."""
    begun: list[Any] = []
    body = b"".join(app({**environ, "REQUEST_METHOD": "GET"}, lambda *given: begun.extend(given)))
    status, headers, *_ = begun
    others = [(name, value) for name, value in headers if name.lower() != "content-length"]
    start_response(status, [*others, ("Content-Length", str(len(body)))])
    return ()


def metrics_app(collectors: Iterable[Collector]) -> App:
    """Return an application that serves the metrics of collectors in Prometheus's format."""
    from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app

    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    for collector in collectors:
        registry.register(collector)
    app: App = make_wsgi_app(registry)
    return app
