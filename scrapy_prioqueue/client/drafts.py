"""Requests as callers of the client describe them, and how they are stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any

from scrapy import Request
from scrapy.utils.httpobj import urlparse_cached

from scrapy_prioqueue.client.plain_urls import Fingerprint, PlainUrls
from scrapy_prioqueue.codec.detached import DetachedCodec, named_callback
from scrapy_prioqueue.codec.reasons import brief
from scrapy_prioqueue.domains import registered_domain
from scrapy_prioqueue.errors import EncodeError, RequestError
from scrapy_prioqueue.frontier.base import Push
from scrapy_prioqueue.frontier.labels import Label, labelled
from scrapy_prioqueue.frontier.seen import SeenPolicy
from scrapy_prioqueue.hints import unknown_names
from scrapy_prioqueue.queues.budgets import BUDGET_META, label_for, with_label
from scrapy_prioqueue.queues.meta import (
    DELAY_META,
    DELAY_METAS,
    NOT_BEFORE_META,
    delay_of,
    rejection_of_meta,
    revisit_of,
)
from scrapy_prioqueue.settings.slot_names import why_too_long
from scrapy_prioqueue.tiers import INHERITED_META, TIER_META, TierPolicy

_NOT_STORED = frozenset({INHERITED_META}) | DELAY_METAS
_SLOT_KEY = "download_slot"
_ANY_URL = "https://shop.example/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A description of a request.

    Args:
        tier: name; None to let the rules or the default decide.
        callback: name of a method of the spider, None for `parse`.
        delay: seconds, or a timedelta, before it may be served.
        not_before: aware datetime, or Unix time in seconds, before which it is not served.
    """

    url: str
    tier: str | None = None
    priority: int = 0
    callback: str | None = None
    errback: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    cb_kwargs: Mapping[str, Any] = field(default_factory=dict)
    method: str = "GET"
    headers: Mapping[str, Any] = field(default_factory=dict)
    body: bytes | str = b""
    delay: float | timedelta | None = None
    not_before: datetime | float | None = None
    dont_filter: bool = False

    def request(self) -> Request:
        """Return the request.

        Raises:
            RequestError: a field is invalid.
        """
        why = self._why_of_another_type()
        if why is not None:
            raise RequestError(self.url, why)
        meta = dict(self.meta)
        rejection = rejection_of_meta(meta)
        if rejection is not None:
            raise RequestError(self.url, rejection)
        extras = ((TIER_META, self.tier), (DELAY_META, self.delay), (NOT_BEFORE_META, self.not_before))
        meta |= {key: value for key, value in extras if value is not None}
        try:
            return Request(
                self.url,
                callback=named_callback(self.callback),
                errback=named_callback(self.errback),
                method=self.method,
                headers=self.headers,
                body=self.body,
                meta=meta,
                cb_kwargs=dict(self.cb_kwargs),
                priority=self.priority,
                dont_filter=self.dont_filter,
            )
        except (TypeError, ValueError, AttributeError) as error:
            # Scrapy's own text calls the scheme of mailto:a@b.example missing.
            is_other = str(error).startswith("Missing scheme")
            why = "a URL must begin with a scheme and ://, such as https://" if is_other else str(error)
            raise RequestError(self.url, why) from error

    def _why_of_another_type(self) -> str | None:
        """Return which field has a wrong type, None if none has; Scrapy checks the others."""
        for name, text in (("tier", self.tier), ("callback", self.callback), ("errback", self.errback)):
            if text is not None and not isinstance(text, str):
                return f"{name} must be a string, not {brief(text)}"
        for name, mapping in (("meta", self.meta), ("cb_kwargs", self.cb_kwargs), ("headers", self.headers)):
            if not isinstance(mapping, Mapping):
                return f"{name} must be a mapping, in JSON an object, not {brief(mapping)}"
        for name, content in self.headers.items():
            parts = content if isinstance(content, (list, tuple)) else [content]
            if not all(isinstance(part, (str, bytes, int)) or part is None for part in parts):
                return f"headers[{brief(name)}] must be a string or a list of strings, not {brief(content)}"
        if not isinstance(self.method, str) or not self.method.isascii():
            return f"method {brief(self.method)} is not an HTTP method"
        if isinstance(self.priority, bool):
            return f"priority must be an integer, not {brief(self.priority)}"
        if not isinstance(self.dont_filter, bool):
            return f"dont_filter must be true or false, not {brief(self.dont_filter)}"
        return None


Item = str | Request | Draft | Mapping[str, Any]
"""A request to push: a URL, a Scrapy request, a draft, or the fields of a draft by name."""

_PARTS = tuple(part.name for part in fields(Draft))


