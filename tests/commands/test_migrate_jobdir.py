"""Crawls of Scrapy's own scheduler, moved by `scrapy frontier migrate-from-jobdir`."""

from __future__ import annotations

import json
import shutil
from base64 import b64decode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from scrapy import squeues

from tests.commands.conftest import Ran, Run
from tests.commands.moved import rules, write
from tests.commands.moved.reading import Shown, in_order, served
from tests.contract.backends import RedisBackend

VERB = "migrate-from-jobdir"
OLD = json.loads((Path(write.__file__).parent / "scrapy_2.13.0.json").read_text())
KINDS = [(priority_queue, queue) for priority_queue in write.PRIORITY_QUEUES for queue in write.QUEUES]
SQLITE = [name for name in ("PickleLifoSQLiteQueue", "MarshalFifoSQLiteQueue") if hasattr(squeues, name)]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job directory."""
    return tmp_path / "job"


def files_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in sorted(folder.rglob("*")) if path.is_file()
    }


def moved(run: Run, job: Path, *args: str, **settings: Any) -> Ran:
    """Move it, and check that it stays as it was."""
    before = files_of(job)
    ran = run(VERB, str(job), *args, settings=settings)
    assert files_of(job) == before
    return ran


def as_served_here(requests: Sequence[Shown]) -> list[Shown]:
    """Return requests as they are served here: start requests after others of equal priority."""
    return in_order(sorted(requests, key=lambda shown: "is_start_request" in shown["meta"]))


@pytest.mark.parametrize(("priority_queue", "queue"), [*KINDS, *((write.PRIORITY_QUEUES[1], name) for name in SQLITE)])
def test_requests_and_fingerprints_continue_in_the_same_order(
    job: Path, run: Run, backend: RedisBackend, priority_queue: str, queue: str
) -> None:
    write.write_job(job, queue, priority_queue)

    ran = moved(run, job, SCHEDULER_DISK_QUEUE=f"scrapy.squeues.{queue}")

    assert (ran.code, ran.err) == (0, "")
    assert "12 of 12 pending requests and 14 of 14 fingerprints" in ran.out
    assert served(backend) == as_served_here(write.served_by_scrapy(job, queue, priority_queue))


@pytest.mark.parametrize(("priority_queue", "queue"), KINDS)
def test_a_crawl_of_the_oldest_version_continues(
    job: Path, run: Run, backend: RedisBackend, priority_queue: str, queue: str
) -> None:
    found = OLD[f"{priority_queue} {queue}"]
    for name, content in found["files"].items():
        path = job / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b64decode(content))

    ran = moved(run, job)

    assert (ran.code, ran.err) == (0, "")
    assert served(backend) == as_served_here(found["served"])
    again = [request.url for request in write.requests(write.Shop()) if not request.dont_filter]
    assert run("push", *again[:12]).out.startswith("0 pushed, 12 seen before,")


@pytest.mark.parametrize("queue", ["PickleLifoDiskQueue", "PickleFifoDiskQueue"])
def test_a_crawl_spider_is_moved(job: Path, run: Run, backend: RedisBackend, queue: str) -> None:
    theirs = write.Job(job, queue, "ScrapyPriorityQueue", rules.Linked)
    for request in rules.followed(theirs.spider):
        assert theirs.scheduler.enqueue_request(request)
    theirs.close()

    ran = moved(run, job, SPIDER_MODULES=[rules.__name__], SCHEDULER_DISK_QUEUE=f"scrapy.squeues.{queue}")

    assert ran.code == 0, ran.err
    assert {shown["url"]: shown["meta"]["link_text"] for shown in served(backend)} == rules.TEXTS


def test_fingerprints_in_both_forms_and_one_cut_off_are_read(job: Path, run: Run) -> None:
    job.mkdir()
    (job / "requests.seen").write_bytes(f"{'ab' * 20}\n".encode() + b"\0\x14" + b"c" * 20 + b"\0\x14" + b"d" * 7)

    ran = moved(run, job)

    assert "0 of 0 pending requests and 2 of 2 fingerprints" in ran.out


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.parametrize(
    ("queue", "name", "change", "said"),
    [
        ("PickleLifoDiskQueue", "1", cut, "1 is truncated or not a LIFO queue"),
        ("PickleFifoDiskQueue", "1/q00000", cut, "q00000 is truncated"),
        ("PickleFifoDiskQueue", "1/info.json", cut, "info.json can't be read"),
        ("PickleLifoDiskQueue", "notes.txt", Path.touch, "notes.txt is not a file of Scrapy's queues"),
        ("PickleLifoDiskQueue", "", shutil.rmtree, None),
    ],
)
def test_errors_name_the_file(
    job: Path, run: Run, queue: str, name: str, change: Callable[[Path], Any], said: str | None
) -> None:
    write.write_job(job, queue, "ScrapyPriorityQueue")
    change(job / "requests.queue" / name)

    ran = moved(run, job)

    assert ran.code == (0 if said is None else 1)
    assert (said or "") in ran.err
    assert said is None or str(job) in ran.err


def test_a_job_that_was_killed_is_moved_with_a_warning(job: Path, run: Run) -> None:
    write.write_job(job, "PickleLifoDiskQueue", "DownloaderAwarePriorityQueue")
    (job / "requests.queue" / "active.json").unlink()

    ran = moved(run, job)

    assert ran.code == 0
    assert "Scrapy was not closed gracefully" in ran.err


def test_a_folder_without_a_job_is_refused(job: Path, run: Run) -> None:
    ran, nameless = moved(run, job), run(VERB)

    assert (ran.code, nameless.code) == (1, 2)
    assert f"{job} is not a job directory" in ran.err
    assert "set JOBDIR" in nameless.err
