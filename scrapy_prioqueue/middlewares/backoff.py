"""Exponential backoff of retries, used if the server sends no `Retry-After`."""

from __future__ import annotations

from collections.abc import Callable
from random import random

from scrapy_prioqueue.settings import Backoff


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
