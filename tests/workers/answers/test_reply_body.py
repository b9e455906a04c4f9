"""What is written as a dict is what the models of replies describe."""

from typing import Any

import pytest

from tests.workers.engine.engine_rig import token_bytes
from topics.codec import loads
from topics.errors import RequestError
from topics.reply_messages import ChatCompletion, ChatCompletionChunk, Completion, CompletionChunk, ErrorBody
from workers.answers.answer_logprobs import ShownToken
from workers.answers.reply_body import AnsweredChoice, MadeCall, ReplyBody, error_body
from workers.intake.prompt import PreparedRequest, RequestKind
from workers.intake.request import FinishReason
from workers.intake.sampling import GREEDY, TokenLogprobs


def prepared(kind: RequestKind, include_usage: bool) -> PreparedRequest:
    return PreparedRequest(
        kind=kind,
        model="tiny",
        created_s=1_700_000_000,
        prompt_token_ids=(1, 2),
        sampling=GREEDY,
        max_output_tokens=4,
        eos_token_ids=frozenset(),
        stop=(),
        stream=True,
        include_usage=include_usage,
    )


def body(kind: RequestKind, include_usage: bool = False) -> ReplyBody:
    return ReplyBody("r-1", prepared(kind, include_usage), token_bytes)


CHAT, COMPLETION = RequestKind.CHAT, RequestKind.COMPLETION


@pytest.mark.parametrize("include_usage", [False, True])
@pytest.mark.parametrize(
    ("kind", "model", "prefix"), [(CHAT, ChatCompletionChunk, "chatcmpl"), (COMPLETION, CompletionChunk, "cmpl")]
)
def test_chunks_are_what_the_model_says(
    kind: RequestKind,
    model: type[ChatCompletionChunk] | type[CompletionChunk],
    prefix: str,
    include_usage: bool,
) -> None:
    writer = body(kind, include_usage)
    chunks = [
        writer.chunk("a", first=True),
        writer.chunk("é🦊\n", first=False),
        writer.chunk("", first=False, finish_reason=FinishReason.LENGTH),
        writer.usage_chunk(prompt_tokens=2, output_tokens=3),
    ]
    for value in chunks:
        chunk = model.model_validate(loads(value))
        assert (chunk.id, chunk.created, chunk.model) == (f"{prefix}-r-1", 1_700_000_000, "tiny")


def choices(value: bytes) -> list[dict[str, Any]]:
    return list(loads(value)["choices"])


def test_the_first_chunk_of_a_chat_has_the_role() -> None:
    writer = body(CHAT)
    assert choices(writer.chunk("a", first=True))[0]["delta"] == {"role": "assistant", "content": "a"}
    assert choices(writer.chunk("b", first=False))[0]["delta"] == {"content": "b"}


def test_the_last_chunk_has_the_reason_and_may_have_text() -> None:
    writer = body(CHAT)
    alone = choices(writer.chunk("", first=False, finish_reason=FinishReason.STOP))[0]
    assert (alone["delta"], alone["finish_reason"]) == ({}, "stop")
    with_text = choices(writer.chunk("z", first=False, finish_reason=FinishReason.LENGTH))[0]
    assert (with_text["delta"], with_text["finish_reason"]) == ({"content": "z"}, "length")


def test_usage_is_null_in_all_chunks_but_the_last_where_it_was_asked_for() -> None:
    writer = body(CHAT, include_usage=True)
    assert loads(writer.chunk("a", first=True))["usage"] is None
    last = loads(writer.usage_chunk(prompt_tokens=2, output_tokens=3, cached_tokens=1))
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 3,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


def test_usage_is_absent_where_it_was_not_asked_for() -> None:
    assert "usage" not in loads(body(CHAT).chunk("a", first=True))


def test_the_final_of_a_chat() -> None:
    value = body(CHAT).final(
        [AnsweredChoice("answer", FinishReason.STOP)], prompt_tokens=2, output_tokens=3, cached_tokens=2
    )
    final = ChatCompletion.model_validate(loads(value))
    assert final.choices[0].message.content == "answer"
    assert final.choices[0].finish_reason == "stop"
    assert (final.usage.total_tokens, final.usage.prompt_tokens_details.cached_tokens) == (5, 2)


def test_the_final_of_a_completion() -> None:
    value = body(COMPLETION).final([AnsweredChoice("", FinishReason.LENGTH)], prompt_tokens=2, output_tokens=1)
    final = Completion.model_validate(loads(value))
    assert (final.choices[0].text, final.choices[0].finish_reason) == ("", "length")


CALL = MadeCall("call_1", 0, "weather", '{"place": "Oslo"}')


