"""The dashboard's own samples of a crawl, which continue the history that workers write every few seconds."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from scrapy_prioqueue.frontier.redis.operators.findings import Status
from scrapy_prioqueue.frontier.redis.operators.history import Sample, with_rates

MOST_SAMPLES = 400
"""Maximum number of samples; when there are more, every second one is dropped."""


class Seen:
    """The samples of the newest crawl that this process has taken; safe to use from several threads."""

    def __init__(self) -> None:
        self._epoch = ""
        self._step_ms = 1
        self._lock = threading.Lock()
        self.samples: list[Sample] = []

    def add(self, status: Status) -> None:
        """Add a sample of a summary, unless the last one is too recent."""
        state, counts, tiers = status.state, status.counts, tuple(tier.pending for tier in status.tiers)
        # Time goes on after the end of a crawl, but nothing changes.
        ms = state.ended_ms if state.has_ended else status.now_ms
        with self._lock:
            if state.epoch != self._epoch:
                self._epoch, self._step_ms, self.samples = state.epoch, 1, []
            if self.samples and ms < self.samples[-1].ms + (1 if state.has_ended else self._step_ms):
                return
            self.samples.append(
                Sample(ms, counts["accepted"], delayed=counts["delayed"], done=counts["done"], tiers=tiers)
            )
            if len(self.samples) > MOST_SAMPLES:
                self.samples = self.samples[::2]
                self._step_ms = max(1, (self.samples[-1].ms - self.samples[0].ms) // (len(self.samples) - 1))


def continued(recorded: Sequence[Sample], seen: Sequence[Sample]) -> Sequence[Sample]:
    """Return the recorded samples, then the later ones of this process, with the rates between them."""
    last_ms = recorded[-1].ms if recorded else -1
    return with_rates([*recorded, *(sample for sample in seen if sample.ms > last_ms)])
