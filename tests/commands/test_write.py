"""Verbs that change a frontier, and that they ask first."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request

from scrapy_prioqueue.codec.detached import DetachedCodec
from scrapy_prioqueue.frontier.base import DEAD_BY_DOWNLOAD, Push
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.seen import SeenPolicy
from tests.commands.conftest import PROGRAM, Run
from tests.commands.requests import TIERS, page
from tests.contract.backends import RedisBackend, Worker, ack, fail, is_balanced
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

URL = "https://a.example/1"

IMPORTING = (
    "import json, sys; from scrapy_prioqueue.frontier.redis.operators.importer import Importer;"
    " from scrapy_prioqueue.frontier.redis.link import Link;"
    " Importer(Link(sys.argv[1]), sys.argv[2]).run(map(json.loads, sys.stdin))"
)
"""Imports while the records come."""


@pytest.fixture
def worker(backend: RedisBackend) -> Iterator[Worker]:
    """A worker of the frontier, whose books must balance in the end."""
    worker = backend.join("w1", tiers=TIERS, clock=None)
    yield worker
    assert is_balanced(worker.depth())


def served(worker: Worker) -> list[Request]:
    return [DetachedCodec().decode(lease.payload, lease.slot) for lease in worker.lease(1000)]


def urls(worker: Worker) -> list[str]:
    return [request.url for request in served(worker)]


# push


def test_push(run: Run, worker: Worker) -> None:
    meta = json.dumps({"page": 2})

    ran = run(
        "push", URL, "https://a.example/2", "--tier", "high", "--priority", "7", "--meta", meta, "--callback", "x"
    )

    assert (ran.code, ran.err) == (0, "")
    assert ran.out == f"2 pushed, into the crawl of 1 worker in frontier {worker.frontier.config.name!r}\n"
    first, second = served(worker)
    assert [first.url, second.url] == [URL, "https://a.example/2"]
    assert (first.priority, first.meta) == (7, {"page": 2, "prioqueue_tier": "high"})
    assert run("push", URL).out.startswith("0 pushed, 1 seen before, into the crawl of 1 worker")
    assert run("push", URL, "--dont-filter").out.startswith("1 pushed, ")


def test_push_of_delayed_requests(run: Run, worker: Worker) -> None:
    run("push", URL, "--delay", "15min")

    assert worker.depth().delayed == 1


def test_push_of_a_file(run: Run, worker: Worker, tmp_path: Path) -> None:
    file = tmp_path / "urls.txt"
    parts = json.dumps({"url": "https://b.example/", "tier": "urgent", "cb_kwargs": {"a": 1}})
    file.write_text(f"\ufeff# what to fetch\n\n{URL}\r\n  https://a.example/2\n{parts}\n", "utf-8")

    ran = run("push", "--file", str(file), "--tier", "low")

    assert (ran.code, ran.out.partition(",")[0]) == (0, "3 pushed")
    assert urls(worker) == ["https://b.example/", URL, "https://a.example/2"]


def test_push_of_a_pipe(run: Run, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "".join(f"https://a.example/{number}\n" for number in range(3000))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))

    assert run("push", "--file", "-").out.startswith("3,000 pushed, ")
    assert worker.depth().pending == 3000


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ((), "nothing to push"),
        ((URL, "--tier", "best"), "has no tier 'best'"),
        ((URL, "--meta", "[]"), "not a JSON object"),
        ((URL, "--meta", "{"), "not JSON"),
        ((URL, "--delay", "soon"), "not a length of time"),
        (("a.example",), "must begin with a scheme"),
        (("--file", "/no/such/file"), "can't be read"),
    ],
)
def test_an_invalid_push_is_wrong_use(run: Run, worker: Worker, args: tuple[str, ...], why: str) -> None:
    ran = run("push", *args)

    assert ran.code == 2
    assert why in ran.out + ran.err
    assert worker.depth().accepted == 0


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "neither a URL nor a JSON object"),
        (b"\xff" * 10_000, "neither a URL nor a JSON object"),
        (b'{"url": "https://a.example/", "meta": ' + b"[" * 100_000, "neither a URL nor a JSON object"),
        (b'{"uri": "https://a.example/"}', "unknown 'uri'"),
        (b'{"url": "https://a.example/", "meta": [1]}', "meta must be a mapping"),
        (b"a.example", "must begin with a scheme"),
    ],
    ids=range(6),
)
def test_push_names_the_line_that_it_can_not_use(
    run: Run, worker: Worker, tmp_path: Path, line: bytes, why: str
) -> None:
    file = tmp_path / "urls.txt"
    file.write_bytes(b"# two more\n" + URL.encode() + b"\n" + line + b"\n")

    ran = run("push", "--file", str(file))

    assert (ran.code, worker.depth().accepted) == (2, 0)
    assert ran.err.startswith("scrapy frontier push: line 3: ")
    assert why in ran.err
    assert len(ran.err) < 600


def test_a_full_server_is_named_with_what_to_do(
    run: Run, worker: Worker, own_server: RedisServer, tmp_path: Path
) -> None:
    file = tmp_path / "frontier.jsonl"
    run("export", str(file))
    client: Any = own_server.client()
    client.config_set("maxmemory", 1)

    for args in (("push", URL), ("import", str(file), "--name", f"{worker.frontier.config.name}-copy")):
        ran = run(*args, "--url", own_server.url)

        assert (ran.code, ran.out) == (3, "")
        assert f"the server at {own_server.url} has reached its maxmemory: raise it (CONFIG SET" in ran.err, args
        assert "script" not in ran.err


def test_push_says_into_which_crawl(run: Run, backend: RedisBackend, frontier_name: str) -> None:
    said = [run("push", URL).out, run("push", "https://a.example/2").out]
    worker = backend.join("w1", tiers=TIERS, clock=None)
    run("pause")
    said.append(run("push", "https://a.example/3").out)
    run("resume")
    worker.commit(*map(ack, worker.lease(3)))
    assert worker.ask(0, is_idle=True).has_ended
    worker.leave()
    said.append(run("push", URL).out)

    assert said == [
        f"1 pushed, into a new crawl of frontier {frontier_name!r}; no worker has joined it yet\n",
        f"1 pushed, into an open crawl without workers in frontier {frontier_name!r}\n",
        f"1 pushed, into the crawl of 1 worker in frontier {frontier_name!r}, which is paused\n",
        f"1 pushed, into a new crawl of frontier {frontier_name!r}, since the last one has ended;"
        " no worker has joined it yet\n",
    ]


def test_bad_lines_can_be_left_out(run: Run, worker: Worker, tmp_path: Path) -> None:
    file = tmp_path / "urls.txt"
    bad = ["{", "a.example", '{"uri": "x"}', *("b.example" for _ in range(20))]
    file.write_text("\n".join([URL, *bad, "https://a.example/2"]))

    refused, skipped = run("push", "--file", str(file)), run("push", "--file", str(file), "--skip-bad")
    only_bad = run("push", "a.example", "--skip-bad")

    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert refused.err.startswith("scrapy frontier push: line 2: ")
    assert refused.err.endswith("; --skip-bad leaves such lines out\n")
    lines = skipped.err.splitlines()
    assert (skipped.code, skipped.out.partition(", into")[0]) == (0, "2 pushed, 23 left out")
    assert [line.partition(": ")[2][:8] for line in lines[:3]] == ["line 2: ", "line 3: ", "line 4: "]
    assert (len(lines), lines[-1]) == (11, "left out: 13 more")
    assert urls(worker) == [URL, "https://a.example/2"]
    assert (only_bad.code, only_bad.out) == (1, "0 pushed, 1 left out\n")


def test_error_in_a_file_names_the_line_and_what_is_stored(run: Run, worker: Worker, tmp_path: Path) -> None:
    file = tmp_path / "urls.txt"
    file.write_text("".join(f"https://a.example/{number}\n" for number in range(2000)) + "{\n")

    ran = run("push", "--file", str(file))

    assert ran.code == 2
    assert "line 2001" in ran.err
    assert "; so far 2,000 of about 2,000 pushed; repeated, these count as seen before\n" in ran.err
    assert worker.depth().pending == 2000


# dead


@pytest.fixture
def dead(worker: Worker) -> Worker:
    """A worker that has given up two requests, one of which had been tried again before."""
    worker.commit(
        page("https://a.example/bad", meta={"retry_times": 3, "prioqueue_requeue_times": 1, "page": 1}),
        page("https://b.example/worse"),
    )
    first, second = worker.lease(2)
    worker.commit(fail(first, DEAD_BY_DOWNLOAD, "503 Service Unavailable"), fail(second))
    return worker


def test_dead_list(run: Run, dead: Worker) -> None:
    ran = run("dead")

    assert ran.code == 0
    assert "503 Service Unavailable" in ran.out and "https://b.example/worse" in ran.out
    assert [letter["reason"] for letter in run("dead", "list", "--json", "--match", "/bad$").json] == ["download"]
    assert [letter["reason"] for letter in run("dead", "--json", "--reason", "decode").json] == ["decode"]
    assert len(run("dead", "--json", "-n", "1").json) == 1
    assert len(run("dead", "--json", "--newer", "1h").json) == 2
    assert run("dead", "--older", "1h").out == "no dead letters\n"


def test_dead_list_at_80_columns(run: Run, worker: Worker) -> None:
    url = "https://shop.example/catalogue/garden/furniture/chairs/product-471112.html"
    detail = "twisted.internet.error.TimeoutError: User timeout caused connection failure"
    worker.commit(page(url))
    worker.commit(fail(worker.lease(1)[0], "download", detail))

    lines = run("dead", columns=80).out.splitlines()

    assert max(map(len, lines)) <= 80
    assert "download" in lines[2]
    assert lines[3].strip() == url
    assert " ".join(" ".join(lines[4:]).split()) == f"detail: {detail}"


def test_dead_show(run: Run, dead: Worker) -> None:
    letter = run("dead", "--json", "--match", "bad").json[0]

    ran = run("dead", "show", str(letter["id"]))

    assert ran.code == 0
    assert "503 Service Unavailable" in ran.out and "retry_times: 3" in ran.out
    assert run("dead", "show").code == 2
    assert run("dead", "show", "1").code == 1


def test_dead_replay(run: Run, dead: Worker) -> None:
    tried = run("dead", "replay", "--dry-run")
    assert (tried.code, tried.err) == (0, "")
    assert tried.out.startswith("would put 2 dead letters of frontier")
    assert run("dead", "replay").code == 2
    assert dead.depth().dead == 2

    ran = run("dead", "replay", "--reason", "download", "--yes")

    assert (ran.code, ran.out) == (0, "1 put back, with attempts and retries counted anew\n")
    (request,) = served(dead)
    assert (request.url, request.meta) == ("https://a.example/bad", {"page": 1})
    assert dead.depth().dead == 1
    assert dead.commit(page("https://a.example/bad")).duplicates == [0]
    assert run("dead", "replay", "--reason", "download", "--yes").code == 1


def test_a_crawl_that_has_ended_takes_no_orders_and_warns_of_a_replay(run: Run, dead: Worker) -> None:
    assert dead.ask(0, is_idle=True).has_ended
    dead.leave()
    assert "dropped at the end of the crawl" in run("status").out

    for order in (("pause",), ("drain", "--yes"), ("stop", "--yes"), ("resume",), ("release", "1", "--yes")):
        ran = run(*order)
        assert ran.code == 1, order
        assert "the crawl of frontier 'test-a-crawl-that-has-ended" in ran.err + ran.out, order
        assert " ended at 20" in ran.err + ran.out, order
    ran = run("dead", "replay", "--yes")

    assert (ran.code, ran.out) == (0, "2 put back, with attempts and retries counted anew\n")
    assert 'reads start() and fetches what is linked again. PRIOQUEUE_ON_FINISH = "keep"' in ran.err


def test_dead_replay_of_several_letters_of_one_request_puts_it_back_once(run: Run, worker: Worker) -> None:
    for _ in range(3):
        worker.commit(replace(page(URL), fingerprint=None))
        (lease,) = worker.lease()
        worker.commit(fail(lease, "callback"))

    ran = run("dead", "replay", "--yes")

    assert ran.out == (
        "1 put back, with attempts and retries counted anew; 2 older letters of the same requests deleted\n"
    )
    assert [request.url for request in served(worker)] == [URL]
    assert run("dead", "--json").json == []


@pytest.mark.parametrize("kind", ["list", "zset", "set", "none"])
def test_dead_replay_of_a_seed_puts_it_back_into_its_key(
    run: Run, worker: Worker, redis_server: RedisServer, frontier_name: str, kind: str
) -> None:
    client: Any = redis_server.client()
    key = f"{frontier_name}:start_urls"
    others = {"list": ("RPUSH", key, "other"), "zset": ("ZADD", key, 5, "other"), "set": ("SADD", key, "other")}
    if kind in others:
        client.execute_command(*others[kind])
    worker.commit(Push(0, "seeds", b'{"url": 3}'))
    (lease,) = worker.lease()
    worker.commit(fail(lease, "decode", f"seed of {key}: the url is no text"))

    ran = run("dead", "replay", "--yes")

    assert "1 of them put back into its seeds key" in ran.out
    reads = {"zset": ("ZRANGE", key, 0, -1), "set": ("SMEMBERS", key)}
    assert b'{"url": 3}' in client.execute_command(*reads.get(kind, ("LRANGE", key, 0, -1)))
    assert run("dead", "--json").json == []
    assert served(worker) == []


def test_dead_purge(run: Run, dead: Worker) -> None:
    (letter, _) = run("dead", "--json").json

    assert run("dead", "purge", str(letter["id"]), "--yes").out == "1 deleted\n"

    assert len(run("dead", "--json").json) == 1
    assert dead.depth().dead == 2


# what is pending


@pytest.mark.parametrize("action", ["replay", "purge"])
def test_dead_letters_that_were_not_counted_stay(
    run: Run, dead: Worker, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    def answer(*_: object) -> None:
        dead.commit(page("https://a.example/later", priority=9))
        (lease,) = dead.lease(1)
        dead.commit(fail(lease, DEAD_BY_DOWNLOAD, "later"))

    monkeypatch.setattr("scrapy_prioqueue.commands.verbs.dead.confirm", answer)

    assert run("dead", action).out.startswith("2 ")
    assert [letter["detail"] for letter in run("dead", "--json").json] == ["later"]


def test_arguments_may_follow_the_options(run: Run, dead: Worker) -> None:
    (letter, _) = run("dead", "--json").json

    assert run("dead", "purge", "--yes", str(letter["id"])).out == "1 deleted\n"
    assert run("push", URL, "--priority", "3", "https://a.example/2").out.startswith("2 pushed")
    assert run("push", "--priority", "3", URL, "--wrong", "x").code == 2


def test_move(run: Run, worker: Worker) -> None:
    worker.commit(
        page(URL, tier=2), page("https://a.example/2", tier=2, priority=3), page("https://b.example/", tier=1)
    )

    assert "would move 1 " in run("move", "/2$", "--tier", "urgent", "--dry-run").out
    assert run("move", "/2$", "--tier", "urgent", "--yes").out == "1 moved to tier 'urgent'\n"

    requests = served(worker)
    assert [request.url for request in requests] == ["https://a.example/2", "https://b.example/", URL]
    assert (requests[0].meta, requests[0].priority) == ({"prioqueue_tier": "urgent"}, 3)
    assert run("move", "nothing", "--tier", "urgent", "--yes").code == 1
    assert run("move", ".", "--tier", "best", "--yes").code == 2


def test_remove(run: Run, worker: Worker) -> None:
    worker.commit(page(URL), page("https://a.example/2"), page("https://b.example/"))

    assert "would remove 2 " in run("remove", "a.example", "--dry-run").out
    assert "would remove 3 " in run("remove", ".", "--callback", "parse", "--dry-run").out
    assert run("remove", ".", "--callback", "parse_old", "--yes").code == 1
    assert run("remove", "a.example", "--yes").out == "2 removed\n"

    assert worker.commit(page(URL)).duplicates == [0]
    assert urls(worker) == ["https://b.example/"]


def test_forget(run: Run, worker: Worker) -> None:
    worker.commit(page(URL))

    ran = run("forget", URL, "https://a.example/2", "--yes")

    assert (ran.code, ran.out) == (0, "1 forgotten\nnot seen: https://a.example/2\n")
    assert worker.commit(page(URL)).duplicates == []


def test_forget_refuses_at_once_where_nothing_can_be_taken_out(run: Run, backend: RedisBackend) -> None:
    backend.join("w1", tiers=TIERS, clock=None, seen=SeenPolicy("bloom", 500, 0.01))

    ran = run("forget", URL)

    assert (ran.code, "Bloom filter" in ran.err, "would forget" in ran.err) == (1, True, False)


# the fleet


def test_pause_and_resume(run: Run, worker: Worker) -> None:
    worker.commit(page(URL))

    assert run("pause").out.startswith("paused: 1 worker")
    assert urls(worker) == []
    assert "paused" in run("status").out
    assert run("resume").out == "resumed: the crawl was paused\n"
    assert urls(worker) == [URL]
    assert run("resume").out == "the crawl was neither paused nor drained\n"


def test_drain(run: Run, worker: Worker) -> None:
    assert run("drain").code == 2
    assert not worker.ask().orders.is_drained

    assert run("drain", "--yes").code == 0

    assert worker.ask().orders.is_drained


def test_stop(run: Run, worker: Worker) -> None:
    assert (
        run("stop", "--reason", "maintenance", "--yes").out == "asked 1 worker to close with the reason 'maintenance'\n"
    )
    assert worker.ask().orders.stop_reason == "maintenance"


def test_commands_to_workers_that_are_gone(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1")  # its clock stands still long ago

    assert run("stop", "--yes").out.endswith("'stopped'; silent ones (1) do so if they come back\n")
    worker.leave()
    stopped = run("stop", "--yes")

    assert (stopped.code, stopped.out, stopped.err) == (1, "", "scrapy frontier stop: no worker is running\n")
    assert run("pause").out == "paused: no worker is running, and those that start wait for resume\n"
    assert "no worker is running" in run("drain", "--yes").out


def test_evict(run: Run, worker: Worker, backend: RedisBackend) -> None:
    worker.commit(page(URL))
    gone = backend.join("gone", tiers=TIERS, clock=None)
    assert urls(gone) == [URL]

    assert "if it is still running" in run("workers", "--evict", "gone").err
    assert run("workers", "--evict", "gone", "--yes").out.startswith("1 lease taken from 'gone'")

    assert urls(worker) == [URL]
    assert run("workers", "--evict", "nobody", "--yes").code == 1


# export and import


def test_export_and_import(run: Run, worker: Worker, backend: RedisBackend, tmp_path: Path) -> None:
    worker.commit(page(URL), page("https://a.example/2", tier=1))
    file, name = tmp_path / "frontier.jsonl", f"{worker.frontier.config.name}-moved"

    ran = run("export", str(file))
    assert (ran.code, ran.out) == (0, f"{len(file.read_text().splitlines())} lines written to {file}\n")
    assert "1 worker is running" in ran.err
    assert run("export", "-").out.splitlines()[1:] == file.read_text().splitlines()[1:]
    ran = run("import", str(file), "--name", name)

    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("2 pending and 0 delayed requests, 0 dead letters and 2 fingerprints are in frontier")
    assert urls(backend.join("w2", name=name, tiers=TIERS, clock=None)) == [URL, "https://a.example/2"]
    assert run("import", str(file), "--name", name).code == 1


def test_import_of_a_file_with_a_wrong_field_writes_nothing(
    run: Run, worker: Worker, redis_server: RedisServer, tmp_path: Path
) -> None:
    worker.commit(page(URL))
    file, name = tmp_path / "frontier.jsonl", f"{worker.frontier.config.name}-moved"
    run("export", str(file))
    good = [json.loads(line) for line in file.read_text().splitlines()]
    first = next(index for index, record in enumerate(good) if record["kind"] == "pending")
    redis: Any = redis_server.client()
    for index, field, wrong in (
        (0, "lanes", {"state": {**good[0]["state"], "lanes": "2000000"}}),
        (first, "rank", {"rank": "high"}),
    ):
        records = [*good[:index], {**good[index], **wrong}, *good[index + 1 :]]
        file.write_text("".join(json.dumps(record) + "\n" for record in records))

        ran = run("import", str(file), "--name", name)

        assert (ran.code, ran.err.count("\n")) == (1, 1)
        assert f"line {index + 1}: {field} of" in ran.err
        assert not list(redis.scan_iter(Keys(name).pattern()))


def test_import_of_what_is_no_export(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "frontier.jsonl"
    for text, why in (("", "not an export"), ("https://a.example/\n", "not JSON"), ("[]\n", "not a JSON object")):
        file.write_text(text)
        ran = run("import", str(file))
        assert (ran.code, ran.err.count("\n")) == (1, 1)
        assert why in ran.err
    assert run("import", str(tmp_path / "missing")).code == 2
    assert run("export", str(tmp_path / "no" / "such")).code == 1


def test_an_import_that_is_killed_can_be_dropped_and_repeated(
    run: Run, worker: Worker, redis_server: RedisServer, tmp_path: Path
) -> None:
    for first in range(0, 3000, 150):
        worker.commit(*(page(f"https://a.example/{number}") for number in range(first, first + 150)))
    worker.leave()
    file, name = tmp_path / "frontier.jsonl", f"{worker.frontier.config.name}-moved"
    run("export", str(file))
    redis: Any = redis_server.client()
    program = [sys.executable, "-c", IMPORTING, redis_server.url, name]
    with subprocess.Popen(program, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.writelines(file.read_bytes().splitlines(keepends=True)[:-1])
        process.stdin.flush()
        wait_until(lambda: redis.exists(Keys(name).queue(b"a.example")), what="something is there", within=30)
        process.kill()

    assert run("import", str(file), "--name", name).code == 1
    ran = run("status", "--name", name)
    assert (ran.code, "an import into it has been silent" in ran.err, "reset --all" in ran.err) == (1, True, True)
    assert "an import is running, or was interrupted" in run("doctor", "--name", name).out
    assert run("reset", "--all", "--name", name, "--yes").code == 0
    assert run("import", str(file), "--name", name).code == 0
    assert run("status", "--name", name, "--json").json["counts"]["pending"] == 3000


# reset


def test_reset_of_what_was_seen(run: Run, worker: Worker) -> None:
    worker.commit(page(URL))

    assert run("reset", "--seen", "--yes").code == 0

    assert worker.commit(page(URL)).duplicates == []


def test_a_push_marks_what_frontiers_share(run: Run, frontier_name: str) -> None:
    shared = {"PRIOQUEUE_SEEN_NAME": f"{frontier_name}-pool"}

    assert run("push", URL, settings=shared).out.startswith("1 pushed, ")

    other = {"PRIOQUEUE_NAME": f"{frontier_name}-other"}
    assert run("push", URL, settings={**shared, **other}).out.startswith("0 pushed, 1 seen before, ")


def test_reset_of_what_frontiers_share(
    run: Run, backend: RedisBackend, redis_server: RedisServer, frontier_name: str
) -> None:
    pool = f"{frontier_name}-pool"
    worker = backend.join("w1", tiers=TIERS, clock=None, seen_name=pool)
    worker.commit(page(URL))
    worker.leave()

    assert "1 fingerprint of others (PRIOQUEUE_SEEN_NAME)" in run("status", settings={"PRIOQUEUE_NAME": pool}).err
    assert "that frontiers share as" in run("reset", "--seen", settings={"PRIOQUEUE_NAME": pool}).err
    assert run("reset", "--seen", "--yes", settings={"PRIOQUEUE_NAME": pool}).code == 0

    redis: Any = redis_server.client()
    assert redis.keys(Keys(pool).pattern()) == []
    again = backend.join("w2", tiers=TIERS, clock=None, seen_name=pool, seen=SeenPolicy("compact"))
    assert again.commit(page(URL)).duplicates == []


def test_reset_of_the_queue(run: Run, worker: Worker) -> None:
    worker.commit(*(page(f"https://a.example/{number}") for number in range(300)))

    assert "this would delete 300 pending and 0 delayed requests" in run("reset", "--queue").err
    assert run("reset", "--queue", "--yes").out == "300 requests deleted\n"

    assert worker.depth().accepted == 0
    assert worker.commit(page("https://a.example/1")).duplicates == [0]


def test_reset_of_everything(run: Run, backend: RedisBackend, redis_server: RedisServer, frontier_name: str) -> None:
    worker = backend.join("w1", tiers=TIERS, clock=None)
    worker.commit(page(URL))

    ran = run("reset", "--all", "--yes")
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert "living workers (w1)" in ran.err
    worker.leave()
    assert run("reset", "--all", "--yes").code == 0

    redis: Any = redis_server.client()
    assert len(redis.keys(Keys(frontier_name).pattern())) == 1
    assert frontier_name not in run("list").out
    assert run("reset", "--yes").code == 2


# asking


def on_a_terminal(answer: str, *args: str) -> tuple[int, str]:
    """Run the command where somebody can be asked, and answer."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "frontier", *args],
        stdin=slave,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    os.write(master, f"{answer}\n".encode())
    out, _ = process.communicate(timeout=30)
    os.close(master)
    os.close(slave)
    return process.returncode, out


def test_it_asks_on_a_terminal(redis_server: RedisServer, worker: Worker, frontier_name: str) -> None:
    worker.commit(page(URL))
    args = ("reset", "--queue", "--name", frontier_name, "--url", redis_server.url)

    code, out = on_a_terminal("n", *args)
    assert (code, "Delete 1 pending" in out, "nothing was changed" in out) == (1, True, True)
    assert worker.depth().pending == 1
    code, out = on_a_terminal("y", *args)
    assert (code, "1 request deleted" in out) == (0, True)
    assert worker.depth().pending == 0
