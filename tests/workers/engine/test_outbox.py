"""The outbox: one coalescing publication a request, bounded by what is not delivered."""

from tests.workers.engine.engine_rig import Rig
from topics.errors import RequestError
from workers.engine.outbox import Outbox
from workers.engine.timeline import Timeline
from workers.intake.request import Arrival, Ending, FinishReason


def arrival() -> Arrival:
    return Rig().arrive("r")


def ending(tokens: int = 1) -> Ending:
    return Ending(FinishReason.LENGTH, Timeline(arrived_s=0.0), 3, tokens)


def test_tokens_of_one_request_grow_together_until_they_are_taken() -> None:
    told: list[None] = []
    outbox = Outbox(10_000, lambda: told.append(None))
    request = arrival()
    outbox.tokens(request, None, [1], "a")  # type: ignore[arg-type]  # what it says of the request is not looked at
    outbox.tokens(request, None, [2, 3], "bc")  # type: ignore[arg-type]  # as above
    outbox.flush()
    (publication,) = outbox.take_all()
    assert (publication.token_ids, publication.text, publication.ending) == ([1, 2, 3], "abc", None)
    assert outbox.take_all() == []
    assert len(told) == 1


def test_nothing_to_take_is_not_told() -> None:
    told: list[None] = []
    outbox = Outbox(10_000, lambda: told.append(None))
    outbox.flush()
    assert told == []


def test_it_is_full_until_terminal_replies_are_delivered() -> None:
    outbox = Outbox(1_000, lambda: None)
    outbox.ended(arrival(), None, ending())
    assert outbox.full
    (publication,) = outbox.take_all()
    assert outbox.full, "taken is not delivered"
    outbox.delivered(publication)
    assert not outbox.full


def test_an_error_before_staging_is_an_ending_too() -> None:
    outbox = Outbox(10_000, lambda: None)
    error = RequestError.internal("x")
    outbox.ended(arrival(), None, Ending(error, Timeline(arrived_s=0.0), 0, 0))
    (publication,) = outbox.take_all()
    assert publication.ending is not None
    assert publication.ending.error is error


def test_an_error_takes_the_place_of_a_choice_that_has_ended_already() -> None:
    """Of two choices the first has its answer, and the second ends before it was staged."""
    outbox = Outbox(1_000_000, lambda: None)
    request = arrival()
    outbox.ended(request, None, ending())
    error = RequestError.cancelled()
    outbox.ended(request, None, Ending(error, Timeline(arrived_s=0.0), 0, 0))
    (publication,) = outbox.take_all()
    assert publication.ending is not None
    assert publication.ending.error is error
    outbox.delivered(publication)
    assert outbox.undelivered_bytes == 0
