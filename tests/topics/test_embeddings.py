"""Bodies that ask for embeddings: what is accepted, what is refused and how, and what is read out of a reply."""

import struct
from base64 import b64encode
from typing import Any

import pytest

from topics.embeddings import EmbeddingRequest, vectors_of
from topics.errors import RequestError
from topics.validation import asked_sequences, parse_request


def parsed(**fields: Any) -> EmbeddingRequest:
    request = parse_request({"model": "m", "input": "x"} | fields)
    assert isinstance(request, EmbeddingRequest)
    return request


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("a text", ("a text",)),
        (["a", "b"], ("a", "b")),
        ([5, 6, 7], ((5, 6, 7),)),
        ([[5], [6, 7]], ((5,), (6, 7))),
    ],
)
def test_inputs_are_texts_or_token_ids(given: object, prompts: tuple[object, ...]) -> None:
    assert parsed(input=given).prompts == prompts
    assert asked_sequences({"input": given, "n": 7}) == (len(prompts), 1)


def test_all_fields() -> None:
    request = parsed(encoding_format="base64", dimensions=256, user="u", priority="P3")
    assert (request.encoding_format, request.dimensions, request.priority) == ("base64", 256, 3)
    assert request.requested_tokens == 0


@pytest.mark.parametrize("field", ["stream", "n", "add_special_tokens", "normalize", "truncate_prompt_tokens"])
def test_null_asks_for_nothing(field: str) -> None:
    assert parsed(**{field: None}) == parsed()


WRONG: list[tuple[dict[str, Any], str, str]] = [
    # (fields, param, regex of the message)
    ({"input": ""}, "input", "must not be empty"),
    ({"input": []}, "input", "must not be empty"),
    ({"input": ["a", ""]}, "input.1", "must not be empty"),
    ({"input": [[]]}, "input.0", "must not be empty"),
    ({"input": ["a"] * 2049}, "input", "at most 2048 entries"),
    ({"input": [1, "a"]}, "input.1", "must be a whole number"),
    ({"input": {"text": "a"}}, "input", "must be a string, a list of strings"),
    ({"dimensions": 0}, "dimensions", "at least 1, not 0"),
    ({"encoding_format": "int8"}, "encoding_format", "'float' or 'base64'"),
    ({"stream": True}, "stream", "vectors come whole"),
    ({"n": 2}, "n", "one vector"),
    ({"normalize": False}, "normalize", "length 1"),
    ({"max_tokens": 5}, "max_tokens", "not a known field"),
    ({"temperature": 0}, "temperature", "not a known field"),
    ({"prompt": "x"}, "input", "both prompt and input"),
    ({"messages": [{"role": "user", "content": "x"}]}, "input", "both messages and input"),
]


@pytest.mark.parametrize(("fields", "param", "says"), WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_what_cannot_be_given_is_refused_by_name(fields: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(RequestError, match=says) as caught:
        parsed(**fields)
    assert (caught.value.status_code, caught.value.param) == (400, param)


def test_vectors_are_read_from_either_form_in_the_order_of_the_inputs() -> None:
    packed = b64encode(struct.pack("<2f", 0.5, -0.25)).decode()
    body = {"data": [{"index": 1, "embedding": packed}, {"index": 0, "embedding": [1.0, 0.0]}]}
    assert [list(vector) for vector in vectors_of(body)] == [[1.0, 0.0], [0.5, -0.25]]


@pytest.mark.parametrize("body", [{}, {"data": [{}]}, {"data": [{"index": 0, "embedding": "no base64!"}]}])
def test_other_bodies_have_no_vectors(body: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        vectors_of(body)
