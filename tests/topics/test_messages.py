"""The models of requests and replies."""

import pytest
from pydantic import ValidationError

from topics.messages import ChatCompletionRequest, ChatMessage, CompletionRequest, GenerationRequest, StreamOptions

MESSAGES = [{"role": "user", "content": "hi"}]


def chat(**fields: object) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate({"model": "m", "messages": MESSAGES} | fields)


def test_a_minimal_chat_leaves_everything_else_open() -> None:
    request = chat()
    assert request.messages == (ChatMessage(role="user", content="hi"),)
    assert request.requested_tokens is None
    assert not request.wants_usage_chunk
    others = set(GenerationRequest.model_fields) - {"model"}
    assert all(getattr(request, field) is None for field in others)


def test_all_fields_of_a_chat() -> None:
    request = chat(
        max_completion_tokens=9,
        temperature=0,
        top_p=1,
        top_k=5,
        stop="END",
        seed=-(2**63),
        stream=True,
        stream_options={"include_usage": True},
        user="u",
        metadata={"k": "v"},
        priority="P3",
        ignore_eos=True,
    )
    assert request.requested_tokens == 9
    assert request.stop == ("END",)
    assert request.priority == 3
    assert request.stream_options == StreamOptions(include_usage=True)
    assert request.wants_usage_chunk


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert chat(messages=[{"role": "user", "content": parts}]).messages[0].text == "ab"


def test_a_prompt_is_text_or_token_ids() -> None:
    assert CompletionRequest.model_validate({"model": "m", "prompt": "x"}).prompt == "x"
    assert CompletionRequest.model_validate({"model": "m", "prompt": [1, 2]}).prompt == (1, 2)


def test_requests_are_immutable() -> None:
    with pytest.raises(ValidationError):
        chat().stream = True  # type: ignore[misc]


def test_half_a_million_bad_items_make_one_error() -> None:
    with pytest.raises(ValidationError) as caught:
        CompletionRequest.model_validate({"model": "m", "prompt": [1] + [-1] * 500_000})
    assert caught.value.error_count() == 1


@pytest.mark.parametrize("kind", [ChatCompletionRequest, CompletionRequest])
def test_there_is_a_json_schema(kind: type[GenerationRequest]) -> None:
    schema = kind.model_json_schema()
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["messages" if kind is ChatCompletionRequest else "prompt"]
