"""Write crawls of the real Scrapy and the real scrapy-redis, as files that tests read, or for tests to move.

The JSON files here hold what older versions have written; each is made in an environment with these versions, the first
two with a Redis server:

    python write.py scrapy-redis redis://127.0.0.1:6379/0 scrapy_redis_0.7.3.json   # scrapy 2.8.0, scrapy-redis 0.7.3
    python write.py scrapy-redis redis://127.0.0.1:6379/0 scrapy_redis_0.8.0.json   # scrapy 2.11.2, scrapy-redis 0.8.0
    python write.py jobdir scrapy_2.13.0.json                                       # scrapy 2.13.0
"""

from __future__ import annotations

import json
import sys
import tempfile
from base64 import b64encode
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import scrapy
from scrapy import FormRequest, Request, Spider
from scrapy.crawler import Crawler
from scrapy.utils.misc import load_object

QUEUES = ("PickleLifoDiskQueue", "PickleFifoDiskQueue", "MarshalLifoDiskQueue", "MarshalFifoDiskQueue")
PRIORITY_QUEUES = ("ScrapyPriorityQueue", "DownloaderAwarePriorityQueue")
REDIS_QUEUES = ("PriorityQueue", "FifoQueue", "LifoQueue")
POPPED = 3


class Shop(Spider):
    """Whose requests are stored."""

    name = "shop"

    def parse_product(self, response: Any) -> None:
        """Do nothing."""


def requests(spider: Any) -> Iterator[Request]:
    """Yield requests of three sites with all that differs between requests."""
    for number in range(12):
        yield Request(
            f"http://shop{number % 3}.example/{number}?b=2&a=1#top",
            callback=spider.parse_product,
            priority=number % 4 - 1,
            headers={"X-Number": str(number)},
            cb_kwargs={"number": number},
            meta={"depth": number, "is_start_request": True} if number < 6 else {"depth": number},
        )
    yield Request("http://shop0.example/again", dont_filter=True)
    yield FormRequest("http://shop0.example/form", formdata={"q": "ä"}, cookies={"a": "b"}, flags=["x"])
    yield Request("http://shop1.example/put", method="PUT", body=b"\xff\x00", encoding="latin-1")


class Job:
    """Scrapy's own scheduler with `JOBDIR`."""

    def __init__(self, path: Path, queue: str, priority_queue: str, kind: type[Spider] = Shop) -> None:
        settings = {
            "JOBDIR": str(path),
            "SCHEDULER_DISK_QUEUE": f"scrapy.squeues.{queue}",
            "SCHEDULER_PRIORITY_QUEUE": f"scrapy.pqueues.{priority_queue}",
        }
        crawler: Any = Crawler(kind, settings)
        crawler.spider = self.spider = kind.from_crawler(crawler)
        fingerprinter = load_object(crawler.settings["REQUEST_FINGERPRINTER_CLASS"])
        crawler.request_fingerprinter = fingerprinter.from_crawler(crawler)
        crawler.stats = load_object(crawler.settings["STATS_CLASS"])(crawler)
        # All that the priority queues ask of the downloader.
        slot_of = lambda request: request.url.split("/")[2]  # noqa: E731
        crawler.engine = SimpleNamespace(downloader=SimpleNamespace(slots={}, get_slot_key=slot_of))
        self.scheduler = load_object("scrapy.core.scheduler.Scheduler").from_crawler(crawler)
        self.scheduler.open(self.spider)

    def close(self) -> None:
        """Close as at the end of an interrupted crawl."""
        self.scheduler.close("shutdown")


def write_job(path: Path, queue: str, priority_queue: str) -> None:
    """Leave a job that was stopped half-way in a directory."""
    job = Job(path, queue, priority_queue)
    for request in requests(job.spider):
        job.scheduler.enqueue_request(request)
    for _ in range(POPPED):
        job.scheduler.next_request()
    job.close()


