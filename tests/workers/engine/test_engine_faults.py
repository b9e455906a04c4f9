"""Steps that go wrong, through the engine's own thread: one request fails, or none, or the worker ends."""

import asyncio
import faulthandler
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from tests.workers.engine.engine_rig import Rig
from tests.workers.engine.faulty_runner import Fault, FaultyRunner, Hang
from workers.engine.thread import EngineThread
from workers.intake.request import FinishReason
from workers.runners.errors import DeviceLost, GrammarBroken, NotFiniteLogits, OutOfMemory, StepHangs
from workers.runners.runner import SequenceInput
from workers.watchdog import Watchdog

PATIENCE_S = 60.0


class Running:
    """An engine's thread and what it says."""

    def __init__(self, fault: Fault) -> None:
        self.rig = Rig(wrap=lambda runner: FaultyRunner(runner, fault))
        self.broke: list[BaseException] = []
        self.thread = EngineThread(self.rig.parts.engine, self.rig.inbox, self._on_broken)

    def _on_broken(self, error: BaseException) -> None:
        self.broke.append(error)
        self.rig.news.set()

    def until_ended(self, *names: str) -> None:
        while not set(names) <= set(self.rig.endings):
            assert self.rig.news.wait(PATIENCE_S), f"only {set(self.rig.endings)} of {names} have ended"
            self.rig.news.clear()
            self.rig.take()
            assert not self.broke

    def reason(self, name: str) -> object:
        ending = self.rig.endings[name].ending
        assert ending is not None
        return ending.reason

    def error(self, name: str) -> tuple[int, str | None]:
        ending = self.rig.endings[name].ending
        assert ending is not None
        assert ending.error is not None
        return ending.error.status_code, ending.error.code


@contextmanager
def running(fault: Fault) -> Iterator[Running]:
    engine = Running(fault)
    engine.thread.start()
    try:
        yield engine
    finally:
        assert engine.thread.stop(PATIENCE_S)


def tokens_without_faults() -> dict[str, list[int]]:
    rig = Rig()
    _arrive(rig)
    rig.run()
    return rig.published


def _arrive(rig: Rig) -> None:
    for number in range(4):
        rig.arrive(f"r{number}", prompt=20, output=9)


def test_a_step_too_large_for_memory_is_cut_and_everybody_is_answered() -> None:
    def little_memory(sequences: Sequence[SequenceInput]) -> None:
        if sum(len(sequence.token_ids) for sequence in sequences) > 3:
            raise OutOfMemory("tried to allocate 2 GiB")

    with running(little_memory) as engine:
        _arrive(engine.rig)
        engine.until_ended("r0", "r1", "r2", "r3")
    assert engine.rig.published == tokens_without_faults()
    assert {engine.reason(name) for name in engine.rig.endings} == {FinishReason.LENGTH}


def test_a_request_that_memory_cannot_hold_at_all_fails_alone() -> None:
    def no_memory_for_one(sequences: Sequence[SequenceInput]) -> None:
        if any(sequence.history and len(sequence.history) >= 31 for sequence in sequences):
            raise OutOfMemory("tried to allocate 2 GiB")

    with running(no_memory_for_one) as engine:
        _arrive(engine.rig)
        engine.rig.arrive("long", prompt=31, output=9)
        engine.until_ended("r0", "r1", "r2", "r3", "long")
    assert engine.error("long") == (503, "resource_exhausted")
    assert engine.rig.published["r3"] == tokens_without_faults()["r3"]


def test_logits_that_are_no_numbers_fail_their_request_alone() -> None:
    def spoils_r1(sequences: Sequence[SequenceInput]) -> None:
        bad = [place for place, each in enumerate(sequences) if each.sampling and len(each.history) == 33]
        if bad:
            raise NotFiniteLogits(bad)

    with running(spoils_r1) as engine:
        _arrive(engine.rig)
        engine.rig.arrive("bad", prompt=30, output=9)
        engine.until_ended("r0", "r1", "r2", "r3", "bad")
    assert engine.error("bad") == (500, "internal_error")
    assert len(engine.rig.published["bad"]) == 3, "what it had said before stands"
    assert {name: engine.rig.published[name] for name in ("r0", "r3")} == {
        name: tokens_without_faults()[name] for name in ("r0", "r3")
    }


def test_a_grammar_that_breaks_fails_its_request_alone() -> None:
    def breaks(sequences: Sequence[SequenceInput]) -> None:
        bad = [place for place, each in enumerate(sequences) if each.sampling and len(each.history) == 33]
        if bad:
            raise GrammarBroken(bad)

    with running(breaks) as engine:
        _arrive(engine.rig)
        engine.rig.arrive("form", prompt=30, output=9)
        engine.until_ended("r0", "r1", "r2", "r3", "form")
        # Its slot and blocks are free again, whoever had them.
        engine.rig.arrive("next", prompt=20, output=9)
        engine.until_ended("next")
    assert engine.error("form") == (500, "internal_error")
    assert engine.reason("next") is FinishReason.LENGTH
    assert {name: engine.rig.published[name] for name in ("r0", "r3")} == {
        name: tokens_without_faults()[name] for name in ("r0", "r3")
    }


def test_a_lost_device_ends_the_engine_and_says_so() -> None:
    def lost(sequences: Sequence[SequenceInput]) -> None:
        raise DeviceLost("CUDA error: uncorrectable ECC error encountered")

    with running(lost) as engine:
        _arrive(engine.rig)
        assert engine.rig.news.wait(PATIENCE_S)
        assert engine.thread.wait_drained(PATIENCE_S), "nobody waits for an engine that is gone"
    assert [type(error) for error in engine.broke] == [DeviceLost]


async def test_a_step_that_hangs_is_told_with_the_stacks_of_all_threads(caplog: pytest.LogCaptureFixture) -> None:
    hang = Hang(after=2)
    engine = Running(hang)
    engine.thread.start()
    try:
        _arrive(engine.rig)
        assert await asyncio.to_thread(hang.hangs.wait, PATIENCE_S)
        watchdog = Watchdog(lambda: engine.thread.pulse_s, 0.2, tick_s=0.05)
        with caplog.at_level(logging.CRITICAL), pytest.raises(StepHangs, match="has not finished a step for"):
            await asyncio.wait_for(watchdog.run(asyncio.Event()), PATIENCE_S)
    finally:
        faulthandler.cancel_dump_traceback_later()
        hang.let_go.set()
        assert await asyncio.to_thread(engine.thread.stop, PATIENCE_S)
    assert "headrace-engine" in caplog.text
    assert "faulty_runner.py" in caplog.text, "where it hangs"


async def test_an_engine_that_turns_is_left_alone() -> None:
    turns = 0.0
    asked = 0
    stop = asyncio.Event()

    def last_turn_s() -> float:
        nonlocal turns, asked
        asked += 1
        turns += asked % 2  # idle at every other look: never two in a row
        if asked == 20:
            stop.set()
        return turns

    await asyncio.wait_for(Watchdog(last_turn_s, 0.02, tick_s=0.01).run(stop), PATIENCE_S)
    assert asked >= 20
