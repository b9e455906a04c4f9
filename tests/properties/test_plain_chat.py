"""What is plain at a glance passes the whole check, whatever the body."""

from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

from topics.errors import RequestError
from topics.messages import ChatCompletionRequest, CompletionRequest
from topics.plain_chat import _CHECKS, is_plain_chat
from topics.validation import parse_request

EDGES = [-100, -2.5, -2, -1, -0.1, 0, 0.0, 1e-9, 0.5, 1, 1.0, 1.5, 2, 2.1, 10, 10.1, 2**31 - 1, 2**31, -(2**63), 2**63]
VALUES = st.none() | st.booleans() | st.sampled_from(EDGES) | st.sampled_from(["", "m", "m" * 256, "m" * 257, [], {}])
ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool", "robot", "", None, 1, ["user"]])
CONTENTS: st.SearchStrategy[Any] = st.sampled_from(["", "hi", "é\n", None, 1, [], [{"type": "text", "text": "hi"}], {}])
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "role": ROLES | st.just("user"),
        "content": CONTENTS | st.just("hi"),
        "name": st.sampled_from([None, "n"]),
        "tool_call_id": st.sampled_from([None, "c"]),
    },
)
FIELDS = sorted({*ChatCompletionRequest.model_fields, *CompletionRequest.model_fields, "best_of"} - {"messages"})
PLAIN_MESSAGES = [{"role": "system", "content": ""}, {"role": "user", "content": "hi"}]


def passes(body: dict[str, Any]) -> ChatCompletionRequest | None:
    try:
        request = parse_request(body)
    except RequestError:
        return None
    assert isinstance(request, ChatCompletionRequest)
    return request


@given(
    fields=st.dictionaries(st.sampled_from(FIELDS) | st.sampled_from(sorted(_CHECKS)), VALUES, max_size=3),
    messages=st.lists(MESSAGES, max_size=3) | st.just(PLAIN_MESSAGES) | st.sampled_from([None, "hi", {}]),
)
def test_a_plain_body_is_a_good_one(fields: dict[str, Any], messages: Any) -> None:
    body = {"messages": messages} | fields
    if is_plain_chat(body):
        event("plain")
        request = passes(body)
        assert request is not None
        limits = (body.get("max_tokens"), body.get("max_completion_tokens"))
        assert request.requested_tokens == next((limit for limit in limits if limit is not None), None)


@given(st.dictionaries(st.sampled_from(sorted(set(_CHECKS) - {"messages"})), VALUES, max_size=3))
def test_a_good_body_of_plain_fields_is_a_plain_one(fields: dict[str, Any]) -> None:
    """Else the glance would be of no use, and nobody would see it. A stream is a good request and no good row of a job,
    so it is looked at whole."""
    body = {"messages": PLAIN_MESSAGES} | fields
    request = passes(body)
    assert is_plain_chat(body) == (request is not None and not request.stream)


def test_a_body_without_messages_is_not_plain() -> None:
    assert not is_plain_chat({"model": "m"})
