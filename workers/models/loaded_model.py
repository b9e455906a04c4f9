"""A model that is loaded, placed and warm: what a worker needs of it.

Knows the order: files → placement → runner → warm-up. Does not know what a runner does inside.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import psutil

from scheduling.step_time import LinearStepTime
from workers.configuration.config import EngineConfig, ModelConfig
from workers.configuration.kv_config import KVConfig
from workers.intake.prompt_tokens import ChatTokenizer
from workers.models.devices import choose_placement, gpu_uuid
from workers.models.model_source import find_model, load_tokenizer, prepare_model
from workers.models.warm_up import measure_step_time
from workers.runners.rank_group import RankGroup
from workers.runners.runner import ModelLimits, ModelRunner
from workers.runners.runner_choice import load_runner
from workers.runners.step_memory import WidestStep
from workers.runners.swap_space import SwapPool, make_swap_pool

__all__ = ["LoadedModel", "load_model"]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    served_names: tuple[str, ...]
    """Never empty; the first is written into replies."""
    runner: ModelRunner
    tokenizer: ChatTokenizer
    limits: ModelLimits
    dtype: str
    """In which it computes, and holds its KV."""
    rates: LinearStepTime
    """What a step takes, as measured at the warm-up."""
    swap: SwapPool | None
    """Where the KV of suspended requests is swapped to."""
    summary: str
    """One line for the log: model, placement, pool, rates."""
    group: RankGroup | None = None
    """The other ranks that it runs on."""
    gpu_uuid: str | None = None
    """Of the CUDA device that it is on."""


def load_model(
    model: ModelConfig,
    engine: EngineConfig,
    kv: KVConfig,
    on_progress: Callable[[str], None] = lambda _line: None,
) -> LoadedModel:
    """Find, place, load and warm a model.

    Raises `ModelError`, `DeviceError` and `kvcache.sizing.PoolSizeError`: all of them the user's to mend.
    """
    started_s = time.monotonic()
    placement = choose_placement(engine.device, engine.dtype, engine.threads)
    files = prepare_model(find_model(model.source), on_progress)
    runner = load_runner(
        files,
        placement,
        kv_bytes=engine.kv_bytes,
        max_context_tokens=model.max_context_tokens,
        tensor_parallel=engine.tensor_parallel,
        widest=WidestStep(engine.step_tokens, engine.max_sequences),
        on_progress=on_progress,
    )
    tokenizer = load_tokenizer(files)
    runner.prepare(engine.max_sequences)
    on_progress("Warming up: measuring what a step takes")
    rates = measure_step_time(runner)
    swap = make_swap_pool(runner.storage, kv.swap_bytes, time.perf_counter)
    if swap is not None and runner.group is not None:
        from workers.runners.parallel_runner import parallel_swap  # with it comes transformers' model code

        swap = parallel_swap(swap, runner.group)
    names = model.served_names or (files.name,)
    pool_tokens = runner.num_blocks * runner.block_size
    alone_s = rates.fixed_s + rates.per_decode_sequence_s
    return LoadedModel(
        served_names=names,
        runner=runner,
        tokenizer=cast(ChatTokenizer, tokenizer),
        limits=runner.limits,
        dtype=str(placement.dtype).removeprefix("torch."),
        rates=rates,
        swap=swap,
        group=runner.group,
        summary=(
            f"{names[0]} on {placement}: context {runner.limits.context_tokens:,} tokens, "
            f"KV pool {pool_tokens:,} tokens, prefill {1 / rates.per_prefill_token_s:,.0f} tokens/s, one answer alone "
            f"{1 / alone_s:,.0f} tokens/s; ready {time.monotonic() - started_s:.1f} s "
            f"after imports, {time.time() - psutil.Process().create_time():.1f} s after the process started"
        ),
        gpu_uuid=gpu_uuid(placement.device),
    )
