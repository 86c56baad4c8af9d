"""Tiers and ranks of requests."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from scrapy import Request

from scrapy_prioqueue.errors import RequestError
from scrapy_prioqueue.rank import nearest_priority, rank_of, tier_of
from scrapy_prioqueue.settings import TierRule

logger = logging.getLogger(__name__)

TIER_META = "prioqueue_tier"
"""`meta` key with the name of a request's tier."""

INHERITED_META = "prioqueue_inherited_tier"
"""Key in `meta` with the tier that a rule gave a request, and its depth; set while it is fetched, and not stored.

A redirect or a retry copies it with all of `meta` and so keeps the tier. A child that copies `meta` has another depth,
so it gets a tier of its own.
"""


class TierPolicy:
    """Gives requests their rank: by `meta`, else by the tier that a redirect or retry inherits, the rules, the default.

    Args:
        tiers: names of the tiers, best first.
        default: name of the tier of all other requests.
        rules: tried in order.
        is_quiet: log nothing.
    """

    def __init__(
        self, tiers: Sequence[str], default: str, rules: Sequence[TierRule] = (), *, is_quiet: bool = False
    ) -> None:
        self._tiers = tiers
        self._index = {tier: index for index, tier in enumerate(tiers)}
        self._default = default
        self._rules = rules
        self._is_quiet = is_quiet

    def rank(self, request: Request) -> int:
        """Return the rank of a request, the nearest possible one to its priority.

        Raises:
            RequestError: it names an unknown tier, or its priority is not a number.
        """
        tier = self._tier(request)
        index = self._index.get(tier) if isinstance(tier, str) else None
        if index is None:
            raise RequestError(
                request, f"meta[{TIER_META!r}] = {tier!r} is not in PRIOQUEUE_TIERS, {list(self._tiers)}"
            )
        try:
            return rank_of(index, request.priority)
        except ValueError:
            return rank_of(index, self._nearest_priority(request))

    def name_of(self, rank: int) -> str:
        """Return the name of a rank's tier, or of the nearest one if there is no such tier."""
        return self._tiers[max(0, min(tier_of(rank), len(self._tiers) - 1))]

    def mark(self, request: Request, rank: int) -> None:
        """Record in a request that is handed out the tier that its redirects and retries inherit."""
        if self._rules and TIER_META not in request.meta:
            request.meta[INHERITED_META] = (self.name_of(rank), request.meta.get("depth"))

    def _nearest_priority(self, request: Request) -> int:
        try:
            nearest = nearest_priority(request.priority)
        except ValueError as error:
            raise RequestError(request, str(error)) from None
        if nearest != request.priority and not self._is_quiet:
            self._is_quiet = True
            logger.warning(
                "%s is ordered as if its priority were %d: a priority must be an integer between -2**44 and"
                " 2**44, not %r. Further requests like it are not logged",
                request,
                nearest,
                request.priority,
            )
        return nearest

    def _tier(self, request: Request) -> object:
        meta = request.meta
        inherited = meta.get(INHERITED_META)
        if TIER_META in meta:
            return meta[TIER_META]
        # `meta` may have been copied from any request or set by the user, so the value is checked.
        if isinstance(inherited, (list, tuple)) and len(inherited) == 2 and inherited[1] == meta.get("depth"):
            return inherited[0]
        for rule in self._rules:
            if _matches(rule, request):
                return rule.tier
        return self._default


def _matches(rule: TierRule, request: Request) -> bool:
    if rule.url is not None and not rule.url.search(request.url):
        return False
    if rule.callback is None:
        return True
    callback = "parse" if request.callback is None else getattr(request.callback, "__name__", None)
    return rule.callback == callback
