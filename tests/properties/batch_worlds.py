"""Random worlds for the batch scheduler: arrivals, sizes, pools, staging delays, cancels and deadlines."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from hypothesis import strategies as st

from kvcache.partitions import Share
from scheduling.cost import CostModel
from scheduling.default_tree import default_tree
from scheduling.index import Index
from scheduling.policies import make_qdisc
from scheduling.preemption_rules import PreemptionMode
from scheduling.priority import PriorityClass
from scheduling.qdisc import Qdisc
from scheduling.step_time import LinearStepTime
from tests.scheduling.batch_rig import PlainDiscipline

CONTEXT = 40
SHARES = {0: Share(0.2, 0.6), 1: Share(0.3), 2: Share(0.1)}
STEP_TIME = LinearStepTime(
    fixed_s=0.010, per_prefill_token_s=0.001, per_decode_sequence_s=0.002, per_context_token_s=1e-5
)
TREE = default_tree(capacity_units_s=3000.0, largest_item=4 * CONTEXT)
DISCIPLINES: dict[str, Callable[[Index, CostModel], Qdisc]] = {
    "plain": PlainDiscipline,
    "htb": lambda index, cost: make_qdisc("htb", index, TREE, cost),
    "strict": lambda index, cost: make_qdisc("strict", index, TREE, cost),
    "fifo": lambda index, cost: make_qdisc("fifo", index, TREE, cost),
}


@dataclass(frozen=True)
class Case:
    """One request. Turns are turns of the engine."""

    priority: PriorityClass
    turn: int
    prompt: int
    estimate: int
    answer: int
    tenant: str
    staging_turns: int
    deadline_s: float
    cancel_turn: int | None
    family: int = 0
    """Prompts of one family begin alike."""


@dataclass(frozen=True)
class World:
    cases: list[Case]
    discipline: str
    blocks: int
    block_size: int
    max_sequences: int
    step_tokens: int
    step_max_s: float
    prefill_floor: int
    backfill_limit: int
    staged_rows: int
    predicted: int | None
    paused_turns: frozenset[int]
    mode: PreemptionMode = PreemptionMode.RECOMPUTE
    parts: bool = False
    swap_places: int = 0
    cache: bool = False
    sit_out_steps: int = 2


@st.composite
def worlds(draw: st.DrawFn) -> World:
    requests = st.builds(
        Case,
        priority=st.sampled_from(PriorityClass),
        turn=st.integers(0, 30),
        prompt=st.integers(1, CONTEXT + 2),
        estimate=st.integers(1, 60),
        answer=st.integers(0, 30),
        tenant=st.sampled_from("ab"),
        staging_turns=st.integers(0, 4),
        deadline_s=st.one_of(st.just(inf), st.floats(0.01, 1.0)),
        cancel_turn=st.one_of(st.none(), st.integers(0, 60)),
        family=st.integers(0, 3),
    )
    block_size = draw(st.sampled_from([1, 4, 16]))
    max_sequences = draw(st.integers(1, 8))
    least = -(-CONTEXT // block_size)
    return World(
        cases=draw(st.lists(requests, min_size=1, max_size=25)),
        discipline=draw(st.sampled_from(sorted(DISCIPLINES))),
        blocks=draw(st.integers(least, 3 * least)),
        block_size=block_size,
        max_sequences=max_sequences,
        step_tokens=draw(st.integers(max_sequences, 40)),
        step_max_s=draw(st.sampled_from([0.001, 0.02, 0.03, inf])),
        prefill_floor=draw(st.integers(1, 8)),
        backfill_limit=draw(st.integers(0, 4)),
        staged_rows=draw(st.integers(2, 16)),
        predicted=draw(st.one_of(st.none(), st.integers(1, 20))),
        paused_turns=draw(st.frozensets(st.integers(0, 40), max_size=10)),
        mode=draw(st.sampled_from(PreemptionMode)),
        parts=draw(st.booleans()),
        swap_places=draw(st.sampled_from([0, 3, 30])),
        cache=draw(st.booleans()),
        sit_out_steps=draw(st.integers(0, 3)),
    )
