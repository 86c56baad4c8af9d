"""A server that has lost writes, was emptied or replaced gets the lost batches again, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import redis

from scrapy_prioqueue.errors import CrawlEnded, FrontierFull, FrontierUnavailable, NotPermitted
from scrapy_prioqueue.frontier.base import Batch, Claim, Demand, Depth, Exchanged, Frontier, FrontierConfig, Recall
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.frontier import RedisFrontier
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.scripts import Argument
from scrapy_prioqueue.frontier.redis.servers import ServerChanged
from tests.contract.backends import TTL_S, RedisBackend, Worker, ack, is_balanced, push
from tests.support.servers import RedisServer, StartServer

EVERYTHING = Demand(100, is_fair=False)


class Line(Connection):
    """A connection that says once that the server has changed, or loses one answer."""

    has_changed = False
    loses_answer = False

    async def run(self, calls: Sequence[tuple[str, str, Sequence[Argument]]], *, wait_replicas: int = 0) -> list[Any]:
        if self.has_changed:
            self.has_changed = False
            raise ServerChanged(self.address, "another server answers", was_sent=False)
        replies = await super().run(calls, wait_replicas=wait_replicas)
        if self.loses_answer:
            self.loses_answer = False
            raise FrontierUnavailable(self.address, "the answer was lost")
        return replies


class Backend(RedisBackend):
    """A frontier whose state can be brought back to what it was."""

    def __init__(self, name: str, server: RedisServer) -> None:
        super().__init__(name, server.url)
        self.server = server
        self.client: redis.Redis = server.client()
        self.keys = Keys(name)
        self.lines: dict[str, Line] = {}
        self._saved: dict[bytes, Any] = {}

    def _frontier(self, config: FrontierConfig) -> Frontier:
        line = self.lines[config.worker] = Line(self._url)
        return RedisFrontier(config, line)

    def save(self) -> None:
        """Remember the state."""
        self._saved = {key: self.client.dump(key) for key in self._all()}

    def forget(self) -> None:
        """Go back to that state, empty if none was saved, and let time pass."""
        for key in self._all():
            self.client.delete(key)
        for key, value in self._saved.items():
            self.client.restore(key, 0, value)
        self.clock.advance(0.1)

    def tell_of_change(self) -> None:
        """Let all workers notice that the server has changed."""
        for line in self.lines.values():
            line.has_changed = True

    def close(self) -> None:
        super().close()
        self.client.close()

    def _all(self) -> list[bytes]:
        return list(self.client.scan_iter(self.keys.pattern()))


@pytest.fixture
def backend(redis_server: RedisServer, frontier_name: str) -> Iterator[Backend]:
    backend = Backend(frontier_name, redis_server)
    yield backend
    backend.close()


@pytest.fixture
def backend_of_its_own(redis_server_factory: StartServer, frontier_name: str) -> Iterator[Backend]:
    backend = Backend(frontier_name, redis_server_factory())
    yield backend
    backend.close()


Forget = Callable[[Backend, Worker], Exchanged]


def learn_from_the_connection(backend: Backend, worker: Worker) -> Exchanged:
    """Let the server forget, and the worker learn it before it sends anything."""
    backend.forget()
    backend.tell_of_change()
    return worker.exchange(demand=EVERYTHING)


def learn_from_the_numbers(backend: Backend, worker: Worker) -> Exchanged:
    """Let the server forget, and the worker learn it from the answer to its next batch."""
    backend.forget()
    batch = Batch(worker.last_batch.number + 1, [push("next")])
    answer = worker.exchange(batch, demand=EVERYTHING)
    assert not answer.committed
    give_back_unknown(worker)
    return answer


def learn_from_the_position(backend: Backend, worker: Worker) -> Exchanged:
    """Let the server forget, and the worker learn it from a lease, as of a primary that keeps its run id."""
    backend.forget()
    return worker.exchange(demand=EVERYTHING)


def learn_from_a_renewal(backend: Backend, worker: Worker) -> Exchanged:
    """Let the server forget, and the worker learn it when it renews its leases."""
    backend.forget()
    worker.renew()
    return worker.exchange(demand=None)


def give_back_unknown(worker: Worker) -> None:
    """Reconcile: the server may have leased in the same round trip in which it refused a batch."""
    worker.reconcile()


@pytest.mark.parametrize(
    "forget", [learn_from_the_connection, learn_from_the_numbers, learn_from_the_position, learn_from_a_renewal]
)
def test_only_lost_commits_are_committed_again(backend: Backend, forget: Forget) -> None:
    worker = backend.join()
    worker.commit(push("1", 1, fingerprint=b"fingerprint 1"), push("2", 2), push("3", 3))
    (lease,) = worker.lease()
    backend.save()
    worker.commit(push("4", 4, fingerprint=b"fingerprint 4"), push("4", fingerprint=b"fingerprint 4"), ack(lease))
    worker.commit(push("5", 5))

    answer = forget(backend, worker)

    assert answer.recall == Recall(resent=4)
    assert not (answer.leases or answer.has_forgotten or answer.rejection)
    assert worker.depth() == Depth(accepted=5, pending=4, done=1, workers=1)
    assert list(worker.commit(push("6", 6), push("4", fingerprint=b"fingerprint 4")).duplicates) == [1]
    assert worker.lease_payloads() == ["2", "3", "4", "5", "6"]


def test_server_that_has_lost_nothing_gets_nothing_again(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1"))
    backend.save()

    answer = learn_from_the_connection(backend, worker)

    assert answer.recall == Recall()
    assert worker.ask().recall is None
    assert worker.lease_payloads() == ["1"]


def test_more_than_one_round_trip_takes_is_sent_again_in_order(backend: Backend) -> None:
    worker = backend.join(order="fifo")
    backend.save()
    for number in range(20):
        worker.commit(push(str(number)), push(f"{number} b"))

    assert learn_from_the_connection(backend, worker).recall == Recall(resent=40)

    assert worker.lease_payloads() == [name for number in range(20) for name in (str(number), f"{number} b")]


def test_lease_that_was_forgotten_is_lost_and_can_be_claimed(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1", fingerprint=b"fingerprint 1"))
    backend.save()
    (lease,) = worker.lease()
    learn_from_the_connection(backend, worker)

    assert worker.renew(lease) == [lease.lease_id]
    committed = worker.commit(Claim(push("1", fingerprint=b"fingerprint 1"), lease.lease_id, lease.attempt))

    assert committed.claimed == {0: (lease.lease_id, 1)}
    assert worker.reconcile(lease) == 0
    assert list(worker.commit(ack(lease)).void) == []
    assert worker.depth() == Depth(accepted=1, done=1, workers=1)


def test_found_requests_whose_claims_were_forgotten_are_stored_and_can_be_claimed_again(backend: Backend) -> None:
    worker = backend.join()
    backend.save()
    committed = worker.commit(push("1"), Claim(push("2", fingerprint=b"fingerprint 2")))

    assert learn_from_the_connection(backend, worker).recall == Recall(resent=2)

    assert worker.depth() == Depth(accepted=2, pending=2, workers=1)
    # The server gives ids anew, so a claim that was told again could get one that is in use here for something else.
    lease_id, attempt = committed.claimed[1]
    assert worker.run(worker.frontier.renew([(lease_id, attempt)])) == [lease_id]


# Answers that were lost before


def lose_answer(backend: Backend, worker: Worker, batch: Batch) -> None:
    """Send a batch that is applied, and lose the answer."""
    backend.lines[worker.worker_id].loses_answer = True
    with pytest.raises(FrontierUnavailable):
        worker.exchange(batch, demand=None)


def test_batch_that_the_server_kept_though_its_answer_was_lost_is_confirmed_with_its_claims(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1"))
    batch = Batch(2, [push("2"), Claim(push("3"))])
    lose_answer(backend, worker, batch)
    backend.save()
    backend.forget()
    backend.tell_of_change()

    answer = worker.exchange(batch, demand=EVERYTHING)

    assert answer.recall == Recall()
    (committed,) = answer.committed
    assert committed.number == 2
    lease_id, attempt = committed.claimed[1]
    assert worker.run(worker.frontier.renew([(lease_id, attempt)])) == []
    assert worker.depth() == Depth(accepted=3, pending=2, leased=1, workers=1)
    assert worker.exchange(Batch(3, [push("4")]), demand=None).committed[0].number == 3


def test_batch_whose_answer_was_lost_and_that_is_forgotten_is_not_confirmed(backend: Backend) -> None:
    worker = backend.join()
    backend.save()
    worker.commit(push("1"))
    batch = Batch(2, [push("2")])
    lose_answer(backend, worker, batch)
    backend.forget()
    backend.tell_of_change()

    answer = worker.exchange(batch, demand=EVERYTHING)

    assert (list(answer.committed), answer.recall) == ([], Recall(resent=1))
    assert worker.exchange(Batch(2, [push("other")]), demand=None).committed[0].number == 2
    assert sorted(worker.lease_payloads()) == ["1", "other"]


def test_batch_that_was_confirmed_by_a_recall_is_sent_again_after_the_next_loss(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1"))
    backend.save()
    batch = Batch(2, [push("2")])
    lose_answer(backend, worker, batch)
    backend.tell_of_change()
    assert [committed.number for committed in worker.exchange(batch, demand=None).committed] == [2]

    assert learn_from_the_connection(backend, worker).recall == Recall(resent=1)
    assert sorted(worker.lease_payloads()) == ["1", "2"]


# What is not kept any more


def test_batches_that_are_no_longer_kept_are_logged_as_missing(backend: Backend) -> None:
    worker = backend.join(journal_limit=2)
    worker.commit(push("1"))
    backend.save()
    for number in range(2, 6):
        worker.commit(push(str(number)))

    answer = learn_from_the_connection(backend, worker)

    assert answer.recall == Recall(resent=2, missing=2)
    assert sorted(worker.lease_payloads()) == ["1", "4", "5"]
    worker.last_batch = Batch(5, ())
    assert worker.commit(push("6")).number == 6


def test_worker_that_keeps_nothing_continues_with_its_next_number(backend: Backend) -> None:
    worker = backend.join(journal_limit=1)
    backend.save()
    worker.commit(push("1"), push("2"))

    assert learn_from_the_connection(backend, worker).recall == Recall(missing=1)

    assert worker.commit(push("3")).number == 2
    assert worker.lease_payloads() == ["3"]


# Sessions and crawls that are gone


@pytest.mark.parametrize("forget", [learn_from_the_connection, learn_from_the_position])
def test_server_from_before_the_worker_joined_gets_everything_again(backend: Backend, forget: Forget) -> None:
    backend.join("w1").commit(push("1"))
    backend.save()
    worker = backend.join("w2")
    worker.commit(push("2"))
    worker.commit(push("3"))

    answer = forget(backend, worker)

    assert (answer.recall, answer.has_forgotten) == (Recall(resent=2), False)
    assert sorted(worker.lease_payloads()) == ["1", "2", "3"]


def test_worker_that_was_removed_after_a_long_silence_joins_again_and_repeats_nothing(backend: Backend) -> None:
    worker, other = backend.join("w1"), backend.join("w2")
    worker.commit(push("1"))
    for _ in range(30):
        backend.clock.advance(TTL_S)
        other.ask()
    assert not backend.client.hexists(backend.keys.sessions, "w1")

    answer = worker.send(push("2"), demand=EVERYTHING)

    assert answer.recall is None
    assert [committed.number for committed in answer.committed] == [2]
    assert sorted(lease.payload for lease in answer.leases) == [b"1", b"2"]


@pytest.mark.parametrize("forget", [learn_from_the_connection, learn_from_the_numbers])
def test_emptied_server_gets_all_that_is_kept_as_a_new_crawl(backend: Backend, forget: Forget) -> None:
    worker, other = backend.join("w1"), backend.join("w2")
    worker.commit(push("1", fingerprint=b"fingerprint 1"))
    other.commit(push("2", fingerprint=b"fingerprint 2"), push("1", fingerprint=b"fingerprint 1"))

    answers = [forget(backend, worker)]
    backend.lines["w2"].has_changed = True
    answers.append(other.exchange(demand=EVERYTHING))

    assert [(answer.has_forgotten, answer.recall) for answer in answers] == [
        (True, Recall(resent=1)),
        (True, Recall(resent=2)),
    ]
    assert worker.depth() == Depth(accepted=2, pending=2, workers=2)
    assert sorted(other.lease_payloads()) == ["1", "2"]
    assert worker.ask().has_forgotten is False


def test_emptied_server_is_recognised_even_after_earlier_crawls(backend: Backend) -> None:
    for _ in range(2):
        first = backend.join("w1")
        assert first.ask(is_idle=True).has_ended
        first.leave()
    worker = backend.join("w1")
    worker.commit(push("1"))

    assert learn_from_the_connection(backend, worker).has_forgotten

    assert worker.lease_payloads() == ["1"]


@pytest.mark.parametrize("has_kept", [True, False], ids=["known", "dropped"])
def test_worker_that_wakes_up_after_others_have_ended_and_cleared_the_crawl_begins_none(
    backend: Backend, has_kept: bool
) -> None:
    worker, other = backend.join("w1"), backend.join("w2")
    worker.commit(push("1"))
    backend.clock.advance(2 * TTL_S)
    (lease,) = other.lease()
    other.commit(ack(lease))
    assert other.ask(is_idle=True).has_ended
    other.leave()
    if not has_kept:
        backend.client.hdel(backend.keys.sessions, "w1")
    backend.tell_of_change()
    before = backend.client.hgetall(backend.keys.state)

    answer = worker.send(push("late"), demand=EVERYTHING)

    assert answer.has_ended
    assert isinstance(answer.rejection, CrawlEnded)
    assert backend.client.hgetall(backend.keys.state) == before


def test_worker_that_fences_after_others_have_ended_the_crawl_begins_none(backend_of_its_own: Backend) -> None:
    backend = backend_of_its_own
    worker, other = backend.join("w1"), backend.join("w2")
    worker.commit(push("1"))
    (lease,) = other.lease()
    other.commit(ack(lease))
    backend.clock.advance(2 * TTL_S)
    assert other.ask(is_idle=True).has_ended
    backend.lines["w1"].loses_answer = True
    backend.client.config_set("maxmemory", 1)
    late = Batch(2, [push("late")])
    with pytest.raises(FrontierUnavailable):
        worker.exchange(late, demand=None)

    answer = worker.exchange(late, demand=None)
    backend.client.config_set("maxmemory", 0)

    # It has fenced, and not begun anything: what it has to tell still opens the crawl that has ended.
    assert isinstance(answer.rejection, FrontierFull)
    assert backend.client.hget(backend.keys.state, "epoch") == b"1"
    assert worker.exchange(late, demand=EVERYTHING).leases[0].payload == b"late"


@pytest.mark.parametrize("is_followed", [False, True], ids=["ended", "followed by another"])
def test_worker_whose_crawl_has_ended_meanwhile_stores_nothing(backend: Backend, is_followed: bool) -> None:
    worker, other = backend.join("w1"), backend.join("w2")
    worker.commit(push("1"))
    (lease,) = other.lease()
    other.commit(ack(lease))
    worker.leave()
    assert other.ask(is_idle=True).has_ended
    other.leave()
    if is_followed:
        backend.clock.advance(1)
        backend.join("w3")
    backend.tell_of_change()

    for batches in ([Batch(2, [push("late")])], [Batch(2, [push("late")])], []):
        answer = worker.exchange(*batches, demand=EVERYTHING)

        assert answer.has_ended
        assert isinstance(answer.rejection, CrawlEnded) == bool(batches)
        assert not (answer.committed or answer.leases or answer.recall)
    assert backend.worker("w4").join().depth.accepted == 0


def test_worker_whose_id_another_process_has_taken_is_not_permitted(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1"))
    successor = backend.join()

    with pytest.raises(NotPermitted, match="another process has joined"):
        worker.ask(9)

    assert successor.lease_payloads() == ["1"]


@pytest.mark.parametrize("notices", [True, False])
def test_process_that_the_server_has_forgotten_for_the_one_before_it_enters_again(
    backend: Backend, notices: bool
) -> None:
    backend.join().commit(push("1"))
    backend.save()
    backend.clock.advance(1)
    worker = backend.join()
    worker.commit(push("2"))
    backend.forget()
    if notices:
        backend.tell_of_change()

    assert worker.ask(9).recall == Recall(resent=1)

    assert sorted(worker.lease_payloads()) == ["1", "2"]


# Other calls, and further trouble


def test_no_lease_counts_as_lost_before_the_journal_was_sent_again(backend: Backend) -> None:
    worker = backend.join()
    backend.save()
    worker.commit(push("1"))
    (lease,) = worker.lease()
    backend.forget()
    backend.tell_of_change()

    assert worker.renew(lease) == []
    assert worker.renew(lease) == []

    assert worker.ask(9).recall == Recall(resent=1)
    assert worker.renew(lease) == [lease.lease_id]


def test_server_that_is_full_gets_lost_batches_when_it_has_room(backend_of_its_own: Backend) -> None:
    backend = backend_of_its_own
    worker = backend.join()
    backend.save()
    worker.commit(push("1"))
    backend.forget()
    backend.client.config_set("maxmemory", 1)
    backend.tell_of_change()

    for _ in range(2):
        with pytest.raises(FrontierUnavailable, match="newest writes"):
            worker.ask(9)
    backend.client.config_set("maxmemory", 0)

    assert worker.ask(9).recall == Recall(resent=1)
    assert worker.lease_payloads() == ["1"]


def test_server_restarted_from_an_older_snapshot_gets_everything_again(backend_of_its_own: Backend) -> None:
    backend = backend_of_its_own
    worker = backend.join()
    worker.commit(push("1"), push("2"))
    backend.client.save()
    leases = worker.lease(1)
    worker.commit(push("3"), push("4"))
    worker.commit(push("5"))
    backend.server.kill()
    backend.server.start()

    answer = insist(lambda: worker.exchange(Batch(4, [ack(leases[0])]), demand=EVERYTHING))

    assert answer.recall == Recall(resent=3)
    assert is_balanced(worker.depth())
    give_back_unknown(worker)
    assert worker.depth() == Depth(accepted=5, pending=5, workers=1)
    assert sorted(worker.lease_payloads()) == ["1", "2", "3", "4", "5"]


def insist(call: Callable[[], Exchanged]) -> Exchanged:
    """Call until the server answers; connections that it has closed are noticed one by one."""
    for _ in range(10):
        try:
            return call()
        except FrontierUnavailable:
            continue
    return call()
