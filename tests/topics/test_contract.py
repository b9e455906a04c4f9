"""The published contract: current, whole, and true of the records that are really written."""

from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from tests.topics.contract import Contract
from tests.topics.jobs.job_rig import order
from topics.asyncapi import MESSAGES, messages_of
from topics.catalogue import Catalogue
from topics.dead_letters import DeadLetter
from topics.errors import RequestError
from topics.header_contract import DEAD_LETTER_HEADERS, REQUEST_HEADERS, delta_headers, mark_headers, terminal_headers
from topics.headers import CAP_BYTES, ReplyEvent, RequestHeaders
from topics.jobs.records import CollectorBeat, JobCancel, JobMemo, JobRun, JobUsage
from topics.record import InboundRecord, RecordId
from topics.replies import OutboundRecord, ReplyContext
from topics.schemas import RECORD_VALUES, record_schema
from topics.validation import parse_request
from workers.commands.schema import contract_files

DOCS = Path(__file__).resolve().parents[2] / "docs"
FILES = contract_files(Catalogue())
DOCUMENT: dict[str, Any] = yaml.safe_load(FILES["asyncapi.yaml"])
CONTRACT = Contract(DOCUMENT)

REPLIES = ReplyContext(
    "r-1", 1, "inference.deltas", "inference.replies", correlation_id=b"c", job_id="job", custom_id="row-1"
)


# --- the files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_what_is_written_in_docs_is_what_the_code_says(name: str) -> None:
    remedy = "run `headrace schema --write docs`"
    assert (DOCS / name).read_bytes() == FILES[name], remedy


def test_docs_have_no_schema_of_a_record_that_is_gone() -> None:
    assert {f"schemas/{path.name}" for path in (DOCS / "schemas").iterdir()} == FILES.keys() - {"asyncapi.yaml"}


@pytest.mark.parametrize("name", RECORD_VALUES)
def test_each_schema_is_one(name: str) -> None:
    Draft202012Validator.check_schema(record_schema(RECORD_VALUES[name]))


# --- the document -----------------------------------------------------------------------------------------------------


def test_every_topic_is_described_and_every_message_stands_somewhere() -> None:
    catalogue = Catalogue()
    topics = messages_of(catalogue)
    assert topics.keys() == {spec.name for spec in catalogue.specs()}
    assert {name for names in topics.values() for name in names} == MESSAGES.keys()
    assert {channel["address"] for channel in DOCUMENT["channels"].values()} == topics.keys()


def test_every_reference_leads_somewhere() -> None:
    def references(node: Any) -> list[str]:
        if isinstance(node, dict):
            own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
            return own + [found for value in node.values() for found in references(value)]
        return [found for value in node for found in references(value)] if isinstance(node, list) else []

    found = references(DOCUMENT)
    assert found
    for reference in found:
        node: Any = DOCUMENT
        for part in reference.removeprefix("#/").split("/"):
            assert part in node, reference
            node = node[part]


def test_another_prefix_gives_other_names() -> None:
    other = yaml.safe_load(contract_files(Catalogue(prefix="llama"))["asyncapi.yaml"])
    assert other["channels"]["p0"]["address"] == "llama.p0"


# --- headers ----------------------------------------------------------------------------------------------------------


def test_the_table_names_the_headers_that_are_read() -> None:
    assert {row.name for row in REQUEST_HEADERS} == CAP_BYTES.keys()


@pytest.mark.parametrize("event", ReplyEvent)
def test_the_table_names_the_headers_that_are_written(event: ReplyEvent) -> None:
    record, rows = {
        ReplyEvent.DELTA: (REPLIES.delta(b"{}", seq=0, token_ids=[1]), delta_headers()),
        ReplyEvent.ATTEMPT: (REPLIES.attempt_begins(), mark_headers()),
        ReplyEvent.RESET: (REPLIES.begins_again(), mark_headers()),
        ReplyEvent.FINAL: (REPLIES.final(b"{}"), terminal_headers(ReplyEvent.FINAL)),
        ReplyEvent.ERROR: (REPLIES.error(b"{}"), terminal_headers(ReplyEvent.ERROR)),
    }[event]
    written = {name for name, _ in record.headers}
    assert {row.name for row in rows if row.always} <= written <= {row.name for row in rows}


def test_the_table_names_the_headers_of_dead_letters() -> None:
    assert {row.name for row in DEAD_LETTER_HEADERS} == {name for name, _ in _dead_letter().headers}


