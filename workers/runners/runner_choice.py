"""Which runner serves a model, and on which attention: decided from its configuration and what the machine has.

Knows the runners. Does not know what they do inside. Every choice, and every fall back to something slower, is one
line to `on_progress`: the log says what serves.
"""

from collections.abc import Callable

import torch

from workers.models.devices import Placement, computes_bf16
from workers.models.model_config import read_config
from workers.models.model_source import ModelFiles
from workers.runners.attention.backend import AttentionKind
from workers.runners.attention.cpu import CpuAttentionKind
from workers.runners.attention.flash import FlashAttentionKind, flash_for
from workers.runners.attention.reference import ReferenceAttention
from workers.runners.decoder.family import DecoderShape, describe
from workers.runners.decoder.runner import DecoderRunner
from workers.runners.native.build import NoLibrary
from workers.runners.native.library import NativeLibrary, load_library
from workers.runners.paged_runner import PagedRunner
from workers.runners.step_memory import WidestStep, pool_profile

__all__ = ["load_runner"]

OnProgress = Callable[[str], None]


def load_runner(
    files: ModelFiles,
    placement: Placement,
    *,
    kv_bytes: int | None = None,
    max_context_tokens: int | None = None,
    tensor_parallel: int = 1,
    widest: WidestStep | None = None,
    on_progress: OnProgress = lambda _line: None,
) -> PagedRunner:
    """The fastest runner that serves the model here. `widest`: the largest step it will be asked for.

    Raises `ModelError` and `kvcache.sizing.PoolSizeError`.
    """
    if tensor_parallel > 1:
        # Here and not above, as below.
        from workers.runners.parallel_runner import load_parallel

        parallel = load_parallel(
            files, placement, tensor_parallel, kv_bytes=kv_bytes, max_context_tokens=max_context_tokens, widest=widest
        )
        on_progress(
            f"Runner: transformers' own code over {tensor_parallel} ranks, on {parallel.attention_name} attention"
        )
        return parallel
    library = _kernels(placement, on_progress)
    flash = _flash(placement, on_progress)
    shape = describe(read_config(files.folder))
    runner: PagedRunner
    if isinstance(shape, DecoderShape):
        runner = DecoderRunner(
            files,
            shape,
            placement,
            library=library,
            flash=flash,
            torch_products=placement.dtype == torch.bfloat16 and computes_bf16(placement.device),
            kv_bytes=kv_bytes,
            max_context_tokens=max_context_tokens,
            profile=pool_profile(placement, widest),
            on_progress=on_progress,
        )
        by = "compiled kernels" if runner.native is not None else "torch"
        on_progress(f"Runner: Headrace's own forward, by {by}, on {runner.attention_name} attention")
    else:
        # Here and not above: transformers' model code takes a third of all imports, and most starts don't need it.
        from workers.runners.transformers_runner import TransformersRunner

        runner = TransformersRunner.load(
            files,
            placement,
            kv_bytes=kv_bytes,
            max_context_tokens=max_context_tokens,
            attention=flash or _plain(library, placement),
            profile=pool_profile(placement, widest),
            on_progress=on_progress,
        )
        on_progress(f"Runner: transformers' own code ({shape.reason}), on {runner.attention_name} attention")
    return runner


def _kernels(placement: Placement, on_progress: OnProgress) -> NativeLibrary | None:
    if placement.device.type != "cpu":
        return None
    library = load_library(on_progress)
    if isinstance(library, NoLibrary):
        on_progress(f"No compiled CPU kernels, so torch computes everything, several times slower: {library.reason}")
        return None
    return library


def _flash(placement: Placement, on_progress: OnProgress) -> FlashAttentionKind | None:
    if placement.device.type != "cuda":
        return None
    chosen = flash_for(placement)
    if isinstance(chosen, str):
        on_progress(f"No flash-attention, so torch's own serves, several times slower: {chosen}")
        return None
    return chosen


def _plain(library: NativeLibrary | None, placement: Placement) -> AttentionKind:
    return ReferenceAttention if library is None else CpuAttentionKind(library, placement.threads)
