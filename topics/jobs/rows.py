"""One line of a batch input: a row to be sent, or what is wrong with it.

Knows OpenAI's batch input format (`custom_id`, `method`, `url`, `body`) and its limits. Does not know files
(`topics.jobs.input_file`) or Kafka. A body is held to the same check as a worker's (`topics.validation`), so what
passes here is refused there only for what needs the model: its name, its context's length.

No text of a row is repeated in a problem, but `custom_id`s are: they are how users find their rows.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from topics.errors import RequestError
from topics.headers import CAP_BYTES, CUSTOM_ID
from topics.jobs.errors import JobMistakeError
from topics.plain_chat import is_plain_chat
from topics.validation import parse_request

__all__ = [
    "ENDPOINTS",
    "MAX_BODY_BYTES",
    "MAX_LINE_BYTES",
    "MAX_ROWS",
    "BatchRow",
    "RowChecker",
    "RowProblem",
    "TooManyRowsError",
]

MAX_ROWS = 50_000
"""OpenAI's limit on a batch."""
MAX_BODY_BYTES = 2 * 2**20 - 2**16
"""What the request topics take in a record, less its headers."""
MAX_LINE_BYTES = MAX_BODY_BYTES + 2**16
_FIELD_OF = {"/v1/chat/completions": "messages", "/v1/completions": "prompt", "/v1/embeddings": "input"}
ENDPOINTS = tuple(_FIELD_OF)

_FIELDS = frozenset(("custom_id", "method", "url", "body"))
_STAND_IN = "#line:"
"""Begins the `custom_id` that stands for a row which has none of its own."""


class TooManyRowsError(JobMistakeError):
    """The input has more rows than one job may have."""

    def __init__(self) -> None:
        super().__init__(f"the input has more than {MAX_ROWS:,} rows: split it into several jobs")


@dataclass(frozen=True, slots=True)
class BatchRow:
    row: int
    custom_id: str
    body: bytes
    """The request's body as it is sent: JSON."""
    shared_prefix: bytes
    """Rows with equal bytes here begin with the same system messages; empty where they have none."""


@dataclass(frozen=True, slots=True)
class RowProblem:
    row: int
    line: int
    """From 1, in the decompressed input, blank lines counted."""
    custom_id: str
    """The row's own, or a stand-in where it has none of its own (`#line:17`)."""
    code: str
    message: str
    param: str | None

    def error(self) -> RequestError:
        """What the row is answered with if the others are run without it."""
        return RequestError.invalid_request(self.param, f"line {self.line}: {self.message}", self.code)


