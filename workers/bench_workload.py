"""Workloads that `bench engine` makes itself: prompts cut out of our own licence text, the same on every machine.

Knows sizes and a seed. Does not know engines. The same tokenizer gives the same workload anywhere.
"""

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from transformers import AutoTokenizer

__all__ = ["MIXES", "Mix", "make_workload"]

_REQUESTS = 64
_SEED = 20261129
_TEXT = Path(__file__).parent.parent / "LICENSE"


@dataclass(frozen=True, slots=True)
class Mix:
    """The shortest and the longest, in tokens; all lengths between them are as likely."""

    prompt: tuple[int, int]
    output: tuple[int, int]


MIXES = {
    "mixed": Mix(prompt=(32, 320), output=(64, 128)),
    "prefill": Mix(prompt=(1024, 1024), output=(16, 16)),
    "decode": Mix(prompt=(16, 16), output=(256, 256)),
}


def make_workload(model_folder: Path, mix: Mix) -> dict[str, Any]:
    """`{"requests": [{"prompt_token_ids": […], "max_tokens": n}, …]}`: 64 requests."""
    tokenizer = AutoTokenizer.from_pretrained(str(model_folder), local_files_only=True)
    text: list[int] = tokenizer(_TEXT.read_text(encoding="utf-8"))["input_ids"]
    random = Random(_SEED)
    requests = []
    for _ in range(_REQUESTS):
        length = random.randint(*mix.prompt)
        start = random.randrange(len(text) - length)
        requests.append({"prompt_token_ids": text[start : start + length], "max_tokens": random.randint(*mix.output)})
    return {"requests": requests}
