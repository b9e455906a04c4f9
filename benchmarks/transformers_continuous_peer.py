"""The other peer that needs no installation: transformers' continuous batching, as `transformers serve` uses it.

Knows transformers and a workload of token ids. Does not know Headrace's engine; `headrace bench engine --peers
transformers-continuous` runs both.

All requests are added at once to the manager, whose own thread batches them. Greedy, end tokens ignored, no shared
prefixes, the same memory for KV as Headrace's default; else as it ships (on a CPU: torch's own attention).

    python -m benchmarks.transformers_continuous_peer --model FOLDER --workload FILE [--requests N] [--dtype float32]

loads the model, then runs once for each line of its input and prints one line of JSON each time: the figures, the
outputs and the process's own peak memory.
"""

import argparse
import json
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from workers.bench.on_request import run_on_request
from workers.models.devices import choose_placement
from workers.runners.transformers_quiet import quiet_transformers

_KV_BYTES = 2 * 2**30
_PAGE_TOKENS = 256
_NO_END = -1


def main() -> None:
    parser = argparse.ArgumentParser(description="transformers' continuous batching on a workload of token ids")
    parser.add_argument("--model", type=Path, required=True, metavar="FOLDER", help="a model in Hugging Face's layout")
    parser.add_argument("--workload", type=Path, required=True, metavar="FILE", help="JSON with a list `requests`")
    parser.add_argument("--requests", type=int, metavar="N", help="only the first N")
    parser.add_argument("--dtype", default="auto", help="auto, float32 or bfloat16")
    arguments = parser.parse_args()
    requests = json.loads(arguments.workload.read_bytes())["requests"][: arguments.requests]
    placement = choose_placement("cpu", arguments.dtype)
    quiet_transformers()
    torch.set_num_threads(placement.threads)
    from_pretrained: Any = AutoModelForCausalLM.from_pretrained
    model: Any = from_pretrained(str(arguments.model), dtype=placement.dtype, local_files_only=True).eval()

    def answer() -> dict[str, Any]:
        figures = run(model, requests)
        peak_rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # Linux counts KiB
        return figures | {"peak_rss_mb": peak_rss_mb}

    run_on_request(answer)


def run(model: Any, requests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures, and each request's output token ids."""
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    page_bytes = _PAGE_TOKENS * 2 * config.num_key_value_heads * head_dim * model.dtype.itemsize
    batching = ContinuousBatchingConfig(
        page_size=_PAGE_TOKENS,
        num_blocks=_KV_BYTES // (page_bytes * config.num_hidden_layers),
        allow_block_sharing=False,
    )
    generation = GenerationConfig(do_sample=False, eos_token_id=_NO_END, pad_token_id=0)
    outputs: dict[str, list[int]] = {}
    first_s: list[float] = []
    with model.continuous_batching_context_manager(generation, continuous_batching_config=batching) as manager:
        started_s = time.perf_counter()
        for number, request in enumerate(requests):
            manager.add_request(
                request["prompt_token_ids"],
                str(number),
                max_new_tokens=request["max_tokens"],
                record_timestamps=True,
                eos_token_id=_NO_END,
            )
        while len(outputs) < len(requests):
            result = manager.get_result(timeout=600)
            if result is None or result.error is not None:
                raise RuntimeError(f"transformers' batching stopped: {result and result.error}")
            outputs[result.request_id] = list(result.generated_tokens)
            first_s.append(result.timestamps[0] - started_s)
        wall_s = time.perf_counter() - started_s
    tokens = sum(map(len, outputs.values()))
    assert tokens == sum(request["max_tokens"] for request in requests), f"{tokens} tokens were written"
    return {
        "output_tokens_s": tokens / wall_s,
        "ttft_mean_s": float(np.mean(first_s)),
        "ttft_p95_s": float(np.percentile(first_s, 95)),
        "wall_s": wall_s,
        "output_tokens": tokens,
        "outputs": [outputs[str(number)] for number in range(len(requests))],
    }


if __name__ == "__main__":
    main()
