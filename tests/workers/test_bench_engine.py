"""`headrace bench engine`: both sides take turns, every token is written, and the JSON has its figures."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from tests.workers.tiny_tokenizers import byte_level_tokenizer
from workers.bench_engine_peers import PeerError, loaded_engine
from workers.cli import main


@pytest.fixture
def tiny_model(tmp_path: Path) -> Path:
    tokenizer = byte_level_tokenizer()
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=128,
        eos_token_id=0,
        bos_token_id=None,
    )
    torch.manual_seed(1)
    folder = tmp_path / "tiny"
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


def test_engines_take_turns_and_the_figures_are_written(tiny_model: Path, tmp_path: Path) -> None:
    workload = tmp_path / "workload.json"
    requests = [{"prompt_token_ids": [5, 6, 7], "max_tokens": 4}, {"prompt_token_ids": [9], "max_tokens": 6}]
    workload.write_text(json.dumps({"requests": requests}))
    out = tmp_path / "bench.json"
    options = ["--model", str(tiny_model), "--workload", str(workload), "--dtypes", "float32", "--repeats", "2"]
    assert main(["bench", "engine", *options, "--out", str(out)]) == 0
    record = json.loads(out.read_bytes())
    assert [run["engine"] for run in record["runs"]] == ["headrace", "transformers"] * 2
    assert {run["output_tokens"] for run in record["runs"]} == {10}
    figures = record["figures"]["float32"]
    assert figures["ratio_transformers"] > 0
    assert figures["headrace"]["ttft_mean_s"] > 0


def test_an_unknown_peer_is_refused(capsys: pytest.CaptureFixture[str], tiny_model: Path) -> None:
    assert main(["bench", "engine", "--model", str(tiny_model), "--peers", "tgi"]) == 2
    assert "--peers tgi: unknown; the peers are transformers, vllm" in capsys.readouterr().err


def test_a_peer_that_is_not_installed_is_named_with_the_remedy(
    capsys: pytest.CaptureFixture[str], tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path))
    assert main(["bench", "engine", "--model", str(tiny_model), "--peers", "vllm"]) == 2
    assert "the peer vllm is not installed: add --install-peers" in capsys.readouterr().err


def test_an_engine_that_ends_early_is_a_named_failure(tmp_path: Path) -> None:
    with (
        pytest.raises(PeerError, match="transformers ended early"),
        loaded_engine("transformers", ["--model", str(tmp_path / "nothing"), "--workload", str(tmp_path / "none")]),
    ):
        pass
