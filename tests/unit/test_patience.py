"""A time limit that doesn't count time in which the loop is blocked."""

from __future__ import annotations

import asyncio
from threading import Event

import pytest

from scrapy_prioqueue.frontier.redis.connection import Patience
from tests.support.coroutines import run

SHORT_S = 0.05


async def answered(answer: asyncio.Future[str], seconds: float | None = SHORT_S) -> str:
    async with Patience(seconds):
        return await answer


def test_calls_that_take_longer_are_cancelled() -> None:
    async def wait() -> None:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        with pytest.raises(asyncio.TimeoutError, match=r"no answer within 0\.05 s"):
            await answered(answer)
        assert answer.cancelled()

    run(wait())


def test_an_answer_that_arrived_while_the_loop_was_blocked_is_in_time() -> None:
    async def wait() -> str:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[str] = loop.create_future()
        task = asyncio.ensure_future(answered(answer))
        await asyncio.sleep(0)
        # What has come over the network meanwhile is read first; the task learns of it in a later turn of the loop.
        loop.call_soon(answer.set_result, "answer")
        Event().wait(10 * SHORT_S)
        return await task

    assert run(wait()) == "answer"


def test_without_a_limit_nothing_is_cancelled() -> None:
    async def wait() -> str:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(2 * SHORT_S, answer.set_result, "answer")
        return await answered(answer, None)

    assert run(wait()) == "answer"


def test_somebody_else_s_cancellation_stays_one() -> None:
    async def wait() -> None:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(answered(answer, 60.0))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(wait())


def test_a_call_that_swallows_a_cancellation_is_cancelled_again() -> None:
    async def stubborn() -> None:
        loop = asyncio.get_running_loop()
        async with Patience(SHORT_S):
            try:
                await loop.create_future()
            except asyncio.CancelledError:
                await loop.create_future()

    with pytest.raises(asyncio.TimeoutError):
        run(stubborn())


def test_calls_after_a_cancelled_one_are_not_cancelled() -> None:
    async def wait() -> str:
        loop = asyncio.get_running_loop()
        with pytest.raises(asyncio.TimeoutError):
            await answered(loop.create_future())
        answer: asyncio.Future[str] = loop.create_future()
        loop.call_later(2 * SHORT_S, answer.set_result, "answer")
        return await answered(answer, 60.0)

    assert run(wait()) == "answer"
