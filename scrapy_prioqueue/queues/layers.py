"""Extraction layers: makes a request for the next one, and protects it from spider middlewares."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from scrapy import Request
from scrapy.crawler import Crawler

from scrapy_prioqueue.codec.blanks import twin_of
from scrapy_prioqueue.engine import StatCounter
from scrapy_prioqueue.frontier.base import DEAD_BY_ESCALATION
from scrapy_prioqueue.logs import CrawlLog
from scrapy_prioqueue.printable import in_a_line
from scrapy_prioqueue.queues import verdicts
from scrapy_prioqueue.queues.lineages import LINEAGE_META
from scrapy_prioqueue.queues.verdicts import Dead
from scrapy_prioqueue.settings import LAYER_META, Config, Layer
from scrapy_prioqueue.stats import ESCALATED_STAT, ESCALATED_TO_STAT
from scrapy_prioqueue.tiers import INHERITED_META

logger = logging.getLogger(__name__)

ESCALATION_META = "prioqueue_escalation"
"""Key in `meta` of a request from `escalate()` until it is scheduled; not stored."""

LAYER_KEPT_META = "prioqueue_layer_kept"
"""Key in `meta`: the request's own values that were replaced by its layer's `meta`."""

REASON_LENGTH = 100
"""Maximum length of a reason, which is part of a stat's name."""

_FOR_ONE_LAYER = (
    *("download_latency", "retry_times", "prioqueue_requeue_times"),
    *("redirect_times", "redirect_ttl", "redirect_urls", "redirect_reasons"),
    # A start request is served after others of its rank; this one must keep its position.
    "is_start_request",
)
"""Keys in `meta` about attempts on one layer; middlewares copy them into retries and redirects."""

_MISSING = object()


class Escalation:
    """A request on its way from its callback to the scheduler, past spider middlewares that treat it as a child.

    Args:
        meta: values to restore at the end.
        depth_priority: how much Scrapy lowers the priority with each step of depth.
        stats: stats that count it.
    """

    def __init__(self, meta: dict[str, Any], depth_priority: int, stats: Sequence[str]) -> None:
        self._meta = meta
        self._depth_priority = depth_priority
        self._stats = stats
        self.has_arrived = False

    def begin(self, request: Request) -> None:
        """Prevent middlewares from dropping the request as too deep, and from setting its page as its `Referer`."""
        request.meta.pop("depth", None)
        request.meta["depth_reset"] = True
        if "Referer" not in request.headers:
            request.meta["referrer_policy"] = "no-referrer"
        request.meta[ESCALATION_META] = self

    def end(self, request: Request, stats: StatCounter) -> None:
        """Undo the changes by middlewares and those made for them; count the page once, even for several requests."""
        for stat in () if self.has_arrived else self._stats:
            stats.count(stat)
        self.has_arrived = True
        request.priority += request.meta.get("depth", 0) * self._depth_priority
        for key, value in self._meta.items():
            if value is _MISSING:
                request.meta.pop(key, None)
            else:
                request.meta[key] = value


def arrive(request: Request, stats: StatCounter) -> None:
    """Restore and count a request of `escalate()` when it is scheduled; other requests are left unchanged."""
    escalation = request.meta.pop(ESCALATION_META, None)
    if isinstance(escalation, Escalation):
        escalation.end(request, stats)


@dataclass(eq=False, slots=True)
class _Handed:
    """A request in progress.

    Args:
        layers: of its spider.
        scheduled: returns the request as it was scheduled, given the one in progress.
        is_escalated: `escalate()` was called for it.
        escalation: the escalation of its request for the next layer; None if there is none, or it was given up.
    """

    layers: Layers
    scheduled: Callable[[Request], Request]
    is_escalated: bool = False
    escalation: Escalation | None = None


# For all crawls in this process, like the verdicts.
_handed: WeakKeyDictionary[Request, _Handed] = WeakKeyDictionary()


def next_layer(request: Request, reason: str) -> Request | None:
    """Return the request for the next layer; None if the page was escalated before, or is given up at the last layer.

    Raises:
        ValueError: no layers are set, or the request's layer doesn't exist.
    """
    handed = _handed.get(request)
    if handed is None:
        raise ValueError("escalate() needs the setting PRIOQUEUE_LAYERS")
    return handed.layers.escalate(request, handed, reason)