def draft_of(parts: Mapping[str, Any], shared: Mapping[str, Any]) -> Draft:
    """Return a draft of these fields and those that all requests share; None counts as missing.

    Raises:
        RequestError: a field is unknown, or there is no URL.
    """
    unknown = [name for name in (*parts, *shared) if name not in _PARTS]
    if unknown or not isinstance(parts.get("url"), str):
        why = unknown_names(unknown, _PARTS) if unknown else "a request needs a url"
        raise RequestError(dict(parts), why)
    return Draft(**{name: value for given in (shared, parts) for name, value in given.items() if value is not None})


class PushMaker:
    """Makes pushes of requests.

    Args:
        fingerprint: the fingerprinter of the spider.
        shared: fields of all requests that are given as URLs or mappings.
        has_rules: whether the tier may depend on the URL.
        has_budgets: whether all requests are labelled with their budget keys; otherwise only those that name keys are.
        seen: how the frontier remembers fingerprints.
    """

    def __init__(
        self,
        policy: TierPolicy,
        fingerprint: Fingerprint,
        shared: Mapping[str, Any],
        *,
        has_rules: bool,
        has_budgets: bool = False,
        seen: SeenPolicy | None = None,
    ) -> None:
        self._policy = policy
        self._seen = seen
        self._has_budgets = has_budgets
        self._fingerprint = fingerprint
        self._shared = shared
        self._codec = DetachedCodec()
        self._model: Push | None = None
        try:
            model = draft_of({"url": _ANY_URL}, shared).request()
            if TIER_META in model.meta or not has_rules:
                self._prepare(model)
        except RequestError as error:
            # The shared fields are wrong, so the error names no request.
            raise RequestError("push", error.why) from error

    def _prepare(self, model: Request) -> None:
        stored = model.replace(meta={key: value for key, value in model.meta.items() if key not in _NOT_STORED})
        own_slot = model.meta.get(_SLOT_KEY)
        self._slot = None if own_slot is None else str(own_slot)
        self._plain = PlainUrls(self._codec, stored, self._fingerprint, self._slot)
        self._label = label_for(model) if self._is_labelled(model) else None
        self._has_own_budget = model.meta.get(BUDGET_META) is not None
        if self._plain.is_usable:
            self._model = self._push(model)

    def make_all(
        self, items: Iterable[Item], skip: Callable[[RequestError | EncodeError], object] | None = None
    ) -> Iterator[Push]:
        """Yield the pushes for items.

        Args:
            skip: called with the error of an item that is left out; None to raise it.
        """
        for item in items:
            try:
                made = self.make(item)
            except (RequestError, EncodeError) as error:
                if skip is None:
                    raise
                skip(error)
            else:
                yield made

    def make(self, item: Item) -> Push:
        """Return the push for an item.

        Raises:
            RequestError: it is not a request, or its tier, priority or slot is invalid.
            EncodeError: a part of it can't be stored.
        """
        if isinstance(item, str):
            return self._plain_push(item) or self._push(draft_of({"url": item}, self._shared).request())
        if isinstance(item, Request):
            return self._push(item)
        if isinstance(item, Draft):
            return self._push(item.request())
        if isinstance(item, Mapping):
            return self._push(draft_of(item, self._shared).request())
        raise RequestError(item, "it is neither a URL, a request nor a mapping")

    def _plain_push(self, url: str) -> Push | None:
        model = self._model
        made = None if model is None else self._plain.make(url)
        if model is None or made is None:
            return None
        payload, fingerprint, host = made
        if why_too_long(host, is_named=False) is not None:
            return None
        slot = host if self._slot is None else self._slot
        if self._label is not None:
            keys = self._label.keys if self._has_own_budget else [registered_domain(host)]
            payload = labelled(payload, Label(self._label.is_rendered, keys))
        return replace(model, slot=slot, payload=payload, fingerprint=fingerprint)

    def _is_labelled(self, request: Request) -> bool:
        return self._has_budgets or request.meta.get(BUDGET_META) is not None

    def _push(self, request: Request) -> Push:
        rank, delay = self._policy.rank(request), delay_of(request)
        own_slot = request.meta.get(_SLOT_KEY)
        slot = str(urlparse_cached(request).hostname or "" if own_slot is None else own_slot)
        is_too_long = why_too_long(slot, is_named=own_slot is not None)
        if is_too_long is not None:
            raise RequestError(request, is_too_long)
        payload = self._codec.encode(request, slot, without_meta=_NOT_STORED)
        if self._is_labelled(request):
            payload = with_label(request, payload)
        fingerprint = None if request.dont_filter else self._fingerprint(request)
        return Push(
            *(rank, slot, payload, fingerprint),
            delay_ms=delay.delay_ms,
            not_before_ms=delay.not_before_ms,
            revisit_s=revisit_of(request, self._seen),
        )
