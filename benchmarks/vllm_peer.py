"""vLLM on the CPU, as its own engine runs a workload of token ids. Runs in an environment of its own.

Knows vLLM. Does not know Headrace's engine, and nothing of it is installed there; `headrace bench engine --peers vllm`
runs both.

All requests are added at once and the engine is stepped until all have ended. Greedy, end tokens ignored where the
workload doesn't say otherwise, no prefix cache (the prompts share nothing), 64 sequences, the same memory for KV as
Headrace's default. Its threads aren't bound to cores, so that it computes on all of them: as it ships it keeps one for
its scheduler, half of a small machine. Everything else is as vLLM ships it; with --guess it guesses tokens by its own
prompt lookup.

    ENVIRONMENT/bin/python -m benchmarks.vllm_peer --model FOLDER --workload FILE [--requests N] [--dtype D] [--guess]

loads the model, then runs once for each line of its input and prints one line of JSON each time: the figures, the
outputs and the peak memory of the process.
"""

import argparse
import json
import os
import resource
import time
from pathlib import Path
from typing import Any

from workers.bench.on_request import run_on_request

_KV_GIB = 2
_SEQUENCES = 64
_GUESSES = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
"""As its documentation has it."""


def main() -> None:
    parser = argparse.ArgumentParser(description="vLLM's engine on a workload of token ids")
    parser.add_argument("--model", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--workload", type=Path, required=True, metavar="FILE")
    parser.add_argument("--requests", type=int, metavar="N")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--guess", action="store_true", help="guess tokens ahead by prompt lookup")
    arguments = parser.parse_args()
    requests = json.loads(arguments.workload.read_bytes())["requests"][: arguments.requests]
    set_environment()
    engine = _load(arguments.model, arguments.dtype, _GUESSES if arguments.guess else None)

    def answer() -> dict[str, Any]:
        figures = run(engine, requests)
        peak_rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # Linux counts KiB
        return figures | {"peak_rss_mb": peak_rss_mb}

    run_on_request(answer)


def set_environment() -> None:
    """Before vLLM is imported: what it can only be told so."""
    os.environ.setdefault("VLLM_HOST_IP", "127.0.0.1")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(_KV_GIB))
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")


def _load(folder: Path, dtype: str, guesses: dict[str, Any] | None) -> Any:
    from vllm import EngineArgs, LLMEngine

    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(folder),
            dtype=dtype,
            max_num_seqs=_SEQUENCES,
            enable_prefix_caching=False,
            disable_log_stats=True,
            speculative_config=guesses,
        )
    )


def run(engine: Any, requests: list[dict[str, Any]]) -> dict[str, Any]:
    from vllm import SamplingParams, TokensPrompt

    started_s = time.perf_counter()
    for number, request in enumerate(requests):
        tokens, in_full = request["max_tokens"], request.get("ignore_eos", True)
        least = tokens if in_full else 0
        sampling = SamplingParams(temperature=0.0, max_tokens=tokens, min_tokens=least, ignore_eos=in_full)
        engine.add_request(str(number), TokensPrompt(prompt_token_ids=request["prompt_token_ids"]), sampling)
    first_s: dict[str, float] = {}
    ended: dict[str, list[int]] = {}
    steps = 0
    while engine.has_unfinished_requests():
        outputs = engine.step()
        steps += 1
        now_s = time.perf_counter() - started_s
        for output in outputs:
            if output.outputs[0].token_ids:
                first_s.setdefault(output.request_id, now_s)
            if output.finished:
                ended[output.request_id] = list(output.outputs[0].token_ids)
    wall_s = time.perf_counter() - started_s
    output_tokens = sum(map(len, ended.values()))
    if all(request.get("ignore_eos", True) for request in requests):
        wanted = sum(request["max_tokens"] for request in requests)
        assert output_tokens == wanted, f"{output_tokens} tokens of {wanted} were written"
    ordered = sorted(first_s.values())
    return {
        "output_tokens_s": output_tokens / wall_s,
        "ttft_mean_s": sum(ordered) / len(ordered),
        "ttft_p95_s": ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))],
        "wall_s": wall_s,
        "output_tokens": output_tokens,
        "outputs": [ended[str(number)] for number in range(len(requests))],
        "steps": steps,
    }


if __name__ == "__main__":
    main()
