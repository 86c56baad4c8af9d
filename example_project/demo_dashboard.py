"""A demo of the dashboard: workers crawl a shop, and one is killed now and then, until Ctrl-C."""

from __future__ import annotations

import argparse
import random
import secrets
import signal
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from children import Children, DemoFailed, wait_until
from demo import Demo, say
from redis_server import RedisServer, RedisServerError

WORKERS = ("worker-1", "worker-2", "worker-3")
LATENCY_S = 0.3
KILL_EVERY_S = 20.0
BACK_AFTER_S = 8.0
AGAIN_AFTER_S = 10.0
"""From the end of a crawl to the next one."""

SETTINGS = (
    'ADDONS={"scrapy_prioqueue.Addon": 500}',
    'PRIOQUEUE_SLOTS={"*": {"concurrency": 4}}',
    # Some of the shop's pages fail twice, so there are dead letters to look at.
    "RETRY_TIMES=1",
)


class DashboardDemo(Demo):
    """Starts one crawl after the other, and the dashboard that shows them."""

    crawl_settings = SETTINGS

    def show(self) -> None:
        """Crawl, kill workers and start them again, until a signal raises `KeyboardInterrupt`.

        Raises:
            DemoFailed: a process failed.
        """
        pages = self._open_shop(latency=LATENCY_S)
        self._open_page()
        kill_at, start_at = time.monotonic() + KILL_EVERY_S, dict.fromkeys(WORKERS, 0.0)
        pause = threading.Event()
        while True:
            now = time.monotonic()
            for worker in [worker for worker, at in start_at.items() if at <= now]:
                del start_at[worker]
                self._start(worker, pages)
                say(f"{worker} is started")
            running = [worker for worker in WORKERS if worker not in start_at]
            for worker in [worker for worker in running if self._children.have_ended(worker)]:
                say(f"{worker} has ended")
                start_at[worker] = now + AGAIN_AFTER_S
                running.remove(worker)
            if running and now > kill_at:
                victim = random.choice(running)
                say(f"kill -9 of {victim}, process {self._children.kill(victim)}")
                start_at[victim], kill_at = now + BACK_AFTER_S, now + KILL_EVERY_S
            pause.wait(0.2)

    def _open_page(self) -> None:
        where = ("--url", self._redis.url, "--name", "shop", "--port", str(self._options.port))
        self._children.start("page", "-m", "scrapy", "frontier", "dashboard", *where)
        wait_until(
            lambda: " is at " in self._children.log("page") or self._children.have_ended("page"),
            what="the dashboard is served",
            deadline=time.monotonic() + 60,
        )
        address = self._children.log("page").partition(" is at ")[2].strip()
        say(f"the crawl is shown at {address} (token for changes: {self._options.token}); Ctrl-C ends all of it")


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--products", type=int, default=3000, help="how many products the shop sells")
    parser.add_argument("--port", type=int, default=8765, help="port of the dashboard; 0 for any free port")
    parser.set_defaults(seed=7, within=90, settings=[], token=secrets.token_hex(12))
    return parser.parse_args()


def main() -> int:
    """Run the demo from the command line and return its exit code."""
    options = parse_options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ended by Ctrl-C or by kill: the children go first
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prioqueue-demo-"))).resolve()
        try:
            redis = stack.enter_context(RedisServer(directory / "redis", appendonly=True))
            children = stack.enter_context(Children(directory, {"PRIOQUEUE_DASHBOARD_TOKEN": options.token}))
            DashboardDemo(directory, redis, children, options).show()
        except DemoFailed as failure:
            print(f"{children.tails()}\n\nThe demo failed: {failure}.", file=sys.stderr)
        except RedisServerError as error:
            print(error, file=sys.stderr)
        except KeyboardInterrupt:
            say("ending everything")
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
