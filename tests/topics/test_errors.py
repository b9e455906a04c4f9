"""Refusals as they stand in a reply."""

import pytest

from topics.errors import RequestError
from topics.reply_messages import ErrorBody

ALL = [
    RequestError.invalid_request("messages", "messages must be a list."),
    RequestError.unsupported("tools", "leave it out"),
    RequestError.body_too_large(10, 5),
    RequestError.answer_too_large(),
    RequestError.model_not_found("gpt-4", ["a", "b"]),
    RequestError.context_length_exceeded(context_tokens=10, prompt_tokens=12, output_tokens=None, param="messages"),
    RequestError.reply_topic_not_allowed("t", "kafka_replyTopic"),
    RequestError.expired(12),
    RequestError.cancelled(),
    RequestError.resource_exhausted("The queue is full.", retry_after_s=2.5, queue_depth=7),
    RequestError.quota_exceeded("The quota is used up.", retry_after_s=1.0),
    RequestError.internal("The model broke."),
]


@pytest.mark.parametrize("error", ALL, ids=lambda error: str(error.code))
def test_every_refusal_is_an_openai_error_object(error: RequestError) -> None:
    body = ErrorBody.model_validate(error.body())
    assert body.error.message == error.message == str(error)
    assert (body.error.status_code, body.error.code) == (error.status_code, error.code)


def test_overload_says_when_to_come_back() -> None:
    body = RequestError.resource_exhausted("The queue is full.", retry_after_s=2.5, queue_depth=7).body()["error"]
    assert (body["status_code"], body["retry_after"], body["queue_depth"]) == (503, 2.5, 7)
    assert "2.5 s" in body["message"]


def test_other_refusals_have_no_retry() -> None:
    assert not {"retry_after", "queue_depth"} & RequestError.cancelled().body()["error"].keys()


def test_a_long_model_name_is_cut_and_the_served_ones_are_named() -> None:
    message = RequestError.model_not_found("m" * 1_000, ["smollm2", "default"]).message
    assert len(message) < 200
    assert "smollm2, default" in message


def test_the_context_error_has_the_words_that_clients_look_for() -> None:
    error = RequestError.context_length_exceeded(
        context_tokens=100, prompt_tokens=90, output_tokens=20, param="messages"
    )
    assert error.message == (
        "This model's maximum context length is 100 tokens. However, you requested 110 tokens (90 in the messages, "
        "20 in the completion). Please reduce the length of the messages or completion."
    )
