"""The routes of the dashboard."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from scrapy_prioqueue.commands.options import duration_s
from scrapy_prioqueue.commands.output import counted, plain
from scrapy_prioqueue.commands.verbs.status import as_json
from scrapy_prioqueue.dashboard.access import SESSION_S, Access, Guard, Question, Session, is_encrypted, local_path
from scrapy_prioqueue.dashboard.board import LETTERS_CHANGED, LOOK_LIMIT, SORTINGS, Board, Wanted
from scrapy_prioqueue.dashboard.live import AGE, EventStream, Fragments, Live
from scrapy_prioqueue.dashboard.templating import page_environment
from scrapy_prioqueue.errors import PrioQueueError
from scrapy_prioqueue.frontier.base import DEAD_REASONS
from scrapy_prioqueue.monitoring.adviser import SCALE_PATH, Adviser
from scrapy_prioqueue.monitoring.reading import BUSY, Reading

STATIC = Path(__file__).parent / "static"

PAGES = (
    ("/", "overview", "Overview"),
    ("/workers", "workers", "Workers"),
    ("/slots", "slots", "Slots"),
    ("/dead", "dead", "Dead letters"),
    ("/request", "request", "Requests"),
    ("/budgets", "budgets", "Budgets"),
    ("/runs", "runs", "Runs"),
)
"""Path, name and title of each view."""

LOGIN_PAUSE_S = 0.5
"""Seconds before the answer to a wrong token."""

ACTIONS = {"replay": "Put back", "purge": "Delete"}


class Page:
    """Answers requests."""

    def __init__(self, board: Board, access: Access) -> None:
        self._board = board
        self._access = access
        self._adviser = Adviser(board.context.config)
        self._templates = page_environment()
        titles = {name: title for _, name, title in PAGES}
        self._templates.globals |= {"pages": PAGES, "titles": {"confirm": "Are you sure?", "problem": "", **titles}}
        self.live = Live(self.fragments)

    def app(self) -> ASGIApp:
        views = {
            "/": self._overview,
            "/workers": self._workers,
            "/slots": self._slots,
            "/dead": self._dead,
            "/request": self._request,
            "/budgets": self._budgets,
            "/runs": self._runs,
            "/login": self._login_form,
            "/healthz": _health,
            "/api/v1/status": self._status,
            SCALE_PATH: self._scale,
        }
        routes = [Route(path, view, methods=["GET"]) for path, view in views.items()]
        routes += [
            Route("/events", self._events, methods=["GET"]),
            Route("/login", self._login, methods=["POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Route("/dead", self._change, methods=["POST"]),
        ]
        static = Mount("/static", StaticFiles(directory=STATIC))
        problems: Mapping[Any, Any] = {HTTPException: self._problem, PrioQueueError: self._trouble}
        return Guard(Starlette(routes=[*routes, static], exception_handlers=problems), self._access)

    # Views

    def fragments(self, view: str) -> Fragments:
        """Return the parts of a view that change."""
        name, _, argument = view.partition(":")
        frame = self._board.frame()
        found = {"live-frame": self._render("_frame.html", frame=frame)}
        found |= {AGE: str(round(frame.age_s))} if frame.age_s is not None else {}
        if name in LIVE_VIEWS:
            found["live-view"] = self._render(f"_{name}.html", frame=frame, **self._data(name, argument, frame))
        return found

    def _data(self, name: str, argument: str, frame: Any) -> dict[str, Any]:
        status = frame.status
        if name == "overview":
            depth, rates = self._board.charts(status) if status else (None, None)
            return {"depth": depth, "rates": rates}
        if name == "workers":
            return {"workers": self._board.workers(status) if status else []}
        sort = next((each for each in SORTINGS if each == argument), None)
        return {"slots": self._board.slots(sort) if status else None, "sortings": SORTINGS, "look_limit": LOOK_LIMIT}

    def _overview(self, request: Request) -> Response:
        return self._page(request, "overview")

    def _workers(self, request: Request) -> Response:
        return self._page(request, "workers")

    def _slots(self, request: Request) -> Response:
        return self._page(request, "slots", argument=request.query_params.get("sort", ""))

    def _budgets(self, request: Request) -> Response:
        return self._page(request, "budgets", budgets=self._board.budgets())

    def _runs(self, request: Request) -> Response:
        return self._page(request, "runs", runs=self._board.runs())

    def _dead(self, request: Request) -> Response:
        problem, wanted = "", Wanted()
        try:
            wanted = wanted_of(request.query_params)
        except ValueError as error:
            problem = str(error)
        return self._page(
            *(request, "dead"),
            wanted=wanted,
            given=dict(request.query_params),
            problem=problem,
            reasons=DEAD_REASONS,
            letters=Reading(None, None) if problem else self._board.letters(wanted),
            most=LETTERS_CHANGED,
        )

    def _request(self, request: Request) -> Response:
        query, problem, found = request.query_params.get("q", "").strip(), "", None
        if query:
            try:
                found = self._board.found(query)
            except ValueError as error:
                problem = str(error)
            if found is not None and not found.value and found.trouble:
                problem = found.trouble
        return self._page(request, "request", query=query, problem=problem, found=found)

    def _page(
        self, request: Request, name: str, *, argument: str = "", status_code: int = 200, **data: Any
    ) -> Response:
        frame, session = self._board.frame(), self._access.session_of(request)
        data |= self._data(name, argument, frame) if name in LIVE_VIEWS else {}
        message = ""
        if session is not None:
            message, session.message = session.message, ""
        text = self._render(
            f"{name}.html",
            frame=frame,
            view=_view(name, argument),
            page=name,
            session=session,
            message=message,
            here=_path_and_query(request),
            **data,
        )
        # A value that was not read in time has been read when the browser loads the view again.
        is_busy = any(isinstance(value, Reading) and value.trouble == BUSY for value in data.values())
        return HTMLResponse(text, status_code, {"Refresh": "3"} if is_busy and request.method == "GET" else None)

    def _render(self, template: str, **data: Any) -> str:
        return self._templates.get_template(template).render(**data)

    # Programs

    async def _events(self, request: Request) -> Any:
        if not self.live.has_room:
            return PlainTextResponse("There are too many viewers.\n", 503, {"Retry-After": "15"})
        name, _, argument = request.query_params.get("view", "").partition(":")
        return EventStream(self.live, _view(name, argument) if name in LIVE_VIEWS else "frame")

    def _status(self, request: Request) -> Response:
        frame = self._board.frame()
        if frame.status is None and frame.trouble:
            return JSONResponse({"error": frame.trouble}, 503)
        if frame.status is None:
            return JSONResponse({"error": f"there is no frontier {frame.name!r}"}, 404)
        return JSONResponse(plain({**as_json(frame.status), "age_s": frame.age_s, "error": frame.trouble}))

    def _scale(self, request: Request) -> Response:
        status_code, document = self._adviser.answer(self._board.reading)
        return JSONResponse(document, status_code)

    # Changes

    def _login_form(self, request: Request) -> Response:
        return self._login_page(request.query_params.get("next", "/"))

    def _login_page(self, next_path: str, problem: str = "", status_code: int = 200) -> Response:
        text = self._render("login.html", name=self._board.context.name, next=local_path(next_path), problem=problem)
        return HTMLResponse(text, status_code)

    async def _login(self, request: Request) -> Response:
        form = await form_of(request)
        token, next_path = str(form.get("token", "")), str(form.get("next", "/"))
        if not self._access.is_token(token.strip()):
            await asyncio.sleep(LOGIN_PAUSE_S)
            return self._login_page(next_path, "That is not the token.", 403)
        answer = RedirectResponse(local_path(next_path), 303)
        answer.set_cookie(
            *(self._access.cookie, self._access.log_in()),
            max_age=SESSION_S,
            httponly=True,
            samesite="strict",
            secure=is_encrypted(request),
        )
        return answer

    async def _logout(self, request: Request) -> Response:
        if self._access.may_change(request, await form_of(request)) is None:
            return self._refused(request)
        self._access.log_out(request)
        answer = RedirectResponse("/", 303)
        answer.delete_cookie(self._access.cookie)
        return answer

    async def _change(self, request: Request) -> Response:
        form = await form_of(request)
        session = self._access.may_change(request, form)
        if session is None:
            return self._refused(request)
        return await asyncio.to_thread(self._changed, request, form, session)

    def _changed(self, request: Request, form: FormData, session: Session) -> Response:
        action = str(form.get("action", ""))
        ids = [int(each) for each in form.getlist("id") if isinstance(each, str) and each.isdecimal()]
        ids = [each for each in ids if each < 2**64]
        try:
            wanted = wanted_of({name: str(value) for name, value in form.items()})
        except ValueError as error:
            raise HTTPException(400, str(error)) from None
        back = "/dead" + (f"?{query}" if (query := urlencode(filter_of(wanted, form))) else "")
        if "question" in form:
            session.message = self._answered(session.questions.pop(str(form["question"]), None))
            return RedirectResponse(back, 303)
        if action not in ACTIONS or (form.get("all") is None and not ids):
            session.message = "Select dead letters first."
            return RedirectResponse(back, 303)
        letters = self._board.selected(wanted, [] if form.get("all") else ids)
        if not letters:
            session.message = "There are no such dead letters any more."
            return RedirectResponse(back, 303)
        return self._page(
            request,
            "confirm",
            question=session.ask(action, [stored.letter for stored in letters]),
            verb=ACTIONS[action],
            what=counted(len(letters), "dead letter"),
            shown=letters[:10],
            earlier=self._board.earlier(letters),
            fields=filter_of(wanted, form),
            back=back,
        )

    def _answered(self, question: Question | None) -> str:
        """Make a confirmed change, and return what was done."""
        if question is None:
            return "Nothing was changed: this was answered before, or is too old. Select the dead letters again."
        return (self._board.replay if question.action == "replay" else self._board.purge)(question.letters)

    # Problems

    def _refused(self, request: Request) -> Response:
        text = "Changes need a session: log in with the token, and then load the page of the form again."
        return self._page(request, "problem", status_code=403, title="Not allowed", text=text)

    def _problem(self, request: Request, error: HTTPException) -> Response:
        title = {404: "No such page"}.get(error.status_code, error.detail)
        return self._page(request, "problem", status_code=error.status_code, title=title, text="")

    def _trouble(self, request: Request, error: PrioQueueError) -> Response:
        return self._page(request, "problem", status_code=503, title="That did not work", text=str(error))


LIVE_VIEWS: Sequence[str] = ("overview", "workers", "slots")
"""Views that are updated while they are shown; of the others only the frame is."""


async def form_of(request: Request) -> FormData:
    """Return the form of a request; files are refused."""
    return await request.form(max_files=0, max_fields=2000)


def wanted_of(given: Mapping[str, str]) -> Wanted:
    """Return the filter in a form.

    Raises:
        ValueError: it can't be used.
    """
    reason = given.get("reason", "")
    if reason and reason not in DEAD_REASONS:
        raise ValueError(f"There is no reason {reason}: choose one of {', '.join(DEAD_REASONS)}.")
    return Wanted(reason, given.get("text", "").strip(), _age(given.get("newer", "")), _age(given.get("older", "")))


def filter_of(wanted: Wanted, given: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a form with this filter."""
    found = {"reason": wanted.reason, "text": wanted.text}
    found |= {name: str(given.get(name, "")).strip() for name in ("newer", "older")}
    return {name: value for name, value in found.items() if value}


def _age(text: str) -> float | None:
    try:
        return duration_s(text.strip()) if text.strip() else None
    except Exception:  # argparse's own kind of error
        raise ValueError(f"{text} is no age: give one such as 90, 15min, 2h or 1d.") from None


def _view(name: str, argument: str) -> str:
    """Return the name of a live view with its argument."""
    return f"{name}:{argument}" if argument in SORTINGS else name


def _path_and_query(request: Request) -> str:
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


def _health(_: Request) -> Response:
    return PlainTextResponse("fine\n")
