"""vLLM under the load of `headrace bench urgent`: a batch at once, urgent requests meanwhile. In its own environment.

Knows vLLM. Does not know Headrace's engine; `headrace bench urgent --peers vllm` runs both.

Urgent requests have priority 0 and the batch 1, which counts under `--policy priority` alone. vLLM's engine is stepped
in this process: a request that is due during a step is added when that has ended, and its TTFT runs from when it was
due. No broker stands between. Greedy, end tokens ignored, no prefix cache, for the prompts share nothing.

    ENVIRONMENT/bin/python -m benchmarks.vllm_urgent --model FOLDER --load FILE --policy fcfs|priority

loads the model, then runs once for each line of its input: first the urgent requests alone, then over the batch.
"""

import argparse
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.vllm_peer import set_environment
from workers.bench.on_request import run_on_request


def main() -> None:
    parser = argparse.ArgumentParser(description="vLLM's engine, urgent requests over a batch")
    parser.add_argument("--model", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--load", type=Path, required=True, metavar="FILE")
    parser.add_argument("--policy", choices=("fcfs", "priority"), required=True)
    parser.add_argument("--dtype", default="auto")
    arguments = parser.parse_args()
    load = json.loads(arguments.load.read_bytes())
    set_environment()
    from vllm import EngineArgs, LLMEngine

    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(arguments.model),
            dtype=arguments.dtype,
            max_num_seqs=load["max_sequences"],
            max_num_batched_tokens=max(load["step_tokens"], load["max_sequences"]),
            scheduling_policy=arguments.policy,
            enable_prefix_caching=False,
            enable_chunked_prefill=True,
            disable_log_stats=True,
        )
    )
    numbers = iter(range(1_000_000_000))

    def answer() -> dict[str, Any]:
        idle = _Play(engine, load | {"batch": [], "first_after_s": 0.0}, numbers).run()
        return {"idle": idle, arguments.policy: _Play(engine, load, numbers).run()}

    run_on_request(answer)


@dataclass
class _Play:
    engine: Any
    load: dict[str, Any]
    numbers: Any
    """Of requests, in all plays of the process."""
    urgent_s: dict[str, float] = field(default_factory=dict)
    """When each urgent request was due."""
    first_s: dict[str, float] = field(default_factory=dict)
    """Its TTFT."""
    batch: set[str] = field(default_factory=set)
    batch_tokens: int = 0
    batch_over_s: float = 0.0
    step_s: list[float] = field(default_factory=list)

    def run(self) -> dict[str, Any]:
        started_s = time.perf_counter()
        for request in self.load["batch"]:
            self.batch.add(self._add(request, priority=1))
        due_s = self._when_full() + self.load["first_after_s"]
        for request in self.load["urgent"]:
            while time.perf_counter() < due_s:
                self._step_or_sleep(due_s)
            name = self._add(request, priority=0)
            self.urgent_s[name] = due_s
            due_s += self.load["interval_s"]
            if not self.batch:
                self._drain()  # alone on an idle machine
                due_s = time.perf_counter() + self.load["interval_s"]
        self._drain()
        return self._figures(started_s)

    def _when_full(self) -> float:
        """Step until the running limit is reached."""
        wanted = min(len(self.batch), self.load["max_sequences"] - 1)
        begun: set[str] = set()
        while len(begun) < wanted:
            begun.update(self._step())
        return time.perf_counter()

    def _drain(self) -> None:
        while self.engine.has_unfinished_requests():
            self._step()

    def _step_or_sleep(self, until_s: float) -> None:
        if self.engine.has_unfinished_requests():
            self._step()
        else:
            time.sleep(max(0.0, until_s - time.perf_counter()))

    def _add(self, request: dict[str, Any], priority: int) -> str:
        from vllm import SamplingParams, TokensPrompt

        name, tokens = str(next(self.numbers)), request["max_tokens"]
        sampling = SamplingParams(temperature=0.0, max_tokens=tokens, min_tokens=tokens, ignore_eos=True)
        prompt = TokensPrompt(prompt_token_ids=request["prompt"])
        self.engine.add_request(name, prompt, sampling, priority=priority)
        return name

    def _step(self) -> list[str]:
        """Who has said something."""
        started_s = time.perf_counter()
        outputs = self.engine.step()
        now_s = time.perf_counter()
        self.step_s.append(now_s - started_s)
        for output in outputs:
            if output.request_id in self.urgent_s:
                self.first_s.setdefault(output.request_id, now_s - self.urgent_s[output.request_id])
            elif output.finished:
                self.batch_tokens += len(output.outputs[0].token_ids)
                self.batch_over_s = now_s
        return [output.request_id for output in outputs]

    def _figures(self, started_s: float) -> dict[str, Any]:
        ordered = sorted(self.first_s.values())
        assert len(ordered) == len(self.load["urgent"]), f"{len(ordered)} urgent requests were answered"
        figures = {
            "ttft_p50_s": ordered[len(ordered) // 2],
            "ttft_p95_s": ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))],
            "ttft_max_s": ordered[-1],
            "step_max_s": max(self.step_s),
        }
        if self.batch:
            figures["batch_tokens_s"] = self.batch_tokens / (self.batch_over_s - started_s)
            figures["makespan_wall_s"] = time.perf_counter() - started_s
        return figures


if __name__ == "__main__":
    main()
