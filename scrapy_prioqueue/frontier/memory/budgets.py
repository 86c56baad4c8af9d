"""The cost of requests by budget key, and whether another request fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from scrapy_prioqueue.frontier.base import Spent
from scrapy_prioqueue.frontier.labels import LABELLED, Label, label_of
from scrapy_prioqueue.frontier.policy import EVERY, Budget, Policy, merged

LABEL_MARK = bytes((LABELLED,))
"""First byte of a labelled payload."""


@dataclass(slots=True, eq=False)
class Used:
    """The cost of a key's requests."""

    pages: int = 0
    renders: int = 0
    bytes: int = 0
    time_ms: int = 0


class Budgets:
    """Counts the cost of labelled requests: pages and renders when they are leased, bytes and time when they end.

    `held` has the labels of leased requests.
    """

    def __init__(self) -> None:
        self.is_on = False
        self._caps: Mapping[str, Budget] = {}
        self._caps_of_others = Budget()
        self.used: dict[str, Used] = {}
        self.held: dict[int, Label] = {}

    def adopt(self, policy: Policy, leased: Iterable[tuple[int, bytes]]) -> None:
        """Apply the caps of this policy from now on; the cost so far is kept.

        Args:
            leased: ids and payloads of leased requests, which are counted when budgets are first switched on.
        """
        budgets = policy.budgets or {}
        self._caps_of_others = budgets.get(EVERY, Budget())
        self._caps = {key: merged(caps, self._caps_of_others) for key, caps in budgets.items()}
        if self.is_on or policy.budgets is None:
            return
        self.is_on = True
        for lease_id, payload in leased:
            self.charge(lease_id, payload)

    def excess(self, payload: bytes) -> tuple[str, str] | None:
        """Return the first exhausted key of a request with a description, None if the request fits all its budgets."""
        label = label_of(payload) if payload[:1] == LABEL_MARK else None
        if label is None or not self._caps:
            return None
        for key in label.keys:
            caps = self._caps.get(key, self._caps_of_others)
            over = _over(self.used.get(key) or Used(), caps, is_rendered=label.is_rendered)
            if over:
                return key, f"budget {key}: {over}"
        return None

    def charge(self, lease_id: int, payload: bytes) -> None:
        """Count a request that is leased, if it carries a label."""
        if self.is_on and payload[:1] == LABEL_MARK and (label := label_of(payload)) is not None:
            self.held[lease_id] = label
            self._count(label, 1)

    def give_back(self, lease_id: int) -> None:
        """Undo the count of a lease that ended without an ack or fail."""
        label = self.held.pop(lease_id, None)
        if label is not None:
            self._count(label, -1)

    def settle(self, lease_id: int, spent: Spent | None) -> None:
        """Add the cost of a request that is done or has failed."""
        label = self.held.pop(lease_id, None)
        if label is None or spent is None:
            return
        for key in label.keys:
            used = self.used.setdefault(key, Used())
            used.bytes += spent.bytes
            used.time_ms += spent.time_ms

    def _count(self, label: Label, change: int) -> None:
        for key in label.keys:
            used = self.used.setdefault(key, Used())
            used.pages += change
            used.renders += change if label.is_rendered else 0


def _over(used: Used, caps: Budget, *, is_rendered: bool) -> str:
    """Return which cap leaves no room for one more request, as text; empty if none."""
    if caps.pages is not None and used.pages + 1 > caps.pages:
        return f"pages {used.pages} of {caps.pages}"
    if is_rendered and caps.renders is not None and used.renders + 1 > caps.renders:
        return f"renders {used.renders} of {caps.renders}"
    if caps.bytes is not None and used.bytes >= caps.bytes:
        return f"bytes {used.bytes} of {caps.bytes}"
    if caps.seconds is not None and used.time_ms / 1000 >= caps.seconds:
        return f"seconds {used.time_ms / 1000:.12g} of {caps.seconds:.12g}"
    return ""
