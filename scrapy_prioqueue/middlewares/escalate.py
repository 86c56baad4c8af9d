"""Sending a request on to the next extraction layer from a callback."""

from __future__ import annotations

from scrapy import Request
from scrapy.http import Response

from scrapy_prioqueue.queues import verdicts
from scrapy_prioqueue.queues.layers import next_layer


def escalate(response: Response, reason: str) -> Request | None:
    """Return the request of a response for the next extraction layer, the next of `PRIOQUEUE_LAYERS`.

    For callbacks, as ``yield escalate(response, "captcha")``. It is the request as it was scheduled, with its callback,
    arguments, priority and tier, and with the layer's `meta`; it is not filtered as a duplicate, and its retries begin
    anew. Past the last layer the request becomes a dead letter once the page is done.

    A page goes on once, for the first reason: what the first call returns is to be yielded, and later calls for the
    same page only log their reason (DEBUG) and return None.

    Args:
        reason: why this layer won't do, in a word or two; each is counted by itself.

    Returns:
        the request, to be yielded; None past the last layer, and if the page was escalated before.

    Raises:
        ValueError: there are no layers, the request is at none of them, or the response is not one that is being
            processed.
    """
    if not isinstance(response, Response):
        raise ValueError(
            f"escalate() of {response!r}: it takes a response; a failure has one, failure.value.response, only where"
            " the site has answered"
        )
    request = verdicts.in_progress(response)
    if request is None:
        raise ValueError(
            f"escalate() of {response!r}: it belongs to no request in progress of scrapy_prioqueue.Scheduler"
        )
    return next_layer(request, str(reason))
