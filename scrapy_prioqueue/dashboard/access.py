"""Who may see the dashboard and who may change something: tokens, sessions, host names, headers for browsers."""

from __future__ import annotations

import asyncio
import hmac
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from ipaddress import ip_address
from secrets import token_urlsafe
from urllib.parse import quote, urlsplit

from starlette.datastructures import FormData, Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scrapy_prioqueue.frontier.redis.operators.findings import Letter

COOKIE = "prioqueue_session"
"""Beginning of the cookie's name."""

SESSION_S = 12 * 3600
MOST_SESSIONS = 1000
MOST_QUESTIONS = 10
"""Maximum number of unanswered questions of a session."""

BODY_LIMIT = 64 * 1024
"""Maximum size of a form, in bytes."""

LEAST_TOKEN = 16
"""Minimum length of a token, in characters; a shorter one can be guessed."""

LOOPBACK = ("localhost", "127.0.0.1", "::1")

OPEN_PATHS = ("/login", "/healthz", "/static/")
"""Paths that need no token; one that ends with `/` stands for all below it."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Without any referrer, browsers would send forms without the origin that is compared here.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True, slots=True)
class Question:
    """A change that somebody is asked to confirm.

    Args:
        letters: the dead letters that were counted; only these are changed, even if more match by then.
    """

    action: str
    letters: Sequence[Letter]
    key: str = field(default_factory=token_urlsafe)


@dataclass
class Session:
    """Somebody who has given the token.

    Args:
        until: monotonic time at which it ends.
        form_key: what every form of the session contains.
        message: shown on the next page.
        questions: those that were not answered yet, by their keys.
    """

    until: float
    form_key: str = field(default_factory=token_urlsafe)
    message: str = ""
    questions: dict[str, Question] = field(default_factory=dict)

    def ask(self, action: str, letters: Sequence[Letter]) -> Question:
        """Return a new question; if there are very many, the oldest ones are forgotten."""
        while len(self.questions) >= MOST_QUESTIONS:
            del self.questions[next(iter(self.questions))]
        question = Question(action, letters)
        self.questions[question.key] = question
        return question


class Access:
    """Decides about requests.

    Args:
        token: allows everything.
        host: address that the server listens on.
        allowed_hosts: further names under which browsers reach it.
        place: differs from that of any other dashboard on this host; browsers send a cookie to all ports of a host.
    """

    def __init__(
        self,
        token: str,
        host: str,
        allowed_hosts: Collection[str] = (),
        place: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cookie = f"{COOKIE}_{sha256(place.encode()).hexdigest()[:12]}"
        self._digest = sha256(token.encode()).digest()
        self._is_local = is_loopback(host)
        self._open_hosts = {*LOOPBACK, host.lower()} if self._is_local else set[str]()
        self._hosts = {*(each.lower() for each in allowed_hosts), *self._open_hosts, host.lower()}
        if not self._is_local:
            self._hosts |= {socket.gethostname().lower(), *LOOPBACK}
        self._clock = clock
        self._sessions: dict[str, Session] = {}

    def is_token(self, given: str) -> bool:
        """Return whether this is the token; the comparison takes constant time."""
        return hmac.compare_digest(sha256(given.encode()).digest(), self._digest)

    def log_in(self) -> str:
        """Begin a session, and return its id."""
        session_id = token_urlsafe(32)
        while len(self._sessions) >= MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        self._sessions[session_id] = Session(self._clock() + SESSION_S)
        return session_id

    def log_out(self, request: Request) -> None:
        """End the session of a request."""
        self._sessions.pop(request.cookies.get(self.cookie, ""), None)

    def session_of(self, request: Request) -> Session | None:
        """Return the session of a request, if there is one."""
        session = self._sessions.get(request.cookies.get(self.cookie, ""))
        return session if session is not None and session.until > self._clock() else None

    def has_host(self, name: str) -> bool:
        """Return whether the server is reached under this name; another one could be that of an attacker's page."""
        if name in self._hosts:
            return True
        # Names can be made to point here, addresses can't.
        return not self._is_local and _is_address(name)

    def may_read(self, request: Request) -> bool:
        """Return whether this request may see the crawl."""
        if self.session_of(request) is not None or self.has_bearer(request):
            return True
        return host_of(request.headers) in self._open_hosts

    def has_bearer(self, request: Request) -> bool:
        """Return whether a program has sent the token."""
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and self.is_token(token.strip())

    def may_change(self, request: Request, form: FormData) -> Session | None:
        """Return the session of a form that was sent from one of its own pages, else None."""
        session = self.session_of(request)
        given = form.get("form_key")
        if session is None or not isinstance(given, str):
            return None
        return session if hmac.compare_digest(given.encode(), session.form_key.encode()) else None


