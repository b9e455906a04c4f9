"""Whatever a record holds, it is answered or goes to the dead letters: nothing else is raised, and nothing is kept.

Twenty thousand records here, a million with `make fuzz` (`HOSTILE_RECORDS`, `HOSTILE_SEED`), through the real ingress
and, where that lets them in, the real staging; each answer is encoded as it would leave. Then by structure, with
hypothesis.
"""

import os
import time
from collections import Counter
from copy import deepcopy
from typing import Any

import orjson
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from scheduling.priority import PriorityClass
from tests.workers.intake.hostile_records import ABSURD, hostile_records
from tests.workers.models.tiny_tokenizers import byte_level_tokenizer
from topics.dead_letters import DeadLetter
from topics.errors import RequestError
from topics.headers import CAP_BYTES, ReplyEvent
from topics.record import InboundRecord, RecordId
from topics.replies import OutboundRecord, ReplyContext
from workers.answers.reply_body import error_body
from workers.computing import prepare
from workers.configuration.config import IngressConfig
from workers.intake.ingress import Ingress, Refusal
from workers.intake.prompt import PromptBuilder
from workers.intake.request import Arrival
from workers.runners.runner import ModelLimits

RECORDS = int(os.environ.get("HOSTILE_RECORDS", "20000"))
SEED = int(os.environ.get("HOSTILE_SEED", "0"))
TEMPLATE = "{% for message in messages %}{{ message.role + ':' + message.content }}{% endfor %}"
GROWTH_BYTES = 32 * 2**20
"""What the process may grow by over all records but the first tenth, which fill what is allocated once."""


class Gauntlet:
    """The way of a record up to where it would run; what comes of it, by name."""

    def __init__(self) -> None:
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level_tokenizer(), chat_template=TEMPLATE)
        self._prompts = PromptBuilder(tokenizer, ModelLimits(8_192, 265, frozenset({263})), ["tiny"])
        self._arrivals: list[Arrival] = []
        self._refusals: list[Refusal] = []
        self._ingress = Ingress(
            IngressConfig(max_record_bytes=100_000, allowed_reply_topics=("team.*",)),
            default_reply_topic="inference.replies",
            trust_tenant_header=True,
            ttft_slo_s={},
            accept=lambda arrival, _record: self._arrivals.append(arrival),
            refuse=self._refusals.append,
        )

    def run(self, record: InboundRecord) -> str:
        self._arrivals.clear()
        self._refusals.clear()
        self._ingress.take(PriorityClass.P1, 1, record)
        assert len(self._arrivals) + len(self._refusals) == 1, f"{record} came out twice, or not at all"
        if self._refusals:
            (refusal,) = self._refusals
            if not refusal.answerable:
                letter = DeadLetter.of(record, group="g", delivery_count=1, message=refusal.error.message)
                encoded = letter.encode("inference.dlq")
                assert (encoded.value or b"") == (record.value or b"")  # a tombstone without a key gets an empty value
                return "dead letter"
            check_answer(answer(refusal.address.request_id, refusal.address.topic, refusal.error), refusal.error)
            return f"refused {refusal.error.status_code}"
        (arrival,) = self._arrivals
        try:
            prepared = prepare(self._prompts, arrival, record)
        except RequestError as error:
            check_answer(answer(arrival.headers.request_id, arrival.headers.reply_topic, error), error)
            return f"staging refused {error.status_code}"
        assert 0 < len(prepared.prompt_token_ids) < 8_192
        assert prepared.max_output_tokens > 0
        return "let in"


def answer(request_id: str, topic: str | None, error: RequestError) -> OutboundRecord:
    context = ReplyContext(
        request_id=request_id,
        attempt=1,
        delta_topic="inference.deltas",
        reply_topic=topic or "inference.replies",
        reply_partition=None,
        correlation_id=None,
        job_id=None,
        custom_id=None,
        traceparent=None,
        tracestate=None,
    )
    return context.error(error_body(error))


def check_answer(reply: OutboundRecord, error: RequestError) -> None:
    assert dict(reply.headers)["event"] == ReplyEvent.ERROR.value.encode()
    assert reply.topic == "inference.replies" or reply.topic.startswith("team.")
    told = orjson.loads(reply.value or b"")["error"]
    assert told["message"]
    assert 400 <= error.status_code < 600
    assert error.status_code != 500, f"a hostile request is the caller's fault: {told}"
    assert len(reply.value or b"") < 4_000, "an answer must not grow with what was asked"


@pytest.fixture(scope="module")
def gauntlet() -> Gauntlet:
    return Gauntlet()


@pytest.mark.timeout(3_600)
def test_each_of_many_hostile_records_is_answered_or_dead_lettered(gauntlet: Gauntlet) -> None:
    process = psutil.Process()
    outcomes: Counter[str] = Counter()
    before_bytes, started_s = 0, time.monotonic()
    for number, record in enumerate(hostile_records(SEED, RECORDS)):
        if number == RECORDS // 10:
            before_bytes = process.memory_info().rss
        try:
            outcomes[gauntlet.run(record)] += 1
        except Exception as error:
            raise AssertionError(f"record {number} of seed {SEED}: {record!r}") from error
    grown_bytes = process.memory_info().rss - before_bytes
    took_s = time.monotonic() - started_s
    print(f"\n{RECORDS} hostile records in {took_s:.0f} s, RSS {grown_bytes / 2**20:+.1f} MiB: {dict(outcomes)}")
    assert outcomes.total() == RECORDS
    assert grown_bytes < GROWTH_BYTES
    for kind in ("let in", "dead letter", "refused 400", "staging refused 400"):
        assert outcomes[kind] > RECORDS // 100, f"too few for a test: {kind}"


VALUES = (
    st.sampled_from(ABSURD).map(deepcopy)
    | st.text(max_size=20)
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
)
JSON = st.recursive(VALUES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner))
FIELDS = st.sampled_from(["model", "messages", "prompt", "max_tokens", "stop", "stream", "priority", "logit_bias", "n"])


@given(
    body=st.dictionaries(FIELDS, JSON, max_size=5),
    headers=st.lists(st.tuples(st.sampled_from([*CAP_BYTES]), st.binary(max_size=20)), max_size=4),
)
def test_any_structure_is_answered_or_dead_lettered(
    gauntlet: Gauntlet, body: dict[str, Any], headers: list[tuple[str, bytes]]
) -> None:
    value = orjson.dumps({"messages": [{"role": "user", "content": "hi"}]} | body)
    gauntlet.run(InboundRecord(RecordId("inference.p1", 0, 0), 1_790_000_000_000, None, value, tuple(headers)))
