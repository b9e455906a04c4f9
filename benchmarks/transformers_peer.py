"""The peer that needs no installation: transformers' static `generate`, as a script would call it.

Knows transformers and a workload of token ids. Does not know Headrace's engine; `headrace bench engine` runs both.

Requests are taken in their order, in batches of one size, padded on the left to the longest prompt; a batch ends when
its longest output does. Greedy, end tokens ignored, so the tokens are those of any right engine. All requests count
as submitted when the run starts: a request's time to first token is the moment its batch's prompts are computed.

    python -m benchmarks.transformers_peer --model FOLDER --workload FILE [--requests N] [--dtype float32]

loads the model, then runs once for each line of its input and prints one line of JSON each time: the figures, the
outputs and the process's own peak memory.
"""

import argparse
import json
import resource
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from workers.bench.on_request import run_on_request
from workers.models.devices import Placement, choose_placement
from workers.runners.transformers_quiet import quiet_transformers

__all__ = ["PeerFigures", "PeerRequest", "TransformersPeer"]

BATCH = 16


@dataclass(frozen=True, slots=True)
class PeerRequest:
    prompt_token_ids: Sequence[int]
    output_tokens: int


@dataclass(frozen=True, slots=True)
class PeerFigures:
    output_tokens_s: float
    ttft_mean_s: float
    ttft_p95_s: float
    wall_s: float
    output_tokens: int
    """Asked for; what a batch generates beyond it for its shorter requests is not counted."""


class TransformersPeer:
    """Loaded once, run as often as wanted."""

    def __init__(self, folder: Path, placement: Placement) -> None:
        quiet_transformers()
        torch.set_num_threads(placement.threads)
        self._device = placement.device
        from_pretrained: Any = AutoModelForCausalLM.from_pretrained
        self._model: Any = from_pretrained(str(folder), dtype=placement.dtype, local_files_only=True)
        self._model.to(placement.device).eval()
        self._pad = self._model.generation_config.pad_token_id or 0
        self._model.generation_config.eos_token_id = None  # or it would stop there

    def run(self, requests: Sequence[PeerRequest], batch: int = BATCH) -> tuple[PeerFigures, list[list[int]]]:
        """The figures, and each request's output token ids."""
        outputs: list[list[int]] = []
        first_s: list[float] = []
        started = time.perf_counter()
        for at in range(0, len(requests), batch):
            members = requests[at : at + batch]
            clock = _FirstTokenClock()
            generated = self._generate(members, clock)
            first_s += [clock.first_s - started] * len(members)
            outputs += [row[: member.output_tokens] for row, member in zip(generated, members, strict=True)]
        wall_s = time.perf_counter() - started
        tokens = sum(len(output) for output in outputs)
        figures = PeerFigures(
            output_tokens_s=tokens / wall_s,
            ttft_mean_s=float(np.mean(first_s)),
            ttft_p95_s=float(np.percentile(first_s, 95)),
            wall_s=wall_s,
            output_tokens=tokens,
        )
        return figures, outputs

    def _generate(self, members: Sequence[PeerRequest], clock: "_FirstTokenClock") -> list[list[int]]:
        longest = max(len(member.prompt_token_ids) for member in members)
        ids = torch.full((len(members), longest), self._pad)
        mask = torch.zeros_like(ids)
        for row, member in enumerate(members):
            length = len(member.prompt_token_ids)
            ids[row, longest - length :] = torch.tensor(member.prompt_token_ids)
            mask[row, longest - length :] = 1
        with torch.inference_mode():
            generated = self._model.generate(
                input_ids=ids.to(self._device),
                attention_mask=mask.to(self._device),
                max_new_tokens=max(member.output_tokens for member in members),
                do_sample=False,
                pad_token_id=self._pad,
                logits_processor=[clock],
            )
        rows: list[list[int]] = generated[:, longest:].tolist()
        return rows


class _FirstTokenClock:
    """In the place of a logits processor: notes when the first logits are there, changes nothing."""

    def __init__(self) -> None:
        self.first_s = 0.0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if not self.first_s:
            if scores.is_cuda:
                torch.cuda.synchronize(scores.device)
            self.first_s = time.perf_counter()
        return scores


def main() -> None:
    parser = argparse.ArgumentParser(description="transformers' static generate on a workload of token ids")
    parser.add_argument("--model", type=Path, required=True, metavar="FOLDER", help="a model in Hugging Face's layout")
    parser.add_argument("--workload", type=Path, required=True, metavar="FILE", help="JSON with a list `requests`")
    parser.add_argument("--requests", type=int, metavar="N", help="only the first N")
    parser.add_argument("--batch", type=int, default=BATCH, metavar="N", help="requests a batch (%(default)s)")
    parser.add_argument("--dtype", default="auto", help="auto, float32 or bfloat16")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda:N")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads")
    arguments = parser.parse_args()
    workload = json.loads(arguments.workload.read_bytes())["requests"][: arguments.requests]
    requests = [PeerRequest(request["prompt_token_ids"], request["max_tokens"]) for request in workload]
    placement = choose_placement(arguments.device, arguments.dtype, arguments.threads)
    peer = TransformersPeer(arguments.model, placement)

    def run() -> dict[str, Any]:
        figures, outputs = peer.run(requests, arguments.batch)
        peak_rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # Linux counts KiB
        return {**asdict(figures), "outputs": outputs, "peak_rss_mb": peak_rss_mb}

    run_on_request(run)


if __name__ == "__main__":
    main()