def served_by_scrapy(path: Path, queue: str, priority_queue: str) -> list[dict[str, Any]]:
    """Return the requests of a job in the order in which Scrapy resumes them; the directory is empty then."""
    job = Job(path, queue, priority_queue)
    found = []
    while (request := job.scheduler.next_request()) is not None:
        found.append(shown(request))
    job.close()
    return found


def shown(request: Request) -> dict[str, Any]:
    """Return what a request says, as JSON."""
    callback = request.callback
    return {
        "class": type(request).__name__,
        "url": request.url,
        "method": request.method,
        "body": request.body.decode("latin-1"),
        "callback": None if callback is None else getattr(callback, "__name__", callback),
        "headers": {key.decode(): [value.decode() for value in values] for key, values in request.headers.items()},
        "priority": request.priority,
        "meta": {key: str(value) for key, value in request.meta.items()},
        "cb_kwargs": request.cb_kwargs,
        "cookies": request.cookies,
        "flags": request.flags,
        "encoding": request.encoding,
        "dont_filter": request.dont_filter,
    }


def written_jobs() -> dict[str, Any]:
    """Return the files of all kinds of jobs, and how Scrapy resumes each."""
    found = {}
    for priority_queue in PRIORITY_QUEUES:
        for queue in QUEUES:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder)
                write_job(path, queue, priority_queue)
                files = {
                    str(file.relative_to(path)): b64encode(file.read_bytes()).decode()
                    for file in sorted(path.rglob("*"))
                    if file.is_file()
                }
                served = served_by_scrapy(path, queue, priority_queue)
                found[f"{priority_queue} {queue}"] = {"files": files, "served": served}
    return found


def fill_redis(client: Any, kind: str, name: str, serializer: Any = None) -> Any:
    """Schedule requests as the scheduler of scrapy-redis does, serve some, and return its queue."""
    spider = Shop()
    found = list(requests(spider))
    if kind == "PriorityQueue" and serializer is None:
        for request in found:
            request.meta["when"] = datetime(2026, 1, 2, tzinfo=timezone.utc)
    theirs = schedule(client, name, found, spider, serializer, kind)
    for _ in range(POPPED):
        theirs.pop()
    return theirs


def schedule(
    client: Any, name: str, found: Iterable[Request], spider: Spider, serializer: Any, kind: str = "PriorityQueue"
) -> Any:
    """Schedule requests as the scheduler of scrapy-redis does, and return its queue."""
    from scrapy_redis import queue
    from scrapy_redis.dupefilter import RFPDupeFilter

    theirs = getattr(queue, kind)(client, spider, f"{name}:requests", serializer)
    seen = RFPDupeFilter(client, f"{name}:dupefilter")
    for request in found:
        if request.dont_filter or not seen.request_seen(request):
            theirs.push(request)
    return theirs


def written_redis(url: str) -> dict[str, Any]:
    """Return what scrapy-redis stores with each kind of queue, and how it serves that."""
    import redis
    import scrapy_redis

    client: Any = redis.Redis.from_url(url)
    found: dict[str, Any] = {"scrapy-redis": scrapy_redis.__version__}
    for kind in REDIS_QUEUES:
        theirs = fill_redis(client, kind, "written")
        if kind == "PriorityQueue":
            scores = client.zrange(theirs.key, 0, -1, withscores=True)
            stored: list[Any] = [[b64encode(data).decode(), score] for data, score in scores]
        else:
            stored = [b64encode(data).decode() for data in client.lrange(theirs.key, 0, -1)]
        seen = sorted(member.decode() for member in client.smembers("written:dupefilter"))
        served = []
        while (request := theirs.pop()) is not None:
            served.append(shown(request))
        client.delete(theirs.key, "written:dupefilter")
        found[kind] = {"stored": stored, "seen": seen, "served": served}
    return found


if __name__ == "__main__":
    what, *rest, target = sys.argv[1:]
    content = {"scrapy": scrapy.__version__, **(written_jobs() if what == "jobdir" else written_redis(*rest))}
    Path(target).write_text(json.dumps(content, separators=(",", ":"), sort_keys=True) + "\n")
