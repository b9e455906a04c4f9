"""What is begun ahead on a device that computes by itself, what the next plan takes of it, and what it saves.

The device is one on virtual time: a forward that was begun is done later, and only `step` waits for it."""

from collections.abc import Sequence
from dataclasses import replace

from kvcache.manager import KVCacheManager
from scheduling.plan import Chunk
from scheduling.priority import PriorityClass
from tests.workers.engine.engine_rig import RATES, Rig
from tests.workers.engine.wrapped_runner import WrappedRunner
from workers.configuration.config import EngineConfig
from workers.engine.messages import Dropped, Revoked
from workers.engine.run_ahead import RunAhead
from workers.runners.errors import OutOfMemory
from workers.runners.runner import ModelRunner, SequenceInput
from workers.runners.split_forward import SplitForward
from workers.runs.simulated_runner import VirtualClock

PYTHON_S = 0.002
"""Of a turn, outside the runner."""


class Device(WrappedRunner):
    """A simulated runner whose forwards go on by themselves."""

    computes_by_itself = True

    def __init__(self, runner: ModelRunner, clock: VirtualClock) -> None:
        super().__init__(runner)
        self._clock = clock
        self._done_s = 0.0
        self.memory_for_begun = True
        self.begun: list[list[int]] = []
        """Of each forward that was begun ahead: where its sequences start."""
        self.steps: list[list[int | None]] = []
        """Of each step: the places of its sequences in what was begun."""

    def begin(self, sequences: Sequence[SequenceInput]) -> None:
        if not self.memory_for_begun:
            raise OutOfMemory("no")
        self.begun.append([sequence.start for sequence in sequences])
        context = sum(sequence.start + 1 for sequence in sequences)
        self._done_s = self._clock() + RATES.predict(0, len(sequences), context)

    def step(self, sequences: Sequence[SequenceInput]) -> list[int | None]:
        self.steps.append([sequence.begun for sequence in sequences])
        self._clock.advance_to(self._done_s)
        began_s = self._clock()
        tokens = super().step(sequences)
        if all(sequence.begun is not None for sequence in sequences):
            self._clock._now_s = began_s  # it was all computed before
        return tokens


class AheadRig(Rig):
    """An engine on such a device."""

    def __init__(self, config: EngineConfig | None = None, num_blocks: int = 64) -> None:
        self.device: Device | None = None
        super().__init__(
            config or EngineConfig(max_sequences=5, step_tokens=32), num_blocks=num_blocks, wrap=self._on_a_device
        )

    def _on_a_device(self, runner: ModelRunner) -> ModelRunner:
        self.device = Device(runner, self.clock)
        return self.device

    @property
    def ahead(self) -> RunAhead:
        ahead = self.parts.engine._execution._ahead
        assert ahead is not None
        return ahead


def starts(rig: AheadRig) -> list[list[int]]:
    assert rig.device is not None
    return rig.device.begun


def steps(rig: AheadRig) -> list[list[int | None]]:
    assert rig.device is not None
    return rig.device.steps


def test_an_answer_alone_is_begun_ahead_at_every_step_but_its_first() -> None:
    rig = AheadRig()
    rig.arrive("a", prompt=8, output=5)
    rig.run()
    assert starts(rig) == [[8], [9], [10], [11]]
    assert steps(rig) == [[None], [0], [0], [0], [0]]
    assert (rig.ahead.used, rig.ahead.dropped) == (4, 0)


def test_answers_are_what_they_are_without() -> None:
    plain, ahead = Rig(), AheadRig()
    for rig in (plain, ahead):
        for number in range(12):
            rig.arrive(f"r{number}", prompt=5 + 7 * number, output=3 + number, priority=PriorityClass(number % 4))
        rig.run_through()
    assert ahead.published == plain.published
    assert ahead.ahead.used > 50


def test_a_prompt_that_arrives_meanwhile_is_computed_beside_what_was_begun() -> None:
    rig = AheadRig()
    rig.arrive("a", prompt=8, output=6)
    for _ in range(3):
        rig.parts.engine.step()
    rig.arrive("b", prompt=8, output=3)
    rig.run()
    assert [None, 0] in [sorted(step, key=str, reverse=True) for step in steps(rig)]
    assert len(rig.endings) == 2


def test_nothing_is_begun_while_a_prompt_is_in_the_middle() -> None:
    rig = AheadRig(EngineConfig(max_sequences=5, step_tokens=16))
    rig.arrive("a", prompt=8, output=20)
    for _ in range(3):
        rig.parts.engine.step()
    before = len(starts(rig))
    rig.arrive("long", prompt=60, output=1)
    for _ in range(4):
        rig.parts.engine.step()
    # Of its four steps the last one samples, and another decode may come ahead of the first piece.
    assert len(starts(rig)) - before <= 2
    rig.run()
    assert len(rig.endings) == 2


def test_what_was_begun_for_one_that_was_taken_back_is_dropped() -> None:
    rig = AheadRig()
    rig.arrive("stays", prompt=8, output=8)
    goes = rig.arrive("goes", prompt=8, output=8, partition=1)
    for _ in range(3):
        rig.parts.engine.step()
    rig.inbox.put(Revoked("inference.p1", 1, 1))
    rig.inbox.put(Dropped(frozenset({goes.id})))
    rig.run()
    assert list(rig.endings) == ["stays"]
    assert rig.ahead.dropped == 1


def test_where_the_device_has_no_memory_for_it_the_step_comes_as_it_was_planned() -> None:
    rig = AheadRig()
    assert rig.device is not None
    rig.device.memory_for_begun = False
    rig.arrive("a", prompt=8, output=5)
    rig.run()
    assert steps(rig) == [[None]] * 5
    assert len(rig.published["a"]) == 5


def test_each_sequence_gets_the_block_it_needs_next_or_nothing_is_begun() -> None:
    kv = KVCacheManager(num_blocks=4, block_size=4)
    assert kv.allocate(0, 4, owner_class=1) is not None
    assert kv.allocate(1, 7, owner_class=1) is not None
    device = AheadRig().device
    assert device is not None
    ahead = RunAhead(device, SplitForward(device), kv, VirtualClock())
    both = [Chunk(0, 4, 1, samples=True, decode=True), Chunk(1, 7, 1, samples=True, decode=True)]
    assert ahead.make_room(both)
    assert (len(kv.table(0)), len(kv.table(1))) == (2, 2)
    assert not ahead.make_room([replace(both[0], start=8), replace(both[1], start=8)])
    assert (len(kv.table(0)), len(kv.table(1)), kv.free_blocks) == (2, 2, 0)


class Slow(AheadRig):
    """A turn takes Python some time besides."""

    def run_slowly(self) -> float:
        while self.parts.engine.step() or self.inbox:
            self.clock.advance(PYTHON_S)
            self.take()
        return self.clock()


def test_pythons_part_of_a_turn_is_done_while_the_device_computes() -> None:
    rig = Slow()
    rig.arrive("a", prompt=8, output=51)
    took_s = rig.run_slowly()
    first_s, decode_s = RATES.predict(8, 0, 8), RATES.predict(0, 1, 9)
    alone_s = first_s + 50 * decode_s
    assert decode_s > PYTHON_S
    # Without it would be 51 × PYTHON_S longer.
    assert alone_s <= took_s < alone_s + 3 * PYTHON_S
    statistics = rig.parts.engine.statistics()
    assert statistics.step_seconds <= took_s
    assert statistics.step_seconds > 0.95 * alone_s
