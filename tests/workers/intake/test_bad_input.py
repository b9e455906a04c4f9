"""The table of bad input through ingress and prompt, without a broker."""

import re
from dataclasses import dataclass, field

import pytest
from transformers import PreTrainedTokenizerFast

from scheduling.priority import PriorityClass
from tests.integration.bad_input_cases import CASES, MODEL, BadInput
from tests.workers.models.tiny_tokenizers import byte_level_tokenizer
from topics.errors import RequestError
from topics.record import InboundRecord, RecordId
from workers.configuration.config import IngressConfig
from workers.intake.ingress import Ingress, Refusal
from workers.intake.prompt import PromptBuilder
from workers.intake.request import Arrival
from workers.runners.runner import ModelLimits

TEMPLATE = "{% for message in messages %}{{ message.role + ':' + message.content }}{% endfor %}"


@dataclass
class Taken:
    arrivals: list[Arrival] = field(default_factory=list)
    records: list[InboundRecord] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)

    def accept(self, arrival: Arrival, record: InboundRecord) -> None:
        self.arrivals.append(arrival)
        self.records.append(record)


def take(case: BadInput) -> Taken:
    taken = Taken()
    ingress = Ingress(
        IngressConfig(),
        default_reply_topic="inference.replies",
        trust_tenant_header=True,
        ttft_slo_s={},
        accept=taken.accept,
        refuse=taken.refusals.append,
    )
    record = InboundRecord(RecordId("inference.p1", 0, 5), 1_790_000_000_000, case.key, case.value, case.headers)
    ingress.take(PriorityClass.P1, 0, record)
    return taken


@pytest.fixture(scope="module")
def prompts() -> PromptBuilder:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level_tokenizer(), chat_template=TEMPLATE)
    return PromptBuilder(tokenizer, ModelLimits(8_192, 265, frozenset({263})), [MODEL])


ANSWERED = [case for case in CASES if case.expected is not None]
DEAD = [case for case in CASES if case.expected is None]


def error_of(taken: Taken, prompts: PromptBuilder) -> RequestError:
    if taken.refusals:
        assert not taken.arrivals
        return taken.refusals[0].error
    (arrival,) = taken.arrivals
    with pytest.raises(RequestError) as caught:
        prompts.prepare(taken.records[0], arrival.headers)
    return caught.value


@pytest.mark.parametrize("case", ANSWERED, ids=lambda case: str(case.name))
def test_bad_input_is_refused_by_field_with_a_remedy(case: BadInput, prompts: PromptBuilder) -> None:
    error, expected = error_of(take(case), prompts), case.expected
    assert expected is not None
    assert (error.status_code, error.param, error.code) == (expected.status_code, expected.param, expected.code)
    assert re.search(expected.message, error.message)


@pytest.mark.parametrize("case", ANSWERED, ids=lambda case: str(case.name))
def test_the_refusal_finds_its_caller_on_an_allowed_topic(case: BadInput) -> None:
    taken = take(case)
    if taken.refusals:
        assert taken.refusals[0].answerable
    address = taken.refusals[0].address if taken.refusals else taken.arrivals[0].headers.reply_address
    assert (address.request_id, address.topic) == (case.request_id, None)


@pytest.mark.parametrize("case", DEAD, ids=lambda case: str(case.name))
def test_what_nobody_can_be_answered_for_is_dead(case: BadInput) -> None:
    (refusal,) = take(case).refusals
    assert not refusal.answerable
    assert refusal.record.value == case.value


def test_names_and_request_ids_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert len({case.request_id for case in ANSWERED}) == len(ANSWERED)
