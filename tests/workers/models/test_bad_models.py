"""`headrace serve` on a model that can't be served: exit code 2, and one line with the file and the remedy."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
from transformers import AutoModelForCausalLM, BloomConfig, LlamaConfig, PreTrainedConfig

from tests.workers.models.test_gguf_conversion import write_gguf
from workers.cli import main


@pytest.fixture(autouse=True)
def _no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("HEADRACE_", "OTEL_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "cache"))


LLAMA = LlamaConfig(
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=4096,
)


def saved(folder: Path, config: PreTrainedConfig = LLAMA, shard_size: str = "1GB") -> Path:
    AutoModelForCausalLM.from_config(config).save_pretrained(folder, max_shard_size=shard_size)
    return folder


def missing_shard(folder: Path) -> list[str]:
    saved(folder, shard_size="10KB")
    sorted(folder.glob("model-*.safetensors"))[1].unlink()
    return ["--model", str(folder)]


def unknown_architecture(folder: Path) -> list[str]:
    saved(folder)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_bytes()) | {"model_type": "nonesuch"}))
    return ["--model", str(folder)]


def architecture_of_neither_runner(folder: Path) -> list[str]:
    saved(folder, BloomConfig(vocab_size=97, hidden_size=32, n_layer=2, n_head=4))
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_bytes()) | {"max_position_embeddings": 128}))
    return ["--model", str(folder)]


def wrong_dtype(folder: Path) -> list[str]:
    return ["--model", str(saved(folder)), "--device", "cpu", "--dtype", "float16"]


def context_beyond_the_pool(folder: Path) -> list[str]:
    os.environ["HEADRACE_ENGINE__KV_BYTES"] = "100000"
    return ["--model", str(saved(folder))]


def unreadable_quantisation(folder: Path) -> list[str]:
    folder.mkdir()
    write_gguf(folder / "tiny.gguf", quantised_as=gguf.GGMLQuantizationType.Q8_1)
    return ["--model", str(folder / "tiny.gguf")]


def ranks_that_do_not_divide(folder: Path) -> list[str]:
    return ["--model", str(saved(folder)), "--tensor-parallel", "3", "--device", "cpu"]


@pytest.mark.parametrize(
    ("spoil", "names", "remedy"),
    [
        (missing_shard, "safetensors is missing, though model.safetensors.index.json lists it", "download it again"),
        (unknown_architecture, "config.json: model_type 'nonesuch'", "use another model, or a newer transformers"),
        (architecture_of_neither_runner, "BloomForCausalLM", "use another model"),
        (wrong_dtype, "dtype 'float16' needs a CUDA device", "say float32, bfloat16 or auto"),
        (context_beyond_the_pool, "one request may have 4096 tokens", "lower model.max_context_tokens to 384 or less"),
        (unreadable_quantisation, "tiny.gguf: ", "convert it to another quantisation"),
        (ranks_that_do_not_divide, "config.json: 2 KV heads can't be divided among 3", "among [1, 2]"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_serve_says_what_is_wrong_in_one_line(
    spoil: Callable[[Path], list[str]],
    names: str,
    remedy: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    arguments = spoil(tmp_path / "model")
    capsys.readouterr()
    # Nobody listens there: it would be another sentence.
    assert main(["serve", "--bootstrap-servers", "127.0.0.1:1", *arguments]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert names in last
    assert remedy in last
