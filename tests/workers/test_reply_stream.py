"""The growing answer: when a delta is due, and what it covers."""

from collections.abc import Sequence
from typing import Any

from topics.replies import ReplyContext
from workers.reply_stream import ReplyStream

INTERVAL_S = 0.5


class SlowLetters:
    """A letter a token; token 0 is half a character and shows with the next one."""

    def __init__(self) -> None:
        self._half = False

    def feed(self, token_ids: Sequence[int]) -> str:
        text = ""
        for token in token_ids:
            if token == 0:
                self._half = True
            else:
                text += "½" * self._half + chr(96 + token)
                self._half = False
        return text

    def flush(self) -> str:
        return "�" if self._half else ""


class Prepared:
    def __init__(self, stream: bool = True) -> None:
        self.stream = stream
        self.eos_token_ids = frozenset({26})


def stream(**options: Any) -> ReplyStream:
    context = ReplyContext(request_id="r", attempt=1, delta_topic="d", reply_topic="t")
    arguments: Any = (None, Prepared(**options), SlowLetters(), context, None)
    return ReplyStream(*arguments)


def test_the_first_delta_is_due_at_once_and_the_next_after_the_interval() -> None:
    growing = stream()
    assert growing.due_s(INTERVAL_S, 64) is None
    growing.take([1], None)
    assert growing.due_s(INTERVAL_S, 64) == 0.0
    assert growing.next_delta(10.0).text == "a"
    growing.take([2], None)
    assert growing.due_s(INTERVAL_S, 64) == 10.0 + INTERVAL_S


def test_many_tokens_are_due_before_the_interval_is_over() -> None:
    growing = stream()
    growing.take([1], None)
    growing.next_delta(10.0)
    growing.take([2, 3, 4], None)
    assert growing.due_s(INTERVAL_S, 3) == 0.0


def test_tokens_without_text_travel_with_the_next_text() -> None:
    growing = stream()
    growing.take([0], None)
    assert growing.due_s(INTERVAL_S, 64) is None
    growing.take([5], None)
    part = growing.next_delta(1.0)
    assert (part.seq, part.text, part.token_ids) == (0, "½e", (0, 5))


def test_seq_counts_and_every_token_is_covered_once() -> None:
    growing = stream()
    parts = []
    for token in (1, 2, 3):
        growing.take([token], None)
        parts.append(growing.next_delta(0.0))
    assert [part.seq for part in parts] == [0, 1, 2]
    assert [part.token_ids for part in parts] == [(1,), (2,), (3,)]
    assert growing.text == "abc"


def test_the_end_token_is_covered_and_shows_nothing() -> None:
    growing = stream()
    growing.take([1, 26], None)
    part = growing.next_delta(0.0)
    assert (part.text, part.token_ids) == ("a", (1, 26))


def test_half_a_character_at_the_end_is_shown_as_one() -> None:
    growing = stream()
    growing.take([1, 0], None)
    growing.finish()
    assert growing.text == "a�"


def test_without_stream_nothing_is_ever_due() -> None:
    growing = stream(stream=False)
    growing.take([1, 2], None)
    assert growing.due_s(INTERVAL_S, 1) is None
    assert growing.text == "ab"
