"""An engine out of its parts: index, discipline, KV accounting, batch scheduler, runner.

Knows how configuration becomes the parts, and which part needs which. Does not know Kafka or threads. The simulator and
the tests build their engines here too, so they run what production runs.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvcache.block_hash import BlockHasher
from kvcache.manager import KVCacheManager
from kvcache.partitions import divide
from scheduling.accounting import AccountedQdisc
from scheduling.batch import BatchScheduler
from scheduling.capacity import CapacityMeter
from scheduling.cost import CostKind, CostModel
from scheduling.default_tree import default_tree
from scheduling.index import Index
from scheduling.intake import Intake
from scheduling.length import QuantilePredictor
from scheduling.limits import BatchLimits
from scheduling.policies import make_qdisc
from scheduling.preemption_rules import PreemptionMode, PreemptionRules
from scheduling.priority import PriorityClass
from scheduling.prompt_ratio import PromptRatio
from scheduling.step_time import LinearStepTime, StepTimeTracker
from scheduling.swap_rule import SwapRule
from scheduling.tree import TreeConfig
from workers.config import EngineConfig
from workers.detokenizer import Detokenizer
from workers.engine import Engine
from workers.engine_messages import EngineMessage
from workers.engine_observer import EngineObserver
from workers.kv_config import KVConfig, PreemptionConfig, class_shares
from workers.mailbox import Mailbox
from workers.outbox import Outbox
from workers.runner import ModelRunner
from workers.scheduling_config import SchedulingConfig
from workers.sequence_groups import MORE_ROWS
from workers.speculation import Speculation, VerifyingRunner
from workers.staging import StageJob
from workers.swap_space import SwapPool
from workers.tree_config import parse_tree

__all__ = [
    "Assembly",
    "assemble",
    "batch_limits",
    "block_hasher",
    "class_tree",
    "cost_model",
    "engine_inbox",
    "step_cap_s",
    "strict_classes",
]

_PRIOR_OUTPUT_TOKENS = 256
"""Prior of the length prediction for a request that names no limit: about the mean answer of public chat traces."""

_STEP_CAP_S = 1.0
_STEP_CAP_DECODES = 4.0
_OVERSHOOT_ROWS = 1_024
"""Records that are handed out although their class has just paused: the rest of a batch, for each class."""
_OTHER_MESSAGES = 16_384
"""Room in the mailbox for what is not an arrival: staging results, and a revocation for each partition."""


@dataclass(frozen=True, slots=True)
class Assembly:
    engine: Engine
    scheduler: BatchScheduler
    qdisc: AccountedQdisc
    index: Index
    kv: KVCacheManager
    observer: EngineObserver | None


def engine_inbox(max_rows: int) -> Mailbox[EngineMessage]:
    """A mailbox that cannot fill: the residency lets in no more than `max_rows`, and once more after each rebalance
    that comes during one step."""
    return Mailbox(8 * (max_rows + _OVERSHOOT_ROWS) + _OTHER_MESSAGES)


def block_hasher(config: KVConfig, runner: ModelRunner, model_name: str, dtype: str) -> BlockHasher | None:
    """What names the blocks' content; None where nothing is to be shared."""
    if not config.prefix_cache:
        return None
    return BlockHasher(runner.block_size, model=model_name, adapter="", dtype=dtype, by_tenant=config.isolate_tenants)


def cost_model(kind: CostKind, rates: LinearStepTime, max_sequences: int) -> CostModel:
    """The configured prices; measured ones are those of a full step."""
    if kind is CostKind.MEASURED:
        output_token_s = rates.predict(0, max_sequences, 0) / max_sequences
        return CostModel.measured(rates.per_prefill_token_s, output_token_s)
    return CostModel(logarithmic=kind is CostKind.LOG)


