"""One thing about a spider that matters with several workers, where it is, and the pattern that works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scrapy_prioqueue.checking.code import Place
from scrapy_prioqueue.frontier.redis.operators.doctor import Finding, Severity

PAGE = "Is my spider ready?"
"""Title of the page about the code of spiders."""

PATTERNS: Mapping[str, str] = {
    "callbacks-and-values": "use methods of the spider as callbacks, and plain data in meta and cb_kwargs",
    "pass-values-with-the-request": "pass the value on in cb_kwargs",
    "count-in-the-request": "take the number from the page or pass it on in cb_kwargs",
    "yield-the-whole-list": "yield all requests at once; the frontier keeps them, in order",
    "a-second-phase": "yield the later requests at once with a lower tier, or run a second spider on the results",
    "collect-in-a-pipeline": "yield an item for each page, and join them in a pipeline or afterwards",
    "each-thing-once": "leave duplicate requests to the frontier, and drop duplicate items where they are stored",
    "flags-and-limits": "use budgets, which hold for all workers, and stop a chain by not yielding its next request",
    "totals": "add up the stats or items of all workers, or look at scrapy frontier status",
    "logins-and-tokens": "set PRIOQUEUE_HOLD_UNTIL_START = True, so that each worker logs in",
    "cookie-sessions": 'nothing to do; without need of cookies set PRIOQUEUE_COOKIEJARS = "shared"',
    "files-databases-and-browsers": "yield items, and let feeds or a pipeline write them",
    "one-object-in-several-requests": "chain the requests and pass the object on, or join its parts in a pipeline",
    "one-frontier-for-each-crawl": "put what differs into PRIOQUEUE_NAME",
    "samples": "give a URL that the spider can read, and the name of its method with --callback",
    "start": "rename it to `async def start(self)`, with a yield for each request",
    "endless-starts": 'set PRIOQUEUE_START = "each"',
}
"""What to do, in a sentence, by the anchor of its section on `PAGE`."""


@dataclass(frozen=True, slots=True)
class CodeFinding(Finding):
    """A finding about the code or the settings of a spider.

    The severities mean: wrong, with several workers pages or items are missing or have wrong values, or requests stay
    in one worker, or Scrapy never calls a method; warning, things are done once for each worker; note, good to know.

    Args:
        file: path of the source; empty for a finding about settings.
        line: 0 without a file.
        section: of the pattern that works, as an anchor of `PAGE`.
    """

    file: str = ""
    line: int = 0
    section: str = ""

    @property
    def link(self) -> str:
        """Where the pattern is described, in words: who has only installed the package has no files of it."""
        return f'see "{self.section.replace("-", " ").capitalize()}" in the documentation, {PAGE}'


def found(
    severity: Severity, topic: str, text: str, section: str, place: Place = ("", 0), *, remedy: str = ""
) -> CodeFinding:
    """Return a finding with the remedy of its section, unless another one is given."""
    return CodeFinding(topic, severity, text, remedy or PATTERNS[section], *place, section)
