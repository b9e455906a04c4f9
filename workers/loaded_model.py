"""A model that is loaded, placed and warm: what a worker needs of it.

Knows the order: files → placement → runner → warm-up. Does not know what a runner does inside.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

from scheduling.step_time import LinearStepTime
from workers.config import EngineConfig, ModelConfig
from workers.devices import choose_placement
from workers.model_source import find_model, load_tokenizer, prepare_model
from workers.prompt import ChatTokenizer
from workers.runner import ModelLimits, ModelRunner
from workers.transformers_runner import TransformersRunner

__all__ = ["LoadedModel", "load_model"]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    served_names: tuple[str, ...]
    """Never empty; the first is written into replies."""
    runner: ModelRunner
    tokenizer: ChatTokenizer
    limits: ModelLimits
    rates: LinearStepTime
    """What a step takes, as measured at the warm-up."""
    summary: str
    """One line for the log: model, placement, pool, rates."""
