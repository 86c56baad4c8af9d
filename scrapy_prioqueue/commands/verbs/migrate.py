"""`scrapy frontier migrate-from-scrapy-redis` and `migrate-from-jobdir`: crawls that were begun elsewhere."""

from __future__ import annotations

import shlex
from abc import abstractmethod
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from scrapy import Request, Spider

from scrapy_prioqueue.client.drafts import PushMaker
from scrapy_prioqueue.client.plain_urls import Fingerprint
from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.output import counted, number, warn
from scrapy_prioqueue.commands.progress import working
from scrapy_prioqueue.commands.verb import FINE, NO_SERVER, NOTHING, WRONG_USE, Stop, Verb
from scrapy_prioqueue.commands.verbs.transfer import so_far
from scrapy_prioqueue.commands.writing import LeftOut, identity_of, plan_of
from scrapy_prioqueue.errors import FrontierUnavailable
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.importer import Imported, Importer
from scrapy_prioqueue.frontier.redis.operators.records import Record, checked
from scrapy_prioqueue.frontier.redis.seen.offers import offers_by
from scrapy_prioqueue.frontier.redis.seen.shapes import shape_text
from scrapy_prioqueue.hints import frontier_command
from scrapy_prioqueue.moving.jobdir import JobDir
from scrapy_prioqueue.moving.records import WAYS, Mover
from scrapy_prioqueue.moving.scrapy_redis import ScrapyRedisCrawl
from scrapy_prioqueue.moving.serialized import PickleRefused
from scrapy_prioqueue.moving.source import Source
from scrapy_prioqueue.queues.starts import StartRequests
from scrapy_prioqueue.settings.scrapy_redis import is_set, keys_of_crawl, order_of_list
from scrapy_prioqueue.tiers import TierPolicy

_PER_PROGRESS = 1000
_ANY_URL = "https://shop.example/"


class _MigrateVerb(Verb):
    is_read = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="read and check everything, but change nothing")
        parser.add_argument("--skip-bad", action="store_true", help="leave out requests that can't be moved")
        parser.add_argument(
            "--fingerprints",
            choices=list(WAYS),
            help="how the fingerprints were computed (default: found by comparing them with pending requests)",
        )
        parser.add_argument(
            "--allow-unmatched",
            action="store_true",
            help="move pending requests although their fingerprints aren't stored",
        )
        parser.add_argument(
            "--starts-again", action="store_true", help="fetch the spider's start_urls again when workers start"
        )

    @abstractmethod
    def source(self, context: Context, options: Namespace) -> Source:
        """Return what is moved."""

    def run(self, context: Context, options: Namespace) -> int:
        context.so_far = lambda: "nothing was moved"
        own_fingerprint = identity_of(context)
        _refuse_settings(context, own_fingerprint)
        _refuse_existing(context)
        source, left_out = self.source(context, options), LeftOut()
        mover = Mover(
            source,
            context.spider_class,
            _maker(context),
            own_fingerprint,
            may_unpickle=options.allow_pickle,
            skip=left_out.add if options.skip_bad else None,
            may_be_unmatched=options.allow_unmatched,
        )
        marks = [] if options.starts_again else _start_marks(context)
        try:
            given = options.fingerprints
            identity = mover.identity() if given is None else WAYS[given]
            left_out.clear()
            records = _records(context, mover, identity, marks)
            move = _try if options.dry_run else _move
            found = move(context, self.name, records, mover.record_count())
        except PickleRefused as error:
            raise Stop(
                f"{error}: use --allow-pickle to read them, but only if nobody else can write to that server",
                WRONG_USE,
            ) from error
        left_out.report()
        count, seen = source.count(), source.seen_count()
        where = (
            f"could be moved to frontier {context.name!r}" if options.dry_run else f"are in frontier {context.name!r}"
        )
        context.output.show(
            f"{number(found.pending)} of {counted(count, 'pending request')} and"
            f" {number(min(found.seen, seen))} of {counted(seen, 'fingerprint')} {where}"
        )
        if mover.unmatched:
            context.output.show(
                f"{counted(mover.unmatched, 'pending request')} had no stored fingerprint; now all are seen"
            )
        _report_identity(context, identity)
        _report_starts(context, marks)
        is_counted = source.are_distinct and context.config.seen.mode == "exact"
        if found.pending != count - left_out.count or (is_counted and found.seen < seen):
            drop = frontier_command("reset --all", context.name)
            raise Stop(
                f"the new frontier lacks some requests or fingerprints: delete it ({drop}), and run this again", NOTHING
            )
        return FINE


