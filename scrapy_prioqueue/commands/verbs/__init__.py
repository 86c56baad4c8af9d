"""The verbs of `scrapy frontier`, one small module each; here is only the list, in the order of the help."""

from __future__ import annotations

from collections.abc import Sequence

from scrapy_prioqueue.commands.verb import Verb
from scrapy_prioqueue.commands.verbs.status import StatusVerb

VERBS: Sequence[type[Verb]] = (StatusVerb,)
