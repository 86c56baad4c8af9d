"""Retries that wait in the frontier instead of a worker; any worker may fetch them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import random
from typing import TYPE_CHECKING, Any

from scrapy import Request, Spider
from scrapy.downloadermiddlewares.retry import RetryMiddleware as ScrapyRetryMiddleware
from scrapy.downloadermiddlewares.retry import get_retry_request as scrapy_get_retry_request
from scrapy.downloadermiddlewares.retry import retry_logger
from scrapy.http import Response
from scrapy.utils.response import response_status_message

from scrapy_prioqueue.frontier.base import DEAD_BY_DOWNLOAD
from scrapy_prioqueue.logs import wrong_settings_named
from scrapy_prioqueue.printable import how_often
from scrapy_prioqueue.queues import verdicts
from scrapy_prioqueue.queues.meta import DELAY_META
from scrapy_prioqueue.queues.politeness import retry_after_s
from scrapy_prioqueue.queues.verdicts import Dead, described
from scrapy_prioqueue.settings import Backoff, backoff_of

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from typing_extensions import Self

Reason = str | Exception | type[Exception]


class RetryMiddleware(ScrapyRetryMiddleware):
    """Scrapy's middleware, with the same settings, `meta` keys, stats and log lines, plus `PRIOQUEUE_RETRY_BACKOFF`.

    A request whose retries are exhausted becomes a dead letter, see `PRIOQUEUE_DEAD_LETTER_ON`.
    """

    crawler: Crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Read and check the settings.

        Raises:
            SettingError: `PRIOQUEUE_RETRY_BACKOFF` is invalid.
        """
        with wrong_settings_named(logging.getLogger(__name__), crawler):
            backoff_of(crawler.settings)
        middleware = cls(crawler.settings)
        middleware.crawler = crawler
        return middleware

    def process_response(
        self, request: Request, response: Response, spider: Spider | None = None
    ) -> Request | Response:
        """Retry responses with one of `RETRY_HTTP_CODES`."""
        if request.meta.get("dont_retry", False) or response.status not in self.retry_http_codes:
            return response
        retry = self._retry(request, response_status_message(response.status))
        if retry is None:
            return response
        asked_s = retry_after_s(response, backoff_of(self.crawler.settings).retry_after_cap_s)
        if asked_s > retry.meta.get(DELAY_META, 0):
            retry.meta[DELAY_META] = asked_s
        return retry

    def process_exception(
        self, request: Request, exception: Exception, spider: Spider | None = None
    ) -> Request | Response | None:
        """Retry requests that failed with one of `RETRY_EXCEPTIONS`."""
        if isinstance(exception, self.exceptions_to_retry) and not request.meta.get("dont_retry", False):
            return self._retry(request, exception)
        return None

    def _retry(self, request: Request, reason: Reason, spider: Spider | None = None) -> Request | None:
        assert self.crawler.spider is not None
        meta = request.meta
        return get_retry_request(
            request,
            spider=self.crawler.spider,
            reason=reason,
            max_retry_times=meta.get("max_retry_times", self.max_retry_times),
            priority_adjust=meta.get("priority_adjust", self.priority_adjust),
            give_up_log_level=meta.get("give_up_log_level", getattr(self, "give_up_log_level", None)),
        )


def get_retry_request(
    request: Request,
    *,
    spider: Spider,
    reason: Reason = "unspecified",
    max_retry_times: int | None = None,
    priority_adjust: int | None = None,
    logger: logging.Logger = retry_logger,
    give_up_log_level: int | str | None = None,
    stats_base_key: str = "retry",
) -> Request | None:
    """Return a request that retries another one, also for callbacks; None if its retries are exhausted.

    It accepts the same arguments as Scrapy's function of this name and does the same. In addition, the retry is delayed
    by `PRIOQUEUE_RETRY_BACKOFF`, and a request whose retries are exhausted becomes a dead letter.
    """
    more: dict[str, Any] = {} if give_up_log_level is None else {"give_up_log_level": give_up_log_level}
    retry = scrapy_get_retry_request(
        request,
        spider=spider,
        reason=reason,
        max_retry_times=max_retry_times,
        priority_adjust=priority_adjust,
        logger=logger,
        stats_base_key=stats_base_key,
        **more,
    )
    if retry is None:
        original = verdicts.in_progress(request)
        if original is not None:
            failures = request.meta.get("retry_times", 0) + 1
            verdicts.note_verdict(
                original, Dead(DEAD_BY_DOWNLOAD, f"failed {how_often(failures)}: {described(reason)}")
            )
        return None
    delay_s = backoff_s(backoff_of(spider.crawler.settings), retry.meta["retry_times"])
    if delay_s > 0:
        retry.meta[DELAY_META] = delay_s
    return retry


def backoff_s(backoff: Backoff, retry: int, random: Callable[[], float] = random) -> float:
    """Return the delay of the n-th retry of a request in seconds.

    Args:
        random: returns a number from 0 to 1.
    """
    try:
        longest = min(backoff.cap_s, backoff.base_s * backoff.factor ** (retry - 1))
    except OverflowError:
        longest = backoff.cap_s
    return longest * (1 - backoff.jitter * random())
