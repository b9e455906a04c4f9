"""What the next attempt finds of a stream."""

import orjson
import pytest

from topics.headers import ReplyEvent
from topics.reply_reader import Reply
from topics.stream_history import StreamHistory


def delta(seq: int, text: str, *token_ids: int, attempt: int = 1, finish: str | None = None) -> Reply:
    value = {"model": "m", "choices": [{"delta": {"content": text}, "finish_reason": finish}]}
    return Reply(ReplyEvent.DELTA, "r", attempt, seq, token_ids, None, orjson.dumps(value))


def mark(event: ReplyEvent, attempt: int) -> Reply:
    return Reply(event, "r", attempt, None, (), None, b"{}")


def history(*replies: Reply) -> StreamHistory:
    told = StreamHistory()
    for reply in replies:
        told.take(reply)
    return told


def test_deltas_in_order_are_the_beginning_of_the_answer() -> None:
    told = history(delta(0, "a", 1), delta(1, "bc", 2, 3))
    assert (told.seq, told.token_ids, told.text) == (2, [1, 2, 3], "abc")
    assert not told.finished
    assert told.models == {"m"}


def test_one_that_stands_there_twice_counts_once() -> None:
    told = history(delta(0, "a", 1), delta(0, "a", 1), delta(1, "b", 2))
    assert (told.text, told.broken) == ("ab", False)


def test_what_an_earlier_attempt_says_behind_the_marker_is_void() -> None:
    told = history(
        delta(0, "a", 1), mark(ReplyEvent.ATTEMPT, 2), delta(1, "x", 9), delta(1, "b", 2, attempt=2), delta(2, "y", 8)
    )
    assert (told.token_ids, told.text, told.seq) == ([1, 2], "ab", 2)


def test_a_reset_begins_again() -> None:
    told = history(delta(1, "lost", 1), mark(ReplyEvent.RESET, 2), delta(0, "a", 7, attempt=2))
    assert (told.token_ids, told.broken) == ([7], False)


@pytest.mark.parametrize(
    "second", [delta(2, "c", 3), Reply(ReplyEvent.DELTA, "r", 1, 1, (2,), None, b"[]")], ids=["a gap", "no chunk"]
)
def test_nobody_goes_on_behind_what_is_missing(second: Reply) -> None:
    assert history(delta(0, "a", 1), second).broken


def test_the_end_is_known_once_it_was_told() -> None:
    usage = Reply(ReplyEvent.DELTA, "r", 1, 1, (), None, b'{"choices": [], "usage": {}, "model": "m"}')
    told = history(delta(0, "a", 1, finish="stop"), usage)
    assert (told.finished, told.usage_told, told.seq) == (True, True, 2)