# --- records ----------------------------------------------------------------------------------------------------------


def kinds(record: OutboundRecord) -> list[str]:
    return CONTRACT.kinds(record.topic, record.headers, record.value)


BODIES: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "hi"}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}], "name": None}], "stop": "x"},
    {"messages": [{"role": "user", "content": "hi"}], "priority": "p2", "n": 1, "stream": True, "tools": []},
    {"prompt": [1, 2, 3], "logit_bias": {"17": -100}, "echo": False, "temperature": 0},
    {"input": ["a", "b"], "encoding_format": "base64", "dimensions": 8, "priority": 3, "stream": False},
]


@pytest.mark.parametrize("body", BODIES)
def test_a_request_that_a_worker_takes_is_one_by_the_contract(body: dict[str, Any]) -> None:
    parse_request(body)
    headers = RequestHeaders(
        "r-1", tenant="acme", flow="f", tier="p2", sla_ms=5, reply_topic="t", reply_partition=7, correlation_id=b"\xff"
    )
    assert CONTRACT.kinds("inference.p1", headers.encode(), orjson.dumps(body)) == ["request"]


@pytest.mark.parametrize(
    "change",
    [
        {"n": 0},
        {"temperature": 3},
        {"unknown": 1},
        {"messages": []},
        {"prompt": "both"},
        {"stop": ["a"] * 5},
        {"stop": ""},
        {"priority": 4},
    ],
)
def test_a_body_that_a_worker_refuses_is_none_by_the_contract(change: dict[str, Any]) -> None:
    body = BODIES[0] | change
    with pytest.raises(RequestError):
        parse_request(body)
    assert CONTRACT.kinds("inference.p1", (), orjson.dumps(body)) == []


def test_an_error_reply_is_one() -> None:
    for error in (
        RequestError.invalid_request("messages", "no."),
        RequestError.resource_exhausted("full.", retry_after_s=1.5, queue_depth=3),
        RequestError.expired(7),
    ):
        assert kinds(REPLIES.error(orjson.dumps(error.body()))) == ["error"]


def test_a_reply_without_its_event_is_none() -> None:
    record = REPLIES.error(orjson.dumps(RequestError.expired(7).body()))
    headers = [header for header in record.headers if header[0] != "event"]
    assert CONTRACT.kinds(record.topic, headers, record.value) == []


def _dead_letter() -> OutboundRecord:
    record = InboundRecord(
        id=RecordId("inference.p1", 3, 7),
        timestamp_ms=1,
        key=None,
        value=b"\xff",
        headers=(),
    )
    return DeadLetter.of(record, group="g", delivery_count=1, message="why").encode("inference.dlq")


def test_a_dead_letter_is_one() -> None:
    assert kinds(_dead_letter()) == ["dead-letter"]


def test_each_record_of_a_job_is_one_and_only_itself() -> None:
    usage = JobUsage(prompt_tokens=1)
    counts: dict[str, Any] = dict.fromkeys(("completed", "failed", "expired", "cancelled"), 0)
    times: dict[str, Any] = {"written_at_ms": 1, "next_offset": 2, "last_reply_ms": None}
    run: dict[str, Any] = {"created_at_ms": 1, "expires_at_ms": 2, "rows": None, "submitter": "s"}
    records = {
        "job-order": order(),
        "job-run": JobRun(job_id="nightly", run=1, kind="submit", request_offsets={0: 5}, **run),
        "job-cancel": JobCancel(job_id="nightly", ordered_at_ms=1, run=1, asked_at_ms=2),
        "job-memo": JobMemo(job_id="nightly", run=1, usage=usage, model=None, **times, **counts),
        "collector-beat": CollectorBeat(collector="c", partitions=(0, 1), beat_at_ms=1),
    }
    for name, record in records.items():
        assert CONTRACT.kinds("inference.jobs", (), record.model_dump_json().encode()) == [name]


@pytest.mark.parametrize("name", RECORD_VALUES)
def test_an_unknown_field_is_refused_by_model_and_schema_alike(name: str) -> None:
    with pytest.raises(ValidationError, match="unknown"):
        RECORD_VALUES[name].model_validate({"unknown": 1})
    errors = Draft202012Validator(record_schema(RECORD_VALUES[name])).iter_errors({"unknown": 1})
    assert any("unknown" in error.message for error in errors)
