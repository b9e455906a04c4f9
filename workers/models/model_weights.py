"""A model's weights, as transformers' module on its device.

Knows how transformers loads a folder and what it then says. Does not know attention backends or steps.

transformers fills tensors that a folder lacks with random numbers and goes on; here that is an error.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.distributed import DistributedConfig

from workers.models.devices import Placement
from workers.models.model_source import ModelFiles
from workers.runners.errors import ModelError, ModelNotFound, UnsupportedModel, first_line
from workers.runners.transformers_quiet import quiet_transformers

__all__ = ["check_divisible", "load_weights"]


def load_weights(files: ModelFiles, placement: Placement, ranks: int = 1) -> PreTrainedModel:
    """The model in evaluation mode, with its own plain attention. `ranks`: of a torch.distributed group, each of which
    loads its part by the family's own tensor-parallel plan. Raises `ModelError` or one of its kinds."""
    quiet_transformers()
    divided: dict[str, Any] = {}
    if ranks > 1:
        divided["distributed_config"] = DistributedConfig(tp_size=ranks, tp_plan="auto")
    from_pretrained: Any = AutoModelForCausalLM.from_pretrained
    model: Any  # its `to` and `eval` are wrapped without types
    loading: dict[str, Any]
    try:
        model, loading = from_pretrained(
            str(files.folder),
            dtype=placement.dtype,
            attn_implementation="eager",
            local_files_only=True,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # said below, with the names
            output_loading_info=True,
            **divided,
        )
        if not divided:
            model.to(placement.device)
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"{files.folder} doesn't fit into the memory of {placement.device}: use a smaller model or dtype "
            f"(it is {placement.dtype} now), or another device"
        ) from error
    except SafetensorError as error:
        raise ModelNotFound(f"{files.folder}: damaged weights ({first_line(error)}): download them again") from error
    except ImportError as error:
        raise UnsupportedModel(f"{files.folder} needs a package that is not here ({first_line(error)})") from error
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(
            f"{files.folder} can't be loaded by transformers ({first_line(error)}): use another model, or a newer "
            "transformers"
        ) from error
    _check_complete(files.folder, loading)
    model.eval()
    model.requires_grad_(False)
    assert isinstance(model, PreTrainedModel)
    return model


def check_divisible(folder: Path, ranks: int) -> None:
    """Raises `UnsupportedModel` if so many ranks can't share the model."""
    config = AutoConfig.from_pretrained(str(folder), local_files_only=True).get_text_config(decoder=True)
    if not getattr(config, "base_model_tp_plan", None):
        raise UnsupportedModel(
            f"{folder / 'config.json'}: transformers has no tensor-parallel plan for model_type "
            f"{config.model_type!r}: leave engine.tensor_parallel at 1, or use another model"
        )
    kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    if kv_heads % ranks:
        raise UnsupportedModel(
            f"{folder / 'config.json'}: {kv_heads} KV heads can't be divided among {ranks} ranks: choose "
            f"engine.tensor_parallel among {[n for n in range(1, kv_heads + 1) if kv_heads % n == 0]}"
        )


def _check_complete(folder: Path, loading: dict[str, Any]) -> None:
    if missing := sorted(loading["missing_keys"]):
        raise ModelNotFound(
            f"{folder}: its safetensors lack {len(missing)} tensors of the model (the first: {missing[0]}): download "
            "them again"
        )
    if mismatched := sorted(loading["mismatched_keys"]):
        name, stored, wanted = mismatched[0]
        raise ModelNotFound(
            f"{folder}: {name} has the shape {[*stored]} in the safetensors and {[*wanted]} by config.json: download "
            "the model again"
        )
