"""Sending a request on to the next extraction layer from a callback."""

from __future__ import annotations

from scrapy import Request
from scrapy.http import Response
from scrapy.spidermiddlewares.httperror import HttpError
from twisted.python.failure import Failure

from scrapy_prioqueue.queues import verdicts
from scrapy_prioqueue.queues.layers import next_layer


def escalate(result: Response | Failure, reason: str) -> Request | None:
    """Return the request of a response or failure for the next extraction layer, the next of `PRIOQUEUE_LAYERS`.

    For callbacks, as ``yield escalate(response, "captcha")``, and errbacks, as ``yield escalate(failure, "timeout")``,
    whatever has failed: the connection, or the status of a response (`HttpError`). It is the request as it was
    scheduled, with its callback, arguments, priority and tier, and with the layer's `meta`; it is not filtered as a
    duplicate, and its retries begin anew. Past the last layer the request becomes a dead letter once the page is done.

    A page goes on once, for the first reason: what the first call returns is to be yielded, and later calls for the
    same page only log their reason (DEBUG) and return None.

    Args:
        result: what the callback or errback was called with.
        reason: why this layer won't do, in a word or two; each is counted by itself.

    Returns:
        the request, to be yielded; None past the last layer, and if the page was escalated before.

    Raises:
        ValueError: there are no layers, the request is at none of them, or the result is not one of a request that is
            being processed.
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
    # Put in by Scrapy, before it calls the errback.
    failed = getattr(result, "request", None)
    return verdicts.in_progress(failed) if isinstance(failed, Request) else None
