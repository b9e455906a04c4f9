"""What the engine tells of itself, on virtual time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scheduling.priority import PriorityClass
from tests.workers.engine.engine_rig import Rig
from workers.configuration.config import EngineConfig
from workers.engine.observer import EngineObserver, EngineSnapshot
from workers.runners.runner import ModelRunner, SequenceInput
from workers.telemetry.engine_metrics import EngineMetrics
from workers.telemetry.metric_catalogue import GUESSED_TOKENS, OURS
from workers.telemetry.metric_compat import COMPAT, VLLM_ACCEPTED
from workers.telemetry.metric_store import Reading
from workers.telemetry.tenant_labels import TenantLabels

P0, P1, P2, P3 = PriorityClass


def observer(rig: Rig) -> EngineObserver:
    assert rig.parts.observer is not None
    return rig.parts.observer


def snapshot(rig: Rig) -> EngineSnapshot:
    """As of the last turn, and one more look."""
    rig.clock.advance(1.0)
    rig.parts.engine.step()
    taken = observer(rig).snapshot
    assert taken is not None
    return taken


def test_gaps_are_one_fewer_than_tokens_of_each_request() -> None:
    rig = Rig()
    for number, output in enumerate((1, 2, 7)):
        rig.arrive(f"r{number}", output=output, priority=P1)
    rig.run()
    tokens = [len(ids) for ids in rig.published.values()]
    gaps = observer(rig).distributions().gaps
    assert gaps[P1].count == sum(tokens) - len(tokens)
    endings = [publication.ending for publication in rig.endings.values()]
    spans = [
        ending.timeline.last_token_s - ending.timeline.first_token_s
        for ending in endings
        if ending and ending.timeline.last_token_s is not None and ending.timeline.first_token_s is not None
    ]
    assert abs(gaps[P1].sum - sum(spans)) < 1e-9
    assert gaps[P0].count == 0


def test_steps_are_counted_with_their_sequences_and_tokens() -> None:
    rig = Rig()
    rig.arrive("a", prompt=8, output=4)
    rig.run()
    told, engine = observer(rig).distributions(), rig.parts.engine.statistics()
    assert told.step_time.count == told.step_sequences.count == engine.steps
    assert told.step_tokens.sum == engine.prefill_tokens + engine.decode_tokens
    assert abs(told.step_time.sum - engine.step_seconds) < 1e-9


@dataclass
class RepeatingRunner:
    """Says the same few tokens round and round, and that of the guesses half came true."""

    inner: ModelRunner
    accepted: dict[int, Sequence[int]] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def step(self, sequences: Sequence[SequenceInput]) -> list[int | None]:
        tokens = self.inner.step(sequences)
        self.accepted = {
            place: each.guess[: len(each.guess) // 2] for place, each in enumerate(sequences) if len(each.guess) > 1
        }
        return [
            None if token is None else each.output_position % 3 for each, token in zip(sequences, tokens, strict=True)
        ]

    def take_accepted(self) -> Mapping[int, Sequence[int]]:
        return self.accepted


def test_guessed_tokens_are_among_those_of_their_step_and_counted_by_class_and_outcome() -> None:
    rig = Rig(wrap=RepeatingRunner)
    rig.arrive("a", prompt=8, output=60, priority=P1)
    rig.run()
    told, engine = observer(rig).distributions(), rig.parts.engine.statistics()
    assert engine.speculation is not None
    guessed, accepted = engine.speculation.guessed, engine.speculation.accepted
    assert guessed > accepted > 0, "nothing was guessed, or nothing came true: the test is about nothing"
    assert told.step_tokens.sum == engine.prefill_tokens + engine.decode_tokens - accepted + guessed
    metrics = EngineMetrics(observer(rig), TenantLabels(4), "m", 5)
    metrics.look(rig.clock(), engine)
    reading = Reading(frozenset((*OURS, *COMPAT["vllm"])))
    metrics.read(reading)
    assert reading.of(GUESSED_TOKENS) == {("p1", "accepted"): accepted, ("p1", "refused"): guessed - accepted}
    assert reading.of(VLLM_ACCEPTED) == {("m",): accepted}


def test_the_oldest_of_each_class_is_the_first_that_is_not_admitted() -> None:
    rig = Rig(engine_config=EngineConfig(max_sequences=2, step_tokens=32))
    rig.arrive("runs", priority=P2, output=200)
    rig.parts.engine.step()
    rig.parts.engine.step()
    rig.clock.advance(5.0)
    first = rig.arrive("waits", priority=P2, partition=1)
    rig.clock.advance(3.0)
    rig.arrive("waits too", priority=P2)
    seen = snapshot(rig)
    assert seen.waiting[P2] == 2
    assert seen.running[P2] == 1
    assert seen.oldest_s == {P2: seen.at_s - first.arrived_s}


def test_a_preemption_is_told_with_victim_causer_and_reason() -> None:
    rig = Rig(engine_config=EngineConfig(max_sequences=4, step_tokens=64), num_blocks=64)
    for number in range(4):
        rig.arrive(f"batch {number}", priority=P3, prompt=40, output=30, tenant="b")
    for _ in range(6):
        rig.parts.engine.step()
    rig.arrive("urgent", priority=P0, prompt=100, output=4)
    rig.arrive("urgent too", priority=P0, prompt=100, output=4)
    rig.run()
    preempted = snapshot(rig).preempted
    assert preempted, "nobody was preempted: the test is about nothing"
    assert sum(preempted.values()) == rig.parts.engine.statistics().preemptions
    assert {(kind.victim, kind.tenant, kind.causer, kind.reason) for kind in preempted} == {(P3, "b", P0, "admission")}


def test_what_a_request_cost_is_its_uncached_prompt_and_its_output() -> None:
    rig = Rig()
    rig.arrive("a", prompt=9, output=5)
    rig.run()
    ending = rig.endings["a"].ending
    assert ending is not None
    assert (ending.prompt_tokens, ending.cached_tokens) == (9, 0)
    assert ending.cost == 9 + 2 * ending.output_tokens


def test_an_engine_that_nobody_observes_tells_nothing() -> None:
    rig = Rig(observed=False)
    rig.arrive("a")
    rig.run()
    assert rig.parts.observer is None