def test_an_answer_that_only_calls_a_tool_has_no_content() -> None:
    answer = AnsweredChoice("", FinishReason.TOOL_CALLS, calls=(CALL,))
    final = ChatCompletion.model_validate(loads(body(CHAT).final([answer], prompt_tokens=2, output_tokens=3)))
    message = final.choices[0].message
    assert (message.content, final.choices[0].finish_reason) == (None, "tool_calls")
    assert message.tool_calls is not None
    assert message.tool_calls[0].function.arguments == '{"place": "Oslo"}'


def test_a_call_comes_in_a_chunk_with_its_place() -> None:
    chunk = ChatCompletionChunk.model_validate(loads(body(CHAT).chunk("", first=True, calls=(CALL,))))
    delta = chunk.choices[0].delta
    assert (delta.role, delta.content) == ("assistant", None)
    assert delta.tool_calls is not None
    assert (delta.tool_calls[0].index, delta.tool_calls[0].id) == (0, "call_1")


def test_choices_stand_in_order_and_a_chunk_says_whose_it_is() -> None:
    answers = [AnsweredChoice(text, FinishReason.STOP, index) for index, text in enumerate(("a", "b"))]
    final = ChatCompletion.model_validate(loads(body(CHAT).final(answers, prompt_tokens=2, output_tokens=4)))
    assert [(choice.index, choice.message.content) for choice in final.choices] == [(0, "a"), (1, "b")]
    assert choices(body(CHAT).chunk("b", first=True, index=1))[0]["index"] == 1


def test_an_error() -> None:
    error = ErrorBody.model_validate(loads(error_body(RequestError.cancelled()))).error
    assert (error.code, error.status_code) == ("cancelled", 499)


# --- log probabilities ------------------------------------------------------------------------------------------------

SHOWN = [
    ShownToken(0, TokenLogprobs(1, -0.5, ((1, -0.5), (2, -1.5)))),
    ShownToken(1, TokenLogprobs(3, -2.0, ((1, -0.25),))),
]


def test_a_chat_has_an_entry_a_token_with_its_bytes() -> None:
    value = body(CHAT).final(
        [AnsweredChoice("bd", FinishReason.STOP, logprobs=SHOWN)], prompt_tokens=2, output_tokens=2
    )
    logprobs = ChatCompletion.model_validate(loads(value)).choices[0].logprobs
    assert logprobs is not None
    first, second = logprobs.content
    assert (first.token, first.logprob, first.bytes) == ("b", -0.5, (98,))
    assert [(each.token, each.logprob) for each in first.top_logprobs] == [("b", -0.5), ("c", -1.5)]
    assert (second.token, [each.token for each in second.top_logprobs]) == ("d", ["b"])


def test_a_completion_has_four_lists_and_the_drawn_token_is_always_among_the_best() -> None:
    value = body(COMPLETION).final(
        [AnsweredChoice("bd", FinishReason.STOP, logprobs=SHOWN)], prompt_tokens=2, output_tokens=2
    )
    logprobs = Completion.model_validate(loads(value)).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ("b", "d")
    assert logprobs.token_logprobs == (-0.5, -2.0)
    assert logprobs.top_logprobs == ({"b": -0.5, "c": -1.5}, {"b": -0.25, "d": -2.0})
    assert logprobs.text_offset == (0, 1)


def test_a_chunk_has_those_of_its_tokens_and_null_without_any() -> None:
    assert choices(body(CHAT).chunk("b", first=False))[0]["logprobs"] is None
    chunk = ChatCompletionChunk.model_validate(loads(body(CHAT).chunk("b", first=False, logprobs=SHOWN[:1])))
    assert chunk.choices[0].logprobs is not None
    assert [each.token for each in chunk.choices[0].logprobs.content] == ["b"]


def test_an_answer_without_text_has_no_entries_but_says_that_they_were_asked_for() -> None:
    value = body(CHAT).final([AnsweredChoice("", FinishReason.STOP, logprobs=())], prompt_tokens=2, output_tokens=1)
    assert choices(value)[0]["logprobs"] == {"content": [], "refusal": None}


def test_what_cannot_be_has_a_number_all_the_same() -> None:
    impossible = [ShownToken(0, TokenLogprobs(1, 0.0, ((1, 0.0), (2, float("-inf")))))]
    value = body(CHAT).final(
        [AnsweredChoice("b", FinishReason.STOP, logprobs=impossible)], prompt_tokens=2, output_tokens=1
    )
    assert choices(value)[0]["logprobs"]["content"][0]["top_logprobs"][1]["logprob"] == -9999.0
