"""The growing answer: when a delta is due, and what it covers."""

from collections.abc import Sequence
from typing import Any

from workers.answers.reply_stream import ReplyStream
from workers.intake.request import FinishReason

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
    def __init__(self, stream: bool = True, tool_calls: bool = False) -> None:
        self.stream = stream
        self.eos_token_ids = frozenset({26})
        self.tool_calls = tool_calls
        self.sequence = 0


def stream(**options: Any) -> ReplyStream:
    arguments: Any = ("r", Prepared(**options), SlowLetters())
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
    assert (part.text, part.token_ids) == ("½e", (0, 5))


def test_every_token_is_covered_once() -> None:
    growing = stream()
    parts = []
    for token in (1, 2, 3):
        growing.take([token], None)
        parts.append(growing.next_delta(0.0))
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


def test_a_call_is_told_whole_and_its_text_is_no_content() -> None:
    growing = stream(tool_calls=True)
    for piece in ("Let me see.<tool", '_call>\n{"name": "f", "arguments": {"a": 1', "}}\n</tool_call>"):
        growing._add(piece)
    part = growing.next_delta(0.0)
    assert part.text == growing.text == "Let me see."
    assert [(call.name, call.arguments) for call in part.calls] == [("f", '{"a": 1}')]
    growing.finish()
    answer = growing.answer(FinishReason.STOP)
    assert (answer.finish_reason, answer.calls) == (FinishReason.TOOL_CALLS, part.calls)


def test_a_call_that_was_cut_off_is_text() -> None:
    growing = stream(tool_calls=True)
    growing._add('<tool_call>\n{"name": "f"')
    assert growing.due_s(INTERVAL_S, 64) is None
    growing.finish()
    answer = growing.answer(FinishReason.LENGTH)
    assert (answer.text, answer.finish_reason, answer.calls) == ('<tool_call>\n{"name": "f"', FinishReason.LENGTH, ())
