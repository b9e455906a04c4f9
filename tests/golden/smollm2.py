"""The golden outputs of SmolLM2-135M-Instruct; `tests.golden.make` makes the file."""

import json
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FILE", "Golden", "GoldenCase", "read_golden"]

FILE = Path(__file__).with_name("smollm2_greedy.json")


@dataclass(frozen=True, slots=True)
class GoldenCase:
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    """What transformers' `generate` says: up to `new_tokens`, less where it ends itself."""


@dataclass(frozen=True, slots=True)
class Golden:
    new_tokens: int
    cases: tuple[GoldenCase, ...]


def read_golden() -> Golden:
    content = json.loads(FILE.read_bytes())
    cases = (GoldenCase(tuple(case["prompt_token_ids"]), tuple(case["output_token_ids"])) for case in content["cases"])
    return Golden(content["new_tokens"], tuple(cases))
