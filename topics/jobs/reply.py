"""What a reply means for its row, and the line of the result files that it becomes.

Knows OpenAI's batch output format. Does not know which reply decides a row (`topics.jobs.tally`).

A request that was answered, refusals included, stands in `response` with its status code; `error` is for rows that
were never answered: `batch_expired`, `batch_cancelled`, and `batch_failed` for a reply that says neither.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

import orjson

from topics.headers import EVENT, REQUEST_ID, ReplyEvent
from topics.jobs.row_ids import RowId

__all__ = ["Fate", "RowReply", "RowUsage", "unanswered_line"]


class Fate(IntEnum):
    """What has become of a row. The value is a byte in `JobTally`."""

    PENDING = 0
    """Nothing yet."""
    COMPLETED = 1
    """Answered, status 200."""
    FAILED = 2
    """Answered with an error: refused, or a fault on the server's side."""
    EXPIRED = 3
    """Not run before its window closed."""
    CANCELLED = 4
    """Not run, because somebody cancelled it."""


_ERRORS = {
    Fate.EXPIRED: ("batch_expired", "This request could not be executed before the completion window expired."),
    Fate.CANCELLED: ("batch_cancelled", "This request was not executed because the batch was cancelled."),
    Fate.FAILED: ("batch_failed", "The reply to this request can't be read."),
}
_FINAL, _ERROR = ReplyEvent.FINAL.value.encode(), ReplyEvent.ERROR.value.encode()
_FATE_OF_CODE = {"expired": Fate.EXPIRED, "cancelled": Fate.CANCELLED}


class RowUsage(NamedTuple):
    """Tokens of one answer."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


_NOTHING_USED = RowUsage(0, 0, 0)


class RowReply(NamedTuple):
    """A terminal reply to a row."""

    id: RowId
    fate: Fate
    status_code: int | None
    """None: the row was not answered."""
    body: Any
    usage: RowUsage
    model: str | None

    @property
    def is_answer(self) -> bool:
        """Be it an error; not that the row was never run."""
        return self.fate is Fate.COMPLETED or self.fate is Fate.FAILED

    @classmethod
    def of(cls, headers: Mapping[str, bytes | None], value: bytes | None) -> "RowReply | None":
        """None: no terminal reply, or none to a row of a job."""
        event = headers.get(EVENT)
        if event != _FINAL and event != _ERROR:
            return None
        row_id = RowId.parse((headers.get(REQUEST_ID) or b"").decode(errors="replace"))
        if row_id is None:
            return None
        try:
            body = orjson.loads(value or b"")
            if event == _FINAL:
                return cls(row_id, Fate.COMPLETED, 200, body, _usage(body), body["model"])
            error = body["error"]
            fate = _FATE_OF_CODE.get(error["code"], Fate.FAILED)
            status = int(error["status_code"]) if fate is Fate.FAILED else None
            return cls(row_id, fate, status, body if status else None, _NOTHING_USED, None)
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
            # Another version's worker, or anyone who may write there. The row has had its answer all the same.
            return cls(row_id, Fate.FAILED, None, None, _NOTHING_USED, None)

    def line(self, custom_id: str) -> dict[str, Any]:
        """Of the output file if the row completed, else of the error file."""
        if self.status_code is None:
            return unanswered_line(self.id, custom_id, self.fate)
        response = {"status_code": self.status_code, "request_id": str(self.id), "body": self.body}
        return {"id": f"batch_req_{self.id}", "custom_id": custom_id, "response": response, "error": None}


def unanswered_line(row_id: RowId, custom_id: str, fate: Fate) -> dict[str, Any]:
    code, message = _ERRORS[fate]
    return {
        "id": f"batch_req_{row_id}",
        "custom_id": custom_id,
        "response": None,
        "error": {"code": code, "message": message},
    }


def _usage(body: dict[str, Any]) -> RowUsage:
    usage = body["usage"]
    details = usage.get("prompt_tokens_details") or {}
    return RowUsage(usage["prompt_tokens"], usage.get("completion_tokens", 0), details.get("cached_tokens", 0))
