"""What a caller is told when a request can't be served: one exception, in the OpenAI error object's terms.

Knows the object's fields and the usual refusals, each with a sentence that names the field and the remedy. Does not
know how it travels (`topics.headers`, the reply producers) nor who finds the problem.

The status codes follow OpenAI where OpenAI has the case, and gRPC's mapping to HTTP elsewhere: cancelled 499,
deadline passed 504. Overload is 503 and a quota 429.
"""

from collections.abc import Sequence
from typing import Any

__all__ = ["RequestError"]

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
RATE_LIMIT = "rate_limit_error"

_QUOTED_CHARACTERS = 64
"""A model's name is repeated to its caller up to this length; nothing else of a body's text ever is."""


class RequestError(Exception):
    """A request that ends without an answer. `body()` is the value of its `error` reply.

    `param` is the path of the offending field (`messages.0.role`) or the name of the header. `retry_after_s` and
    `queue_depth` (requests) are set on overload only, from the measured drain.
    """

    def __init__(
        self,
        message: str,
        *,
        status_code: int,
        type: str = INVALID_REQUEST,  # noqa: A002 - the wire's own name
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        queue_depth: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status_code = status_code
        self.type = type
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s
        self.queue_depth = queue_depth

    def body(self) -> dict[str, Any]:
        """The JSON object of the reply: `{"error": {…}}`, as `topics.reply_messages.ErrorBody` describes it."""
        error: dict[str, Any] = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
            "status_code": self.status_code,
        }
        if self.retry_after_s is not None:
            error["retry_after"] = self.retry_after_s
        if self.queue_depth is not None:
            error["queue_depth"] = self.queue_depth
        return {"error": error}

    @classmethod
    def invalid_request(cls, param: str | None, message: str, code: str | None = None) -> "RequestError":
        """400: a field or header that is wrong. `message` must name it and say what to do."""
        return cls(message, status_code=400, param=param, code=code)

    @classmethod
    def unsupported(cls, param: str, remedy: str) -> "RequestError":
        """400: a known feature that is not enforced here, and so not accepted either."""
        return cls(
            f"{param} is not supported yet: {remedy}.", status_code=400, param=param, code="unsupported_parameter"
        )

    @classmethod
    def body_too_large(cls, size_bytes: int, limit_bytes: int) -> "RequestError":
        """413: the record's value is over the worker's cap."""
        return cls(
            f"the request body has {size_bytes} bytes, the limit is {limit_bytes}: shorten the messages, or raise "
            "the worker's limit on body bytes.",
            status_code=413,
            param="body",
            code="request_too_large",
        )

    @classmethod
    def answer_too_large(cls) -> "RequestError":
        """413: it was computed, and its record is larger than the topic of replies takes."""
        return cls(
            "the answer is larger than a record of the reply topic may be: ask for fewer tokens (max_tokens), choices "
            "(n), log probabilities (top_logprobs) or numbers of an embedding (dimensions).",
            status_code=413,
            code="answer_too_large",
        )

    @classmethod
    def model_not_found(cls, model: str, served: Sequence[str]) -> "RequestError":
        """404: `served` are the names and aliases that the worker answers to."""
        shown = model if len(model) <= _QUOTED_CHARACTERS else model[:_QUOTED_CHARACTERS] + "…"
        return cls(
            f"The model `{shown}` is not served here: set model to one of {', '.join(served)}.",
            status_code=404,
            param="model",
            code="model_not_found",
        )

    @classmethod
    def context_length_exceeded(
        cls,
        *,
        context_tokens: int,
        prompt_tokens: int,
        output_tokens: int | None,
        param: str,
        at_least: bool = False,
    ) -> "RequestError":
        """400, in the words that OpenAI's clients look for. `output_tokens` is None where none were asked for.

        `at_least`: the prompt was not tokenised to the end, `prompt_tokens` is a lower bound.
        """
        bound = "at least " if at_least else ""
        if output_tokens is None:
            asked = f"your {param} resulted in {bound}{prompt_tokens} tokens"
            remedy = f"Please reduce the length of the {param}."
        else:
            asked = (
                f"you requested {bound}{prompt_tokens + output_tokens} tokens "
                f"({bound}{prompt_tokens} in the {param}, {output_tokens} in the completion)"
            )
            remedy = f"Please reduce the length of the {param} or completion."
        return cls(
            f"This model's maximum context length is {context_tokens} tokens. However, {asked}. {remedy}",
            status_code=400,
            param=param,
            code="context_length_exceeded",
        )

    @classmethod
    def reply_topic_not_allowed(cls, topic: str, param: str) -> "RequestError":
        """403: the caller's reply topic is not on the allow-list; the default replies topic carries this error."""
        return cls(
            f"{param} names the topic {topic!r}, which is not on the allow-list of reply topics: leave the header "
            "out to be answered on the default replies topic, or have the topic allowed.",
            status_code=403,
            param=param,
            code="reply_topic_not_allowed",
        )

    @classmethod
    def expired(cls, late_ms: int, param: str = "deadline-ms") -> "RequestError":
        """504: the hard deadline had passed before the request was admitted; it was not run."""
        return cls(
            f"the request was not run: its deadline passed {late_ms} ms before its turn. Send it with a later "
            f"{param} (deadline-ms counts milliseconds since 1970, sla-ms from the record's timestamp), or with a "
            "more urgent class.",
            status_code=504,
            type=SERVER_ERROR,
            param=param,
            code="expired",
        )

    @classmethod
    def ran_too_long(cls, limit_s: float) -> "RequestError":
        """504: it was admitted, and had not ended when the worker's limit on run time was reached."""
        return cls(
            f"the request had not ended {limit_s:g} s after it was admitted, which is this worker's limit: ask for "
            "fewer tokens (max_tokens), or have engine.max_run_s raised.",
            status_code=504,
            type=SERVER_ERROR,
            code="run_time_exceeded",
        )

    @classmethod
    def cancelled(cls, reason: str = "by its caller") -> "RequestError":
        """499: ended by its caller or an operator."""
        return cls(
            f"the request was cancelled {reason}: send it again if its answer is still wanted.",
            status_code=499,
            type=SERVER_ERROR,
            code="cancelled",
        )

    @classmethod
    def resource_exhausted(cls, message: str, *, retry_after_s: float, queue_depth: int) -> "RequestError":
        """503: overload. `retry_after_s` is computed from the measured drain of `queue_depth` requests."""
        return cls(
            f"{message} Send it again after {retry_after_s:g} s.",
            status_code=503,
            type=SERVER_ERROR,
            code="resource_exhausted",
            retry_after_s=retry_after_s,
            queue_depth=queue_depth,
        )

    @classmethod
    def quota_exceeded(cls, message: str, *, retry_after_s: float) -> "RequestError":
        """429: the tenant's own quota is used up."""
        return cls(
            f"{message} Send it again after {retry_after_s:g} s.",
            status_code=429,
            type=RATE_LIMIT,
            code="rate_limit_exceeded",
            retry_after_s=retry_after_s,
        )

    @classmethod
    def internal(cls, message: str) -> "RequestError":
        """500: a fault on this side that ended this one request. `message` carries no text of the request."""
        return cls(
            f"{message} The fault is the server's: send the request again.",
            status_code=500,
            type=SERVER_ERROR,
            code="internal_error",
        )

    @classmethod
    def record_gone(cls) -> "RequestError":
        """500: it waited, its bytes were no longer in memory, and its topic has them no more."""
        return cls(
            "the request's record was removed from its topic before its turn came (retention or compaction): send it "
            "again, and have the topic keep its records for longer than requests wait (retention.ms).",
            status_code=500,
            type=SERVER_ERROR,
            code="record_gone",
        )

    @classmethod
    def crashed(cls, crashes: int) -> "RequestError":
        """500: each of so many workers ended while it ran the request, which is among the dead letters now."""
        return cls(
            f"{crashes} workers ended while they ran this request: it was given up and is kept among the dead letters.",
            status_code=500,
            type=SERVER_ERROR,
            code="crashed",
        )
