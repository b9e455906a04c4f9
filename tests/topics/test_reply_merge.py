"""One request's replies, merged: by example. The property stands in tests/properties/test_reply_merge.py."""

import orjson
import pytest

from topics.headers import ReplyEvent
from topics.reply_merge import (
    AnswerChangedError,
    ReplyMerge,
    RequestFailedError,
    StreamDelta,
    UnreadableReplyError,
)
from topics.reply_reader import Reply


def delta(seq: int, text: str, *token_ids: int, attempt: int = 1) -> Reply:
    value = orjson.dumps({"choices": [{"index": 0, "delta": {"content": text}}]})
    return Reply(ReplyEvent.DELTA, "r", attempt, seq, token_ids, None, value)


def mark(event: ReplyEvent, attempt: int) -> Reply:
    return Reply(event, "r", attempt, None, (), None, b"{}")


def final(text: str) -> Reply:
    body = {
        "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"completion_tokens": 3},
    }
    return Reply(ReplyEvent.FINAL, "r", 1, None, (), None, orjson.dumps(body))


def told(*replies: Reply) -> list[str]:
    """What a reader is told, the end included, if it looks after each reply."""
    merge, pieces = ReplyMerge("r", 0.0), []
    for now_s, reply in enumerate(replies, start=1):
        merge.take(reply, float(now_s))
        pieces += [piece.text for piece in merge.take_deltas()]
    assert merge.complete
    return [*pieces, "".join(delta.text for delta in merge.rest(merge.answer()))]


def test_deltas_go_out_as_they_come_and_the_final_ends_the_stream() -> None:
    merge = ReplyMerge("r", sent_s=1.0)
    merge.take(delta(0, "Rivers ", 5, 6), 2.0)
    assert merge.take_deltas() == [StreamDelta("Rivers ", (5, 6))]
    assert not merge.complete
    merge.take(delta(1, "run.", 7), 3.0)
    merge.take(final("Rivers run."), 4.0)
    assert merge.take_deltas() == [StreamDelta("run.", (7,))]
    answer = merge.answer()
    assert merge.rest(answer) == []
    assert (answer.text, answer.finish_reason) == ("Rivers run.", "stop")
    assert (answer.sent_s, answer.first_delta_s, answer.ended_s) == (1.0, 2.0, 4.0)


def test_embeddings_are_an_answer_without_a_text() -> None:
    data = [{"object": "embedding", "index": 0, "embedding": [0.6, 0.8]}]
    usage = {"prompt_tokens": 2, "total_tokens": 2}
    body = orjson.dumps({"object": "list", "data": data, "model": "m", "usage": usage})
    merge = ReplyMerge("r", 0.0)
    merge.take(Reply(ReplyEvent.FINAL, "r", 1, None, (), None, body), 1.0)
    answer = merge.answer()
    assert answer.embeddings == [[0.6, 0.8]]
    assert (answer.text, answer.texts, answer.tool_calls, answer.finish_reason) == ("", [], [], "stop")
    assert answer.usage == usage
    assert merge.rest(answer) == []


