"""Bodies: what is accepted, and how what is wrong is said."""

import re
from typing import Any

import pytest

from topics.embeddings import EmbeddingRequest
from topics.errors import RequestError
from topics.messages import ChatCompletionRequest, CompletionRequest
from topics.validation import asked_sequences, parse_request

MESSAGES = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": MESSAGES} | fields


def refusal(body: dict[str, Any]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse_request(body)
    error = caught.value
    assert error.status_code == 400
    assert error.param is not None
    assert error.param in error.message or error.param.startswith(("messages", "prompt"))
    return error


def test_messages_make_a_chat_and_prompt_a_completion() -> None:
    assert isinstance(parse_request(chat()), ChatCompletionRequest)
    assert isinstance(parse_request({"model": "m", "prompt": "x"}), CompletionRequest)


NEUTRAL: dict[str, list[Any]] = {
    "functions": [[], None],
    "modalities": [["text"]],
    "best_of": [1],
    "echo": [False],
    "suffix": [None],
    "service_tier": ["auto", "default"],
    "store": [False],
}


@pytest.mark.parametrize(("field", "values"), NEUTRAL.items())
def test_a_value_that_changes_nothing_is_accepted(field: str, values: list[Any]) -> None:
    for value in values:
        assert parse_request(chat(**{field: value})) == parse_request(chat())


UNSUPPORTED: dict[str, list[Any]] = {
    "functions": [[{}]],
    "function_call": ["auto"],
    "audio": [{"voice": "alloy"}, {}],
    "modalities": [["text", "audio"]],
    "prediction": [{"type": "content"}],
    "web_search_options": [{}],
    "best_of": [2],
    "echo": [True],
    "suffix": [""],
    "reasoning_effort": ["high"],
    "service_tier": ["flex"],
    "store": [True],
    "chat_template": ["x"],
}


@pytest.mark.parametrize(("field", "values"), UNSUPPORTED.items())
def test_a_known_feature_that_is_not_enforced_is_refused_by_name(field: str, values: list[Any]) -> None:
    for value in values:
        error = refusal(chat(**{field: value}))
        assert (error.param, error.code) == (field, "unsupported_parameter")
        assert re.fullmatch(rf"{field} is not supported yet: .+\.", error.message)


def part(**fields: Any) -> dict[str, Any]:
    return chat(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}, fields]}])


