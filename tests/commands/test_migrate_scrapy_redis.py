"""Crawls of the real scrapy-redis, moved by `scrapy frontier migrate-from-scrapy-redis`."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import time
from base64 import b64decode
from collections import ChainMap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
from scrapy import Request
from scrapy.utils.request import fingerprint

from scrapy_prioqueue.dupefilter import ForeignFingerprinter
from scrapy_prioqueue.errors import NotPermitted
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.operators import importer
from scrapy_prioqueue.moving.scrapy_redis import ScrapyRedisCrawl
from scrapy_prioqueue.moving.serialized import OF_SCRAPY_REDIS, UnreadableRequest, read_dict
from scrapy_prioqueue.queues.starts import StartRequests
from tests.commands.conftest import Ran, Run
from tests.commands.moved import rules, write
from tests.commands.moved.reading import in_order, served
from tests.commands.test_progress import interrupted_at
from tests.contract.backends import RedisBackend, push

pytest.importorskip("scrapy_redis")

VERB = "migrate-from-scrapy-redis"
WRITTEN = Path(write.__file__).parent
OLD = ("scrapy_redis_0.7.3", "scrapy_redis_0.8.0")


def _as_text(value: Any) -> Any:
    """Return a value as serializers of projects make it fit for JSON."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, dict):
        return {_as_text(key): _as_text(each) for key, each in value.items()}
    return list(map(_as_text, value)) if isinstance(value, (list, tuple)) else value


SERIALIZERS: dict[str, Any] = {
    "json": SimpleNamespace(dumps=lambda found: json.dumps(_as_text(found)), loads=json.loads),
    "msgpack": SimpleNamespace(dumps=msgpack.packb, loads=msgpack.unpackb),
    "pickle": None,
}


class Theirs:
    """The keys of a crawl of scrapy-redis."""

    def __init__(self, client: Any, name: str) -> None:
        self.client, self.name = client, name
        self.queue, self.seen = f"{name}:requests", f"{name}:dupefilter"

    def dump(self) -> Any:
        """Return everything that there is of it."""
        return self.client.dump(self.queue), self.client.sort(self.seen, alpha=True)


def theirs_of(request: Request) -> str:
    """Return the fingerprint of a request as scrapy-redis stores it."""
    return ForeignFingerprinter("scrapy-redis").fingerprint(request).hex()


@pytest.fixture
def theirs(client: Any, frontier_name: str) -> Iterator[Theirs]:
    """A crawl of the name of this test's frontier, which its end may leave as it was."""
    theirs = Theirs(client, frontier_name)
    yield theirs
    client.delete(theirs.queue, theirs.seen)


def of(kind: str) -> dict[str, Any]:
    """Return the settings of projects with queues of a kind."""
    return {"SCHEDULER_QUEUE_CLASS": f"scrapy_redis.queue.{kind}"}


def moved(run: Run, theirs: Theirs, *args: str, settings: dict[str, Any] | None = None) -> Ran:
    """Move it, and check that it stays as it was."""
    before = theirs.dump()
    ran = run(VERB, *args, settings=settings)
    assert theirs.dump() == before
    return ran


@pytest.mark.parametrize("serializer", SERIALIZERS)
@pytest.mark.parametrize("kind", write.REDIS_QUEUES)
def test_requests_and_fingerprints_continue_in_the_same_order(
    theirs: Theirs, run: Run, backend: RedisBackend, frontier_name: str, kind: str, serializer: str
) -> None:
    queue = write.fill_redis(theirs.client, kind, frontier_name, SERIALIZERS[serializer])
    args = ["--allow-pickle"] if serializer == "pickle" else []

    ran = moved(run, theirs, *args, settings=of(kind))

    assert ran.code == 0, ran.err
    assert "12 of 12 pending requests and 14 of 14 fingerprints" in ran.out
    assert "the fingerprints are those of scrapy-redis" in ran.out
    assert served(backend) == in_order(map(write.shown, iter(queue.pop, None)))


def test_a_new_crawl_that_began_in_its_place_is_reset_first(
    theirs: Theirs, run: Run, backend: RedisBackend, frontier_name: str
) -> None:
    write.fill_redis(theirs.client, "PriorityQueue", frontier_name, SERIALIZERS["json"])
    worker = backend.join("w1", clock=None)
    worker.commit(push("1", fingerprint=b"fingerprint 1"))
    worker.leave()

    refused = moved(run, theirs)
    reset = run("reset", "--all", "--yes")
    ran = moved(run, theirs)

    assert (refused.code, reset.code, ran.code) == (1, 0, 0)
    assert f"scrapy frontier reset --all --name {frontier_name}" in refused.err
    assert "12 of 12 pending requests and 14 of 14 fingerprints" in ran.out


