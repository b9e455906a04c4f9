"""A runner without a model whose steps take real time: so that a kill finds streams half written.

Knows the runner's protocol. Its tokens are a fixed function of seed and output position, as the sampler's are, so a
request that is run again says the same.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scheduling.step_time import LinearStepTime
from tests.workers.models.tiny_tokenizers import byte_level_tokenizer
from workers.intake.sampling import TokenLogprobs
from workers.runners.runner import Embedding, ModelLimits, SequenceInput

__all__ = ["sleeping_model"]

_STEP_S = 0.004
_RATES = LinearStepTime(_STEP_S, 1e-6, 1e-6, 0.0)
_LETTERS = range(64, 90)
"""Token ids of one printable character each, in the byte-level vocabulary."""


class _SleepingRunner:
    limits = ModelLimits(context_tokens=256, vocabulary=300, eos_token_ids=frozenset({299}))
    block_size = 16
    num_blocks = 1_024

    def step(self, sequences: Sequence[SequenceInput]) -> list[int | None]:
        time.sleep(_STEP_S)
        return [
            None if each.sampling is None else _LETTERS[(each.sampling.seed * 31 + each.output_position * 7) % 26]
            for each in sequences
        ]

    def take_logprobs(self) -> dict[int, TokenLogprobs]:
        return {}

    def take_embeddings(self) -> dict[int, Embedding]:
        return {}


class _Tokenizer:
    """What the worker asks of a tokenizer by requests that send token ids."""

    chat_template = None

    def __init__(self) -> None:
        self.backend_tokenizer = byte_level_tokenizer()

    def apply_chat_template(self, conversation: object, *, tokenize: bool, add_generation_prompt: bool) -> str:
        raise AssertionError("only completions are sent here")


@dataclass(frozen=True)
class _Model:
    """`workers.models.loaded_model.LoadedModel`, whose module brings torch along: seconds of imports."""

    served_names: tuple[str, ...]
    runner: _SleepingRunner
    tokenizer: _Tokenizer
    limits: ModelLimits
    dtype: str
    rates: LinearStepTime
    swap: None
    summary: str
    group: None = None
    gpu_uuid: None = None


def sleeping_model() -> Any:
    runner = _SleepingRunner()
    return _Model(("sleeping",), runner, _Tokenizer(), runner.limits, "float32", _RATES, None, "a model that sleeps")