TOOL = {"type": "function", "function": {"name": "f"}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
JSON = {"type": "json_object"}


def named_schema(name: str) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": name, "schema": {}}}


def choice(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def message(**fields: Any) -> dict[str, Any]:
    return chat(messages=[*MESSAGES, {"role": "user", "content": "x"} | fields])


WRONG: list[tuple[str, dict[str, Any], str, str]] = [
    # (name, body, param, regex of the message)
    ("no messages", {"model": "m"}, "messages", "messages is required"),
    ("both kinds", chat(prompt="x"), "prompt", "both messages and prompt"),
    ("two kinds", chat(input="x"), "input", "both messages and input"),
    ("model is a number", chat(model=3), "model", "must be a string"),
    ("model is empty", chat(model=""), "model", "must not be empty"),
    ("empty messages", chat(messages=[]), "messages", "must not be empty"),
    ("messages is text", chat(messages="hi"), "messages", "must be a list"),
    ("too many messages", chat(messages=MESSAGES * 4097), "messages", "at most 4096 entries"),
    ("a message is text", chat(messages=["hi"]), "messages.0", "must be an object"),
    ("unknown role", message(role="robot"), "messages.1.role", "'developer', 'user', 'assistant' or 'tool'"),
    ("tool without call", message(role="tool"), "messages.1", "must have a tool_call_id"),
    ("a call that is none's", message(tool_call_id="c"), "messages.1", "must have a tool_call_id if its role is tool"),
    ("role is a number", message(role=1), "messages.1.role", "must be"),
    ("null content", message(content=None), "messages.1", "must have a content"),
    ("number content", message(content=5), "messages.1.content", "string or a list of text parts"),
    ("no parts", message(content=[]), "messages.1.content", "must not be empty"),
    ("name", message(name="bob"), "messages.1.name", "not supported yet"),
    ("empty tool call", message(tool_calls=[{}]), "messages.1.tool_calls.0.id", "is required"),
    ("a user calls", message(tool_calls=[CALL]), "messages.1", "only an assistant's message"),
    ("unknown in message", message(mood="x"), "messages.1.mood", "not a known field: remove it"),
    ("image", part(type="image_url", image_url={}), "messages.0.content.1.type", "other modalities"),
    ("part without text", part(type="text"), "messages.0.content.1.text", "is required"),
    ("part is a number", part(type="text", text=1), "messages.0.content.1.text", "must be a string, not 1"),
    ("unknown in part", part(type="text", text="", x=1), "messages.0.content.1.x", "not a known field"),
    ("max_tokens 0", chat(max_tokens=0), "max_tokens", "at least 1, not 0"),
    ("max_tokens negative", chat(max_tokens=-5), "max_tokens", "at least 1, not -5"),
    ("max_tokens huge", chat(max_tokens=2**40), "max_tokens", "at most"),
    ("max_tokens fraction", chat(max_tokens=1.5), "max_tokens", "whole number"),
    ("max_tokens text", chat(max_tokens="5"), "max_tokens", "whole number"),
    ("max_tokens twice", chat(max_tokens=5, max_completion_tokens=5), "max_tokens", "send one of them"),
    ("temperature high", chat(temperature=2.1), "temperature", "at most 2.*not 2.1"),
    ("temperature low", chat(temperature=-0.1), "temperature", "at least 0"),
    ("temperature text", chat(temperature="0.5"), "temperature", "must be a number"),
    ("top_p 0", chat(top_p=0), "top_p", "greater than 0"),
    ("top_p high", chat(top_p=1.01), "top_p", "at most 1"),
    ("top_k", chat(top_k=-2), "top_k", "at least -1"),
    ("min_p", chat(min_p=1.5), "min_p", r"at most 1\.0, not 1\.5"),
    ("presence_penalty", chat(presence_penalty=-2.5), "presence_penalty", "at least -2"),
    ("presence_penalty false", chat(presence_penalty=False), "presence_penalty", "must be a number"),
    ("frequency_penalty", chat(frequency_penalty=3), "frequency_penalty", "at most 2"),
    ("repetition_penalty", chat(repetition_penalty=0), "repetition_penalty", "greater than 0"),
    ("min_tokens", chat(min_tokens=-1), "min_tokens", "at least 0"),
    ("min_tokens beyond the limit", chat(min_tokens=6, max_tokens=5), "min_tokens", "more than the output limit of 5"),
    ("a bias of a word", chat(logit_bias={"the": 1}), "logit_bias.the", "a token id, written in digits"),
    ("a bias too large", chat(logit_bias={"5": 101}), "logit_bias.5", "at most 100"),
    ("too many biases", chat(logit_bias={str(i): 1 for i in range(1025)}), "logit_bias", "at most 1024 entries"),
    ("empty stop", chat(stop=""), "stop", "must not be empty"),
    ("empty stop in list", chat(stop=["a", ""]), "stop.1", "must not be empty"),
    ("five stops", chat(stop=["a"] * 5), "stop", "at most 4 entries"),
    ("long stop", chat(stop="s" * 257), "stop", "at most 256 characters"),
    ("stop number", chat(stop=5), "stop", "must be a string or a list of strings"),
    ("seed too large", chat(seed=2**63), "seed", "at most"),
    ("seed huge", chat(seed=2.0**70), "seed", "64 bits"),
    ("stream number", chat(stream=1), "stream", "true or false"),
    ("stream_options alone", chat(stream_options={}), "stream_options", "only allowed when stream is true"),
    ("stream_options", chat(stream=True, stream_options={"x": 1}), "stream_options.x", "not a known field"),
    ("user", chat(user=5), "user", "must be a string"),
    ("metadata value", chat(metadata={"k": 1}), "metadata.k", "must be a string"),
    ("metadata pairs", chat(metadata={str(i): "" for i in range(17)}), "metadata", "at most 16 entries"),
    ("metadata list", chat(metadata=[]), "metadata", "must be an object"),
    ("priority", chat(priority=4), "priority", "at most 3"),
    ("priority name", chat(priority="high"), "priority", 'must be 0, 1, 2 or 3, or "p0" … "p3"'),
    ("ignore_eos", chat(ignore_eos="yes"), "ignore_eos", "true or false"),
    ("unknown field", chat(temprature=1), "temprature", "not a known field: remove it"),
    ("empty prompt", {"model": "m", "prompt": ""}, "prompt", "must not be empty"),
    ("no ids", {"model": "m", "prompt": []}, "prompt", "must not be empty"),
    ("an empty prompt of two", {"model": "m", "prompt": ["a", ""]}, "prompt.1", "must not be empty"),
    ("text among lists of ids", {"model": "m", "prompt": [[1], "a"]}, "prompt.1", "must be a list"),
    ("prompt is null", {"model": "m", "prompt": None}, "prompt", "a string, a list of strings"),
    ("tools of a completion", {"model": "m", "prompt": "x", "tools": [TOOL]}, "tools", "send messages"),
    ("n 0", chat(n=0), "n", "at least 1, not 0"),
    ("n true", chat(n=True), "n", "whole number"),
    ("n large", chat(n=129), "n", "at most 128"),
    ("many answers", {"prompt": ["a"] * 100, "n": 100}, "n", "is 10000, the most is 2048"),
    ("format of no kind", chat(response_format={"type": "yaml"}), "response_format", "must have a 'type' of"),
    ("format is text", chat(response_format="text"), "response_format", "must"),
    ("schema without", chat(response_format={"type": "json_schema"}), "response_format.json_schema", "is required"),
    ("schema's name", chat(response_format=named_schema("a b")), "response_format.json_schema.name", "letters, digits"),
    ("tool without function", chat(tools=[{"type": "function"}]), "tools.0.function", "is required"),
    ("two tools of a name", chat(tools=[TOOL, TOOL]), "tools", "two functions of one name"),
    ("choice without tools", chat(tool_choice="auto"), "tool_choice", "only allowed with tools"),
    ("choice of none", chat(tools=[TOOL], tool_choice="some"), "tool_choice", "'none', 'auto' or 'required'"),
    ("unknown choice", chat(tools=[TOOL], tool_choice=choice("g")), "tool_choice.function.name", "none of the tools"),
    ("tools and format", chat(tools=[TOOL], response_format=JSON), "response_format", "does not go with tools"),
    ("format and ignore_eos", chat(response_format=JSON, ignore_eos=True), "ignore_eos", "does not go with"),
    ("negative id", {"model": "m", "prompt": [1, -1]}, "prompt.1", "at least 0, not -1"),
    ("id is text", {"model": "m", "prompt": [1, "a"]}, "prompt.1", "whole number"),
    ("chat field", {"model": "m", "prompt": "x", "max_completion_tokens": 1}, "max_completion_tokens", "not a known"),
]


@pytest.mark.parametrize(("body", "param", "pattern"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_what_is_wrong_is_refused_by_its_path(body: dict[str, Any], param: str, pattern: str) -> None:
    error = refusal(body)
    assert error.param == param
    assert re.search(pattern, error.message)


def test_a_refusal_does_not_carry_the_body_along() -> None:
    error = refusal(chat(messages=[{"role": "secret", "content": "secret"}], temperature=1))
    assert "secret" not in error.message
    assert error.__context__ is None
    assert error.__cause__ is None


def test_a_long_field_name_is_cut() -> None:
    assert len(refusal(chat(**{"x" * 10_000: 1})).message) < 250


def test_the_body_is_left_as_it_was() -> None:
    body = chat(best_of=1, messages=[{"role": "user", "content": "x", "name": None}])
    parse_request(body)
    assert body == chat(best_of=1, messages=[{"role": "user", "content": "x", "name": None}])


# --- log probabilities ------------------------------------------------------------------------------------------------


def test_a_chat_says_whether_and_a_completion_how_many_log_probabilities_it_wants() -> None:
    def wanted(body: dict[str, Any]) -> int | None:
        request = parse_request(body)
        assert not isinstance(request, EmbeddingRequest)
        return request.wanted_logprobs

    assert wanted(chat()) is None
    assert wanted(chat(logprobs=False)) is None
    assert wanted(chat(logprobs=True)) == 0
    assert wanted(chat(logprobs=True, top_logprobs=20)) == 20
    assert wanted({"prompt": "x"}) is None
    assert wanted({"prompt": "x", "logprobs": False}) is None
    assert wanted({"prompt": "x", "logprobs": 5}) == 5


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        (chat(top_logprobs=3), "top_logprobs", "only allowed when logprobs is true"),
        (chat(logprobs=True, top_logprobs=21), "top_logprobs", "at most 20, not 21"),
        (chat(logprobs=5), "logprobs", "must be true or false, not 5"),
        ({"prompt": "x", "logprobs": 6}, "logprobs", "at most 5, not 6"),
        ({"prompt": "x", "logprobs": True}, "logprobs", "must be a whole number"),
        ({"prompt": "x", "top_logprobs": 2}, "top_logprobs", "logprobs takes the number"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_log_probabilities_that_cannot_be_given_are_refused(body: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(RequestError, match=says) as caught:
        parse_request(body)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "sequences"),
    [
        ({"messages": MESSAGES}, (1, 1)),
        ({"messages": MESSAGES, "n": 3}, (1, 3)),
        ({"prompt": [5, 6, 7]}, (1, 1)),
        ({"prompt": ["a", "b"], "n": 2}, (2, 2)),
        ({"prompt": [[5], [6, 7]]}, (2, 1)),
        ({"prompt": ["a"] * 100, "n": 100}, (1, 1)),
        ({"prompt": [], "n": "2"}, (1, 1)),
    ],
)
def test_what_a_body_asks_for_is_counted_before_it_is_checked(
    fields: dict[str, Any], sequences: tuple[int, int]
) -> None:
    assert asked_sequences(fields) == sequences


def test_a_conversation_with_tools_is_accepted() -> None:
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "4"},
    ]
    request = parse_request(chat(messages=messages, tools=[TOOL], tool_choice=choice("f"), parallel_tool_calls=False))
    assert isinstance(request, ChatCompletionRequest)
    assert [message.text for message in request.messages] == ["hi", "", "4"]
