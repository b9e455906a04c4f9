"""Not one token changes on the real model either: a crowd in a pool far too small says what it says in a large one.

`make test` takes the first layers of SmolLM2, real weights all of them, for the whole takes minutes; `make preemption`
takes all of them, and each mode alone.
"""

import pytest

from scheduling.preemption_rules import PreemptionMode
from tests.workers.engine.preemption_rig import (
    LARGE_POOL,
    Said,
    Wish,
    check_disturbed,
    crowd,
    said_undisturbed,
    said_with_a_spoiled_block,
)
from workers.models.devices import choose_placement
from workers.models.model_source import ModelFiles
from workers.models.model_weights import load_weights
from workers.runners.paged_runner import PagedRunner
from workers.runners.transformers_runner import TransformersRunner

pytestmark = pytest.mark.model

SOME_LAYERS = 5


@pytest.fixture(scope="module")
def few_layers(smollm2_files: ModelFiles) -> TransformersRunner:
    placement = choose_placement("cpu", "float32")
    model = load_weights(smollm2_files, placement)
    model.model.layers = model.model.layers[:SOME_LAYERS]
    model.config.num_hidden_layers = SOME_LAYERS
    return TransformersRunner(model, smollm2_files.limits, placement, kv_bytes=1 << 29)


@pytest.fixture(scope="module")
def wishes(smollm2_files: ModelFiles) -> list[Wish]:
    return crowd(200, smollm2_files.limits.vocabulary)


@pytest.fixture(scope="module")
def said_by_all_layers(smollm2_runner: PagedRunner, wishes: list[Wish]) -> Said:
    return said_undisturbed(smollm2_runner, smollm2_runner.storage, wishes)


def test_not_one_token_changes(few_layers: TransformersRunner, wishes: list[Wish]) -> None:
    """Swapped while the swap pool has room, recomputed when it hasn't."""
    said = said_undisturbed(few_layers, few_layers.storage, wishes)
    kinds = {"swapped", "recomputed"}
    check_disturbed(few_layers, few_layers.storage, wishes, said, PreemptionMode.SWAP, kinds, swap_places=8)


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "places", "kinds"),
    [
        (PreemptionMode.SWAP, LARGE_POOL, {"swapped"}),
        (PreemptionMode.RECOMPUTE, 0, {"recomputed"}),
        (PreemptionMode.AUTO, LARGE_POOL, set()),
    ],
)
def test_not_one_token_changes_in_any_mode(
    smollm2_runner: PagedRunner,
    wishes: list[Wish],
    said_by_all_layers: Said,
    mode: PreemptionMode,
    places: int,
    kinds: set[str],
) -> None:
    storage = smollm2_runner.storage
    check_disturbed(smollm2_runner, storage, wishes, said_by_all_layers, mode, kinds, swap_places=places)


@pytest.mark.long
def test_one_block_that_is_spoiled_while_swapped_out_shows(
    smollm2_runner: PagedRunner, wishes: list[Wish], said_by_all_layers: Said
) -> None:
    assert said_with_a_spoiled_block(smollm2_runner, smollm2_runner.storage, wishes) != said_by_all_layers
