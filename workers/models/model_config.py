"""A model's configuration, as transformers' object with every default filled in.

Knows which folders may be read without the family's own configuration class. Does not check a model
(`workers.models.model_source`).

Importing that class takes seconds: with it come torch's distributed tensors and a computer algebra system. What it adds
to a `config.json` are defaults and checks, and neither is wanted in a folder that this very version of transformers
has written: `save_pretrained` states every field that the class has. So a model that was converted here before
(`workers.models.gguf_conversion`), and that our own forward computes, starts without it.
"""

import json
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig, PreTrainedConfig

from workers.models.gguf_conversion import is_converted
from workers.runners.decoder.family import FAMILIES

__all__ = ["as_written", "read_config"]


def read_config(folder: Path) -> PreTrainedConfig:
    """Raises what transformers raises: `OSError`, `ValueError`, `KeyError`, `TypeError`, `StrictDataclassError`."""
    if is_converted(folder) and (config := as_written(folder)) is not None:
        return config
    read: PreTrainedConfig = AutoConfig.from_pretrained(str(folder), local_files_only=True)
    return read


def as_written(folder: Path) -> PreTrainedConfig | None:
    """Of a folder that `save_pretrained` wrote: without its family's class. None: another version of transformers wrote
    it, or our own forward does not know the family."""
    stated: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
    kind = stated.pop("model_type")
    if stated["transformers_version"] != transformers.__version__ or kind not in FAMILIES:
        return None
    config = PreTrainedConfig(**stated, name_or_path=str(folder))
    config.model_type = kind  # the class's, elsewhere; here there is no class
    return config