def class_tree(
    config: SchedulingConfig,
    rates: LinearStepTime,
    cost: CostModel,
    max_sequences: int,
    context_tokens: int | None = None,
) -> TreeConfig:
    """The configured tree, or the shipped one with its tenants weighted by configuration.

    Its capacity is taken from the measured rates; of the shipped tree, a burst holds the largest request that the
    context allows. Raises `TreeError`.
    """
    # A full batch decoding: each step gives max_sequences tokens.
    step_s = rates.predict(0, max_sequences, 0)
    capacity_units_s = cost.output(max_sequences) / step_s
    if config.tree is not None:
        return parse_tree(config.tree, capacity_units_s)
    tree = default_tree(capacity_units_s)
    scale = cost.cheapest_token
    tree = replace(tree, quantum=tree.quantum * scale, largest_item=tree.largest_item * scale)
    if context_tokens is not None:
        # Half of it prompt, half output: all output would be dearer, and nobody sends that.
        largest = cost.prompt(context_tokens // 2) + cost.output(context_tokens // 2)
        tree = replace(tree, largest_item=min(tree.largest_item, largest))
    return replace(
        tree,
        classes=tuple(
            replace(
                child,
                tenants=replace(
                    child.tenants, weights=dict(config.tenant_weights), quantum=config.tenant_quantum * scale
                ),
            )
            for child in tree.classes
        ),
    )


def strict_classes(policy: str, tree: TreeConfig) -> frozenset[PriorityClass]:
    """Whose tokens go first in a step: what the policy itself calls strict. (A first-in-first-out engine in which P0's
    prompts overtake would be no baseline.)"""
    if policy == "htb":
        return frozenset(
            config.priority for config in tree.walk() if config.strict_limit is not None and config.priority is not None
        )
    return frozenset({PriorityClass.P0}) if policy in ("strict", "hybrid") else frozenset()


def step_cap_s(engine: EngineConfig, rates: LinearStepTime) -> float:
    """The planned length of a step: as configured, or by what this machine takes to decode a full batch."""
    if engine.step_max_ms is not None:
        return engine.step_max_ms / 1000
    return max(_STEP_CAP_S, _STEP_CAP_DECODES * rates.predict(0, engine.max_sequences, 0))


def batch_limits(
    engine: EngineConfig, scheduling: SchedulingConfig, rates: LinearStepTime, context_tokens: int
) -> BatchLimits:
    return BatchLimits(
        context_tokens=context_tokens,
        max_sequences=engine.max_sequences,
        # An urgent request finds a slot at once; of a single slot there is none to set aside.
        strict_slots=min(1, engine.max_sequences - 1),
        step_tokens=engine.step_tokens,
        step_max_s=step_cap_s(engine, rates),
        staged_rows=scheduling.staged_rows or 2 * engine.max_sequences,
    )


def preemption_rules(config: PreemptionConfig, tree: TreeConfig) -> PreemptionRules:
    return PreemptionRules(
        mode=config.mode,
        preemptible=frozenset(PriorityClass.from_label(label) for label in config.preemptible),
        budget=config.budget,
        window_s=config.window_s,
        slos={child.priority: child.slo for child in tree.walk() if child.priority is not None},
    )


def kv_manager(
    config: KVConfig,
    mode: PreemptionMode,
    strict: frozenset[PriorityClass],
    num_blocks: int,
    block_size: int,
    places: int,
) -> KVCacheManager:
    """The pool's accounting. A strict class's reserve follows its use, for it should find blocks without evicting."""
    return KVCacheManager(
        num_blocks,
        block_size,
        parts=divide("KV blocks", num_blocks, class_shares(config.reserve, config.ceiling)),
        following=strict,
        lend=mode.evicts_for_newcomers,
        firm=mode is PreemptionMode.NONE,
        swap_places=places,
    )


def assemble(
    engine: EngineConfig,
    scheduling: SchedulingConfig,
    *,
    kv_config: KVConfig,
    preemption: PreemptionConfig,
    swap: SwapPool | None,
    runner: ModelRunner,
    rates: LinearStepTime,
    max_rows: int,
    context_tokens: int,
    outbox: Outbox,
    inbox: Mailbox[EngineMessage],
    stage: Callable[[StageJob], None],
    hasher: BlockHasher | None,
    new_detokenizer: Callable[[], Detokenizer],
    clock: Callable[[], float],
    cpu_clock: Callable[[], float],
    observed: bool = True,
) -> Assembly:
    """`rates`: what a step takes, as measured at start. `context_tokens`: the longest request, prompt and output.

    `clock` and `cpu_clock`: seconds, of the wall and of the engine's thread.

    `swap`: where KV is swapped to; None: nowhere. `observed`: with an observer, for telemetry.

    Raises `PolicyError`, `TreeError`, `LimitsError`, `PartitionError` for settings that contradict each other.
    """
    cost = cost_model(CostKind(scheduling.cost), rates, engine.max_sequences)
    lengths = QuantilePredictor()
    tree = class_tree(scheduling, rates, cost, engine.max_sequences, context_tokens)
    quotas = scheduling.domain_quotas()
    strict = strict_classes(scheduling.policy, tree)
    limits = batch_limits(engine, scheduling, rates, context_tokens)
    slots = divide("sequence slots", engine.max_sequences, class_shares(kv_config.slot_reserve, kv_config.slot_ceiling))
    limits = replace(
        limits,
        slot_parts={PriorityClass(owner): part for owner, part in slots.items()},
        strict_prompt_tokens=kv_config.strict_prompt_tokens,
    )
    index = Index(capacity=max_rows + _OVERSHOOT_ROWS + MORE_ROWS, cost=cost)
    qdisc = make_qdisc(scheduling.policy, index, tree, cost, clock(), quotas)
    places = 0 if swap is None else swap.places
    kv = kv_manager(kv_config, preemption.mode, strict, runner.num_blocks, runner.block_size, places)
    step_time = StepTimeTracker(rates)
    capacity = CapacityMeter(tree.capacity_units_s)
    scheduler = BatchScheduler(
        qdisc=qdisc,
        index=index,
        kv=kv,
        limits=limits,
        step_time=step_time,
        cost=cost,
        lengths=lengths,
        strict_classes=strict,
        preemption=preemption_rules(preemption, tree),
        swap_rule=None if swap is None else SwapRule(swap.rates, preemption.swap_theta),
        capacity=capacity,
    )
    prompt_ratio = PromptRatio()
    observer = None
    if observed:
        observer = EngineObserver(
            scheduler=scheduler,
            qdisc=qdisc,
            index=index,
            kv=kv,
            lengths=lengths,
            prompt_ratio=prompt_ratio,
            capacity=capacity,
        )
    built = Engine(
        scheduler=scheduler,
        index=index,
        kv=kv,
        runner=runner,
        qdisc=qdisc,
        intake=Intake(scheduling.admission.limits(), quotas, qdisc, clock()),
        lengths=lengths,
        prompt_ratio=prompt_ratio,
        inbox=inbox,
        outbox=outbox,
        stage=stage,
        hasher=hasher,
        swapper=None if swap is None else swap.swapper,
        speculation=_speculation(engine, runner, step_time),
        new_detokenizer=new_detokenizer,
        default_max_tokens=_PRIOR_OUTPUT_TOKENS,
        max_run_s=engine.max_run_s,
        clock=clock,
        cpu_clock=cpu_clock,
        observer=observer,
    )
    return Assembly(built, scheduler, qdisc, index, kv, observer)


def _speculation(engine: EngineConfig, runner: ModelRunner, step_time: StepTimeTracker) -> Speculation | None:
    """None for a runner that can't verify guesses, or where no class wants them."""
    classes = {PriorityClass.from_label(label) for label in engine.speculate}
    if not classes or not isinstance(runner, VerifyingRunner):
        return None
    return Speculation(runner, frozenset(classes), lambda: step_time.model)
