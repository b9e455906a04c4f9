"""A trace's request as a record: its lengths, its shared prefixes, its class and tenant."""

from dataclasses import replace

import orjson

from scheduling.priority import PriorityClass
from topics.catalogue import Catalogue
from topics.messages import CompletionRequest
from topics.validation import parse_request
from workers.runs.load_traffic import load_record, played
from workers.runs.trace_mix import ArrivingRequest

REQUEST = ArrivingRequest(3, 10.0, 100, 20, PriorityClass.P2, "acme", "flow", prefix_hashes=(7, 8), prefix_tokens=32)


def prompt(request: ArrivingRequest, play: str = "a") -> list[int]:
    ids: list[int] = orjson.loads(load_record(request, "r", Catalogue(), play).value or b"")["prompt"]
    return ids


def test_prompt_and_answer_have_the_traces_lengths() -> None:
    record = load_record(REQUEST, "r", Catalogue(), "a")
    body = parse_request(orjson.loads(record.value or b""))
    assert isinstance(body, CompletionRequest)
    assert len(body.prompt) == 100
    assert (body.max_tokens, body.ignore_eos, body.stream) == (20, True, True)


def test_class_tenant_and_flow_are_topic_and_headers() -> None:
    record = load_record(REQUEST, "r", Catalogue(prefix="llama"), "a")
    assert record.topic == "llama.p2"
    assert dict(record.headers) == {"request-id": b"r", "tenant": b"acme", "flow": b"flow"}


def test_equal_hashes_are_equal_tokens_and_the_rest_is_the_requests_own() -> None:
    other = replace(REQUEST, number=4, prefix_hashes=(7, 9))
    assert prompt(REQUEST)[:32] == prompt(other)[:32]
    assert prompt(REQUEST)[32:64] != prompt(other)[32:64]
    assert prompt(REQUEST)[64:] != prompt(other)[64:]


def test_another_play_shares_no_prefix_with_the_first() -> None:
    assert prompt(REQUEST) == prompt(REQUEST)
    assert prompt(REQUEST)[0] != prompt(REQUEST, "b")[0]


def test_hashes_beyond_the_prompt_are_cut() -> None:
    assert len(prompt(replace(REQUEST, prompt_tokens=40))) == 40


def test_speed_divides_arrivals_and_the_scale_lengths() -> None:
    (request,) = played([REQUEST], speed=4, length_scale=0.25)
    assert (request.arrival_s, request.prompt_tokens, request.output_tokens, request.prefix_tokens) == (2.5, 25, 5, 8)
    (tiny,) = played([REQUEST], speed=1, length_scale=1e-6)
    assert (tiny.prompt_tokens, tiny.output_tokens) == (1, 1)
