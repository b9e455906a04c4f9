"""Whatever JSON comes, it is a request or a refusal that repeats none of its text."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from topics.errors import RequestError
from topics.messages import ChatCompletionRequest, CompletionRequest
from topics.validation import _UNSUPPORTED, parse_request

SECRET = "sEcReT"
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([SECRET, "", "user", "text"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "include_usage", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = sorted({*ChatCompletionRequest.model_fields, *CompletionRequest.model_fields, *_UNSUPPORTED})
MESSAGES = [{"role": "user", "content": "hi"}]


def outcome(body: dict[str, Any]) -> RequestError | None:
    try:
        parse_request(body)
    except RequestError as error:
        return error
    return None


@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4))
def test_any_values_of_known_fields(fields: dict[str, Any]) -> None:
    for body in (fields, {"model": "m", "messages": MESSAGES} | fields, {"model": "m", "prompt": "x"} | fields):
        error = outcome(body)
        if error is not None:
            assert error.status_code == 400
            assert SECRET not in error.message
            assert (error.param or "").split(".")[0] in [*FIELDS, "input"]
