"""A configuration read without its family's class says the same as one read with it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, LlamaConfig, PreTrainedConfig

from tests.workers.runners.decoder.test_families import FAMILIES, SMALL
from workers.models.model_config import as_written, read_config
from workers.runners.decoder.family import describe
from workers.runners.decoder.rotary import inverse_frequencies

_IMPORTED = """
import sys
from pathlib import Path
from workers.models.model_config import read_config
assert read_config(Path(sys.argv[1])).model_type == "llama"
print("transformers.models.llama.configuration_llama" in sys.modules)
"""


def written(config: PreTrainedConfig, folder: Path, **edits: Any) -> Path:
    config.save_pretrained(folder)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_bytes()) | edits))
    return folder


@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_family_says_is_the_same_without_its_class(tmp_path: Path, name: str) -> None:
    folder = written(FAMILIES[name], tmp_path)
    whole: Any = AutoConfig.from_pretrained(str(folder))
    plain: Any = as_written(folder)
    assert type(plain) is PreTrainedConfig
    assert describe(plain) == describe(whole)
    frequencies, factor = inverse_frequencies(plain, whole.head_dim)
    expected, expected_factor = inverse_frequencies(whole, whole.head_dim)
    assert torch.equal(frequencies, expected)
    assert factor == expected_factor
    for field in ("model_type", "vocab_size", "max_position_embeddings", "eos_token_id", "rope_parameters"):
        assert getattr(plain, field) == getattr(whole, field), field


@pytest.mark.parametrize("edits", [{"transformers_version": "4.57.0"}, {"model_type": "gpt2"}])
def test_what_another_version_wrote_or_another_code_computes_needs_the_class(
    tmp_path: Path, edits: dict[str, str]
) -> None:
    assert as_written(written(LlamaConfig(**SMALL), tmp_path, **edits)) is None


def test_a_folder_of_somebody_elses_is_checked_by_the_class(tmp_path: Path) -> None:
    assert isinstance(read_config(written(LlamaConfig(**SMALL), tmp_path)), LlamaConfig)


def test_a_converted_model_starts_without_the_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path))
    folder = written(LlamaConfig(**SMALL), tmp_path / "models" / "tiny-0123456789abcdef")
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTED, str(folder)], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "False"
