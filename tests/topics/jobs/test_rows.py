"""Lines of a batch input: what is sent, what is refused, and how that is said."""

from typing import Any

import orjson
import pytest

from topics.jobs import rows
from topics.jobs.rows import BatchRow, RowChecker, RowProblem, TooManyRowsError

CHAT = "/v1/chat/completions"


def line(custom_id: Any = "a", **fields: Any) -> bytes:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    return orjson.dumps({"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body} | fields)


def checked(*lines: bytes) -> list[BatchRow | RowProblem]:
    return list(RowChecker().check_all(iter(lines)))


def problem(*lines: bytes) -> RowProblem:
    """Of the last line; the others are good."""
    *good, bad = checked(*lines)
    assert all(isinstance(row, BatchRow) for row in good)
    assert isinstance(bad, RowProblem)
    return bad


def test_a_good_row_is_its_body() -> None:
    (row,) = checked(line())
    assert row == BatchRow(0, "a", b'{"messages":[{"role":"user","content":"hi"}]}', b"")


def test_blank_lines_are_no_rows_but_count_as_lines() -> None:
    bad = problem(b"\n", line(), b"  \n", b"{")
    assert (bad.row, bad.line) == (1, 4)


def test_rows_may_ask_for_embeddings_which_have_no_output() -> None:
    checker = RowChecker()
    row = checker.check(1, line(url="/v1/embeddings", body={"input": ["a", "b"], "dimensions": 8}))
    assert row == BatchRow(0, "a", b'{"input":["a","b"],"dimensions":8}', b"")
    assert (checker.endpoint, checker.requested_tokens, checker.unlimited_rows) == ("/v1/embeddings", 0, 0)


@pytest.mark.parametrize(
    ("url", "body", "needs"),
    [
        ("/v1/embeddings", {"prompt": "x"}, "input"),
        ("/v1/completions", {"input": "x"}, "prompt"),
        (CHAT, {"input": "x"}, "messages"),
    ],
)
def test_a_body_of_another_kind_than_the_url_says_what_it_needs(url: str, body: dict[str, Any], needs: str) -> None:
    assert f"must have {needs}" in problem(line(url=url, body=body)).message


BAD = {
    "invalid_json_line": b'{"custom_id": "a"',
    "invalid_url": line(url="/v1/audio/speech"),
    "mismatched_url": line("b", url="/v1/completions", body={"prompt": "x"}),
    "duplicate_custom_id": line("first"),
    "unknown_parameter": line("b", priority="p0"),
    "missing_required_parameter": line("b", body={"model": "m"}),
    "invalid_type": line("b", body={"messages": [{"role": "user", "content": "hi"}], "temperature": "0.5"}),
    "unsupported_parameter": line("b", body={"messages": [{"role": "user", "content": "hi"}], "audio": {}}),
}


@pytest.mark.parametrize("code", BAD)
def test_a_bad_row_is_named_with_its_code(code: str) -> None:
    bad = problem(line("first"), BAD[code])
    assert (bad.line, bad.code) == (2, code)
    assert bad.message.endswith(".")


@pytest.mark.parametrize(
    ("bad_line", "param"),
    [
        (b"[1]", "line"),
        (line(None), "custom_id"),
        (line(" "), "custom_id"),
        (line("a\nb"), "custom_id"),
        (line("x" * 513), "custom_id"),
        (line("#line:7"), "custom_id"),
        (line(method="GET"), "method"),
        (line(body=[]), "body"),
        (line(body={"messages": [{"role": "user", "content": "hi"}], "stream": True}), "body.stream"),
        (line(body={"messages": [{"role": "user", "content": 1}]}), "body.messages.0.content"),
        (line(body={"prompt": "x"}), "body"),
    ],
)
def test_the_problem_names_the_field(bad_line: bytes, param: str) -> None:
    assert problem(line("first"), bad_line).param == param


def test_a_row_without_a_custom_id_of_its_own_gets_a_stand_in() -> None:
    assert problem(line(), line()).custom_id == "#line:2"
    assert problem(line(), b"{").custom_id == "#line:2"
    assert problem(line(), line("b", method="GET")).custom_id == "b"


def test_a_duplicate_is_one_again_when_the_good_rows_are_only_read() -> None:
    lines = [line("a"), line("a"), line("b", method="GET"), line("c")]
    first = list(RowChecker().check_all(iter(lines)))
    good = {row.row for row in first if isinstance(row, BatchRow)}
    assert list(RowChecker().check_all(iter(lines), good)) == first


def test_rows_with_the_same_system_message_share_a_prefix() -> None:
    def row(custom_id: str, system: str, user: str) -> bytes:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        return line(custom_id, body={"messages": messages})

    one, two, other = checked(row("a", "s", "1"), row("b", "s", "2"), row("c", "t", "1"))
    assert isinstance(one, BatchRow)
    assert isinstance(two, BatchRow)
    assert isinstance(other, BatchRow)
    assert one.shared_prefix == two.shared_prefix != other.shared_prefix


def test_a_body_that_no_topic_takes_is_refused() -> None:
    content = "x" * rows.MAX_BODY_BYTES
    bad = problem(line("a", body={"messages": [{"role": "user", "content": content}]}))
    assert bad.code == "request_too_large"


def test_more_rows_than_a_job_may_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_ROWS", 2)
    with pytest.raises(TooManyRowsError):
        checked(line("a"), line("b"), line("c"))
