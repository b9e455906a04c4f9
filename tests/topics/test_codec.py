"""JSON in and out."""

import pytest

from topics.codec import dumps, loads, loads_object
from topics.errors import RequestError


def test_round_trip() -> None:
    document = {"a": [1, 2.5, None, True, "é🦊"], "b": {"c": ""}}
    assert loads(dumps(document)) == document


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (b"", "line 1, column 1"),
        (b'{"model": "m",\n "messages": secret}', "line 2, column 14"),
        (b'{"a": NaN}', "line 1, column 7"),
        (b"\xff\xfe", "line 1, column 1"),
        (b'["a" "b"]', "line 1, column 6"),
        (b"[" * 5_000, "line 1, column 1026"),
    ],
)
def test_what_is_not_json_is_refused_with_its_place(value: bytes, place: str) -> None:
    with pytest.raises(RequestError) as caught:
        loads(value)
    error = caught.value
    assert (error.status_code, error.param, error.code) == (400, "body", "invalid_json")
    assert place in error.message
    assert "secret" not in error.message
    # The parser's own error holds the document: it must not travel with ours.
    assert error.__context__ is None


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (b"[]", "an array"),
        (b'"x"', "a string"),
        (b"1", "a number"),
        (b"1.5", "a number"),
        (b"null", "null"),
        (b"true", "a boolean"),
    ],
)
def test_a_body_must_be_an_object(value: bytes, found: str) -> None:
    with pytest.raises(RequestError, match=found):
        loads_object(value)
