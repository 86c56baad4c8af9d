"""Shared by verbs that change something: their operator and client, and the question before a change."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from scrapy.dupefilters import BaseDupeFilter
from scrapy.utils.misc import build_from_crawler, load_object

from scrapy_prioqueue.client import FrontierClient
from scrapy_prioqueue.client.plain_urls import Fingerprint
from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.output import number
from scrapy_prioqueue.commands.verb import FINE, NOTHING, WRONG_USE, Stop
from scrapy_prioqueue.dupefilter import DupeFilter, filters_by_frontier
from scrapy_prioqueue.errors import SettingError
from scrapy_prioqueue.frontier.base import suspect_attempts_of
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.operators.operator import CrawlPlan, Operator
from scrapy_prioqueue.frontier.redis.operators.seen_sets import identity_of as stored_identity
from scrapy_prioqueue.printable import clean
from scrapy_prioqueue.settings.readers import Reader
from scrapy_prioqueue.settings.scrapy_redis import is_scrapy_rediss_filter, is_set


def plan_of(context: Context) -> CrawlPlan:
    """Return the properties of a new crawl with these settings."""
    config = context.config
    has_on_finish = is_set(context.settings, "PRIOQUEUE_ON_FINISH") or config.on_finish != "restart"
    return CrawlPlan(
        config.tiers,
        order=config.order,
        on_finish=config.on_finish if has_on_finish else None,
        crawl_id=config.crawl_id or "",
        suspect_attempts=suspect_attempts_of(config.max_attempts),
        has_budgets=config.policy.budgets is not None,
        seen=config.seen,
        # Without the setting, fingerprints are stored in the worker's own frontier.
        seen_name=config.seen_name or config.name,
    )


def check_name(read: Reader, label: str, name: str) -> None:
    """Refuse a name that a setting with such names would refuse.

    Args:
        read: the reader of that setting, which is a dictionary by name.
        label: what the command calls the name.
    """
    try:
        read(label, {name: {}})
    except SettingError as error:
        raise Stop(error.why, WRONG_USE) from None


def operator_of(context: Context) -> Operator:
    """Return an `Operator` of the frontier."""
    return Operator(context.link, context.name, lease_ttl_s=context.config.lease_ttl_s)


def client_of(context: Context) -> FrontierClient:
    """Return a client that assigns tier and slot as the spider would."""
    config = context.config
    return FrontierClient(
        config.redis_url,
        context.name,
        plan=plan_of(context),
        default_tier=config.default_tier,
        tier_rules=config.tier_rules,
        fingerprint=identity_of(context),
        timeout_s=config.redis_timeout_s,
        options=config.redis_options,
    )


def identity_of(context: Context) -> Fingerprint:
    """Return the crawl's function from request to fingerprint; it returns None for requests that are not filtered.

    Raises:
        SettingError: the user's class of dupefilter or fingerprinter can't be used without a crawl.
    """
    settings = context.settings
    name, crawler = "DUPEFILTER_CLASS", context.crawler()
    is_ours = settings.getpriority(name) == 0 or is_scrapy_rediss_filter(settings[name])
    try:
        kind: type[BaseDupeFilter] = DupeFilter if is_ours else load_object(settings[name])
        dupefilter = build_from_crawler(kind, crawler)
    except Exception as error:  # the classes may be the user's
        raise SettingError(name, settings[name], f"can't be used here: {error!r}") from error
    if isinstance(dupefilter, DupeFilter) and filters_by_frontier(dupefilter):
        identity = stored_identity(context.link, Keys(context.name))
        if identity:
            dupefilter.identify_as(identity)
        return dupefilter.fingerprint
    return lambda request: None


def tier_index(context: Context, tiers: Sequence[str], wanted: str) -> int:
    """Return the index of a tier.

    Raises:
        Stop: the frontier has no such tier.
    """
    if wanted not in tiers:
        raise Stop(f"frontier {context.name!r} has no tier {wanted!r}; it has {', '.join(tiers)}", WRONG_USE)
    return tiers.index(wanted)


MOST_LEFT_OUT = 10
"""Number of texts about what was left out that are shown."""


class LeftOut:
    """Counts the requests that are left out, and keeps the texts about the first ones."""

    def __init__(self) -> None:
        self.count = 0
        self._texts: list[str] = []

    def add(self, text: str) -> None:
        self.count += 1
        if self.count <= MOST_LEFT_OUT:
            self._texts.append(text)

    def clear(self) -> None:
        self.count = 0
        self._texts.clear()

    def report(self) -> None:
        """Print the texts, and the number of further requests."""
        for text in self._texts:
            print(clean(f"left out: {text}"), file=sys.stderr)
        if self.count > MOST_LEFT_OUT:
            print(f"left out: {number(self.count - MOST_LEFT_OUT)} more", file=sys.stderr)


def add_confirmation(parser: ArgumentParser, *, can_be_tried: bool = False) -> None:
    """Add `--yes`, and `--dry-run` if the verb can be tried."""
    parser.add_argument("--yes", "-y", action="store_true", help="skip the question")
    if can_be_tried:
        parser.add_argument("--dry-run", action="store_true", help="only say what would change")


def confirm(context: Context, options: Namespace, what: str) -> None:
    """Ask the user to confirm a change; `what` says what would change.

    Raises:
        Stop: the user declines, there is no terminal to ask at, or `--dry-run` was given.
    """
    if getattr(options, "dry_run", False):
        context.output.show(f"would {what}")
        raise Stop("", FINE)
    if options.yes:
        return
    if not sys.stdin.isatty():
        raise Stop(f"this would {what}: --yes confirms it without a terminal", WRONG_USE)
    print(clean(f"{what[0].upper()}{what[1:]}? [y/N] "), end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        context.output.show("nothing was changed")
        raise Stop("", NOTHING)
