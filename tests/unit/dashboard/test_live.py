"""Server-sent events: one rendering for all viewers, none of whom can hold up others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from scrapy_prioqueue.dashboard import live
from scrapy_prioqueue.dashboard.live import EventStream, Live
from tests.support import coroutines

pytestmark = pytest.mark.in_process


class Viewer:
    """A browser: takes events as long as it wants, and goes when it is told."""

    def __init__(self, source: Live, view: str = "v", *, reads: bool = True) -> None:
        self.events: list[dict[str, str]] = []
        self.has_ended = False
        self._reads = reads
        self._goes = asyncio.Event()
        self._news = asyncio.Event()
        self.task = asyncio.create_task(EventStream(source, view)({"type": "http"}, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self._goes.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            return
        if not self._reads:
            await asyncio.Event().wait()
        self.has_ended = not message["more_body"]
        for line in message["body"].decode().splitlines():
            if line:
                self.events.append(json.loads(line.removeprefix("data: ")))
        self._news.set()

    async def sees(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), 10)

    async def has_news(self) -> None:
        await self.sees(lambda: bool(self.events))

    async def go(self) -> None:
        self._goes.set()
        await asyncio.wait_for(self.task, 10)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    coroutines.run(scenario())


def counting() -> tuple[Callable[[str], dict[str, str]], list[int]]:
    """Return a function that renders how often it was called, in one of two parts."""
    calls: list[int] = []

    def render(view: str) -> dict[str, str]:
        calls.append(1)
        return {"view": view, "count": str(len(calls))}

    return render, calls


def test_first_event_has_everything_and_later_ones_what_changed() -> None:
    async def scenario() -> None:
        source = Live(counting()[0], interval_s=0.01)
        viewer = Viewer(source)
        await viewer.sees(lambda: len(viewer.events) > 2)
        await viewer.go()

        assert viewer.events[0]["view"] == "v"
        assert all(set(event) == {"count"} for event in viewer.events[1:])

    run(scenario)


def test_age_is_sent_with_each_reading() -> None:
    async def scenario() -> None:
        source = Live(lambda _: {"view": "v", "age": "0"}, interval_s=0.01)
        viewer = Viewer(source)
        await viewer.sees(lambda: len(viewer.events) > 2)
        await viewer.go()

        assert viewer.events[:3] == [{"view": "v", "age": "0"}, {"age": "0"}, {"age": "0"}]

    run(scenario)


def test_event_without_a_reading_has_no_age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "KEEP_ALIVE_S", 0.01)

    async def scenario() -> None:
        viewer = Viewer(Live(lambda _: {"age": "0"}, interval_s=1000))
        await viewer.sees(lambda: {"age": "0"} in viewer.events and viewer.events[-1] == {})
        await viewer.go()

        # Some may come before the first reading, too.
        assert [event for event in viewer.events if event] == [{"age": "0"}]

    run(scenario)


def test_viewers_of_a_view_share_its_rendering() -> None:
    async def scenario() -> None:
        render, calls = counting()
        source = Live(render, interval_s=1000)
        viewers = [Viewer(source) for _ in range(20)]
        for viewer in viewers:
            await viewer.has_news()
        late = Viewer(source)
        await late.has_news()

        assert len(calls) == 1
        assert late.events == [{"view": "v", "count": "1"}]
        for viewer in [*viewers, late]:
            await viewer.go()

    run(scenario)


def test_nothing_is_rendered_when_the_last_viewer_has_gone() -> None:
    async def scenario() -> None:
        before = asyncio.all_tasks()
        viewer = Viewer(Live(counting()[0], interval_s=0.01))
        await viewer.has_news()
        assert len(asyncio.all_tasks()) > len(before)
        await viewer.go()

        while asyncio.all_tasks() != before:
            await asyncio.sleep(0)

    run(scenario)


def test_slow_viewer_holds_up_nobody_and_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "SLOW_S", 0.2)

    async def scenario() -> None:
        source = Live(counting()[0], interval_s=0.01)
        slow, other = Viewer(source, reads=False), Viewer(source)
        await other.sees(lambda: len(other.events) > 5)
        await asyncio.wait_for(slow.task, 10)

        assert not slow.events
        await other.go()

    run(scenario)


def test_number_of_viewers_is_bounded() -> None:
    async def scenario() -> None:
        source = Live(counting()[0], interval_s=0.01, most_viewers=2)
        viewers = [Viewer(source, view) for view in ("a", "b")]
        for viewer in viewers:
            await viewer.has_news()
        assert not source.has_room

        await viewers[0].go()
        assert source.has_room
        await viewers[1].go()

    run(scenario)


def test_viewers_are_sent_off_at_the_end() -> None:
    async def scenario() -> None:
        source = Live(counting()[0], interval_s=1000)
        viewer = Viewer(source)
        await viewer.has_news()
        await source.close()
        await asyncio.wait_for(viewer.task, 10)

        assert viewer.has_ended

    run(scenario)


def test_view_that_cannot_be_drawn_is_drawn_again(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    def render(view: str) -> dict[str, str]:
        calls.append(1)
        if len(calls) == 2:
            raise ValueError("nonsense")
        return {"count": str(len(calls))}

    async def scenario() -> None:
        source = Live(render, interval_s=0.01)
        viewer = Viewer(source)
        await viewer.sees(lambda: {"count": "3"} in viewer.events)
        await viewer.go()

    run(scenario)
    assert "can't be rendered" in caplog.text
