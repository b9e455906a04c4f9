"""The real model held to a form: JSON by a schema, calls of tools, several choices; as whole replies and as streams."""

import asyncio
from typing import Any

import jsonschema
import pytest

from tests.integration.worker.conftest import RunWorker
from topics.client import HeadraceClient, RequestFailedError
from topics.codec import loads
from topics.headers import RequestHeaders
from workers.configuration.config import WorkerConfig

pytestmark = [pytest.mark.broker, pytest.mark.model]

CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "large": {"type": "boolean"},
        "people": {"type": "integer", "minimum": 0, "maximum": 99_999},
    },
    "required": ["city", "large", "people"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "maxLength": 12}, "unit": {"$ref": "#/$defs/unit"}},
            "required": ["place", "unit"],
            "additionalProperties": False,
            "$defs": {"unit": {"enum": ["C", "F"]}},
        },
    },
}
PROMPT = "Describe the city of Oslo."


async def test_answers_have_the_form_that_was_asked_for(worker_config: WorkerConfig, run_worker: RunWorker) -> None:
    kafka = worker_config.kafka
    async with (
        run_worker(worker_config),
        HeadraceClient(kafka.bootstrap_servers, topic_prefix=kafka.topic_prefix, timeout_s=200) as client,
        asyncio.TaskGroup() as checks,
    ):
        for check in (schema, schema_streamed, required_call, named_call, free, choices, prompts, refused):
            checks.create_task(check(client), name=check.__name__)


async def schema(client: HeadraceClient) -> None:
    answer = await client.complete(PROMPT, response_format=FORM, max_tokens=80, temperature=0)
    assert answer.finish_reason == "stop"
    jsonschema.validate(loads(answer.text.encode()), CITY)


async def schema_streamed(client: HeadraceClient) -> None:
    stream = await client.stream(PROMPT, response_format=FORM, max_tokens=80, n=2, seed=4)
    told = ["", ""]
    async for delta in stream:
        told[delta.index] += delta.text
    assert stream.answer is not None
    assert told == stream.answer.texts
    for text in told:
        jsonschema.validate(loads(text.encode()), CITY)
    assert told[0] != told[1], "each choice has its own randomness"


async def required_call(client: HeadraceClient) -> None:
    answer = await client.complete(PROMPT, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, seed=1)
    assert answer.finish_reason == "tool_calls"
    checked(answer.tool_calls)


async def named_call(client: HeadraceClient) -> None:
    other = {"type": "function", "function": {"name": "time"}}
    choice = {"type": "function", "function": {"name": "weather"}}
    stream = await client.stream(PROMPT, tools=[other, WEATHER], tool_choice=choice, temperature=0)
    assert "".join([delta.text async for delta in stream]) == ""
    assert stream.answer is not None
    checked(stream.answer.tool_calls)


def checked(calls: list[Any]) -> None:
    (call,) = calls
    assert call["function"]["name"] == "weather"
    jsonschema.validate(loads(call["function"]["arguments"].encode()), WEATHER["function"]["parameters"])  # type: ignore[index]  # a JSON document


async def free(client: HeadraceClient) -> None:
    """With `auto` any text is an answer; this model has never seen a tool, and says something."""
    answer = await client.complete("Say hello.", tools=[WEATHER], max_tokens=8, temperature=0)
    assert answer.text or answer.tool_calls


async def choices(client: HeadraceClient) -> None:
    alone = await client.complete("Tell a story.", max_tokens=12, seed=7)
    several = await client.complete("Tell a story.", max_tokens=12, seed=7, n=3)
    assert several.texts[0] == alone.text
    assert len(set(several.texts)) == 3
    assert several.usage["completion_tokens"] == 36
    assert several.usage["prompt_tokens"] == alone.usage["prompt_tokens"]


async def prompts(client: HeadraceClient) -> None:
    body = {"prompt": ["One, two,", "The sun is"], "max_tokens": 4, "temperature": 0, "n": 2}
    request_id = await client.send(body, priority="p1", headers=RequestHeaders(request_id="prompts"))
    answer = await client.result(request_id)
    assert [choice["index"] for choice in answer.body["choices"]] == [0, 1, 2, 3]
    assert answer.texts[0] == answer.texts[1]
    assert answer.usage["completion_tokens"] == 16


async def refused(client: HeadraceClient) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "array", "uniqueItems": True}}}
    with pytest.raises(RequestFailedError, match='"uniqueItems"'):
        await client.complete(PROMPT, response_format=form)
