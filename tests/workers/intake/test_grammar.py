"""Answers held to grammars: what may come next, and where an answer stands in its grammar."""

import random
from typing import Any

import jsonschema
import pytest
import torch

from tests.workers.models.tiny_tokenizers import byte_fallback_tokenizer, byte_level_tokenizer
from topics.codec import loads
from workers.intake.grammar import Grammar, GrammarCompiler, GrammarError
from workers.intake.sampling import SamplingParams
from workers.runners.runner import ModelLimits
from workers.runners.sampler import Sampler

EOS = 263
VOCABULARY = 270
"""Six more than the tokenizer has, as models pad theirs."""
TOKENIZER = byte_level_tokenizer()
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "age": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(TOKENIZER, ModelLimits(100, VOCABULARY, frozenset({EOS})))


def answer(grammar: Grammar, seed: int, limit: int = 200) -> list[int]:
    """Of a model that thinks every token equally likely."""
    sampler, output = Sampler(), [7, 7, 7]
    params = [SamplingParams(seed=seed, grammar=grammar)]
    for position in range(limit):
        drawn = sampler.sample(torch.zeros(1, VOCABULARY), params, [position], [output])
        assert not drawn.grammar_broken
        output.append(drawn.token_ids[0])
        if output[-1] == EOS:
            break
    return output[3:]


def text(token_ids: list[int]) -> str:
    return str(TOKENIZER.decode(token_ids))


@pytest.mark.parametrize("seed", range(12))
def test_whatever_the_model_says_the_answer_fits_its_schema(compiler: GrammarCompiler, seed: int) -> None:
    token_ids = answer(compiler.json(PERSON), seed)
    assert token_ids[-1] == EOS
    jsonschema.validate(loads(text(token_ids[:-1]).encode()), PERSON)


def test_an_answer_ends_only_when_it_is_whole(compiler: GrammarCompiler) -> None:
    grammar = compiler.json(PERSON)
    likes_to_end = torch.zeros(1, VOCABULARY)
    likes_to_end[0, EOS] = 50.0
    sampler = Sampler()
    output: list[int] = []
    while not output or output[-1] != EOS:
        params = [SamplingParams(seed=3, grammar=grammar)]
        output += sampler.sample(likes_to_end.clone(), params, [len(output)], [output]).token_ids
    jsonschema.validate(loads(text(output[:-1]).encode()), PERSON)


def test_where_an_answer_stands_is_a_function_of_its_tokens(compiler: GrammarCompiler) -> None:
    """A next attempt, and a preempted request's, goes on as if nothing had been."""
    whole = answer(compiler.json(PERSON), seed=5)
    for cut in (1, len(whole) // 2, len(whole) - 1):
        grammar, output, sampler = compiler.json(PERSON), [7, 7, 7, *whole[:cut]], Sampler()
        for position in range(cut, len(whole)):
            params = [SamplingParams(seed=5, grammar=grammar)]
            output += sampler.sample(torch.zeros(1, VOCABULARY), params, [position], [output]).token_ids
        assert output[3:] == whole


def test_a_step_that_is_taken_back_is_forgotten(compiler: GrammarCompiler) -> None:
    whole = answer(compiler.json(PERSON), seed=5)[:-1]
    grammar = compiler.json(PERSON)
    assert grammar.follow(whole, len(whole))
    assert grammar.follow(whole[:4], 4)
    assert not grammar.complete
    assert grammar.follow(whole, len(whole))
    assert grammar.complete


def test_tokens_that_no_answer_begins_with_break_it(compiler: GrammarCompiler) -> None:
    tokens = TOKENIZER.encode("no json").ids
    drawn = Sampler().sample(
        torch.zeros(2, VOCABULARY),
        [SamplingParams(), SamplingParams(grammar=compiler.json(PERSON))],
        [0, len(tokens)],
        [[], tokens],
    )
    assert (drawn.token_ids, drawn.grammar_broken) == ((), (1,))


def test_rows_without_a_grammar_are_left_alone(compiler: GrammarCompiler) -> None:
    logits = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(1))
    before = logits.clone()
    params = [SamplingParams(temperature=0.0), SamplingParams(grammar=compiler.json(PERSON)), SamplingParams()]
    Sampler().sample(logits, params, [0, 0, 0], [[], [], []])
    assert torch.equal(logits[[0, 2]], before[[0, 2]])
    assert logits[1].isinf().any()


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"not": {"type": "string"}}, "not"),
        ({"if": {"type": "string"}, "then": {"minLength": 1}}, "if"),
        ({"type": "string", "format": "rfc9999"}, "rfc9999"),
        ({"type": "string", "pattern": "(a"}, "regex"),
        ({"$ref": "http://x.y/z"}, "http://x.y/z"),
        ({"enum": []}, "anyOf is empty"),
    ],
)
def test_a_schema_that_cannot_be_held_is_refused_by_the_keyword(
    compiler: GrammarCompiler, schema: dict[str, Any], keyword: str
) -> None:
    with pytest.raises(GrammarError, match=keyword):
        compiler.json(schema)


def test_a_schema_cannot_ask_to_be_passed_over(compiler: GrammarCompiler) -> None:
    with pytest.raises(GrammarError, match="not"):
        compiler.json({"not": {"type": "string"}, "x-guidance": {"lenient": True}})


def test_a_byte_fallback_vocabulary_is_read_too() -> None:
    tokenizer = byte_fallback_tokenizer()
    end = tokenizer.token_to_id("</s>")
    assert end is not None
    compiler = GrammarCompiler(tokenizer, ModelLimits(100, tokenizer.get_vocab_size(), frozenset({end})))
    grammar, sampler = compiler.json({"enum": ["hello"]}), Sampler()
    output: list[int] = []
    draw = random.Random(1)
    while not output or output[-1] != end:
        logits = torch.tensor([[draw.random() for _ in range(tokenizer.get_vocab_size())]])
        output += sampler.sample(logits, [SamplingParams(0.0, grammar=grammar)], [len(output)], [output]).token_ids
    assert tokenizer.decode(output) == '"hello"'


def test_a_model_without_an_end_token_cannot_be_held() -> None:
    with pytest.raises(GrammarError, match="end-of-sequence"):
        GrammarCompiler(TOKENIZER, ModelLimits(100, VOCABULARY, frozenset())).json({})
