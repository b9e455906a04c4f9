"""Blocks copied out and in again: every byte where it belongs, in the order in which copies were planned."""

import random

import pytest
import torch

from kvcache.storage import KVStorage, SwapSpace
from kvcache.swap_plan import BlockCopy, Direction, runs

OUT, IN = Direction
CPU = torch.device("cpu")


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.5
        return self.now_s


@pytest.fixture
def space() -> SwapSpace:
    storage = KVStorage(12, 3, (2, 4, 8), torch.float32, CPU)
    storage.blocks.copy_(torch.arange(storage.blocks.numel()).view_as(storage.blocks))
    return SwapSpace(storage, 8, Clock())


def blocks_of(space: SwapSpace) -> torch.Tensor:
    return space._blocks.view(torch.float32)


@pytest.mark.parametrize(
    ("blocks", "places"),
    [
        ((3, 4, 5), (0, 1, 2)),
        ((7, 2, 9), (1, 2, 3)),
        ((7, 2, 9, 10), (0, 1, 5, 6)),
        ((4, 5), (6, 2)),
        ((11,), (7,)),
    ],
    ids=["together", "scattered", "scattered on both sides", "places in no order", "one"],
)
def test_what_goes_out_comes_in_again(space: SwapSpace, blocks: tuple[int, ...], places: tuple[int, ...]) -> None:
    before = blocks_of(space).clone()
    space.copy([BlockCopy(OUT, blocks, places)])
    blocks_of(space)[list(blocks)] = -1
    elsewhere = tuple((block + 1) % 12 for block in reversed(blocks))
    space.copy([BlockCopy(IN, elsewhere, places)])
    assert torch.equal(blocks_of(space)[list(elsewhere)], before[list(blocks)])


def test_nothing_else_is_touched(space: SwapSpace) -> None:
    before = blocks_of(space).clone()
    space.copy([BlockCopy(OUT, (1, 5), (0, 1)), BlockCopy(IN, (8, 3), (0, 1))])
    untouched = [block for block in range(12) if block not in (8, 3)]
    assert torch.equal(blocks_of(space)[untouched], before[untouched])
    assert torch.equal(blocks_of(space)[[8, 3]], before[[1, 5]])


def test_a_place_may_be_used_again_within_one_plan(space: SwapSpace) -> None:
    """The books free a place as soon as its way back is planned: the order of the copies makes that right."""
    before = blocks_of(space).clone()
    space.copy([BlockCopy(OUT, (1,), (0,))])
    space.copy([BlockCopy(IN, (2,), (0,)), BlockCopy(OUT, (3,), (0,)), BlockCopy(IN, (4,), (0,))])
    assert torch.equal(blocks_of(space)[[2, 4]], before[[1, 3]])


def test_copies_at_random_are_those_of_a_naive_model(space: SwapSpace) -> None:
    draw = random.Random(1)
    memory, pool = [float(number) for number in range(12)], [-1.0] * 8
    for block in range(12):
        blocks_of(space)[block] = memory[block]
    for place in range(8):
        space.places.view(torch.float32)[place] = pool[place]
    for _ in range(200):
        count = draw.randrange(1, 7)
        copy = BlockCopy(
            draw.choice([OUT, IN]), tuple(draw.sample(range(12), count)), tuple(draw.sample(range(8), count))
        )
        space.copy([copy])
        for block, place in zip(copy.blocks, copy.places, strict=True):
            if copy.direction is OUT:
                pool[place] = memory[block]
            else:
                memory[block] = pool[place]
    assert blocks_of(space)[:, 0].tolist() == memory
    assert space.places.view(torch.float32)[:, 0].tolist() == pool


def test_each_copy_is_timed(space: SwapSpace) -> None:
    space.copy([BlockCopy(OUT, (1, 2), (0, 1)), BlockCopy(IN, (3,), (0,))])
    timings = [(timing.direction, timing.blocks, timing.seconds) for timing in space.take_timings()]
    assert timings == [(OUT, 2, 0.5), (IN, 1, 0.5)]
    assert space.take_timings() == []


def test_runs_are_the_stretches_of_consecutive_numbers() -> None:
    assert list(runs((3, 4, 5, 9, 8, 1))) == [(0, 3), (3, 4), (4, 5), (5, 6)]
    assert list(runs(())) == []
