"""Not one token changes: a crowd in a pool far too small says what it says in a large one. On a small random model; on
SmolLM2 in `tests/integration/models/test_preempted_model_tokens.py`."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from scheduling.preemption_rules import PreemptionMode
from tests.workers.engine.preemption_rig import (
    LARGE_POOL,
    Crowd,
    Said,
    Wish,
    check_disturbed,
    check_embeddings,
    crowd,
    said_undisturbed,
    said_with_a_spoiled_block,
)
from workers.models.devices import Placement
from workers.runners.runner import ModelLimits
from workers.runners.transformers_runner import TransformersRunner

VOCABULARY = 97
SWAP, RECOMPUTE, AUTO = PreemptionMode.SWAP, PreemptionMode.RECOMPUTE, PreemptionMode.AUTO


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(6)
    return model


@pytest.fixture(scope="module")
def runner(model: Any) -> Iterator[TransformersRunner]:
    before = torch.get_num_threads()
    limits = ModelLimits(128, VOCABULARY, frozenset({2}))
    placement = Placement(torch.device("cpu"), torch.float32, threads=1)
    yield TransformersRunner(copy.deepcopy(model), limits, placement, kv_bytes=2**22)
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def wishes() -> list[Wish]:
    return crowd(200, VOCABULARY)


@pytest.fixture(scope="module")
def undisturbed(runner: TransformersRunner, wishes: list[Wish]) -> Said:
    return said_undisturbed(runner, runner.storage, wishes)


@pytest.mark.parametrize(
    ("mode", "swap_places", "swap_bytes_s", "kinds"),
    [
        (SWAP, LARGE_POOL, 1e9, {"swapped"}),
        (RECOMPUTE, 0, 1e9, {"recomputed"}),
        (AUTO, LARGE_POOL, 8e7, {"swapped", "recomputed"}),
        (SWAP, 6, 1e9, {"swapped", "recomputed"}),
    ],
    ids=["swap", "recompute", "auto", "swap, pool too small"],
)
def test_not_one_token_changes(
    runner: TransformersRunner,
    wishes: list[Wish],
    undisturbed: Said,
    mode: PreemptionMode,
    swap_places: int,
    swap_bytes_s: float,
    kinds: set[str],
) -> None:
    swapping = {"swap_places": swap_places, "swap_bytes_s": swap_bytes_s}
    check_disturbed(runner, runner.storage, wishes, undisturbed, mode, kinds, **swapping)


def test_one_block_that_is_spoiled_while_swapped_out_shows(
    runner: TransformersRunner, wishes: list[Wish], undisturbed: Said
) -> None:
    assert said_with_a_spoiled_block(runner, runner.storage, wishes) != undisturbed


def test_the_prefix_cache_changes_nothing(runner: TransformersRunner, wishes: list[Wish], undisturbed: Said) -> None:
    sharing = Crowd(runner, runner.storage, wishes, blocks=LARGE_POOL, mode=AUTO)
    assert sharing.run() == undisturbed
    assert sum(sharing.parts.kv.statistics().hit_tokens_by_class.values()) > 1000


@pytest.mark.parametrize("mode", [SWAP, RECOMPUTE])
def test_nor_where_next_steps_are_begun_ahead(
    runner: TransformersRunner, wishes: list[Wish], undisturbed: Said, mode: PreemptionMode
) -> None:
    kinds = {"swapped" if mode is SWAP else "recomputed"}
    swap_places = LARGE_POOL if mode is SWAP else 0
    check_disturbed(runner, runner.storage, wishes, undisturbed, mode, kinds, swap_places=swap_places, ahead=True)


def test_in_a_large_pool_most_of_what_is_begun_ahead_is_used(
    runner: TransformersRunner, wishes: list[Wish], undisturbed: Said
) -> None:
    crowded = Crowd(runner, runner.storage, wishes, blocks=LARGE_POOL, mode=AUTO, ahead=True)
    assert crowded.run() == undisturbed
    ahead = crowded.parts.engine._execution._ahead
    assert ahead is not None
    print(ahead.used, "used,", ahead.dropped, "dropped")
    assert ahead.used > 10 * ahead.dropped > 0


@pytest.mark.parametrize(("mode", "swap_places"), [(SWAP, LARGE_POOL), (RECOMPUTE, 0)], ids=["swap", "recompute"])
def test_embeddings_are_the_models_own_whoever_is_suspended(
    runner: TransformersRunner, model: Any, mode: PreemptionMode, swap_places: int
) -> None:
    check_embeddings(runner, runner.storage, model, VOCABULARY, mode, swap_places=swap_places)
