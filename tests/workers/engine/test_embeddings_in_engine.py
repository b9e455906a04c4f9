"""Requests for embeddings in the engine: they end with their prompt, and cost no more than it."""

import numpy as np

from scheduling.priority import PriorityClass
from tests.workers.engine.engine_rig import Rig
from workers.intake.request import Ending, FinishReason


def ending_of(rig: Rig, request_id: str) -> Ending:
    ending = rig.endings[request_id].ending
    assert ending is not None
    return ending


def test_an_embedding_is_its_last_tokens_whatever_shares_the_steps() -> None:
    """Prompts longer than a step's 32 tokens, in several chunks, between answers."""
    rig = Rig(num_blocks=200)
    for number in range(12):
        rig.arrive(f"e{number}", prompt=5 + 9 * number, output=0, priority=PriorityClass(number % 4))
        rig.arrive(f"c{number}", prompt=10, output=6, priority=PriorityClass(number % 4))
    rig.run()
    for number in range(12):
        ending = ending_of(rig, f"e{number}")
        assert ending.reason is FinishReason.STOP
        assert (ending.prompt_tokens, ending.output_tokens) == (5 + 9 * number, 0)
        assert ending.embedding is not None
        # What the simulated runner says of a token: where it stands, and its id.
        np.testing.assert_array_equal(ending.embedding, [4 + 9 * number, 4 + 9 * number])
        assert rig.published[f"e{number}"] == []
        assert ending_of(rig, f"c{number}").embedding is None
        assert len(rig.published[f"c{number}"]) == 6
    assert len(rig.parts.index) == 0


def test_embeddings_of_one_request_end_together_and_are_each_charged_as_a_prompt() -> None:
    rig = Rig()
    rig.arrive("r", prompt=20, output=0, choices=7)
    rig.run()
    endings = [ending_of(rig, f"r/{number}") for number in range(7)]
    assert all(ending.embedding is not None for ending in endings)
    assert {ending.cost for ending in endings} == {20}
    charged = sum(cls.dispatched_cost for cls in rig.parts.qdisc.statistics().by_class.values())
    assert charged == 7 * 20
    assert rig.parts.engine.statistics().ended == 1


def test_a_class_that_embeds_a_lot_still_knows_how_long_its_answers_are() -> None:
    rig = Rig()
    for number in range(30):
        rig.arrive(f"c{number}", prompt=4, output=9)
        rig.arrive(f"e{number}", prompt=4, output=0)
    rig.run()
    observer = rig.parts.observer
    assert observer is not None
    rig.clock.advance(5.0)
    rig.run()
    assert observer.snapshot is not None
    assert observer.snapshot.lengths.observed == 30


def test_the_moment_of_an_embedding_is_that_of_a_first_token() -> None:
    rig = Rig()
    rig.arrive("r", prompt=70, output=0)
    rig.run()
    timeline = ending_of(rig, "r").timeline
    assert timeline.first_token_s is not None
    assert timeline.first_token_s == timeline.last_token_s == timeline.ended_s
    assert timeline.steps == 3


def test_an_embedding_counts_in_the_outbox_as_its_reply_will() -> None:
    rig = Rig()
    rig.arrive("r", prompt=4, output=0)
    while not rig.outbox.undelivered_bytes:
        rig.parts.engine.step()
    assert rig.outbox.undelivered_bytes == 1_024 + 26
