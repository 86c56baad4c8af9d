"""Bugs that are planted in the package; the simulation must find each of them."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha1
from typing import Any

from scrapy_prioqueue.frontier.redis.frontier import RedisFrontier
from scrapy_prioqueue.frontier.redis.scripts import Script
from scrapy_prioqueue.frontier.redis.session import Journal
from scrapy_prioqueue.pump.agenda import Agenda
from scrapy_prioqueue.pump.loop import ExchangeLoop
from scrapy_prioqueue.pump.outbox import Outbox
from scrapy_prioqueue.pump.pump import Pump
from tests.simulation.schedule import Options


@dataclass(frozen=True)
class Bug:
    """A piece of the package's text that is replaced.

    Args:
        name: what is wrong.
        old: the text, which must be there.
        new: what it becomes.
        scripts: names of the Lua scripts that are changed.
        function: the function that is changed, where no scripts are.
        owner: its class or module.
        focus: what has to be frequent where it would be found too rarely.
        has_policies: it is one of limits, shares or water marks.
        first_seed: the first that finds it quickly when it was last looked for; a few more may be needed by now.
    """

    name: str
    old: str
    new: str
    scripts: tuple[str, ...] = ()
    function: Callable[..., Any] | None = None
    owner: Any = None
    focus: tuple[str, ...] = ()
    has_policies: bool = False
    first_seed: int = 0

    def options(self, real: Mapping[str, Script]) -> Options:
        """Return the options that plant it."""
        if self.function is None:
            changed = {name: _rewritten(real[name], self.old, self.new) for name in self.scripts}
            return Options(scripts={**real, **changed}, focus=self.focus, has_policies=self.has_policies)
        patch = (self.owner, self.function.__name__, self._rewritten_function())
        return Options(patches=[patch], focus=self.focus, has_policies=self.has_policies)

    def _rewritten_function(self) -> object:
        assert self.function is not None
        source = textwrap.dedent(inspect.getsource(self.function))
        module = sys.modules[self.function.__module__]
        space: dict[str, Any] = {}
        exec(compile(_replaced(source, self.old, self.new), f"<{self.name}>", "exec"), vars(module), space)
        return space[self.function.__name__]


def _rewritten(script: Script, old: str, new: str) -> Script:
    source = _replaced(script.source, old, new)
    return Script(source, sha1(source.encode(), usedforsecurity=False).hexdigest())


def _replaced(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times, so this bug can't be planted"
    return text.replace(old, new)


BUGS = [
    Bug(
        "the token of a lease is not checked",
        "lease.worker == worker and lease.attempts == attempts",
        "lease.worker == worker",
        ("commit", "renew"),
        focus=("late", "freeze", "jump"),
        first_seed=1555,
    ),
    Bug(
        "one expired lease is dropped instead of being given back",
        "      lib.give_back_lost(id, lease, max_attempts)",
        '      if reaped == 0 then lib.drop_lease(id, lease) lib.count("done", 1)\n'
        "      else lib.give_back_lost(id, lease, max_attempts) end",
        ("lease",),
        first_seed=11,
    ),
    Bug(
        "the frontier's clock is set back with the server's",
        "math.max(read_ms, math.min(found_ms, latest_ms))",
        "math.min(found_ms, latest_ms)",
        ("commit", "join", "lease", "renew"),
        focus=("jump",),
        first_seed=6,
    ),
    Bug(
        "the frontier's clock is set forward with the server's",
        'if most_ms ~= "" and found_ms - read_ms > 1000 then',
        "if false then",
        ("commit", "join", "lease", "note", "renew"),
        focus=("jump",),
        first_seed=8,
    ),
    Bug(
        "leases are reaped before they expire",
        'key("leases"), "-inf", now_ms, "LIMIT"',
        'key("leases"), "-inf", now_ms + 2000, "LIMIT"',
        ("lease",),
        first_seed=11,
    ),
    Bug(
        "a batch that is sent again is applied again",
        "if number <= last_batch then",
        "if number < last_batch then",
        ("commit",),
        first_seed=1,
    ),
    Bug(
        "a batch may be left out",
        "if number > last_batch + 1 then return {OUT_OF_STEP} end",
        "",
        ("commit",),
        focus=("full",),
        first_seed=105,
    ),
    Bug(
        "a fingerprint is marked seen and its request not stored",
        "else lib.store(at + 1) end",
        "elseif #duplicates == 0 then lib.store(at + 1) end",
        ("commit",),
        first_seed=21,
    ),
    Bug(
        "an error in the middle leaves fingerprints marked",
        'if marked_end == 0 then lib.note_undo("lib.take_marks_back") end',
        "",
        ("commit",),
        focus=("error",),
        first_seed=5,
    ),
    Bug(
        "an error in the middle leaves requests stored",
        'lib.note_undo("lib.take_from_queues", queued)',
        "",
        ("commit",),
        focus=("error",),
        first_seed=24,
    ),
    Bug(
        "duplicates are stored",
        "if is_found then return false end\n    write(",
        "write(",
        ("commit",),
    ),
    Bug(
        "what is given back unstarted is lost",
        "lib.give_back(id, lease, attempts - 1)",
        'lib.drop_lease(id, lease) lib.count("done", 1)',
        ("commit",),
    ),
    Bug(
        "what is given back unstarted counts as an attempt",
        "give_back(id, lease, attempts - 1)",
        "give_back(id, lease, attempts)",
        ("commit",),
    ),
    Bug("a lease has no expiry", 'lib.call_with_all("ZADD", key("leases"), granted.expiries)', "", ("lease",)),
    Bug("a counter is off by one", 'count("done", done)', 'count("done", 2 * done)', ("commit",)),
    Bug(
        "the crawl ends although others are busy",
        'if redis.call("ZCOUNT", key("busy"), now_ms - ttl_ms, "+inf") > 0 then return false end',
        "",
        ("lease",),
    ),
    Bug(
        "suspects are handed out although one is held",
        "lib.take_suspects(tonumber(room), tonumber(held))",
        "lib.take_suspects(1, 0)",
        ("lease",),
        first_seed=12,
    ),
    Bug(
        "a worker's leases are given back by a call that comes late",
        " and expiry_ms and tonumber(expiry_ms) == tonumber(ARGV[i + 1])",
        "",
        ("recover",),
        focus=("late",),
        first_seed=651,
    ),
    Bug(
        "a renewal renews nothing",
        "= now_ms + ttl_ms, ARGV[i]",
        "= now_ms + 1, ARGV[i]",
        ("renew",),
    ),
    Bug(
        "who leaves clears a crawl that goes on",
        'if phase ~= "ended" or redis.call(',
        "if redis.call(",
        ("leave",),
        focus=("stop",),
    ),
    Bug(
        "a request is given up an attempt too early",
        "lease.attempts < max_attempts",
        "lease.attempts < max_attempts - 1",
        ("lease", "recover"),
        first_seed=17,
    ),
    Bug(
        "a slot that gets a request back is not served",
        "lib.queue_up(slot, rank, id .. string.char(attempts) .. payload)",
        'redis.call("ZADD", key("queue", slot), rank, id .. string.char(attempts) .. payload)',
        ("commit", "lease", "recover"),
    ),
    Bug(
        "a delayed request is served before its time",
        'key("delayed"), "-inf", now_ms, "LIMIT"',
        'key("delayed"), "-inf", now_ms + 1000, "LIMIT"',
        ("lease",),
        first_seed=87,
    ),
    Bug(
        "a lease that ends is still counted by the limits of its slot",
        "started[slot] = (started[slot] or 0) - 1",
        "started[slot] = started[slot] or 0",
        ("commit", "lease", "recover"),
        has_policies=True,
        first_seed=1,
    ),
    Bug(
        "a slot that has to wait is served all the same",
        "lib.write_position(slot, touched[i + 1], opens[slot] <= now_ms)",
        "lib.write_position(slot, touched[i + 1], true)",
        ("commit", "lease", "recover"),
        has_policies=True,
        first_seed=2,
    ),
    Bug("the crawl ends although requests are delayed", "+ counts[7]", "", ("lease",)),
    Bug(
        "a process that was replaced goes on",
        "if found ~= nonce then return nil, SUPERSEDED end",
        "",
        ("commit", "lease"),
        focus=("replace",),
        first_seed=82,
    ),
    Bug(
        "a batch whose answer was lost is dropped",
        "while is_new and len(self._cut)",
        "self._next_number -= len(self._cut)\n    self._cut.clear()\n    while is_new and len(self._cut)",
        function=Outbox.batches,
        owner=Outbox,
        first_seed=1,
    ),
    Bug(
        "acks overtake the requests found on their pages",
        "held.uncut_children > 0 and not",
        "False and not",
        function=Outbox._may_go,  # noqa: SLF001
        owner=Outbox,
        focus=("full", "kill caller"),
    ),
    Bug(
        "a request is acked when it starts",
        "self._prefetch.pace.note_start(len(self.held))",
        "self._prefetch.pace.note_start(len(self.held))\n        self.outbox.settle(Ack(*held.token), held)",
        function=Pump._take_leased,  # noqa: SLF001
        owner=Pump,
    ),
    Bug(
        "new leases are taken before forgotten ones are claimed",
        "self._leases.must_check = self._leases.must_reconcile = True",
        "pass",
        function=ExchangeLoop._note_losses,  # noqa: SLF001
        owner=ExchangeLoop,
        focus=("restart",),
        first_seed=236,
    ),
    Bug(
        "what the server has forgotten is not sent again",
        "return [batch for _, batch, _ in self._entries if batch.number > last_batch]",
        "return []",
        function=Journal.after,
        owner=Journal,
        focus=("restart",),
        first_seed=11,
    ),
    Bug(
        "a worker that the server doesn't know goes on as if nothing was lost",
        "if found.evicted_at is not None or self._session.may_be_dropped():",
        "if True:",
        function=RedisFrontier._recall,  # noqa: SLF001
        owner=RedisFrontier,
        focus=("restart",),
        first_seed=61,
    ),
    Bug(
        "a server that is behind is not noticed",
        "last_batch < tonumber(ARGV[5])",
        "false",
        ("lease", "renew"),
        focus=("restart",),
        first_seed=46,
    ),
    Bug(
        "a worker gives back what it holds",
        "self._recover(held, max_attempts=0)",
        "self._recover((), max_attempts=0)",
        function=RedisFrontier.reconcile,
        owner=RedisFrontier,
        first_seed=1,
    ),
    Bug(
        "a worker says that it is idle before start() is used up",
        "self._leases.held or self._inbox or self._outbox or self._delegate.has_own_work()",
        "self._leases.held or self._inbox or self._outbox",
        function=Agenda.is_quiet,
        owner=Agenda,
        first_seed=1,
    ),
    Bug(
        "a batch that a full server has refused counts as stored",
        # Past the journal, which would send the batch again.
        "if not isinstance(answer.rejection, FrontierFull):\n        return answer",
        "if not isinstance(answer.rejection, FrontierFull):\n        return answer\n"
        "    if len(answer.committed) < len(batches):\n"
        "        stored = [Committed(batch.number) for batch in batches[len(answer.committed):]]\n"
        "        return replace(answer, committed=[*answer.committed, *stored], rejection=None)",
        function=RedisFrontier._exchange,  # noqa: SLF001
        owner=RedisFrontier,
        focus=("full",),
        first_seed=7,
    ),
]
