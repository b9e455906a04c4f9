"""Not one token changes on the real model either: a crowd in a pool far too small says what it says in a large one.

`make test` takes the first layers of SmolLM2, real weights all of them, for the whole takes minutes; `make preemption`
takes all of them, and each mode alone.
"""

import pytest

from scheduling.preemption_rules import PreemptionMode
from tests.workers.preemption_rig import CorruptingSwapper, Crowd, Said, Wish, crowd
from workers.devices import choose_placement
from workers.model_source import ModelFiles
from workers.model_weights import load_weights
from workers.transformers_runner import TransformersRunner

pytestmark = pytest.mark.model

SMALL_POOL = 14
OFTEN = 1.2
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


def undisturbed(runner: TransformersRunner, wishes: list[Wish]) -> Said:
    alone = Crowd(runner, runner.storage, wishes, blocks=200, mode=PreemptionMode.NONE, prefix_cache=False)
    said = alone.run()
    assert not alone.seen.preempted
    return said


@pytest.fixture(scope="module")
def said_by_all_layers(smollm2_runner: TransformersRunner, wishes: list[Wish]) -> Said:
    return undisturbed(smollm2_runner, wishes)


def test_not_one_token_changes(few_layers: TransformersRunner, wishes: list[Wish]) -> None:
    """Swapped while the swap pool has room, recomputed when it hasn't."""
    said = undisturbed(few_layers, wishes)
    check(few_layers, wishes, said, PreemptionMode.SWAP, 8, {"swapped", "recomputed"})


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "places", "kinds"),
    [
        (PreemptionMode.SWAP, 200, {"swapped"}),
        (PreemptionMode.RECOMPUTE, 0, {"recomputed"}),
        (PreemptionMode.AUTO, 200, set()),
    ],
)
def test_not_one_token_changes_in_any_mode(
    smollm2_runner: TransformersRunner,
    wishes: list[Wish],
    said_by_all_layers: Said,
    mode: PreemptionMode,
    places: int,
    kinds: set[str],
) -> None:
    check(smollm2_runner, wishes, said_by_all_layers, mode, places, kinds)


@pytest.mark.long
def test_one_block_that_is_spoiled_while_swapped_out_shows(
    smollm2_runner: TransformersRunner, wishes: list[Wish], said_by_all_layers: Said
) -> None:
    disturbed = Crowd(
        smollm2_runner,
        smollm2_runner.storage,
        wishes,
        blocks=SMALL_POOL,
        mode=PreemptionMode.SWAP,
        swap_places=200,
        evictions_a_turn=OFTEN,
        make_swapper=CorruptingSwapper,
    )
    assert disturbed.run() != said_by_all_layers


def check(
    runner: TransformersRunner,
    wishes: list[Wish],
    said: Said,
    mode: PreemptionMode,
    places: int,
    kinds: set[str],
) -> None:
    disturbed = Crowd(
        runner,
        runner.storage,
        wishes,
        blocks=SMALL_POOL,
        mode=mode,
        swap_places=places,
        evictions_a_turn=OFTEN,
    )
    assert disturbed.run() == said
    histogram = disturbed.seen.histogram
    print(mode.value, len(disturbed.seen.preempted), "preempted:", dict(histogram))
    assert len(disturbed.seen.preempted) >= 150
    for kind in {"mid-prefill", "mid-decode", "shared prefix"} | kinds:
        assert histogram[kind] >= 30, f"{kind}: {histogram}"
