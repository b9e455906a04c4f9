"""The default workload of `bench engine`: prompts cut out of our own licence text, mixed lengths, made anew each time.

Knows sizes and a seed. The same tokenizer gives the same workload on every machine.
"""

from pathlib import Path
from random import Random
from typing import Any

from transformers import AutoTokenizer

__all__ = ["default_workload"]

_REQUESTS = 64
_PROMPT_TOKENS = (32, 320)
_OUTPUT_TOKENS = (64, 128)
_SEED = 20261129
_TEXT = Path(__file__).parent.parent / "LICENSE"


def default_workload(model_folder: Path) -> dict[str, Any]:
    """`{"requests": [{"prompt_token_ids": […], "max_tokens": n}, …]}`: 64 requests, 32–320 tokens in, 64–128 out."""
    tokenizer = AutoTokenizer.from_pretrained(str(model_folder), local_files_only=True)
    text: list[int] = tokenizer(_TEXT.read_text(encoding="utf-8"))["input_ids"]
    random = Random(_SEED)
    requests = []
    for _ in range(_REQUESTS):
        length = random.randint(*_PROMPT_TOKENS)
        start = random.randrange(len(text) - length)
        requests.append(
            {"prompt_token_ids": text[start : start + length], "max_tokens": random.randint(*_OUTPUT_TOKENS)}
        )
    return {"requests": requests}
