"""Registered domains of hosts, such as example.co.uk of www.example.co.uk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

from tldextract import TLDExtract

# Uses the list of suffixes that comes with the package, so a crawl doesn't fetch one.
_extract = TLDExtract(suffix_list_urls=(), cache_dir=None)


@lru_cache(maxsize=10_000)
def registered_domain(host: str) -> str:
    """Return the registered domain of a host; the host itself if there is none, for example for an IP address."""
    found = _extract(host)
    return f"{found.domain}.{found.suffix}" if found.domain and found.suffix else host


def by_domain(counts: Mapping[str, int]) -> Mapping[str, int]:
    """Return counts of hosts by their registered domains, the largest first."""
    found = Counter[str]()
    for host, count in counts.items():
        found[registered_domain(host)] += count
    return dict(found.most_common())
