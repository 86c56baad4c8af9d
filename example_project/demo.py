"""One crawl, two workers, one kill -9: starts on loopback all that this takes, judges the outcome and prints it."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from children import Children, DemoFailed, wait_until
from ledger import Ledger
from redis_server import RedisServer, RedisServerError
from shop_site.catalogue import Page
from summary import Crawl, Kill, Tally, judge, tell

PAGE = "http://127.0.0.1:8765/"
"""Where `make demo-dashboard` shows a crawl."""

WORKERS = ("worker-1", "worker-2")
VICTIM = WORKERS[0]
KILL_AFTER = 1 / 3
"""Share of the pages that are fetched when the victim is killed."""


class Demo:
    """The crawl, from the first process to the tally.

    Args:
        directory: for logs, lists and items.
        redis: the server that holds the frontier.
        children: start the site and the workers.
        options: the command line.
    """

    # Were the crawl over before the killed worker is back, it would otherwise begin the next one.
    crawl_settings: Sequence[str] = ("PRIOQUEUE_CRAWL_ID=demo",)

    def __init__(self, directory: Path, redis: RedisServer, children: Children, options: argparse.Namespace) -> None:
        self._ledger = Ledger(directory)
        self._redis = redis
        self._children = children
        self._options = options
        self._deadline = time.monotonic() + options.within

    def run(self) -> tuple[Crawl, Tally]:
        """Start site and workers, kill one of them, start it again, wait for the end and judge.

        Raises:
            DemoFailed: a process failed, or the deadline passed.
        """
        pages = self._open_shop()
        started_s = time.time()
        for worker in WORKERS:
            self._start(worker, pages)
        say(f"{' and '.join(WORKERS)} are started")
        kill = self._kill_and_return(pages)
        self._wait_until(lambda: self._children.have_ended(*WORKERS), what="all workers have ended")
        ended_s = time.time()
        say("all workers have ended")
        crawl = Crawl(pages, self._ledger.visits, self._ledger.items, kill, started_s, ended_s)
        return crawl, judge(crawl)

    def _open_shop(self, **options: float) -> Sequence[Page]:
        ledger = self._ledger
        options |= {"products": self._options.products, "seed": self._options.seed}
        self._children.start("site", *ledger.site_command(**options))
        self._wait_until(
            lambda: ledger.page_list.exists() or self._children.have_ended("site"), what="the shop is open"
        )
        pages = ledger.pages
        say(f"the shop is open, {len(pages)} pages at {pages[0].url}; Redis is at {self._redis.url}")
        return pages

    def _start(self, worker: str, pages: Sequence[Page]) -> None:
        settings = [
            f"SHOP_URL={pages[0].url}",
            f"SHOP_ITEMS={self._ledger.items_directory}",
            f"PRIOQUEUE_REDIS_URL={self._redis.url}",
            f"PRIOQUEUE_WORKER_ID={worker}",
            *self.crawl_settings,
            *self._options.settings,
        ]
        options = [word for setting in settings for word in ("-s", setting)]
        self._children.start(worker, "-m", "scrapy", "crawl", "shop", *options)

    def _kill_and_return(self, pages: Sequence[Page]) -> Kill:
        enough = len(pages) * KILL_AFTER

        def is_time_to_kill() -> bool:
            if self._children.have_ended(VICTIM):
                raise DemoFailed(f"{VICTIM} ended with only {self._ledger.fetched} of {len(pages)} pages fetched")
            return self._ledger.fetched >= enough

        self._wait_until(is_time_to_kill, what="a third of the pages is fetched")
        pid, time_s = self._children.kill(VICTIM), time.time()
        fetched = self._ledger.fetched
        say(f"kill -9 of {VICTIM}, process {pid}, with {fetched} pages fetched")
        self._start(VICTIM, pages)
        say(f"{VICTIM} is started again")
        return Kill(VICTIM, pid, time_s, fetched, returned_s=time.time())

    def _wait_until(self, condition: Callable[[], bool], *, what: str) -> None:
        wait_until(condition, what=what, deadline=self._deadline)


def say(what: str) -> None:
    """Print what has just happened."""
    print(f"{time.strftime('%H:%M:%S')}  {what}", flush=True)


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--products", type=int, default=600, help="how many products the shop sells")
    parser.add_argument("--seed", type=int, default=7, help="another seed makes another shop")
    parser.add_argument("--within", type=float, default=90, help="seconds after which the demo has failed")
    parser.add_argument("--keep", type=Path, help="new directory for logs and items, else they are thrown away")
    parser.add_argument(
        "-s", dest="settings", action="append", default=[], metavar="NAME=VALUE", help="a setting for both workers"
    )
    options = parser.parse_args()
    if options.keep and options.keep.exists():
        parser.error(f"{options.keep} exists, and may hold the logs of another run")
    return options


def run_demo(options: argparse.Namespace) -> bool:
    """Run the demo, print what comes out, and return whether it is as it should be.

    Raises:
        RedisServerError: there is no Redis server, or it doesn't start.
    """
    with ExitStack() as stack:
        directory = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prioqueue-demo-")))
        directory = directory.resolve()
        directory.mkdir(parents=True, exist_ok=True)
        redis = stack.enter_context(RedisServer(directory / "redis", appendonly=True))
        children = stack.enter_context(Children(directory))
        try:
            crawl, tally = Demo(directory, redis, children, options).run()
        except DemoFailed as failure:
            print(f"{children.tails()}\n\nThe demo failed: {failure}.", file=sys.stderr)
            return False
        if not tally.is_good:
            print(children.tails(), file=sys.stderr)
        print(f"\n{tell(crawl, tally)}\n\nTo see a crawl on a page: make demo-dashboard, then {PAGE}")
        return tally.is_good


def main() -> int:
    """Run the demo from the command line and return its exit code."""
    options = parse_options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ended by Ctrl-C or by kill: the children go first
    try:
        return 0 if run_demo(options) else 1
    except RedisServerError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
