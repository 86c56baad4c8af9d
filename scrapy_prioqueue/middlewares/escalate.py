"""Sending a request to the next extraction layer from a callback."""

from __future__ import annotations

from scrapy import Request
from scrapy.http import Response
from scrapy.spidermiddlewares.httperror import HttpError
from twisted.python.failure import Failure

from scrapy_prioqueue.queues import verdicts
from scrapy_prioqueue.queues.layers import next_layer


def escalate(result: Response | Failure, reason: str) -> Request | None:
    """Return the request of a response or failure for the next extraction layer, the next of `PRIOQUEUE_LAYERS`.

    Use it in callbacks, as ``yield escalate(response, "captcha")``, and in errbacks, as
    ``yield escalate(failure, "timeout")``, after a failed connection or a bad status (`HttpError`). The request is as
    it was scheduled, with its callback, arguments, priority and tier, and with the layer's `meta`. It is not filtered
    as a duplicate, and its retries begin anew. After the last layer it becomes a dead letter when the page is done.

    Only the first call for a page returns a request, which must be yielded. Later calls only log their reason (DEBUG)
    and return None.

    Args:
        result: the first argument of the callback or errback.
        reason: why this layer isn't sufficient, in a word or two; each reason is counted separately.

    Returns:
        the request, to be yielded; None after the last layer, and if the page was escalated before.

    Raises:
        ValueError: there are no layers, the request's layer is none of them, or the request of the result is not in
            progress.
    """
    request = _in_progress(result)
    if request is None:
        raise ValueError(
            f"escalate() of {result!r}: it belongs to no request in progress of scrapy_prioqueue.Scheduler"
        )
    return next_layer(request, str(reason))


def _in_progress(result: Response | Failure) -> Request | None:
    if isinstance(result, Response):
        return verdicts.in_progress(result)
    if not isinstance(result, Failure):
        raise ValueError(f"escalate() of {result!r}: it takes the response of a callback, or the failure of an errback")
    if isinstance(result.value, HttpError):
        return verdicts.in_progress(result.value.response)
    # Scrapy sets this attribute before it calls the errback.
    failed = getattr(result, "request", None)
    return verdicts.in_progress(failed) if isinstance(failed, Request) else None
