"""One simulated worker of a crawl of the site of listings, as a process; it prints what it has done as JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from hashlib import sha1

from listings import FRONT_PAGE, links_of
from simulated import Page, SimulatedWorker, until

from scrapy_prioqueue.frontier.base import FrontierConfig, Lease, Push
from scrapy_prioqueue.frontier.policy import Policy

TIERS = ("listings", "pages")
PAGE_S = (0.002, 0.01)
CONCURRENCY = 16
WITHIN_S = 3600.0


def push_of(path: str) -> Push:
    """Return the request for a page: listings go before all others, and pages belong to one of 20 hosts."""
    is_listing = path.startswith("/list/")
    slot = "listings.test" if is_listing else f"site-{len(path) * int(path.rpartition('/')[2]) % 20}.test"
    return Push(0 if is_listing else 2**45, slot, path.encode(), sha1(path.encode()).digest())


async def crawl(url: str, name: str, listings: int, high_water: int) -> dict[str, int]:
    """Take part in the crawl to its end."""
    fetched = 0

    def fetch(lease: Lease) -> Page:
        nonlocal fetched
        fetched += 1
        return Page(random.uniform(*PAGE_S), [push_of(link) for link in links_of(lease.payload.decode(), listings)])

    policy = Policy(high_water=high_water, low_water=high_water * 4 // 5, discovery=(0,) if high_water else ())
    config = FrontierConfig("links", TIERS, name, policy=policy)
    worker = SimulatedWorker(config, url, fetch, concurrency=CONCURRENCY)
    await worker.open()
    worker.push(push_of(FRONT_PAGE))
    await until(lambda: worker.has_ended, what="the end of the crawl", within_s=WITHIN_S)
    await worker.close()
    return {"pages": fetched, "most_pending": worker.most_pending, "most_leased": worker.most_leased}


def main() -> None:
    """Crawl from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="of the Redis server")
    parser.add_argument("name", help="of this worker")
    parser.add_argument("listings", type=int, help="how many listings the site has")
    parser.add_argument("high_water", type=int, help="pending requests from which on nothing is discovered, 0 for any")
    options = parser.parse_args()
    print(json.dumps(asyncio.run(crawl(options.url, options.name, options.listings, options.high_water))))


if __name__ == "__main__":
    main()