class Guard:
    """Rejects requests that must not reach the views, and adds headers to all responses."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        has_begun = False

        async def send_with_headers(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers["Cache-Control"] = "no-cache" if scope["path"].startswith("/static/") else "no-store"
            await send(message)

        answer = self._refusal(Request(scope)) or self._app
        try:
            await answer(scope, receive, send_with_headers)
        except asyncio.CancelledError:
            # The server ends, and would log a traceback for each request that is not answered.
            if not has_begun:
                await PlainTextResponse("The server is stopping.\n", 503)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        path, headers = request.url.path, request.headers
        host = host_of(headers)
        if host is None or not self._access.has_host(host):
            text = "This server doesn't know the name in the Host header; --allow-host NAME allows it.\n"
            return PlainTextResponse(text, 421)
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not _is_navigation(headers):
            return PlainTextResponse("Pages of other sites may not read this one.\n", 403)
        if request.method == "POST":
            refusal = _refused_form(headers)
            if refusal is not None:
                return refusal
        if any(path == each or (each.endswith("/") and path.startswith(each)) for each in OPEN_PATHS):
            return None
        if self._access.may_read(request):
            return None
        if request.method == "GET" and "text/html" in headers.get("accept", ""):
            return RedirectResponse(f"/login?next={quote(path)}", 303)
        return PlainTextResponse("The token is needed: Authorization: Bearer TOKEN\n", 401)


def _is_navigation(headers: Mapping[str, str]) -> bool:
    """Return whether a browser opens a view, for example by a link from another site."""
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"


def _refused_form(headers: Headers) -> Response | None:
    origin, length = headers.get("origin"), headers.get("content-length", "0")
    if origin is not None and urlsplit(origin).netloc != headers.get("host"):
        return PlainTextResponse("This form comes from another site.\n", 403)
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return PlainTextResponse("This form comes from another site.\n", 403)
    if "transfer-encoding" in headers:
        return PlainTextResponse("A form must have a Content-Length.\n", 411)
    if not length.isdecimal() or int(length) > BODY_LIMIT:
        return PlainTextResponse(f"A form may have at most {BODY_LIMIT} bytes.\n", 413)
    return None


def is_encrypted(request: Request) -> bool:
    """Return whether the browser uses TLS, to this server or to a proxy; a false header harms only its sender."""
    headers = request.headers
    schemes = (request.url.scheme, headers.get("x-forwarded-proto", ""), urlsplit(headers.get("origin", "")).scheme)
    return any(scheme.lower() == "https" for scheme in schemes)


def host_of(headers: Headers) -> str | None:
    """Return the name in the Host header; None unless there is exactly one, and it is valid."""
    given = headers.getlist("host")
    if len(given) != 1 or any(letter in given[0] for letter in "/\\@?#"):
        return None
    try:
        return urlsplit(f"//{given[0]}").hostname
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Return whether only programs of this machine can connect to an address."""
    return host == "localhost" or (_is_address(host) and ip_address(host).is_loopback)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def local_path(given: str) -> str:
    """Return a path of this server to go to after the login; others become that of the overview."""
    is_local = given.startswith("/") and not given.startswith(("//", "/\\")) and given.isprintable()
    return given if is_local and not urlsplit(given).netloc else "/"
