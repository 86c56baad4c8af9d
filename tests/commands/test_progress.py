"""Verbs that change many requests read them once, show their progress, and report how far they got."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Progress

from scrapy_prioqueue.commands.context import Context
from scrapy_prioqueue.commands.progress import Work
from scrapy_prioqueue.commands.verbs import pending, transfer
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators import importer
from scrapy_prioqueue.frontier.redis.operators.calls import ScriptCalls
from scrapy_prioqueue.frontier.redis.operators.exporter import Exporter
from scrapy_prioqueue.frontier.redis.operators.inspector import Inspector
from scrapy_prioqueue.frontier.redis.operators.requests import Requests
from tests.commands.conftest import Run
from tests.commands.requests import TIERS, page
from tests.contract.backends import RedisBackend, Worker, fail, is_balanced
from tests.support.servers import RedisServer

MANY = 500


@pytest.fixture
def worker(backend: RedisBackend) -> Iterator[Worker]:
    """A worker of a frontier with many requests, whose books must balance in the end."""
    worker = backend.join("w1", tiers=TIERS, clock=None)
    worker.commit(*(page(f"https://a.example/{number}", tier=2) for number in range(MANY)))
    yield worker
    assert is_balanced(worker.depth())


def interrupted_at(script: str, number: int, with_signal: int, patch: pytest.MonkeyPatch) -> None:
    """Let a signal come before the call of a script of that number."""
    run, calls = ScriptCalls.run, [0]

    def counting_run(self: ScriptCalls, batch: Any) -> Any:
        calls[0] += batch[0][0] == script
        if calls[0] == number and batch[0][0] == script:
            os.kill(os.getpid(), with_signal)
        return run(self, batch)

    patch.setattr(ScriptCalls, "run", counting_run)


@pytest.mark.parametrize(("with_signal", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("move", ".", "--tier", "low", "--yes"), r"so far 100 moved, \d+ of 500 requests read; the same"),
        (("remove", ".", "--yes"), r"so far 100 removed, \d+ of 500 requests read; the same command does the"),
        (("push", "--file", "FILE"), r"so far 100 of about [\d,]+ pushed; repeated, these count as seen before"),
    ],
    ids=["move", "remove", "push"],
)
def test_a_verb_that_is_interrupted_says_how_far_it_got(
    run: Run,
    worker: Worker,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    args: tuple[str, ...],
    said: str,
    with_signal: int,
    code: int,
) -> None:
    file = tmp_path / "urls.txt"
    file.write_text("".join(f"https://b.example/{number}\n" for number in range(1000)))
    interrupted_at(args[0], 3, with_signal, monkeypatch)
    before = signal.getsignal(signal.SIGTERM)

    ran = run(*(str(file) if argument == "FILE" else argument for argument in args))

    assert ran.code == code
    assert re.fullmatch(rf"scrapy frontier {args[0]}: interrupted; {said}.*\n", ran.err)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("find", "."), "; so far [1-9]\\d* of [45]\\d\\d requests read"),
        (
            ("move", ".", "--tier", "low", "--dry-run"),
            "; so far [1-9]\\d* of [45]\\d\\d requests read, nothing moved",
        ),
        (("remove", ".", "--dry-run"), "; so far [1-9]\\d* of [45]\\d\\d requests read, nothing removed"),
        (("dead", "replay"), "; so far nothing was put back"),
        (("dead", "purge"), "; so far nothing was deleted"),
        (("dead",), ""),
        (
            ("export", "FILE"),
            "; so far 0 of 500 requests written; the export is incomplete, and import rejects it: run export again",
        ),
    ],
)
def test_a_verb_that_is_interrupted_before_it_changes_anything_says_so(
    run: Run, worker: Worker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, args: tuple[str, ...], said: str
) -> None:
    worker.commit(*map(fail, worker.lease(3)))

    def interrupt(reader: Any) -> Any:
        def interrupted(*given: Any, **named: Any) -> Iterator[Any]:
            yield next(iter(reader(*given, **named)))
            raise KeyboardInterrupt

        return interrupted

    for kind, reader in ((Requests, "each"), (Requests, "dead"), (Exporter, "records")):
        monkeypatch.setattr(kind, reader, interrupt(getattr(kind, reader)))

    ran = run(*(str(tmp_path / "all.jsonl") if argument == "FILE" else argument for argument in args))

    assert (ran.code, ran.out) == (130, "")
    assert re.search(f"^scrapy frontier {args[0]}: interrupted{said}\n$", ran.err, re.MULTILINE)


def test_a_second_interrupt_ends_without_a_traceback(run: Run, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Inspector, "status", interrupted)
    monkeypatch.setattr(Context, "close", interrupted)

    assert run("status").code == 130


def test_an_import_that_is_terminated_drops_what_it_has_brought_and_says_so(
    run: Run, worker: Worker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, client: Any
) -> None:
    file, name = tmp_path / "frontier.jsonl", f"{worker.frontier.config.name}-copy"
    assert run("export", str(file)).code == 0

    with monkeypatch.context() as patch:
        patch.setattr(importer, "_RECORDS_PER_PROGRESS", 100)
        interrupted_at("restore", 5, signal.SIGTERM, patch)
        ran = run("import", str(file), "--name", name)

    assert ran.code == 143
    assert re.search(r"interrupted; so far 200 of \d+ records read; the imported part is deleted again\n", ran.err)
    assert not client.keys(Keys(name).queue(b"*"))
    assert run("import", str(file), "--name", name).code == 0


@pytest.mark.parametrize("is_impatient", [False, True])
def test_an_import_that_is_interrupted_as_it_begins_says_what_is_left(
    run: Run,
    worker: Worker,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    client: Any,
    is_impatient: bool,
) -> None:
    file, name = tmp_path / "frontier.jsonl", f"{worker.frontier.config.name}-copy"
    assert run("export", str(file)).code == 0

    def adopt(self: ScriptCalls, batch: Any) -> Any:
        replies = call(self, batch)
        if batch[0][0] == "adopt" or is_impatient:
            raise KeyboardInterrupt
        return replies

    call = ScriptCalls.run
    with monkeypatch.context() as patch:
        patch.setattr(ScriptCalls, "run", adopt)
        ran = run("import", str(file), "--name", name)

    assert ran.code == 130
    left = r"still there: scrapy frontier reset --all .* deletes it" if is_impatient else "deleted again"
    assert re.search(rf"interrupted; so far 0 of \d+ records read; the imported part is {left}\n", ran.err)
    assert client.exists(Keys(name).state) == 0 or run("status", "--name", name).code == 1
    assert run("import", str(file), "--name", name).code == 0 or is_impatient


def test_an_import_that_is_interrupted_while_the_file_is_checked_says_so(
    run: Run, worker: Worker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "frontier.jsonl"
    assert run("export", str(file)).code == 0

    def interrupted(records: Any) -> Any:
        yield next(records)
        raise KeyboardInterrupt

    monkeypatch.setattr(transfer, "checked", interrupted)
    ran = run("import", str(file), "--name", f"{worker.frontier.config.name}-copy")

    assert (ran.code, ran.out) == (130, "")
    assert "interrupted; so far 0 records checked, nothing imported" in ran.err


def test_import_of_a_truncated_file_says_how_much_of_it_was_checked(run: Run, worker: Worker, tmp_path: Path) -> None:
    file, truncated = tmp_path / "frontier.jsonl", tmp_path / "truncated.jsonl"
    assert run("export", str(file)).code == 0
    truncated.write_text("".join(file.read_text().splitlines(keepends=True)[:20]))

    ran = run("import", str(truncated), "--name", f"{worker.frontier.config.name}-copy")

    assert (ran.code, ran.out) == (1, "")
    assert ran.err.endswith("; so far 19 records checked, nothing imported\n")


@pytest.mark.parametrize("args", [("move", ".", "--tier", "low"), ("remove", ".")], ids=["move", "remove"])
@pytest.mark.parametrize("is_asked", [True, False], ids=["asked", "yes"])
def test_changed_requests_are_read_once(
    run: Run, worker: Worker, monkeypatch: pytest.MonkeyPatch, client: Any, args: tuple[str, ...], is_asked: bool
) -> None:
    def scans() -> int:
        return int(client.info("commandstats")["cmdstat_zscan"]["calls"])

    run(*args, "--dry-run")
    before = scans()
    run(*args, "--dry-run")
    needed = scans() - before
    monkeypatch.setattr(pending, "confirm", lambda *_: None)

    ran = run(*args, *(() if is_asked else ("--yes",)))

    assert ran.out.startswith(f"{MANY} {args[0]}d")
    assert scans() - before - needed <= needed
    assert run(*args, "--yes").code == 1


def test_no_more_is_read_than_was_expected(
    worker: Worker, redis_server: RedisServer, frontier_name: str, client: Any
) -> None:
    worker.commit(*(page(f"https://s{number}.example/") for number in range(60)))
    worker.commit(*map(fail, worker.lease(7)))
    worker.lease(5)
    inspector = Inspector(Link(redis_server.url), frontier_name)
    requests = inspector.requests
    choices: list[dict[str, Any]] = [
        {},
        {"containing": [b"s1", b"s2"]},
        {"slot": "a.example"},
        {"states": ["pending", "dead"]},
    ]
    for how in choices:
        work = Work(Progress(disable=True), "looking")
        requests.progress = work.look
        found = {stored.lease_id for stored in requests.each(**how)}
        assert work.done == work.total, how
        assert 0 < len(found) <= work.done, how
    inspector.link.close()


def test_no_more_is_returned_than_was_read(worker: Worker, redis_server: RedisServer, frontier_name: str) -> None:
    worker.commit(*(page(f"https://s{number % 60}.example/{number}") for number in range(3000)))
    inspector = Inspector(Link(redis_server.url), frontier_name)
    for containing in [(), (b"example",), (b"s1", b"s2")]:
        work = Work(Progress(disable=True), "looking")
        inspector.requests.progress = work.look
        handed_out = set()
        for stored in inspector.requests.each(containing=containing):
            handed_out.add(stored.lease_id)
            assert len(handed_out) <= work.done, containing
        assert work.done == work.total
    inspector.link.close()


def test_progress_shows_the_total_if_it_is_known_or_can_be_estimated() -> None:
    work = Work(Progress(disable=True), "pushing")

    told = []
    for done, part in ((0, 0.01), (1000, None), (1000, 0.1), (1000, 0.5), (1000, 1.0)):
        work.note(done, part=part)
        told.append(str(work))

    assert told == ["0", "1,000", "1,000 of about 10,000", "1,000 of about 2,000", "1,000 of 1,000"]
