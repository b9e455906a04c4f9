"""From a body that asks for embeddings to what is prepared of it, and from hidden states to the reply."""

import warnings
from base64 import b64decode
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from openai.types import CreateEmbeddingResponse
from transformers import PreTrainedTokenizerFast

from tests.workers.engine.engine_rig import token_bytes
from tests.workers.models.tiny_tokenizers import byte_level_tokenizer
from topics.codec import loads
from topics.embeddings import EmbeddingList, vectors_of
from topics.errors import RequestError
from topics.headers import RequestHeaders
from topics.record import InboundRecord, RecordId
from workers.answers.embedding_reply import embedding_item, unit_vector
from workers.answers.reply_body import AnsweredChoice, ReplyBody
from workers.intake.embedding import EmbeddingForm
from workers.intake.prompt import PreparedRequest, PromptBuilder, RequestKind
from workers.intake.request import FinishReason
from workers.runners.runner import Embedding, ModelLimits, NoEmbeddings

CONTEXT, SIZE = 200, 512


def builder(size: int | NoEmbeddings = SIZE) -> PromptBuilder:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level_tokenizer())
    limits = ModelLimits(CONTEXT, tokenizer.backend_tokenizer.get_vocab_size(), frozenset({263}), size)
    return PromptBuilder(tokenizer, limits, ["tiny"])


def build(prompts: PromptBuilder, **fields: Any) -> PreparedRequest:
    return prompts.build({"input": "hello"} | fields, request_id="r", created_s=5)


def refusal(prompts: PromptBuilder, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        build(prompts, **fields)
    return caught.value


def test_a_text_is_tokenised_and_has_no_output() -> None:
    prepared = build(builder())
    assert prepared.kind is RequestKind.EMBEDDING
    assert prepared.prompt_token_ids == build(builder(), input=[*prepared.prompt_token_ids]).prompt_token_ids
    assert (prepared.max_output_tokens, prepared.stream, prepared.eos_token_ids) == (0, False, frozenset())
    assert prepared.embedding == EmbeddingForm(SIZE, base64=False)


def test_each_input_is_a_sequence_of_the_request() -> None:
    record = InboundRecord(RecordId("t", 0, 0), 5_000, None, b'{"input": [[1, 2], [3]], "dimensions": 7}', ())
    prompts = builder()
    made = [prompts.prepare(record, RequestHeaders("r"), sequence) for sequence in range(2)]
    assert [(one.prompt_token_ids, one.sequence, one.sequences) for one in made] == [((1, 2), 0, 2), ((3,), 1, 2)]
    assert all(one.first_of_prompt and one.embedding == EmbeddingForm(7, base64=False) for one in made)


def test_a_text_may_fill_the_context_and_no_more() -> None:
    assert len(build(builder(), input=[1] * CONTEXT).prompt_token_ids) == CONTEXT
    error = refusal(builder(), input=[1] * (CONTEXT + 1))
    assert (error.code, error.param) == ("context_length_exceeded", "input")


def test_more_dimensions_than_the_model_has_are_refused() -> None:
    error = refusal(builder(), dimensions=513)
    assert (error.status_code, error.param) == (400, "dimensions")
    assert "512" in error.message


def test_a_model_without_embeddings_says_why() -> None:
    error = refusal(builder(NoEmbeddings("it pools by mean_tokens")))
    assert (error.status_code, error.param, error.code) == (400, "input", "unsupported_model")
    assert "it pools by mean_tokens" in error.message


def test_more_numbers_than_a_reply_holds_are_refused_before_they_are_computed() -> None:
    many = ["x"] * 2048
    error = refusal(builder(), input=many)
    assert (error.status_code, error.param) == (400, "input")
    assert 'encoding_format to "base64"' in error.message
    assert build(builder(), input=many, encoding_format="base64").sequences == 2048
    assert build(builder(), input=many, dimensions=256).sequences == 2048


def hidden_states(count: int, size: int = SIZE) -> list[Embedding]:
    draw = np.random.default_rng(7)
    return [draw.normal(size=size).astype(np.float32) for _ in range(count)]


def reply(form: EmbeddingForm, states: list[Embedding]) -> bytes:
    prepared = replace(build(builder()), embedding=form)
    items = [embedding_item(index, state, form) for index, state in enumerate(states)]
    answers = [AnsweredChoice("", FinishReason.STOP, index, embedding=item) for index, item in enumerate(items)]
    return ReplyBody("r1", prepared, token_bytes).final(answers, prompt_tokens=9, output_tokens=0)


@pytest.mark.parametrize("base64", [False, True])
@pytest.mark.parametrize("dimensions", [SIZE, 64])
def test_vectors_are_the_beginnings_scaled_to_length_1(dimensions: int, base64: bool) -> None:
    states = hidden_states(3)
    body = loads(reply(EmbeddingForm(dimensions, base64), states))
    EmbeddingList.model_validate(body)
    assert [each["index"] for each in body["data"]] == [0, 1, 2]
    assert body["usage"] == {"prompt_tokens": 9, "total_tokens": 9}
    for vector, state in zip(vectors_of(body), states, strict=True):
        assert len(vector) == dimensions
        want = state[:dimensions] / np.linalg.norm(state[:dimensions])
        np.testing.assert_allclose(vector, want, atol=1e-6)


def test_both_forms_say_the_same_numbers_to_the_bit() -> None:
    states = hidden_states(1)
    as_floats = loads(reply(EmbeddingForm(SIZE, base64=False), states))["data"][0]["embedding"]
    packed = b64decode(loads(reply(EmbeddingForm(SIZE, base64=True), states))["data"][0]["embedding"])
    assert np.array_equal(np.array(as_floats, dtype=np.float32), np.frombuffer(packed, "<f4"))


@pytest.mark.parametrize("base64", [False, True])
def test_a_reply_is_about_as_large_as_was_foreseen(base64: bool) -> None:
    form = EmbeddingForm(SIZE, base64)
    size = len(reply(form, hidden_states(20))) - len(reply(form, []))
    assert 0.85 * size < 20 * form.reply_bytes < 1.1 * size


def test_noughts_have_no_length_to_be_scaled_by() -> None:
    assert unit_vector(np.zeros(4, dtype=np.float32), 3).tolist() == [0.0, 0.0, 0.0]


def test_openais_package_reads_the_reply() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        body = loads(reply(EmbeddingForm(8, base64=False), hidden_states(2)))
        read = CreateEmbeddingResponse.model_validate(body, strict=True)
    assert read.model_extra in (None, {})
    assert not any(part.model_extra for part in (*read.data, read.usage))
    assert [len(part.embedding) for part in read.data] == [8, 8]
    assert (read.model, read.object) == ("tiny", "list")