def _records(context: Context, mover: Mover, identity: str, marks: Sequence[bytes]) -> Iterator[Record]:
    plan, keys = plan_of(context), Keys(context.name)
    offers = offers_by(context.inspector.link, keys)
    shape = shape_text(plan.seen, offers.limits, has_filters=offers.has_filters)
    return mover.records(plan, context.name, shape, identity, context.inspector.now_ms(), marks)


def _move(context: Context, verb: str, records: Iterator[Record], count: int) -> Imported:
    importer = Importer(context.link, context.name, verb)
    with working("moving", count) as work:
        context.so_far = lambda: so_far(work, importer, context.name)
        return importer.run(records, work.note)


def _try(context: Context, verb: str, records: Iterator[Record], count: int) -> Imported:
    """Check the records, and return how many would be imported."""
    found = Counter[str]()
    with working("checking", count) as work:
        context.so_far = lambda: f"{work.counted('record')} checked, nothing moved"
        for done, record in enumerate(checked(records)):
            found[record["kind"]] += len(record.get("members", "1"))
            if done % _PER_PROGRESS == 0:
                work.note(done)
    return Imported(pending=found["pending"], seen=found["hashes"])


class MigrateFromScrapyRedisVerb(_MigrateVerb):
    name = "migrate-from-scrapy-redis"
    summary = "create a frontier from the queue and the fingerprints of scrapy-redis"
    examples = ("--dry-run", "--allow-pickle")

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--source-url", metavar="URL", help="server of scrapy-redis (default: the frontier's)")
        parser.add_argument("--queue-key", metavar="KEY", help="key of its queue (default: SCHEDULER_QUEUE_KEY)")
        parser.add_argument(
            "--dupefilter-key", metavar="KEY", help="key of its fingerprints (default: SCHEDULER_DUPEFILTER_KEY)"
        )
        parser.add_argument(
            "--order",
            choices=("fifo", "lifo"),
            help="order of its queue, if that is a list (default: by SCHEDULER_QUEUE_CLASS)",
        )
        parser.add_argument(
            "--without-requests", action="store_true", help="move only fingerprints, if nothing was pending"
        )
        parser.add_argument(
            "--without-fingerprints", action="store_true", help="move only requests, so pages may be fetched again"
        )
        parser.add_argument("--allow-pickle", action="store_true", help="read pickled requests, scrapy-redis's default")
        super().add_arguments(parser)

    def source(self, context: Context, options: Namespace) -> Source:
        if options.allow_pickle:
            warn(
                self.name,
                "reading pickled requests, if they hold only plain data; anyone who can write to that server could"
                " have changed them",
            )
        try:
            return self._source(context, options)
        except FrontierUnavailable as error:
            if options.source_url is None:
                raise
            raise Stop(f"the source at {error.address} can't be used: {error.why}", NO_SERVER) from error

    def _source(self, context: Context, options: Namespace) -> Source:
        link = context.link
        if options.source_url is not None:
            link = Link(options.source_url, timeout_s=context.config.redis_timeout_s)
        queue_key, seen_key = keys_of_crawl(
            context.settings, context.spider_class.name if context.spider_class else context.name
        )
        return ScrapyRedisCrawl(
            link,
            options.queue_key or queue_key,
            options.dupefilter_key or seen_key,
            order=options.order or order_of_list(context.settings),
            without_requests=options.without_requests,
            without_fingerprints=options.without_fingerprints,
        )


class MigrateFromJobdirVerb(_MigrateVerb):
    name = "migrate-from-jobdir"
    summary = "create a frontier from a JOBDIR of Scrapy"
    syntax = "[DIR]"
    examples = ("crawls/books --dry-run", "crawls/books")

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("jobdir", metavar="DIR", nargs="?", help="job directory (default: JOBDIR)")
        parser.set_defaults(allow_pickle=True)  # Scrapy pickles requests by default
        super().add_arguments(parser)

    def source(self, context: Context, options: Namespace) -> Source:
        path = options.jobdir or context.settings.get("JOBDIR")
        if not path:
            raise Stop("which job directory? Give its path, or set JOBDIR", WRONG_USE)
        queues = (str(context.settings.get(f"SCHEDULER_{kind}DISK_QUEUE")) for kind in ("START_", ""))
        starts_lifo, others_lifo = ("Lifo" in queue for queue in queues)
        source = JobDir(Path(path), are_lifo=(starts_lifo, others_lifo))
        if source.was_killed:
            warn(
                self.name,
                "Scrapy was not closed gracefully: requests in progress are lost, with all pages found only through"
                " them, and some that are done may be pending again",
            )
        return source


def _refuse_settings(context: Context, own_fingerprint: Fingerprint) -> None:
    """Refuse settings with which workers would not continue the crawl."""
    home = context.config.seen_name
    if context.config.flush_on_start:
        raise Stop(
            "PRIOQUEUE_FLUSH_ON_START, or SCHEDULER_FLUSH_ON_START, is true: the first worker would delete what is"
            " moved. Remove it first",
            WRONG_USE,
        )
    if own_fingerprint(Request(_ANY_URL)) is None:
        raise Stop(
            f"DUPEFILTER_CLASS = {str(context.settings['DUPEFILTER_CLASS'])!r} filters by itself and would not know"
            " the fingerprints that are moved. Remove it first; if it has computed the fingerprints, make it a subclass"
            " of scrapy_prioqueue.DupeFilter",
            WRONG_USE,
        )
    if home not in (None, context.name):
        raise Stop(
            f"fingerprints can't be moved into {home!r}, where other spiders have theirs: {_home_advice(context)}",
            WRONG_USE,
        )


def _home_advice(context: Context) -> str:
    name = "PRIOQUEUE_SEEN_NAME"
    if is_set(context.settings, name):
        return f"remove {name} from the settings until this crawl has ended, for its workers as well"
    key = context.settings.get("SCHEDULER_DUPEFILTER_KEY")
    return (
        "remove SCHEDULER_DUPEFILTER_KEY from the settings until this crawl has ended, for its workers as well, and"
        f" use --dupefilter-key {shlex.quote(str(key))}"
    )


def _refuse_existing(context: Context) -> None:
    if context.inspector.state(of_any_layout=True) is not None:
        name = context.name
        raise Stop(
            f"frontier {name!r} exists already. If the crawl was moved already, start the workers. Otherwise move it to"
            f" another name (--name), or delete the frontier first ({frontier_command('reset --all', name)})"
        )


def _maker(context: Context) -> PushMaker:
    config = context.config
    policy = TierPolicy(config.tiers, config.default_tier, config.tier_rules)
    fingerprint: Callable[[Request], bytes] = lambda request: b""  # noqa: E731 - fingerprints are moved by themselves
    has_budgets = config.policy.budgets is not None
    return PushMaker(
        policy, fingerprint, {}, has_rules=bool(config.tier_rules), has_budgets=has_budgets, seen=config.seen
    )


def _start_marks(context: Context) -> list[bytes]:
    """Return the marks of the start requests that every crawl of this spider begins with, so that none comes again."""
    spider = context.spider_class
    if spider is None or not _has_plain_start(spider):
        return []
    fingerprinter = context.crawler().request_fingerprinter
    assert fingerprinter is not None
    starts, marks = StartRequests(fingerprinter.fingerprint), list[bytes]()
    for request in (Request(url, dont_filter=True) for url in getattr(spider, "start_urls", ())):
        starts.note(request)
        mark = starts.mark(request, is_filtered=False)
        assert mark is not None
        marks.append(mark)
    return marks


def _has_plain_start(spider: type[Spider]) -> bool:
    return all(getattr(spider, name, None) is getattr(Spider, name, None) for name in ("start", "start_requests"))


def _report_identity(context: Context, identity: str) -> None:
    if identity:
        context.output.show(
            f"the fingerprints are those of {identity}: workers compute fingerprints in the same way, as long as the"
            " frontier keeps these"
        )


def _report_starts(context: Context, marks: Sequence[bytes]) -> None:
    spider = context.spider_class
    if marks:
        count = counted(len(marks), "start URL counts", "start URLs count")
        them = "it" if len(marks) == 1 else "them"
        context.output.show(f"{count} as fetched; --starts-again fetches {them} again")
    elif spider is not None and not _has_plain_start(spider) and not hasattr(spider, "redis_key"):
        context.output.show(
            f"start() of spider {spider.name!r} runs again: what it yields with dont_filter is fetched again"
        )