class RowChecker:
    """`check` each line once, in order. Holds the `custom_id`s of up to 50,000 rows, and no bodies."""

    def __init__(self) -> None:
        self.rows = 0
        """Lines that were not blank."""
        self.endpoint: str | None = None
        """The first row's; all others must have it too."""
        self.body_bytes = 0
        """Of the rows without a problem."""
        self.requested_tokens = 0
        """Sum of the output limits that rows name."""
        self.unlimited_rows = 0
        """Rows that name no output limit."""
        self._line_of: dict[str, int] = {}

    def check_all(self, lines: Iterator[bytes], known_good: Container[int] = ()) -> Iterator[BatchRow | RowProblem]:
        """Every line, blank ones left out. Raises `TooManyRowsError`.

        `known_good`: rows of this input that an earlier checker had nothing against; they are only read.
        """
        for number, line in enumerate(lines, start=1):
            if not line.isspace():
                yield self._read(number, line) if self.rows in known_good else self.check(number, line)

    def _read(self, line: int, text: bytes) -> BatchRow:
        row, self.rows = self.rows, self.rows + 1
        document = orjson.loads(text)
        custom_id, body = document["custom_id"], document["body"]
        # What later rows are held against, should they have to be checked.
        self._line_of[custom_id] = line
        self.endpoint = document["url"]
        return BatchRow(row, custom_id, _dumped(body), _shared_prefix(body))

    def check(self, line: int, text: bytes) -> BatchRow | RowProblem:
        """A line that is not blank. Raises `TooManyRowsError`."""
        if self.rows == MAX_ROWS:
            raise TooManyRowsError
        row, self.rows = self.rows, self.rows + 1
        custom_id = None
        try:
            document = _object(text)
            custom_id = self._custom_id(document, line)
            return self._row(row, custom_id, document)
        except RequestError as error:
            return RowProblem(
                row=row,
                line=line,
                custom_id=f"{_STAND_IN}{line}" if custom_id is None else custom_id,
                code=error.code or "invalid_request",
                message=error.message,
                param=error.param,
            )

    def _custom_id(self, document: dict[str, Any], line: int) -> str:
        custom_id = document.get("custom_id")
        if not isinstance(custom_id, str) or not custom_id or not custom_id.isprintable() or custom_id.isspace():
            raise _invalid("custom_id", "must be a string of printable characters that names the row")
        size = len(custom_id) if custom_id.isascii() else len(custom_id.encode(errors="surrogatepass"))
        if size > CAP_BYTES[CUSTOM_ID]:
            raise _invalid("custom_id", f"is longer than {CAP_BYTES[CUSTOM_ID]} bytes: shorten it")
        if custom_id.startswith(_STAND_IN):
            raise _invalid("custom_id", f"begins with {_STAND_IN}, which stands for rows without one: choose another")
        first = self._line_of.setdefault(custom_id, line)
        if first != line:
            raise _invalid(
                "custom_id", f"{custom_id!r} was used on line {first}: each row needs its own", "duplicate_custom_id"
            )
        return custom_id

    def _row(self, row: int, custom_id: str, document: dict[str, Any]) -> BatchRow:
        if not document.keys() <= _FIELDS:
            raise _invalid(
                sorted(document.keys() - _FIELDS)[0][:64],
                "is no field of a batch row: a row has custom_id, method, url and body",
                "unknown_parameter",
            )
        if document.get("method") != "POST":
            raise _invalid("method", 'must be "POST"')
        self._check_url(document.get("url"))
        body = document.get("body")
        if not isinstance(body, dict):
            raise _invalid("body", "must be an object")
        if body.get("stream"):
            raise _invalid("body.stream", "must be false: the answers of a batch are not streamed")
        requested_tokens = _checked(body)
        assert self.endpoint is not None, "its url was checked"
        if (needs := _FIELD_OF[self.endpoint]) not in body:
            raise _invalid("body", f"must have {needs}, for the url is {self.endpoint}")
        value = _dumped(body)
        if len(value) > MAX_BODY_BYTES:
            raise _invalid("body", f"has {len(value)} bytes, the limit is {MAX_BODY_BYTES}", "request_too_large")
        self._count(len(value), requested_tokens)
        return BatchRow(row, custom_id, value, _shared_prefix(body))

    def _check_url(self, url: object) -> None:
        if url not in ENDPOINTS:
            raise _invalid("url", f"must be one of {', '.join(ENDPOINTS)}", "invalid_url")
        if self.endpoint is None:
            self.endpoint = str(url)
        if url != self.endpoint:
            raise _invalid("url", f"must be {self.endpoint}, like the first row's: one url a job", "mismatched_url")

    def _count(self, body_bytes: int, requested_tokens: int | None) -> None:
        self.body_bytes += body_bytes
        if requested_tokens is None:
            self.unlimited_rows += 1
        else:
            self.requested_tokens += requested_tokens


def _checked(body: dict[str, Any]) -> int | None:
    """Its output limit. Raises `RequestError` for its first problem."""
    if is_plain_chat(body):
        return body.get("max_tokens") or body.get("max_completion_tokens")
    try:
        request = parse_request(body)
    except RequestError as error:
        path = error.param and f"body.{error.param}"
        raise RequestError.invalid_request(path, error.message, error.code) from None
    return request.requested_tokens


def _dumped(document: Any) -> bytes:
    """JSON in a bytes object of its own size: orjson's keeps some kilobytes that it had set aside for more, and fifty
    thousand rows are held."""
    return bytes(memoryview(orjson.dumps(document)))


def _object(text: bytes) -> dict[str, Any]:
    if len(text) > MAX_LINE_BYTES:
        raise _invalid("line", f"is longer than {MAX_LINE_BYTES} bytes", "request_too_large")
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        problem = f"is not JSON: {error.msg} (column {error.colno})"
    else:
        if isinstance(document, dict):
            return document
        problem = "is not a JSON object"
    raise _invalid("line", problem, "invalid_json_line")


def _invalid(param: str, problem: str, code: str = "invalid_value") -> RequestError:
    return RequestError.invalid_request(param, f"{param} {problem}.", code)


def _shared_prefix(body: dict[str, Any]) -> bytes:
    messages = body.get("messages") or ()
    system = [message for message in messages if message.get("role") in ("system", "developer")]
    return _dumped(system) if system else b""
