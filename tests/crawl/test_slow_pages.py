"""Pages that never end: a closing worker releases them, and another run fetches them."""

from __future__ import annotations

import signal
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from scrapy.http import Response

from tests.crawl.spiders import Follower, pause
from tests.support.crawls import Crawls
from tests.support.site import Site, leaves, link


class Hanging(Follower):
    """Has a callback that never ends, in the first process that comes to it.

    Args:
        mark: path of a file by which others know that they aren't the first.
    """

    name = "hanging"
    mark: str

    async def parse_hanging(self, response: Response) -> AsyncIterator[Any]:
        """Do what `parse` does, or never."""
        mark = Path(self.mark)
        is_first = not mark.exists()
        mark.touch()
        while is_first:
            await pause(0.2)
        for result in self.parse(response):
            yield result

    def parse_blocking(self, response: Response) -> Any:
        """Do what `parse` does, or block the event loop for ever."""
        mark = Path(self.mark)
        is_first = not mark.exists()
        mark.touch()
        if is_first:
            threading.Event().wait()
        return self.parse(response)


class HangingPipeline:
    """Never lets go of the items of one page in a process in which a page hangs."""

    async def process_item(self, item: Any, *_: Any) -> Any:
        while item["page"] == "/kept":
            await pause(0.2)
        return item


def test_a_worker_that_closes_does_not_wait_for_what_never_ends(crawls: Crawls, site: Site, tmp_path: Path) -> None:
    starts = ["/1", "/2", link("/hung", callback="parse_hanging"), "/kept"]
    site.pages = {"/hung": ["/last"], **leaves("/1", "/2", "/kept", "/last")}
    settings = {"PRIOQUEUE_SLOW_PAGE": 1.0, "PRIOQUEUE_CLOSE_TIMEOUT": 2.0}
    pipelines = {"ITEM_PIPELINES": {"tests.crawl.test_slow_pages.HangingPipeline": 1}}
    mark = str(tmp_path / "mark")

    first = crawls.start(*starts, spider=Hanging, mark=mark, settings={**settings, **pipelines})
    first.wait_for("item", "/1", "/2")
    first.wait_for("asked", "/hung", "/kept")
    first.process.send(signal.SIGTERM)
    stopped = first.wait(troubles=True)

    assert (stopped.reason, stopped.exit_code) == ("shutdown", 0)
    named = " ".join(stopped.lines("Closing without"))
    assert "/hung> (callback parse_hanging)" in named
    assert "/kept> (callback parse)" in named
    assert stopped.stats["prioqueue/abandoned"] == 2
    assert not stopped.lines("Traceback")
    if "scheduler/enqueued/redis" in stopped.stats:
        assert len(stopped.lines("it is released and will be fetched again")) == 2
        resumed = crawls.run(*starts, spider=Hanging, mark=mark)
        assert sorted(resumed.pages) == ["/hung", "/kept", "/last"]
        assert resumed.reason == "finished"
    else:
        assert len(stopped.lines("lost with this process")) == 2
