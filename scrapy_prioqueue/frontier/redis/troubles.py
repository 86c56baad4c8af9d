"""What the errors of a server and of its client mean for a crawl, and what an operator can do about them."""

from __future__ import annotations

import re

from redis import exceptions

from scrapy_prioqueue.errors import FrontierFull, FrontierRefused, FrontierUnavailable, PrioQueueError

ACCESS_RULES = "~{prioqueue:* &{prioqueue:* +@read +@write +@scripting +@pubsub +@connection +info +wait +config|get"
"""What a user of the server needs, as `ACL SETUSER` takes it; without the last three a crawl works with less advice."""

_Pattern = re.Pattern[str]

# What waiting won't mend. Errors inside of scripts come with a text around them, so the words are searched for.
_LASTING: tuple[tuple[_Pattern, str], ...] = (
    (
        re.compile(r"WRONGPASS|NOAUTH|AuthenticationError|invalid (username-)?password|AUTH .*called without"),
        "set user and password as the server has them, in PRIOQUEUE_REDIS_URL or PRIOQUEUE_REDIS_OPTIONS",
    ),
    (
        re.compile(r"NOPERM|NoPermissionError|this user has no permissions|can't access"),
        f"give the user what a frontier needs: ACL SETUSER <user> {ACCESS_RULES}",
    ),
    (
        re.compile(r"WRONGTYPE"),
        "another program uses a key of this frontier: choose another PRIOQUEUE_NAME, or another database",
    ),
    (
        re.compile(r"unknown command", re.IGNORECASE),
        "the frontier needs a server that runs Lua scripts, with EVALSHA, SCRIPT and INFO under their own names",
    ),
    (
        re.compile(r"DB index is out of range|invalid DB index", re.IGNORECASE),
        "name a database that the server has at the end of PRIOQUEUE_REDIS_URL",
    ),
    (
        re.compile(
            r"InvalidResponse|Protocol error|WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE|CERTIFICATE_VERIFY_FAILED"
        ),
        "what answers there isn't Redis, or speaks TLS where PRIOQUEUE_REDIS_URL doesn't say rediss://, or the reverse",
    ),
)

_PASSING: tuple[tuple[_Pattern, str], ...] = (
    (re.compile(r"MISCONF"), "the server can't write to its disk: see its log"),
    (re.compile(r"READONLY"), "it is a replica now: PRIOQUEUE_REDIS_URL must lead to the primary"),
)


def trouble(address: str, error: BaseException, *, was_sent: bool = True) -> FrontierUnavailable:
    """Return what an error means: `FrontierRefused` for one that waiting won't mend.

    Args:
        address: the server's, without its password.
        was_sent: False if it is certain that nothing has been sent.
    """
    why = f"{type(error).__name__}: {error}".rstrip(": ")
    for pattern, advice in _LASTING:
        if pattern.search(why):
            return FrontierRefused(address, f"{why}; {advice}", was_sent=was_sent)
    for pattern, advice in _PASSING:
        if pattern.search(why):
            return FrontierUnavailable(address, f"{why}; {advice}", was_sent=was_sent)
    return FrontierUnavailable(address, why, was_sent=was_sent)


def refusal_in_place(address: str, reply: BaseException) -> PrioQueueError:
    """Return what an error in the place of a script's reply means: `FrontierFull` where memory is used up."""
    if isinstance(reply, exceptions.OutOfMemoryError) or "OOM" in str(reply):
        return FrontierFull(f"the server at {address} has reached its maxmemory: {reply}")
    return trouble(address, reply)