@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_a_crawl_spider_is_moved(theirs: Theirs, run: Run, backend: RedisBackend, serializer: str) -> None:
    write.schedule(theirs.client, theirs.name, rules.followed(rules.Linked()), rules.Linked(), SERIALIZERS[serializer])
    options = ("--allow-pickle", "--queue-key", theirs.queue, "--dupefilter-key", theirs.seen)

    ran = moved(run, theirs, *options, settings={"SPIDER_MODULES": [rules.__name__]})

    assert ran.code == 0, ran.err
    assert {shown["url"]: shown["meta"]["link_text"] for shown in served(backend)} == rules.TEXTS


class Reduced:
    """Pickled as the call of a function."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_pickled_values_that_workers_could_store_are_read(protocol: int) -> None:
    values = {
        "texts": [rules.Marked("a"), rules.Marked("b")],
        "pattern": re.compile(b"[a-z]", re.IGNORECASE),
        "standard": [SimpleNamespace(a=1), ChainMap({"a": 1}), time.gmtime(0)],
    }
    data = pickle.dumps({"url": "http://shop.example/", "meta": values}, protocol)

    found = read_dict(data, OF_SCRAPY_REDIS, may_unpickle=True)["meta"]

    assert found == values
    assert not any(isinstance(text, rules.Marked) for text in found["texts"])


@pytest.mark.parametrize("pattern", ["a" * 2000, 7])
def test_a_pickled_expression_that_is_expensive_to_compile_is_not_read(pattern: Any) -> None:
    compiled = Reduced(vars(re)["_compile"], pattern, 0)

    with pytest.raises(UnreadableRequest, match="regular expression"):
        read_dict(pickle.dumps({"url": "a", "meta": {"x": compiled}}), OF_SCRAPY_REDIS, may_unpickle=True)


@pytest.mark.parametrize("kind", write.REDIS_QUEUES)
@pytest.mark.parametrize("version", OLD)
def test_crawls_of_older_versions_continue(
    theirs: Theirs, run: Run, backend: RedisBackend, version: str, kind: str
) -> None:
    found = json.loads((WRITTEN / f"{version}.json").read_text())[kind]
    if kind == "PriorityQueue":
        theirs.client.zadd(theirs.queue, {b64decode(data): score for data, score in found["stored"]})
    else:
        theirs.client.rpush(theirs.queue, *map(b64decode, found["stored"]))
    theirs.client.sadd(theirs.seen, *found["seen"])

    ran = moved(run, theirs, "--allow-pickle", settings=of(kind))

    assert ran.code == 0, ran.err
    assert served(backend) == in_order(found["served"])
    # In the crawl that goes on, the pages of the one that was moved are known.
    again = [request.url for request in write.requests(write.Shop()) if not request.dont_filter]
    assert run("push", *again[:12]).out.startswith("0 pushed, 12 seen before,")


def test_a_crawl_that_was_moved_knows_its_pages_until_it_has_ended(
    theirs: Theirs, run: Run, backend: RedisBackend, frontier_name: str
) -> None:
    write.fill_redis(theirs.client, "PriorityQueue", frontier_name)
    moved(run, theirs, "--allow-pickle")

    worker = backend.worker("w1", clock=None, max_attempts=9, tiers=("urgent", "high", "normal", "low"))
    assert worker.join().identity == "scrapy-redis"
    assert "pending" in run("explain", "http://shop1.example/1?a=1&b=2").out
    assert run("forget", "http://shop1.example/1?a=1&b=2", "--yes").out == "1 forgotten\n"
    assert run("push", "http://shop1.example/1?a=1&b=2").out.startswith("1 pushed,")
    worker.leave()
    assert run("reset", "--all", "--yes").code == 0
    assert worker.join().identity == ""


def test_pickles_are_read_only_where_that_is_allowed(theirs: Theirs, run: Run, frontier_name: str) -> None:
    write.fill_redis(theirs.client, "FifoQueue", frontier_name)

    refused = moved(run, theirs, settings=of("FifoQueue"))
    allowed = moved(run, theirs, "--allow-pickle", "--order", "fifo")

    assert refused.code == 2
    assert "--allow-pickle" in refused.err
    assert "anyone who can write to that server" in allowed.err


def test_a_pickle_that_names_anything_but_data_is_not_read(
    theirs: Theirs, run: Run, frontier_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write.fill_redis(theirs.client, "FifoQueue", frontier_name)
    theirs.client.lpush(
        theirs.queue, pickle.dumps({"url": "http://shop.example/", "meta": {"x": Reduced(os.system, "touch evil")}})
    )

    refused = moved(run, theirs, "--allow-pickle", settings=of("FifoQueue"))
    skipped = moved(run, theirs, "--allow-pickle", "--skip-bad", settings=of("FifoQueue"))

    assert refused.code == 1
    assert f"{theirs.queue}, request 12: it can't be read as pickle" in refused.err
    assert "--skip-bad leaves such requests out" in refused.err
    assert skipped.code == 0
    assert "left out: " in skipped.err and "12 of 13 pending requests" in skipped.out
    assert not (tmp_path / "evil").exists()


def test_a_second_run_adds_nothing(theirs: Theirs, run: Run, backend: RedisBackend, frontier_name: str) -> None:
    write.fill_redis(theirs.client, "PriorityQueue", frontier_name)
    first, second, tried = (moved(run, theirs, "--allow-pickle", *more) for more in ((), (), ("--dry-run",)))

    assert (first.code, second.code, tried.code) == (0, 1, 1)
    for again in (second, tried):
        assert "exists already. If the crawl was moved already, start the workers." in again.err
    assert len(served(backend)) == 12


def test_a_dry_run_changes_nothing(theirs: Theirs, run: Run, frontier_name: str) -> None:
    write.fill_redis(theirs.client, "PriorityQueue", frontier_name)

    ran = moved(run, theirs, "--allow-pickle", "--dry-run")

    assert "12 of 12 pending requests and 14 of 14 fingerprints could be moved" in ran.out
    assert not theirs.client.keys(Keys(frontier_name).pattern())


def test_an_interrupted_run_says_how_far_it_got_and_can_be_repeated(
    theirs: Theirs, run: Run, frontier_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write.fill_redis(theirs.client, "PriorityQueue", frontier_name)
    dumped = [pickle.dumps(Request(f"http://shop.example/{number}").to_dict()) for number in range(300)]
    theirs.client.zadd(theirs.queue, dict.fromkeys(dumped, 0))
    theirs.client.sadd(theirs.seen, *(theirs_of(Request(f"http://shop.example/{number}")) for number in range(300)))

    with monkeypatch.context() as patch:
        patch.setattr(importer, "_RECORDS_PER_PROGRESS", 100)
        interrupted_at("restore", 4, signal.SIGTERM, patch)
        ran = moved(run, theirs, "--allow-pickle")

    assert ran.code == 143
    assert re.search(r"interrupted; so far \d+ of 312 records read; the imported part is deleted again\n", ran.err)
    assert "312 of 312 pending requests" in moved(run, theirs, "--allow-pickle").out


@pytest.mark.parametrize("change", ["pop", "add"])
def test_a_crawl_that_is_still_running_is_not_moved(
    theirs: Theirs, run: Run, frontier_name: str, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    queue = write.fill_redis(theirs.client, "PriorityQueue", frontier_name)
    fingerprints = ScrapyRedisCrawl.fingerprints

    def changing(self: ScrapyRedisCrawl) -> Iterator[bytes]:
        if change == "pop":
            queue.pop()
        else:
            theirs.client.sadd(theirs.seen, "not in hexadecimal")
        return fingerprints(self)

    monkeypatch.setattr(ScrapyRedisCrawl, "fingerprints", changing)
    ran = run(VERB, "--allow-pickle")

    assert ran.code == 1
    assert "stop all its processes" in ran.err
    assert run("status").code == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"PRIOQUEUE_SEEN": "compact"},
        {"PRIOQUEUE_SEEN": "bloom", "PRIOQUEUE_SEEN_EXPECTED": 10_000},
        {"PRIOQUEUE_REVISIT_AFTER": 3600},
        {"PRIOQUEUE_SEEN_EXPECTED": 300},
    ],
    ids=["compact", "bloom", "times", "growing"],
)
def test_fingerprints_are_stored_as_the_settings_say(
    theirs: Theirs, run: Run, frontier_name: str, settings: dict[str, Any]
) -> None:
    pages = [Request(f"http://shop.example/{number}") for number in range(1500)]
    theirs.client.sadd(theirs.seen, *map(theirs_of, pages))

    ran = moved(run, theirs, "--fingerprints", "scrapy-redis", "--without-requests", settings=settings)

    assert "1,500 of 1,500 fingerprints" in ran.out
    assert run("push", *(page.url for page in pages), settings=settings).out.startswith("0 pushed, 1,500 seen before,")
    assert run("push", "http://shop.example/new", settings=settings).out.startswith("1 pushed,")


def test_a_worker_that_would_use_other_fingerprints_is_rejected(
    theirs: Theirs, run: Run, backend: RedisBackend, frontier_name: str
) -> None:
    write.fill_redis(theirs.client, "PriorityQueue", frontier_name)
    moved(run, theirs, "--allow-pickle")
    tiers = ("urgent", "high", "normal", "low")

    with pytest.raises(NotPermitted, match="SCHEDULER_DUPEFILTER_KEY, is 'shop:seen', but .* 14 fingerprints"):
        backend.join("w1", clock=None, tiers=tiers, seen_name="shop:seen")
    assert backend.join("w1", clock=None, tiers=tiers, seen_name=frontier_name).depth().pending == 12


def test_a_worker_names_the_verb_of_an_interrupted_run(
    theirs: Theirs, run: Run, backend: RedisBackend, frontier_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write.fill_redis(theirs.client, "PriorityQueue", frontier_name)
    with monkeypatch.context() as patch:
        interrupted_at("restore", 1, signal.SIGTERM, patch)
        patch.setattr(importer.Importer, "_drop", lambda self: None)
        moved(run, theirs, "--allow-pickle")
    theirs.client.hset(Keys(frontier_name).state, "cleaning_ms", 1)

    with pytest.raises(NotPermitted, match=r"repeat it \(scrapy frontier migrate-from-scrapy-redis\)"):
        backend.join("w1", clock=None)


@pytest.fixture
def project(theirs: Theirs) -> dict[str, Any]:
    """Settings of the project that has the spider."""
    return {"SPIDER_MODULES": [write.__name__], "SCHEDULER_QUEUE_KEY": theirs.queue}


def test_start_urls_count_as_fetched(
    theirs: Theirs, run: Run, frontier_name: str, project: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = ["http://shop.example/", "http://shop.example/b", "http://shop.example/"]
    monkeypatch.setattr(write.Shop, "start_urls", urls, raising=False)
    write.fill_redis(theirs.client, "PriorityQueue", frontier_name)
    options = ("--allow-pickle", "--dupefilter-key", theirs.seen)
    starts, expected = StartRequests(fingerprint), set()
    for url in urls:
        request = Request(url, dont_filter=True)
        starts.note(request)
        expected.add(starts.mark(request, is_filtered=False))

    ran = moved(run, theirs, *options, settings=project)

    assert "3 start URLs count as fetched" in ran.out
    assert theirs.client.smembers(Keys(frontier_name).of("marks")) == expected
    run("reset", "--all", "--yes")
    moved(run, theirs, *options, "--starts-again", settings=project)
    assert not theirs.client.exists(Keys(frontier_name).of("marks"))


def test_callbacks_must_be_methods_of_the_spider(
    theirs: Theirs, run: Run, frontier_name: str, project: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    write.fill_redis(theirs.client, "PriorityQueue", frontier_name)
    monkeypatch.delattr(write.Shop, "parse_product")

    ran = moved(run, theirs, "--allow-pickle", "--dupefilter-key", theirs.seen, settings=project)

    assert ran.code == 1
    assert "spider 'shop' has no method 'parse_product'" in ran.err


QUEUED = ("ZADD", "NAME:requests", "1", '{"url": "http://shop.example/1"}')
SEEN = ("SADD", "NAME:dupefilter", "ab" * 20)


@pytest.mark.parametrize(
    ("commands", "options", "said"),
    [
        ((), (), "there is no key NAME:requests and no key NAME:dupefilter at "),
        ((("SET", "NAME:requests", "1"),), (), "NAME:requests is a string, but scrapy-redis stores a zset or a list"),
        ((QUEUED, SEEN), ("--dupefilter-key", "NAME:seen"), "there is no key NAME:seen at "),
        ((QUEUED, SEEN), ("--dupefilter-key", "NAME:seen"), "NAME:dupefilter"),
        ((QUEUED, SEEN), ("--dupefilter-key", "NAME:seen"), "--without-fingerprints to fetch pages again"),
        ((QUEUED, SEEN), ("--queue-key", "NAME:queue"), "there is no key NAME:queue at "),
        ((QUEUED, SEEN), ("--queue-key", "NAME:queue"), "--without-requests if nothing was pending"),
        ((SEEN,), ("--without-requests",), "no pending request shows how the fingerprints in NAME:dupefilter were"),
        ((QUEUED, SEEN), (), "none of 1 pending request has its fingerprint in NAME:dupefilter"),
        (
            (QUEUED, SEEN),
            ("--fingerprints", "project"),
            "1 of 1 pending request without a fingerprint in NAME:dupefilter; the first one is NAME:requests,"
            " request 0",
        ),
        ((("RPUSH", "NAME:requests", "1"), SEEN), (), "NAME:requests is a list: --order says how it is served"),
        ((("ZADD", "NAME:requests", "1", "{}"), SEEN), (), "NAME:requests, request 0: {} is no request: it has no url"),
        (
            (("ZADD", "NAME:requests", "1", ""), SEEN),
            (),
            "NAME:requests, request 0: b'' is not in any of these formats: json, msgpack, pickle",
        ),
        (
            (("ZADD", "NAME:requests", "1", '{"url": "a", "_class": "os.popen"}'), SEEN),
            (),
            "not a subclass of Request",
        ),
        (
            (("SADD", "NAME:dupefilter", "x47"),),
            ("--without-requests", "--fingerprints", "project"),
            "NAME:dupefilter has the member b'x47', which is not a fingerprint",
        ),
    ],
)
def test_errors_name_what_is_wrong(
    theirs: Theirs,
    run: Run,
    frontier_name: str,
    commands: tuple[tuple[str, ...], ...],
    options: tuple[str, ...],
    said: str,
) -> None:
    for command in commands:
        theirs.client.execute_command(*(part.replace("NAME", frontier_name) for part in command))

    ran = moved(run, theirs, *(part.replace("NAME", frontier_name) for part in options))

    assert ran.code == 1
    assert said.replace("NAME", frontier_name) in ran.err
    assert run("status").code == 1


@pytest.mark.parametrize("option", ["--without-fingerprints", "--allow-unmatched"])
def test_pending_requests_are_known_even_if_no_fingerprint_is_theirs(
    theirs: Theirs, run: Run, frontier_name: str, option: str
) -> None:
    theirs.client.execute_command(*(part.replace("NAME", frontier_name) for part in QUEUED))
    theirs.client.sadd(theirs.seen, theirs_of(Request("http://shop.example/seen")))
    fingerprints = ("--fingerprints", "scrapy-redis") if option == "--allow-unmatched" else ()

    ran = moved(run, theirs, option, *fingerprints)

    assert ran.code == 0, ran.err
    assert "1 of 1 pending request and" in ran.out
    assert "1 pending request had no stored fingerprint" in ran.out
    assert run("push", "http://shop.example/1").out.startswith("0 pushed, 1 seen before,")


def test_requests_that_a_serializer_has_changed_are_not_moved(theirs: Theirs, run: Run) -> None:
    pages = [Request("http://shop.example/1"), Request("http://shop.example/2", method="POST", body=b"\xe4")]
    write.schedule(theirs.client, theirs.name, pages, write.Shop(), SERIALIZERS["json"])

    ran = moved(run, theirs)

    assert ran.code == 1
    assert f"1 of 2 pending requests without a fingerprint in {theirs.seen}; the first one is" in ran.err
    assert "bodies that aren't UTF-8" in ran.err


def test_a_source_that_is_unavailable_is_named_as_such(run: Run) -> None:
    ran = run(VERB, "--source-url", "redis://127.0.0.1:1/0")

    assert ran.code == 3
    assert "the source at redis://127.0.0.1:1/0 can't be used" in ran.err


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"PRIOQUEUE_SEEN_NAME": "all"}, "remove PRIOQUEUE_SEEN_NAME from the settings"),
        (
            {"SCHEDULER_DUPEFILTER_KEY": "shop:seen", "SCHEDULER_PERSIST": True},
            "remove SCHEDULER_DUPEFILTER_KEY from the settings until this crawl has ended, for its workers as well, and"
            " use --dupefilter-key shop:seen",
        ),
        ({"SCHEDULER_FLUSH_ON_START": True}, "the first worker would delete what is moved"),
        ({"DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"}, "would not know the fingerprints"),
    ],
)
def test_settings_with_which_workers_would_not_continue_are_refused(
    theirs: Theirs, run: Run, settings: dict[str, Any], said: str
) -> None:
    ran = moved(run, theirs, settings=settings)

    assert ran.code == 2
    assert said in ran.err
