"""A close that hangs, fails, or raises a cancellation that is not ours."""

import asyncio

import pytest

from topics.aiokafka_closing import closes_within


async def test_an_orderly_end() -> None:
    assert await closes_within(asyncio.sleep(0), 5.0, "it")


async def test_a_hang_is_cut_off_and_leaves_no_task() -> None:
    assert not await closes_within(asyncio.Event().wait(), 0.01, "it")
    assert len(asyncio.all_tasks()) == 1


async def test_an_error_is_an_outcome() -> None:
    async def fail() -> None:
        raise OSError("no route")

    assert not await closes_within(fail(), 5.0, "it")


async def test_a_cancellation_from_within_does_not_reach_the_caller() -> None:
    async def cancelled_inside() -> None:
        raise asyncio.CancelledError

    assert not await closes_within(cancelled_inside(), 5.0, "it")


async def test_our_own_cancellation_does() -> None:
    never = asyncio.Event()
    closing = asyncio.ensure_future(closes_within(never.wait(), 60.0, "it"))
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert len(asyncio.all_tasks()) == 1
