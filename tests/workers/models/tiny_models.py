"""Tiny randomly initialised models of transformers' own classes, and texts to run on them."""

import random
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from workers.models.model_source import ModelFiles
from workers.runners.runner import ModelLimits

VOCABULARY = 97
CONTEXT = 640


def tiny(config: PreTrainedConfig) -> Any:
    """With its own attention, and with weights large enough that attention matters."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_(6)
            elif "bias" in name or "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def saved(model: Any, folder: Path, *, shard_size: str = "1GB") -> ModelFiles:
    model.save_pretrained(folder, max_shard_size=shard_size)
    return ModelFiles("tiny", folder, ModelLimits(CONTEXT, VOCABULARY, frozenset({2})))


def texts(lengths: tuple[int, ...], seed: int = 1) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(VOCABULARY) for _ in range(length)] for length in lengths]
