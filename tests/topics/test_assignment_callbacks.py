"""The owner's callbacks: told in time, their failures counted, told and forgotten when all is well again."""

import asyncio
from collections.abc import Sequence

from topics.assignment import PartitionEpoch
from topics.assignment_callbacks import AssignmentCallbacks

EPOCHS = [PartitionEpoch("t", 0, 1)]


async def test_a_failure_stands_until_the_same_callback_has_gone_well() -> None:
    wrong = True

    async def on_revoked(epochs: Sequence[PartitionEpoch]) -> None:
        if wrong:
            raise ZeroDivisionError

    owner = AssignmentCallbacks("t", None, on_revoked, revoke_timeout_s=1.0)
    await owner.revoked(EPOCHS)
    owner.assigned(EPOCHS)
    assert (owner.failures, owner.trouble) == (1, "on_revoked failed: ZeroDivisionError()")
    wrong = False
    await owner.revoked(EPOCHS)
    assert (owner.failures, owner.trouble) == (1, None)


async def test_a_callback_is_given_up_at_its_deadline() -> None:
    ended: list[BaseException] = []

    async def on_revoked(epochs: Sequence[PartitionEpoch]) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            ended.append(error)
            raise

    owner = AssignmentCallbacks("t", None, on_revoked, revoke_timeout_s=0.01)
    await owner.revoked(EPOCHS)
    assert len(ended) == 1
    assert (owner.failures, owner.trouble) == (0, None)


async def test_that_no_partitions_are_left_is_news_and_that_none_are_taken_is_not() -> None:
    assigned: list[Sequence[PartitionEpoch]] = []
    revoked: list[Sequence[PartitionEpoch]] = []

    async def on_revoked(epochs: Sequence[PartitionEpoch]) -> None:
        revoked.append(epochs)

    owner = AssignmentCallbacks("t", assigned.append, on_revoked, revoke_timeout_s=1.0)
    for epochs in ([], EPOCHS):
        owner.assigned(epochs)
        await owner.revoked(epochs)
    assert assigned == [[], EPOCHS]
    assert revoked == [EPOCHS]
