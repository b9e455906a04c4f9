"""The running workers' policy for as long as a run takes, by an order on the control topic; then as it was before.

Knows the order of the policy and who must have applied it. Does not know what is played meanwhile. An ordered class
tree stays: only the policy changes.
"""

from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from topics.catalogue import Catalogue
from topics.control_log import ControlDesk
from topics.control_records import PolicyOrder, control_key
from topics.kafka_settings import KafkaSettings

__all__ = ["PolicyNotAppliedError", "PolicyTurns"]

_KEY = control_key(PolicyOrder())


class PolicyNotAppliedError(Exception):
    """Not every live worker has taken the policy over, or none is alive. The message says who and why."""


class PolicyTurns:
    """`async with PolicyTurns(…) as turns: await turns.take("fifo")`."""

    def __init__(self, kafka: KafkaSettings, catalogue: Catalogue) -> None:
        self._desk = ControlDesk(kafka, catalogue)
        self._before: PolicyOrder | None = None
        self._taken = False
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Raises `KafkaUnavailableError`."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._desk)
            before = self._desk.orders.standing.get(_KEY)
            assert before is None or isinstance(before, PolicyOrder), before
            self._before = before
            self._exit = stack.pop_all()
        return self

    async def take(self, policy: str) -> None:
        """Return when every live worker has it. Raises `PolicyNotAppliedError`, `KafkaUnavailableError`."""
        if not self._taken:
            # Whatever becomes of this order, it stands from here on.
            self._taken = True
            self._exit.push_async_callback(self._give_back)
        tree = None if self._before is None else self._before.tree
        offset = await self._desk.write(PolicyOrder(policy=policy, tree=tree))
        notice = await self._desk.wait_applied(offset)
        if notice.late:
            raise PolicyNotAppliedError(f"the policy {policy} is not applied yet by {', '.join(notice.late)}")
        if notice.problems:
            told = "; ".join(f"{worker} can't obey: {problem}" for worker, problem in notice.problems.items())
            raise PolicyNotAppliedError(f"the policy {policy}: {told}")
        if not notice.applied:
            raise PolicyNotAppliedError(f"the policy {policy}: no worker is alive")

    async def _give_back(self) -> None:
        if self._before is None:
            await self._desk.withdraw(_KEY)
        else:
            await self._desk.write(self._before)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self._exit.aclose()
