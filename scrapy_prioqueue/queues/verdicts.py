"""What is to become of a request once it is done: noted while it is being processed, read by the queue it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from scrapy import Request
from scrapy.http import Response


@dataclass(frozen=True, slots=True)
class Dead:
    """Give it up.

    Args:
        reason: one of `DEAD_REASONS`.
        detail: what happened, in a line.
        traceback: the end of it, empty where there is none.
    """

    reason: str
    detail: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Requeue:
    """Put it back, to be fetched again.

    Args:
        delay_s: seconds until then.
        reason: why, in a line.
    """

    delay_s: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RequeueIfClosing:
    """Put it back for the next run if the spider is being closed; it is done otherwise."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Give it back: the engine has dropped it before it was downloaded, as a fast stop does."""


Verdict = Dead | Requeue | RequeueIfClosing

_STRENGTH = (Dead, RequeueIfClosing, Requeue)


class Page(NamedTuple):
    """What came of a request in progress.

    Args:
        request: as it was handed out, whatever middlewares have made of it.
        fetched_at: Unix time in seconds.
    """

    request: Request
    fetched_at: float


# Of all crawls in this process: what a callback holds is a response, and nothing in it leads to a queue.
_in_progress: WeakSet[Request] = WeakSet()
_reached: WeakSet[Request] = WeakSet()
_replaced: WeakSet[Request] = WeakSet()
_verdicts: WeakKeyDictionary[Request, Verdict] = WeakKeyDictionary()
_pages: WeakKeyDictionary[object, Page] = WeakKeyDictionary()


def hand_out(request: Request) -> None:
    """Note that a request is given to the engine, by a queue that will ask for the verdict."""
    _in_progress.add(request)


def was_handed_out(request: Request) -> bool:
    """Tell whether the engine has, or had, this very object."""
    return request in _in_progress or request in _reached


def note_result(result: object, page: Page) -> None:
    """Note which request a response or failure came from, before a spider sees it."""
    _pages[result] = page
    _reached.add(page.request)
    replaced = getattr(result, "request", None)
    if replaced is not None and replaced is not page.request:
        # A middleware has made the response say that another request has brought it.
        _pages[replaced] = page


def note_replaced(request: Request) -> None:
    """Note that a downloader middleware has made another request of one in progress, which goes on as that."""
    _replaced.add(request)


def page_of(thing: object) -> Page | None:
    """Return what is known of a response, or of the request that it names; None for what no queue of ours knows."""
    page = _pages.get(thing)
    if page is None and isinstance(thing, Response) and thing.request is not None:
        return page_of(thing.request)
    return page


def in_progress(thing: Request | Response) -> Request | None:
    """Return the request in progress behind a response, or behind the request that it names; None if there is none."""
    if isinstance(thing, Request) and thing in _in_progress:
        return thing
    page = page_of(thing)
    found = page.request if page is not None else thing.request if isinstance(thing, Response) else None
    return found if found is not None and found in _in_progress else None


def note(request: Request, verdict: Verdict) -> None:
    """Note a verdict on a request in progress; of several one that keeps it wins, then the first."""
    known = _verdicts.get(request)
    if known is None or _STRENGTH.index(type(known)) < _STRENGTH.index(type(verdict)):
        _verdicts[request] = verdict


def retract(request: Request, reason: str) -> None:
    """Take back that a request in progress is given up for a reason, one of `DEAD_REASONS`."""
    known = _verdicts.get(request)
    if isinstance(known, Dead) and known.reason == reason:
        del _verdicts[request]


def take(request: Request) -> Verdict | Dropped | None:
    """Return the verdict on a request that is done, None where it is done as usual.

    One that goes on as another request isn't given up, whatever the middlewares before that one thought.
    """
    _in_progress.discard(request)
    verdict = _verdicts.pop(request, None) if _verdicts else None
    if request in _reached:
        return verdict
    if request not in _replaced:
        return Dropped()
    return None if isinstance(verdict, Dead) else verdict
