"""All exceptions of the package.

::

    PrioQueueError
    ├── SettingError (ValueError)      a PRIOQUEUE_* setting is wrong
    ├── RequestError (ValueError)      a request can't be given a place in the frontier
    ├── EncodeError (ValueError)       a request can't be written as bytes
    ├── DecodeError (ValueError)       bytes can't be read as a request
    │   └── UnknownName                … because they name something that this process doesn't have
    ├── SeedError (ValueError)         an entry of a seeds key can't be read as a request
    ├── FrontierUnavailable            the server of the frontier can't be used now
    │   └── FrontierRefused            … for a reason that doesn't pass by itself
    ├── FrontierFull                   the server of the frontier has no memory left
    ├── RequestTooLarge                … or takes no command of that size
    ├── LayoutMismatch                 the frontier was written by another layout or other tiers
    ├── NotPermitted                   rejected while other workers are alive, or another crawl is unfinished
    │   └── WrongKeyType               … or because another program has written a key of the frontier
    └── CrawlEnded                     the crawl this worker wants to join has ended
"""

from __future__ import annotations

from typing import Any


class PrioQueueError(Exception):
    """Root of all errors that the package raises deliberately."""


class SettingError(PrioQueueError, ValueError):
    """A setting has a value that can't be used.

    Args:
        name: the setting, for example ``PRIOQUEUE_TIERS``.
        value: the value that was found.
        why: what is wrong with it and what would be right.
    """

    def __init__(self, name: str, value: Any, why: str) -> None:
        super().__init__(f"{name} = {value!r}: {why}")
        self.name = name
        self.value = value
        self.why = why


class RequestError(PrioQueueError, ValueError):
    """A request can't be given a place in the frontier (tier, priority, slot)."""

    def __init__(self, request: object, why: str) -> None:
        super().__init__(f"{request}: {why}")
        self.request = request
        self.why = why


class EncodeError(PrioQueueError, ValueError):
    """A request, or a value inside it, can't be written as bytes.

    Args:
        where: path of the offending value, for example ``meta['loader']``.
        why: what it is and why it can't be stored.
        kind: name of its type, with the module; stats count by it.
    """

    def __init__(self, where: str, why: str, kind: str) -> None:
        super().__init__(f"{where}: {why}")
        self.where = where
        self.why = why
        self.kind = kind


class DecodeError(PrioQueueError, ValueError):
    """Bytes can't be read as a request of this spider."""


class UnknownName(DecodeError):
    """Bytes name a callback, a class or a field that this process doesn't have; another version of the code may."""


class SeedError(PrioQueueError, ValueError):
    """An entry of a seeds key can't be made into a request; raise it in `make_request_from_seed()` to say why."""


class FrontierUnavailable(PrioQueueError):
    """The server can't be used now.

    Args:
        address: the server's URL without its password.
        why: the error of the connection or the server.
        was_sent: False if certainly nothing was sent.
    """

    def __init__(self, address: str, why: str, *, was_sent: bool = True) -> None:
        super().__init__(f"the frontier at {address} can't be used: {why}")
        self.address = address
        self.why = why
        self.was_sent = was_sent


class FrontierRefused(FrontierUnavailable):
    """The server refuses for a reason that doesn't pass by itself: a password, a permission, a key of another type."""


class FrontierFull(PrioQueueError):
    """The server refused a write because its memory is used up (``maxmemory``)."""


class RequestTooLarge(PrioQueueError):
    """The server, or a proxy in front of it, rejected a batch because one of its requests is too large."""


class LayoutMismatch(PrioQueueError):
    """The frontier holds requests written with another layout version or other tiers."""


class NotPermitted(PrioQueueError):
    """The frontier rejects what was asked, because of other workers or of an unfinished crawl."""


class WrongKeyType(NotPermitted):
    """A key of the frontier has another type than a frontier gives it.

    Args:
        key: its name.
        kind: its type in Redis.
        wanted: the type that it should have.
    """

    def __init__(self, key: str, kind: str, wanted: str) -> None:
        super().__init__(
            f"the key {key} is a {kind} and should be a {wanted}, so another program has written it:"
            " rename or delete that key, or use another PRIOQUEUE_NAME"
        )
        self.key = key


class CrawlEnded(PrioQueueError):
    """The crawl that this worker wants to join has ended already."""
