"""A site with the shape of a tree, and checks of the frontier and the site's log after a crawl."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from shop_chaos.view import FrontierView

from tests.support.crawls import CrawlResult
from tests.support.site import Link, Page, Site, link


@dataclass(frozen=True)
class Tree:
    """Pages of which each is linked from one other, but for the starts.

    Args:
        starts: paths from which a crawl begins.
        children: paths that a page links to.
        callbacks: names of those that are not `parse`, by path.
    """

    starts: Sequence[str]
    children: Mapping[str, Sequence[str]] = field(default_factory=dict)
    callbacks: Mapping[str, str] = field(default_factory=dict)

    @property
    def pages(self) -> Sequence[str]:
        """All paths."""
        return [*self.starts, *self._children_of(self.children)]

    def grow(self, site: Site, *, delay_s: float = 0.1, gate: threading.Event | None = None) -> None:
        """Add these pages to the site; the gate holds back those without links."""
        for path in self.pages:
            links = [self._link(child) for child in self.children.get(path, ())]
            site.pages[path] = Page(links, delay_s=delay_s, gate=None if links else gate)

    def check_all_is_told(self, view: FrontierView, stopped: CrawlResult, *, put_back: Collection[str] = ()) -> None:
        """Check that what the crawl has found and not fetched is pending, all else done or dead, and nothing leased.

        Args:
            put_back: pages that are to be fetched once more.
        """
        accepted = view.check_books()
        found, fetched, counts = _paths(stopped.scheduled), stopped.pages, view.counts()
        assert view.leased_urls() == []
        assert _paths(view.pending_urls()) == sorted(set(found) - set(fetched) | set(put_back))
        ended = counts.get("done", 0) + counts.get("dead", 0)
        assert (accepted, ended) == (len(found) + len(put_back), len(fetched))

    def check_nothing_is_lost(self, view: FrontierView, stopped: CrawlResult) -> Sequence[str]:
        """Check that the frontier leads to all that the crawl has not finished; return what is leased.

        What was found on a page that is leased still may be known to nobody but that page, which is fetched again,
        and a start request to nobody but `start()`, which is read again.
        """
        view.check_books()
        pending, leased = _paths(view.pending_urls()), _paths(view.leased_urls())
        print(f"pending: {pending}\nleased: {leased}")
        assert not set(pending) & set(leased)
        finished = [item["page"] for item in stopped.items]
        found_again = {*self._children_of(leased), *self.starts}
        assert set(_paths(stopped.scheduled)) <= {*finished, *pending, *leased} | found_again
        return leased

    def check_all_is_fetched(self, site: Site, *, again: Collection[str] = ()) -> None:
        """Check that each page was asked for, and none but these more than once."""
        visits = Counter(visit.path for visit in site.visits)
        assert set(visits) == set(self.pages)
        assert {path for path, count in visits.items() if count > 1} <= set(again)

    def _children_of(self, paths: Collection[str]) -> Sequence[str]:
        return [child for path in paths for child in self.children.get(path, ())]

    def _link(self, path: str) -> Link:
        return link(path, callback=self.callbacks[path]) if path in self.callbacks else path


def tree_of(branches: int, leaves: int, **callbacks: str) -> Tree:
    """Return a root with branches that have so many leaves each; the callbacks are by name of a branch: `b3="…"`."""
    children = {f"/b{branch}": [f"/b{branch}/{leaf}" for leaf in range(leaves)] for branch in range(branches)}
    return Tree(["/"], {"/": [*children], **children}, {f"/{branch}": name for branch, name in callbacks.items()})


def starts_of(number: int) -> Tree:
    """Return so many start pages that lead nowhere."""
    return Tree([f"/{start}" for start in range(number)])


def _paths(urls: Sequence[str]) -> list[str]:
    return sorted(urlsplit(url).path for url in urls)