@pytest.mark.parametrize(
    ("replies", "expected"),
    [
        pytest.param([final("whole")], ["whole"], id="no delta at all"),
        pytest.param([delta(0, "a", 1), delta(0, "a", 1), final("ab")], ["a", "b"], id="sent twice"),
        pytest.param([delta(0, "a", 1), delta(2, "c", 3), final("abc")], ["a", "bc"], id="one lost"),
        pytest.param([delta(1, "b", 2), delta(0, "a", 1), final("ab")], ["ab"], id="first one late"),
        pytest.param([delta(0, "a", 1), final("ab"), delta(1, "b", 2)], ["a", "b"], id="final overtakes"),
        pytest.param([delta(0, "a", 1), final("ab"), final("xyz")], ["a", "b"], id="two finals"),
        pytest.param(
            [delta(0, "a", 1), delta(0, "ab", 1, 2), delta(1, "c", 3), final("abc")],
            ["a", "bc"],
            id="run again and cut at other places",
        ),
        pytest.param(
            [delta(0, "a", 1), mark(ReplyEvent.ATTEMPT, 2), delta(1, "b", 2, attempt=2), final("ab")],
            ["a", "b"],
            id="the next attempt goes on",
        ),
        pytest.param(
            [
                delta(0, "a", 1),
                mark(ReplyEvent.ATTEMPT, 2),
                delta(1, "b", 2),
                delta(1, "bc", 2, 3, attempt=2),
                final("abc"),
            ],
            ["a", "bc"],
            id="an earlier attempt wakes up behind the marker",
        ),
        pytest.param(
            [
                delta(0, "ab", 1, 2),
                mark(ReplyEvent.RESET, 2),
                delta(0, "a", 1, attempt=2),
                delta(1, "bc", 2, 3, attempt=2),
                delta(2, "d", 4, attempt=2),
                final("abcd"),
            ],
            ["ab", "c", "d"],
            id="begun again",
        ),
    ],
)
def test_each_piece_of_text_comes_once_whatever_happened_on_the_way(replies: list[Reply], expected: list[str]) -> None:
    pieces = told(*replies)
    assert [piece for piece in pieces if piece] == expected


def test_a_delta_that_is_no_chunk_is_a_gap() -> None:
    broken = Reply(ReplyEvent.DELTA, "r", 1, 1, (2,), None, b"{}")
    assert told(delta(0, "a", 1), broken, delta(2, "c", 3), final("abc")) == ["a", "bc"]


def test_a_usage_chunk_has_no_text() -> None:
    usage = Reply(ReplyEvent.DELTA, "r", 1, 1, (), None, orjson.dumps({"choices": [], "usage": {}}))
    assert told(delta(0, "a", 1), usage, final("a")) == ["a", ""]


def test_an_answer_that_does_not_begin_with_what_was_told_is_an_error_that_carries_it() -> None:
    with pytest.raises(AnswerChangedError, match="after 3 characters") as raised:
        told(delta(0, "yes", 1), final("no, never"))
    assert raised.value.answer.text == "no, never"


def test_a_stream_that_begins_again_and_says_something_else_is_told_no_further() -> None:
    replies = [delta(0, "yes", 1), mark(ReplyEvent.RESET, 2), delta(0, "no", 9, attempt=2), final("no, never")]
    with pytest.raises(AnswerChangedError, match="after 3 characters"):
        told(*replies)


def test_an_error_has_the_attributes_of_the_openai_object() -> None:
    merge = ReplyMerge("r", 0.0)
    error = {
        "message": "busy",
        "type": "server_error",
        "code": "resource_exhausted",
        "param": None,
        "status_code": 503,
        "retry_after": 1.5,
        "queue_depth": 40,
    }
    merge.take(Reply(ReplyEvent.ERROR, "r", 1, None, (), None, orjson.dumps({"error": error})), 1.0)
    with pytest.raises(RequestFailedError, match="request r: busy") as raised:
        merge.answer()
    failure = raised.value
    assert (failure.status_code, failure.code, failure.param) == (503, "resource_exhausted", None)
    assert (failure.retry_after_s, failure.queue_depth) == (1.5, 40)


@pytest.mark.parametrize("event", [ReplyEvent.FINAL, ReplyEvent.ERROR])
@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"choices": []}', b'{"error": {}}', b'{"error": null}'])
def test_a_terminal_reply_that_no_worker_writes_is_named_so(event: ReplyEvent, value: bytes) -> None:
    merge = ReplyMerge("r", 0.0)
    merge.take(Reply(event, "r", 1, None, (), None, value), 1.0)
    with pytest.raises(UnreadableReplyError, match="r is not"):
        merge.answer()


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"event": b"delt", "request-id": b"r"},
        {"event": b"delta", "seq": b"one"},
        {"event": b"delta", "attempt": b""},
        {"event": b"delta", "tokens": b"1;2"},
        {"event": b"\xff"},
    ],
)
def test_headers_that_no_worker_writes_are_refused(headers: dict[str, bytes]) -> None:
    with pytest.raises(ValueError, match=r"."):
        Reply.decode(headers, b"")
