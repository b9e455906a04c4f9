"""`headrace bench engine`: both sides take turns, every token is written, and the JSON has its figures."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from tests.workers.models.tiny_tokenizers import byte_level_tokenizer
from workers.bench.engine import run_workload
from workers.bench.engine_peers import PeerError, loaded_engine
from workers.bench.workload import Mix, make_workload
from workers.cli import main
from workers.configuration.config import load_config
from workers.models.loaded_model import load_model
from workers.runners.native.build import find_compiler


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
    assert {run["same_outputs"] for run in record["runs"]} == {2}
    figures = record["figures"]["float32"]
    assert figures["ratio_transformers"] > 0
    assert figures["headrace"]["ttft_mean_s"] > 0


def test_an_unknown_peer_is_refused(capsys: pytest.CaptureFixture[str], tiny_model: Path) -> None:
    assert main(["bench", "engine", "--model", str(tiny_model), "--peers", "tgi"]) == 2
    assert (
        "--peers tgi: unknown; the peers are without-guesses, transformers, transformers-continuous, llama.cpp, vllm, "
        "vllm-guesses" in capsys.readouterr().err
    )


def test_a_peer_that_is_not_installed_is_named_with_the_remedy(
    capsys: pytest.CaptureFixture[str], tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path))
    assert main(["bench", "engine", "--model", str(tiny_model), "--peers", "vllm"]) == 2
    assert "the peer vllm is not installed: add --install-peers" in capsys.readouterr().err


def test_other_engines_have_no_part_in_chats_that_end_by_themselves(
    capsys: pytest.CaptureFixture[str], tiny_model: Path
) -> None:
    assert main(["bench", "engine", "--model", str(tiny_model), "--mix", "chat", "--peers", "transformers"]) == 2
    assert "which --peers transformers doesn't: without-guesses, vllm, vllm-guesses do" in capsys.readouterr().err


def test_llama_cpp_wants_a_gguf_file(capsys: pytest.CaptureFixture[str], tiny_model: Path) -> None:
    assert main(["bench", "engine", "--model", str(tiny_model), "--peers", "llama.cpp", "--install-peers"]) == 2
    assert "the peer llama.cpp reads GGUF files: name one" in capsys.readouterr().err


def test_a_profile_accounts_for_all_of_a_step(tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "profile.json"
    options = ["--model", str(tiny_model), "--dtypes", "float32", "--repeats", "2", "--out", str(out)]
    if find_compiler() is None:
        pytest.skip("no C compiler: no compiled kernels to look into")
    assert main(["bench", "engine", "--profile", *options]) == 0
    figures = json.loads(out.read_bytes())["figures"]
    assert figures["limits"]["read_gb_s"] > 0
    assert [step["tokens"] for step in figures["steps"]] == [1, 8, 32, 64, 128]
    for step in figures["steps"]:
        assert set(step["parts_s"]) == {"products", "attention", "rest", "head", "outside"}
        assert sum(least for _median, least in step["parts_s"].values()) <= step["step_s"][1] * 1.000001


def test_a_mix_has_its_lengths(tiny_model: Path) -> None:
    requests = make_workload(tiny_model, Mix(prompt=(3, 5), output=(2, 2)))["requests"]
    assert len(requests) == 64
    assert {len(request["prompt_token_ids"]) for request in requests} == {3, 4, 5}
    assert {request["max_tokens"] for request in requests} == {2}


def test_an_engine_that_ends_early_is_a_named_failure(tmp_path: Path) -> None:
    with (
        pytest.raises(PeerError, match="transformers ended early"),
        loaded_engine("transformers", ["--model", str(tmp_path / "nothing"), "--workload", str(tmp_path / "none")]),
    ):
        pass


def test_guesses_save_steps_and_change_no_token(tiny_model: Path) -> None:
    requests = [{"prompt_token_ids": [5, 6, 7, 5, 6], "max_tokens": 60}, {"prompt_token_ids": [9], "max_tokens": 40}]
    runs = []
    for classes in ([], ["p2"]):
        engine = {"dtype": "float32", "kv_bytes": 2**24, "speculate": classes}
        config = load_config({"model": {"source": str(tiny_model)}, "engine": engine})
        runs.append(run_workload(config, load_model(config.model, config.engine, config.kv), requests))
    plain, guessing = runs
    assert guessing["outputs"] == plain["outputs"]
    assert plain["guessed_tokens"] == 0
    assert guessing["accepted_tokens"] > 0
    assert guessing["steps"] < plain["steps"]
