"""Tools as text: what a model is shown, and how its calls are read back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workers.models.tiny_tokenizers import byte_level_tokenizer
from topics.errors import RequestError
from topics.messages import ChatCompletionRequest
from topics.validation import parse_request
from workers.intake.answer_form import answer_grammar
from workers.intake.grammar import Grammar, GrammarCompiler
from workers.intake.tool_calls import CALL_BEGIN, CalledTool, ToolCallReader, conversation
from workers.runners.runner import ModelLimits

PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}"
NATIVE = PLAIN + "{% if tools %}<tool_call>{% endif %}"
PLACE = {
    "type": "object",
    "properties": {"place": {"enum": ["Oslo", "Rome"]}},
    "required": ["place"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": PLACE}}
CLOCK = {"type": "function", "function": {"name": "clock"}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"place": "Oslo"}}\n</tool_call>'
TALK = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"place": "Oslo"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c", "content": "rain"},
]
TOKENIZER = byte_level_tokenizer()


def chat(**fields: Any) -> ChatCompletionRequest:
    request = parse_request({"messages": TALK, "tools": [WEATHER]} | fields)
    assert isinstance(request, ChatCompletionRequest)
    return request


def test_a_template_without_tools_is_told_of_them_in_words() -> None:
    form = conversation(chat(), PLAIN)
    system, _, called, answered = form.messages
    assert form.tools is None
    assert system["role"] == "system"
    assert '"name":"weather"' in system["content"]
    assert (called["content"], answered["role"]) == (CALL, "user")
    assert answered["content"] == "<tool_response>\nrain\n</tool_response>"


def test_a_template_that_knows_the_format_gets_tools_and_calls_as_they_are() -> None:
    form = conversation(chat(), NATIVE)
    assert form.tools == [WEATHER]
    assert [message["role"] for message in form.messages] == ["user", "assistant", "tool"]
    assert form.messages[1]["tool_calls"][0]["function"]["arguments"] == {"place": "Oslo"}


def test_tools_that_may_not_be_called_are_not_shown() -> None:
    assert conversation(chat(tool_choice="none"), NATIVE).tools is None


def test_arguments_that_are_no_object_are_refused_by_their_path() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "Oslo"}}
    messages = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    with pytest.raises(RequestError) as caught:
        conversation(chat(messages=messages), NATIVE)
    assert caught.value.param == "messages.0.tool_calls.0.function.arguments"


@given(st.lists(st.integers(0, 200), max_size=8))
def test_a_call_is_read_back_however_the_answer_is_cut(cuts: list[int]) -> None:
    text = f"Let me <look>.{CALL}\n{CALL.replace('Oslo', 'Rome')}"
    reader, parts, begin = ToolCallReader(), [], 0
    for end in [*sorted(cuts), len(text)]:
        parts += reader.feed(text[begin:end])
        begin = max(begin, end)
    assert reader.flush() == ""
    assert "".join(part for part in parts if isinstance(part, str)) == "Let me <look>."
    calls = [part for part in parts if isinstance(part, CalledTool)]
    assert calls == [CalledTool("weather", '{"place": "Oslo"}'), CalledTool("weather", '{"place": "Rome"}')]


def test_calls_of_one_answer_have_different_ids_that_are_the_same_in_every_attempt() -> None:
    call = CalledTool("f", "{}")
    ids = {call.call_id("r", choice, place) for choice in range(2) for place in range(2)}
    assert len(ids) == 4
    assert call.call_id("r", 0, 0) in ids


# --- the grammar ------------------------------------------------------------------------------------------------------


def grammar(**fields: Any) -> Grammar:
    limits = ModelLimits(400, TOKENIZER.get_vocab_size(), frozenset({263}))
    made = answer_grammar(chat(tools=[CLOCK, WEATHER], **fields), GrammarCompiler(TOKENIZER, limits))
    assert made is not None
    return made


def whole(held: Grammar, text: str) -> bool:
    ids = TOKENIZER.encode(text).ids
    return held.follow(ids, len(ids)) and held.complete


@pytest.mark.parametrize(
    ("fields", "text", "right"),
    [
        ({}, "Just words.", True),
        ({}, f"Let me see. {CALL}", True),
        ({}, CALL.replace("Oslo", "Paris"), False),
        ({"tool_choice": "required"}, "Just words.", False),
        ({"tool_choice": "required"}, f"{CALL}\n{CALL}", True),
        ({"tool_choice": "required", "parallel_tool_calls": False}, f"{CALL}\n{CALL}", False),
        ({"tool_choice": {"type": "function", "function": {"name": "clock"}}}, CALL, False),
        ({"tool_choice": {"type": "function", "function": {"name": "weather"}}}, CALL, True),
        ({}, f'{CALL_BEGIN}\n{{"name": "clock", "arguments": {{}}}}\n</tool_call>', True),
    ],
)
def test_what_may_be_called_is_what_was_asked_for(fields: dict[str, Any], text: str, right: bool) -> None:
    assert whole(grammar(**fields), text) is right


def test_a_tool_whose_schema_cannot_be_held_is_named() -> None:
    bad = {"type": "function", "function": {"name": "bad", "parameters": {"not": {}}}}
    limits = ModelLimits(400, TOKENIZER.get_vocab_size(), frozenset({263}))
    with pytest.raises(RequestError, match='"not"') as caught:
        answer_grammar(chat(tools=[WEATHER, bad]), GrammarCompiler(TOKENIZER, limits))
    assert caught.value.param == "tools.1.function.parameters"
