"""What a model's folder says of embeddings, in sentence-transformers' files."""

import json
from pathlib import Path
from typing import Any

import pytest

from workers.models.pooling import embedding_size
from workers.runners.runner import NoEmbeddings

TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
DENSE = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}


def write(folder: Path, modules: list[dict[str, Any]], pooling: dict[str, Any]) -> None:
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 8} | pooling))


def mode(name: str) -> dict[str, Any]:
    names = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    return {f"pooling_mode_{each}": each == name for each in names} | {"include_prompt": True}


def test_a_folder_that_says_nothing_gives_the_last_tokens_state(tmp_path: Path) -> None:
    assert embedding_size(tmp_path, 576) == 576


@pytest.mark.parametrize("pooling", [mode("lasttoken"), {"pooling_mode": "lasttoken"}], ids=["flags", "name"])
def test_last_token_pooling_is_served(tmp_path: Path, pooling: dict[str, Any]) -> None:
    write(tmp_path, [TRANSFORMER, POOLING, NORMALIZE], pooling)
    assert embedding_size(tmp_path, 576) == 576


@pytest.mark.parametrize(
    ("modules", "pooling", "says"),
    [
        ([TRANSFORMER, POOLING], mode("mean_tokens"), "it pools by mean_tokens"),
        ([TRANSFORMER, POOLING], {"pooling_mode": "cls"}, "it pools by cls"),
        ([TRANSFORMER, POOLING], mode("lasttoken") | {"pooling_mode_max_tokens": True}, "lasttoken and max_tokens"),
        ([TRANSFORMER, POOLING, DENSE], mode("lasttoken"), "a module Dense"),
        ([{"path": ""}], {}, "can't be read"),
    ],
    ids=["mean", "cls", "two", "dense", "no types"],
)
def test_what_is_not_done_here_is_named(
    tmp_path: Path, modules: list[dict[str, Any]], pooling: dict[str, Any], says: str
) -> None:
    write(tmp_path, modules, pooling)
    size = embedding_size(tmp_path, 576)
    assert isinstance(size, NoEmbeddings)
    assert says in size.reason


def test_a_damaged_file_costs_the_embeddings_and_not_the_model(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("{")
    assert isinstance(embedding_size(tmp_path, 576), NoEmbeddings)
    assert isinstance(embedding_size(tmp_path, None), NoEmbeddings)