class Layers:
    """The layers of one spider."""

    def __init__(self, crawler: Crawler, config: Config) -> None:
        self._log = CrawlLog(logger, crawler.spider)
        self._layers: Sequence[Layer] = config.layers
        self.are_set = bool(config.layers)
        self._names = [layer.name for layer in config.layers]
        self._depth_priority = config.depth_priority

    def hand_out(self, request: Request, stored: Callable[[], Request] | None) -> None:
        """Note how a request was scheduled that is given to the engine now.

        Args:
            stored: reads it again; None for a request that is kept as an object.
        """
        scheduled = _with_meta(dict(request.meta)) if stored is None else lambda _: stored()
        _handed[request] = _Handed(self, scheduled)

    def escalate(self, request: Request, handed: _Handed, reason: str) -> Request | None:
        """Return the request for the next layer; None if it was escalated before, or is given up at the last one."""
        reason = " ".join(reason.split())[:REASON_LENGTH] or "unspecified"
        if handed.is_escalated:
            self._log.debug("%s has been escalated already; another reason: %s", in_a_line(request), in_a_line(reason))
            return None
        again = handed.scheduled(request)
        index = self._index(again)
        handed.is_escalated = True
        if index + 1 == len(self._layers):
            detail = f"the last layer, {self._names[index]!r}, failed: {reason}"
            self._log.error("Gave up %s: %s", in_a_line(request), in_a_line(detail))
            # Exhausted retries on this layer are not the reason any more.
            verdicts.retract_failed_download(request)
            verdicts.note_verdict(request, Dead(DEAD_BY_ESCALATION, detail))
            return None
        layer = self._layers[index + 1]
        self._leave(again, index)
        stats = (ESCALATED_STAT, ESCALATED_TO_STAT.replace("<layer>", layer.name).replace("<reason>", reason))
        handed.escalation = self._begin(request, again, layer, stats)
        self._log.debug("%s is escalated to layer %r: %s", in_a_line(request), layer.name, in_a_line(reason))
        return again

    def look_back(self, request: Request) -> None:
        """Check, when a request is done, whether its escalated request was scheduled; log a warning if it was not."""
        handed = _handed.pop(request, None)
        if handed is None or handed.escalation is None:
            return
        if handed.escalation.has_arrived:
            # The next layer has its own retries, so exhausted ones don't make the page a dead letter.
            verdicts.retract_failed_download(request)
        else:
            self._log.warning(
                "%s was not escalated: the request that the first call of escalate() returned was not scheduled."
                " The callback must yield it, and no spider middleware may drop it",
                in_a_line(request),
            )

    def _index(self, request: Request) -> int:
        name = request.meta.get(LAYER_META, self._names[0])
        if name not in self._names:
            raise ValueError(f"{request}: meta[{LAYER_META!r}] = {name!r} is not in PRIOQUEUE_LAYERS, {self._names}")
        return self._names.index(name)

    def _leave(self, again: Request, index: int) -> None:
        """Remove the layer's `meta` from a request, and restore the values that it replaced."""
        kept = again.meta.pop(LAYER_KEPT_META, None)
        # The `meta` of the first layer is never added to requests.
        for key in self._layers[index].meta if index else ():
            again.meta.pop(key, None)
        if isinstance(kept, dict):
            again.meta.update(kept)

    def _begin(self, request: Request, again: Request, layer: Layer, stats: Sequence[str]) -> Escalation:
        """Change a request as it was scheduled into the one for a layer, in place.

        Args:
            request: the one in progress.
            stats: stats that count it.
        """
        meta = again.meta
        for key in _FOR_ONE_LAYER:
            meta.pop(key, None)
        overwritten = {key: meta[key] for key in layer.meta if key in meta}
        meta.update(deepcopy(dict(layer.meta)))
        if overwritten:
            # It is stored with the request, since another worker may move the request to the following layer.
            meta[LAYER_KEPT_META] = overwritten
        meta[LAYER_META] = layer.name
        for key in (INHERITED_META, LINEAGE_META):
            # It keeps its tier, and its lineage.
            if key in request.meta:
                meta[key] = request.meta[key]
        again.dont_filter = True
        unchanged = {key: meta.get(key, _MISSING) for key in ("depth", "depth_reset", "referrer_policy")}
        escalation = Escalation(unchanged, self._depth_priority, stats)
        escalation.begin(again)
        return escalation


def _with_meta(meta: dict[str, Any]) -> Callable[[Request], Request]:
    def scheduled(request: Request) -> Request:
        again = twin_of(request)
        again.meta.clear()
        again.meta.update(meta)
        return again

    return scheduled
