"""State that callbacks write and that is read later, when another worker may have written it, or none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from scrapy_prioqueue.checking.code import SpiderCode, Surroundings
from scrapy_prioqueue.checking.findings import CodeFinding, found
from scrapy_prioqueue.checking.roles import Role, Roles
from scrapy_prioqueue.checking.usage import Touch, Usage
from scrapy_prioqueue.checking.uses import Use
from scrapy_prioqueue.frontier.redis.operators.doctor import Severity

CREDENTIAL = re.compile(r"token|cookie|session|auth|csrf|log(ged_?)?in|credential|api_?key", re.IGNORECASE)

_TESTS = {"test", "compare", "equal", "log"}


def state_findings(code: SpiderCode, roles: Roles, around: Surroundings) -> Iterator[CodeFinding]:
    """Find state on the spider, its class and its module that pages share."""
    usage = Usage(code, roles)
    by_name: dict[str, list[Touch]] = {}
    for touch in usage.touches:
        by_name.setdefault(touch.name, []).append(touch)
    for name, touches in by_name.items():
        if around.is_held and CREDENTIAL.search(name):
            continue
        state = _State(
            *(name, touches, roles),
            is_container=name in usage.containers,
            is_counter=name in usage.counters,
            is_filled=name in usage.filled or name not in usage.containers,
            is_given=not name.startswith("self.") or name.removeprefix("self.") in code.class_values,
        )
        finding = state.finding()
        if finding is not None:
            yield finding


class _State:
    """One attribute or global variable.

    Args:
        is_given: the class or the module gives it a first value.
        is_filled: that value, or one that is assigned later, has something in it.
    """

    def __init__(
        self,
        name: str,
        touches: Sequence[Touch],
        roles: Roles,
        *,
        is_container: bool,
        is_counter: bool,
        is_given: bool,
        is_filled: bool,
    ) -> None:
        self.name = name
        self._roles = roles
        self._is_container = is_container
        self._is_counter = is_counter
        puts_of_pages = [touch for touch in self._in(touches, "page") if touch.kind == "put"]
        takers = self._in(touches, "page") + (self._in(touches, "start") if puts_of_pages else [])
        takes = [touch for touch in takers if touch.kind == "take"]
        has_any = is_filled or any(touch.kind == "put" and roles.of(touch.method) for touch in touches)
        writes = [touch for touch in self._in(touches, "page") if touch.kind in {"set", "count", "put"}]
        self.takes = takes if has_any else []
        reads = [touch for touch in touches if touch.kind == "read" and not touch.is_fresh]
        self.of_pages = self._in(reads, "page")
        self.writes = [touch for touch in writes if not self._is_lazy(touch)]
        sets = [touch for touch in touches if touch.kind == "set"]
        self.is_made_by_pages = not is_given and bool(sets) and all(self._in([touch], "page") for touch in sets)
        self.when_idle = self._in([touch for touch in touches if touch.kind in {"read", "take"}], "idle")
        self.at_end = self._in(reads, "end")

    def _in(self, touches: Sequence[Touch], role: Role) -> list[Touch]:
        return [touch for touch in touches if role in self._roles.of(touch.method)]

    def _is_lazy(self, write: Touch) -> bool:
        """Return whether a method makes a value where it is missing, for itself: each worker may have its own."""
        if not write.is_guarded or write.kind not in {"set", "put"}:
            return False
        if write.is_constant:
            return write.kind == "set" and all(read.method is write.method for read in self.of_pages)
        if not write.is_from_page:
            return True
        uses = {use for read in self.of_pages for use in read.uses}
        is_seen_or_merged = write.kind == "put" and (uses <= {"member", "length", "log"} or "removed" in uses)
        return not is_seen_or_merged and all(read.method is write.method for read in self.of_pages)

    def finding(self) -> CodeFinding | None:
        """Return the finding about this state, None if there is none."""
        if self.takes:
            return self._taken()
        if not self.writes:
            return None
        idle = [touch for touch in self.when_idle if not set(touch.uses) <= {"log"}]
        if idle:
            text = (
                "each worker has only what its own pages have put there, and the first that is idle goes on with that"
            )
            return self._found("second phase", "wrong", idle[0], text, "a-second-phase")
        uses = {use for touch in self.of_pages for use in touch.uses}
        if not uses <= {"log"} and not self._is_local(uses):
            return self._between_pages(uses)
        if self.at_end:
            return self._at_end()
        return None

    def _is_local(self, uses: set[Use]) -> bool:
        """Return whether one method uses it as it would a local variable: written first, then read."""
        if len({touch.method for touch in [*self.writes, *self.of_pages]}) > 1:
            return False
        is_first = min(touch.line for touch in self.writes) < min(touch.line for touch in self.of_pages)
        if self._is_container and any(touch.kind == "put" for touch in self.writes):
            return is_first and uses <= {"iterate", "request", "log"}
        if not all(touch.kind == "set" for touch in self.writes):
            return False
        return is_first or uses <= _TESTS or all(touch.is_constant for touch in self.writes)

    def _taken(self) -> CodeFinding | None:
        take = self.takes[0]
        if self._is_counter:
            return self._counted({use for touch in self.takes for use in touch.uses}, take)
        text = "each worker has its own list: what several have in it each of them does, and the rest is lost with it"
        if self.writes:
            text = "what one worker puts into this list no other one can take, and it is lost with the worker"
        return self._found("work list", "wrong", take, text, "yield-the-whole-list")

    def _between_pages(self, uses: set[Use]) -> CodeFinding | None:
        counts = [touch for touch in self.writes if touch.kind == "count"]
        reads = [touch for touch in self.of_pages if not set(touch.uses) <= {"log"}]
        writers = {touch.method for touch in self.writes}
        read = next((touch for touch in reads if touch.method not in writers), reads[0])
        if counts and (not self._is_container or len(counts) == len(self.writes)):
            return self._counted(uses, read)
        if self._is_container and not self.is_made_by_pages:
            if uses <= {*_TESTS, "length"} and "length" in uses:
                return self._counted(uses - {"length"}, read)
            if uses <= {"test", "log"}:
                return None
            if uses <= {"member", *(_TESTS if "length" in uses else ("test", "log")), "length"}:
                text = "each worker knows only its own: it handles again what another worker has already seen"
                return self._found("seen here", "warning", read, text, "each-thing-once")
            return self._set_elsewhere(read)
        if uses <= _TESTS and all(touch.is_constant for touch in self.writes):
            text = "each worker has its own: what one worker has set, the others don't see"
            return self._found("flag", "warning", read, text, "flags-and-limits")
        return self._set_elsewhere(read)

    def _counted(self, uses: set[Use], read: Touch) -> CodeFinding | None:
        if "request" in uses:
            text = "each worker counts its own pages, so requests are made twice or left out"
            return self._found("page counter", "wrong", read, text, "count-in-the-request")
        if uses <= {"test", "log"}:
            return None
        if "equal" in uses:
            text = "each worker counts only its own pages, so none reaches that number, or each does"
            return self._found("counter", "wrong", read, text, "flags-and-limits")
        if uses <= _TESTS:
            text = "each worker counts for itself: N workers reach this limit after up to N times as many"
            return self._found("limit", "warning", read, text, "flags-and-limits")
        text = "each worker counts only its own pages, so workers reach the same numbers, and none has the total"
        return self._found("counter", "wrong", read, text, "count-in-the-request")

    def _set_elsewhere(self, read: Touch) -> CodeFinding:
        if CREDENTIAL.search(self.name):
            text = "only the worker that fetched that page has it; the others send their requests without"
            return self._found("login", "wrong", read, text, "logins-and-tokens")
        text = "these pages may be fetched by different workers, and then the value is missing or another page's"
        return self._found("shared state", "wrong", read, text, "pass-values-with-the-request")

    def _at_end(self) -> CodeFinding | None:
        read, uses = self.at_end[0], {use for touch in self.at_end for use in touch.uses}
        is_tally = all(touch.kind == "count" for touch in self.writes)
        if self._is_container and not uses <= {*_TESTS, "length"} and not is_tally:
            text = "each worker has only its own part at its end, and none of it after a kill"
            return self._found("collected", "wrong", read, text, "collect-in-a-pipeline")
        if self._is_container or any(touch.kind == "count" for touch in self.writes):
            text = "a total of one worker: that of the crawl is the sum over all workers and runs"
            return self._found("total", "note", read, text, "totals")
        return None

    def _found(self, topic: str, severity: Severity, read: Touch, text: str, section: str) -> CodeFinding:
        """Return a finding at the write, with the read that makes it one."""
        write = next((touch for touch in self.writes if touch.method is not read.method), None)
        write = write or next((touch for touch in self.writes if touch.line != read.line), read)
        is_elsewhere = (write.method.module.file, write.line) != (read.method.module.file, read.line)
        where = f"{self.name} is read in {read.method.name}"
        if write.method is not read.method:
            where = f"{self.name} is written in {write.method.name} and read in {read.method.name}"
        elif self.writes:
            where = f"{self.name} is written and read in {read.method.name}"
        if is_elsewhere:
            where += f" (line {read.line})"
        return found(severity, topic, f"{where}: {text}", section, (write.method.module.file, write.line))
