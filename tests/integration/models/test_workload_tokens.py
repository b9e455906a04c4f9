"""A whole workload, all its requests at once: token for token what transformers' generate says. `make tokens`.

make tokens WORKLOAD=FILE        a JSON {requests: [{prompt_token_ids, max_tokens}]}, as `bench engine` takes it
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.transformers_peer import PeerRequest, TransformersPeer
from tests.integration.models.completion_loop import complete
from tests.integration.models.conftest import PLACEMENT
from workers.bench.engine import run_workload
from workers.configuration.config import load_config
from workers.models.loaded_model import load_model
from workers.models.model_source import ModelFiles
from workers.runners.paged_runner import PagedRunner

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif("WORKLOAD" not in os.environ, reason="minutes: `make tokens WORKLOAD=FILE`"),
    pytest.mark.timeout(3600),
]


@pytest.fixture(scope="session")
def workload() -> list[dict[str, Any]]:
    requests: list[dict[str, Any]] = json.loads(Path(os.environ["WORKLOAD"]).read_bytes())["requests"]
    return requests


@pytest.fixture(scope="session")
def expected(workload: list[dict[str, Any]], smollm2_files: ModelFiles) -> list[list[int]]:
    asked = [PeerRequest(request["prompt_token_ids"], request["max_tokens"]) for request in workload]
    _figures, outputs = TransformersPeer(smollm2_files.folder, PLACEMENT).run(asked)
    return outputs


def test_the_kernels_and_transformers_forward_say_what_generate_says(
    any_runner: PagedRunner, workload: list[dict[str, Any]], expected: list[list[int]]
) -> None:
    _assert_same(_serve(any_runner, workload), expected)


def test_torchs_forward_and_the_kernels_attention_say_what_generate_says(
    mixed_runner: PagedRunner, workload: list[dict[str, Any]], expected: list[list[int]]
) -> None:
    _assert_same(_serve(mixed_runner, workload), expected)


@pytest.mark.parametrize("sequences", [1, 8, 32, 64])
def test_the_whole_engine_says_it_too_in_any_batch_and_out_of_the_prefix_cache(
    workload: list[dict[str, Any]], expected: list[list[int]], sequences: int
) -> None:
    """All requests twice: the second time from what the first one left in the cache. Few of them one at a time."""
    some = 8 if sequences == 1 else len(workload)
    engine = {"dtype": "float32", "max_sequences": sequences, "kv_bytes": 1 << 30}
    config = load_config({"model": {"source": "smollm2"}, "engine": engine})
    model = load_model(config.model, config.engine, config.kv)
    figures = run_workload(config, model, workload[:some] * 2)
    assert figures["cached_tokens"] > 0
    _assert_same(figures["outputs"], expected[:some] * 2)


def _serve(runner: PagedRunner, workload: Sequence[dict[str, Any]]) -> list[list[int]]:
    """Decodes first, then pieces of prompts up to 512 tokens a step: as serving does."""

    def cut(left: list[int]) -> list[int]:
        budget = 512 - sum(1 for tokens in left if tokens == 1)
        takes = []
        for tokens in left:
            take = 1 if tokens == 1 else min(tokens, budget)
            budget -= 0 if tokens == 1 else take
            takes.append(take)
        return takes

    longest = max(request["max_tokens"] for request in workload)
    return complete(runner, [request["prompt_token_ids"] for request in workload], longest, cut=cut)


def _assert_same(got: list[list[int]], expected: list[list[int]]) -> None:
    wrong = [
        number for number, (mine, theirs) in enumerate(zip(got, expected, strict=True)) if mine[: len(theirs)] != theirs
    ]
    assert wrong == [], f"{len(wrong)} of {len(expected)} requests differ"
    print(f"{len(expected)} of {len(expected)} requests, {sum(map(len, expected))} tokens")
