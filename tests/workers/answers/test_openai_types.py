"""OpenAI's own Python package reads our replies into its types: nothing is missing, nothing unknown, no warning."""

import warnings
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from tests.workers.engine.engine_rig import token_bytes
from workers.answers.answer_logprobs import ShownToken
from workers.answers.reply_body import AnsweredChoice, MadeCall, ReplyBody
from workers.intake.prompt import PreparedRequest, RequestKind
from workers.intake.request import FinishReason
from workers.intake.sampling import SamplingParams, TokenLogprobs

LOGPROBS = [ShownToken(0, TokenLogprobs(7, -0.5, ((7, -0.5), (8, -1.0)))), ShownToken(3, TokenLogprobs(9, -0.1, ()))]


def body(kind: RequestKind) -> ReplyBody:
    prepared = PreparedRequest(
        kind=kind,
        model="smollm2",
        created_s=1_700_000_000,
        prompt_token_ids=(1, 2),
        sampling=SamplingParams(temperature=0.0),
        max_output_tokens=4,
        eos_token_ids=frozenset(),
        stop=(),
        stream=True,
        include_usage=True,
    )
    return ReplyBody("r1", prepared, token_bytes)


CALL = MadeCall("call_1", 0, "weather", '{"place": "Oslo"}')


def values(kind: RequestKind) -> Iterator[tuple[bool, bytes]]:
    """Every form of reply there is, and whether it is a chunk."""
    writer = body(kind)
    yield True, writer.chunk("Hel", first=True)
    yield True, writer.chunk("lo", first=False, logprobs=LOGPROBS)
    yield True, writer.chunk("", first=False, finish_reason=FinishReason.STOP)
    yield True, writer.usage_chunk(prompt_tokens=2, output_tokens=3, cached_tokens=1)
    for reason in (FinishReason.STOP, FinishReason.LENGTH):
        answers = [AnsweredChoice("Hello", reason), AnsweredChoice("Hi", reason, 1, logprobs=LOGPROBS)]
        yield False, writer.final(answers, prompt_tokens=2, output_tokens=3, cached_tokens=1)
    if kind is RequestKind.CHAT:
        yield True, writer.chunk("", first=True, index=1, calls=(CALL,))
        answer = AnsweredChoice("", FinishReason.TOOL_CALLS, calls=(CALL,))
        yield False, writer.final([answer], prompt_tokens=2, output_tokens=3)


def unknown_fields(part: Any) -> list[str]:
    """Of the whole tree of models."""
    if isinstance(part, list):
        return [name for each in part for name in unknown_fields(each)]
    if not isinstance(part, BaseModel):
        return []
    own = list(part.model_extra or ())
    return own + [name for field in type(part).model_fields for name in unknown_fields(getattr(part, field))]


def read(kind: RequestKind, is_chunk: bool, document: Any) -> BaseModel:
    if kind is RequestKind.CHAT:
        return (ChatCompletionChunk if is_chunk else ChatCompletion).model_validate(document, strict=True)
    if is_chunk:
        # The package's type has no null for the finish reason, which OpenAI's service sends all the same until the end:
        # read as the package's own client reads it.
        return Completion.construct(None, **document)
    return Completion.model_validate(document, strict=True)


@pytest.mark.parametrize("kind", [RequestKind.CHAT, RequestKind.COMPLETION])
def test_openais_package_reads_every_reply(kind: RequestKind) -> None:
    for is_chunk, value in values(kind):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert unknown_fields(read(kind, is_chunk, orjson.loads(value))) == []
