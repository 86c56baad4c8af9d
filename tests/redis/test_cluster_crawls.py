"""A whole crawl in a cluster, with the rights that the documentation names."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest

from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.troubles import CLUSTER_RULES
from tests.redis.test_rights import FURTHER_KEYS, USERS, refusals
from tests.support.clusters import Cluster, call
from tests.support.crawls import Crawls
from tests.support.site import Site
from tests.support.whole_crawl import WholeCrawl

pytestmark = pytest.mark.any_server


def keys_of(name: str) -> Sequence[str]:
    return [Keys(name).state, f"{name}:start_urls", f"{name}:items"]


def test_whole_crawl_with_seeds_and_items_on_other_nodes_than_the_frontier(
    plain_crawls: Crawls, site: Site, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = len(cluster.primaries())
    names = (f"books-{number}" for number in count())
    name = next(name for name in names if len({cluster.primary_of(key).port for key in keys_of(name)}) == nodes)
    further = [key.replace("books", name) for key in FURTHER_KEYS]
    for node in cluster.nodes:
        rules = (*USERS["crawler"].split(), CLUSTER_RULES, *further)
        call(node, "ACL", "SETUSER", "crawler", "reset", "on", ">secret", *rules)
        call(node, "ACL", "LOG", "RESET")
    url = cluster.url.replace("//", "//crawler:secret@")
    crawls = plain_crawls.having(PRIOQUEUE_NAME=name, PRIOQUEUE_REDIS_URL=url, PRIOQUEUE_FALLBACK="error")
    whole = WholeCrawl(crawls, site, Link(cluster.url).client_of_all_keys(), tmp_path, capsys)

    whole.run()

    assert whole.keys() == keys_of(name)[1:]
    refused = [refusal for node in cluster.nodes for refusal in refusals(node.client())]
    # redis-py sends CLIENT SETINFO, which Redis 6.2 doesn't have and so can't allow.
    assert not [refusal for refusal in refused if not refusal.startswith("crawler: command client")]
    for node in cluster.nodes:
        call(node, "ACL", "DELUSER", "crawler")
