"""Plays a stream on the running stack: once as it is, or once under each policy, at a load of what the stack can do.

Knows the order of plays. Does not know the command line's traces or how figures are told. Not a command itself.

Everything is answered before the next play begins: none meets what another left.
"""

import uuid
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from scheduling.cost import CostModel
from topics.catalogue import Catalogue
from topics.kafka_settings import KafkaSettings
from workers.cli import CommandFailedError
from workers.runs.capacity import Capacity, capacity_of
from workers.runs.load_player import LoadPlayer, Observation
from workers.runs.load_run import live_run
from workers.runs.load_traffic import load_record
from workers.runs.policy_turns import PolicyTurns
from workers.runs.run_record import RunRecord
from workers.runs.trace_mix import ArrivingRequest, scaled

__all__ = ["COST", "Play", "RunningStack", "play_all"]

COST = CostModel()


@dataclass(frozen=True, slots=True)
class Play:
    """The stream, played once."""

    label: str
    requests: tuple[ArrivingRequest, ...]
    seen: Sequence[Observation]
    record: RunRecord
    capacity: Capacity | None
    """Of the stack, where arrivals were scaled to a part of it."""

    @property
    def unanswered(self) -> int:
        return sum(one.ended_s is None for one in self.seen)


@dataclass(frozen=True, slots=True)
class RunningStack:
    kafka: KafkaSettings
    catalogue: Catalogue
    timeout_s: float
    """For replies, after the last request."""

    async def play(self, label: str, requests: tuple[ArrivingRequest, ...], capacity: Capacity | None = None) -> Play:
        """Raises `KafkaUnavailableError`."""
        run_id = uuid.uuid4().hex[:8]
        records = []
        for request in requests:
            request_id = f"load-{run_id}-{request.number}"
            records.append(
                (request.arrival_s, request_id, partial(load_record, request, request_id, self.catalogue, run_id))
            )
        with Progress(
            TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=Console(stderr=True)
        ) as progress:
            show = _shown(progress, label, len(requests))
            async with LoadPlayer(self.kafka, self.catalogue) as player:
                seen = await player.play(records, timeout_s=self.timeout_s, on_progress=show)
        return Play(label, requests, seen, live_run(requests, seen, COST), capacity)


async def play_all(
    stack: RunningStack,
    requests: tuple[ArrivingRequest, ...],
    *,
    label: str,
    policies: Sequence[str],
    load: float | None,
) -> list[Play]:
    """One play, called `label`, under the policy that stands; or one under each of `policies`, called like it.

    With `load`, arrivals are scaled to that part of what the stack did with all requests there at once. Ends early
    after a play that left something unanswered. Raises `KafkaUnavailableError`, `PolicyNotAppliedError`,
    `CommandFailedError`.
    """
    capacity: Capacity | None = None
    done: list[Play] = []
    async with AsyncExitStack() as exits:
        turns = await exits.enter_async_context(PolicyTurns(stack.kafka, stack.catalogue)) if policies else None
        for policy in policies or (None,):
            if turns is not None and policy is not None:
                await turns.take(policy)
            if load is not None and capacity is None:
                capacity = await _capacity(stack, requests)
                requests = scaled(requests, capacity.factor(requests, load))
            done.append(await stack.play(policy or label, requests, capacity))
            if done[-1].unanswered:
                break
    return done


async def _capacity(stack: RunningStack, requests: tuple[ArrivingRequest, ...]) -> Capacity:
    play = await stack.play("all at once", scaled(requests, 0.0))
    failed = sum(one.ended_s is None or one.error is not None for one in play.seen)
    if failed:
        raise CommandFailedError(
            f"{failed} of {len(requests)} requests were not served when all were sent at once, so it can't be said "
            "what the stack can do: give --speed rather than --load, or a longer --timeout-s"
        )
    return capacity_of(play.record, COST)


def _shown(progress: Progress, label: str, total: int) -> Callable[[int, int], None]:
    task = progress.add_task(f"{label}: connecting", total=total)

    def show(sent: int, ended: int) -> None:
        progress.update(task, completed=ended, description=f"{label}: {sent} sent, {ended} answered of {total}")

    return show
