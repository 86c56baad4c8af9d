"""Command line of the shop: ``python -m shop_site --help``."""

from __future__ import annotations

import argparse
import asyncio
from contextlib import suppress
from pathlib import Path

from shop_site.catalogue import Catalogue
from shop_site.records import AccessLog, write_pages
from shop_site.server import Shop, listen, loopback_hosts


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m shop_site",
        description="Serve a shop on loopback until interrupted.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--port", type=int, default=8880, help="the same on all hosts; 0 for a free one")
    parser.add_argument("--hosts", type=int, default=3, help="how many of 127.0.0.1, 127.0.0.2, … to spread over")
    parser.add_argument("--addresses", help="this machine's addresses to serve on instead, with commas between them")
    parser.add_argument("--products", type=int, default=600, help="how many products to sell")
    parser.add_argument("--seed", type=int, default=7, help="another seed makes another shop")
    parser.add_argument("--latency", type=float, default=0.1, help="usual seconds until a page answers")
    parser.add_argument("--log", type=Path, default="access.jsonl", help="the access log, continued if it exists")
    parser.add_argument("--pages", type=Path, help="file for the list of all pages, there once the shop is open")
    return parser.parse_args()


async def keep_open(options: argparse.Namespace) -> None:
    """Open the shop, say where it is, and serve until cancelled."""
    hosts = options.addresses.split(",") if options.addresses else loopback_hosts(options.hosts)
    sockets = listen(hosts, options.port)
    port = sockets[0].getsockname()[1]
    origins = [f"http://{host}:{port}" for host in hosts]
    catalogue = Catalogue(origins, products=options.products, seed=options.seed, latency_s=options.latency)
    shop = Shop(catalogue, AccessLog(options.log))
    if options.pages:
        write_pages(options.pages, catalogue.pages.values())
    print(f"{len(catalogue.pages)} pages at {', '.join(origins)}", flush=True)
    await shop.serve(sockets)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(keep_open(parse_options()))
