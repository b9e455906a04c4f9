"""Two hundred schemas drawn at random: what a model without any sense writes fits each of them."""

import random

import jsonschema
import torch

from tests.workers.intake.random_schemas import bounded_schema
from tests.workers.models.tiny_tokenizers import byte_level_tokenizer
from topics.codec import loads
from workers.intake.grammar import GrammarCompiler
from workers.intake.sampling import SamplingParams
from workers.runners.runner import ModelLimits
from workers.runners.sampler import Sampler

SCHEMAS = 200
ROWS = 25
"""Answers drawn together, as a step does."""
LIMIT = 400
EOS = 263
VOCABULARY = 265


def test_every_answer_that_ends_fits_its_schema() -> None:
    tokenizer = byte_level_tokenizer()
    compiler, sampler = GrammarCompiler(tokenizer, ModelLimits(LIMIT, VOCABULARY, frozenset({EOS}))), Sampler()
    cut = 0
    for first in range(0, SCHEMAS, ROWS):
        schemas = [bounded_schema(random.Random(seed)) for seed in range(first, first + ROWS)]
        params = [SamplingParams(seed=first + row, grammar=compiler.json(each)) for row, each in enumerate(schemas)]
        outputs: list[list[int]] = [[] for _ in schemas]
        open_rows = list(range(ROWS))
        while open_rows and len(outputs[open_rows[0]]) < LIMIT:
            drawn = sampler.sample(
                torch.zeros(len(open_rows), VOCABULARY),
                [params[row] for row in open_rows],
                [len(outputs[row]) for row in open_rows],
                [outputs[row] for row in open_rows],
            )
            assert not drawn.grammar_broken
            for row, token in zip(open_rows, drawn.token_ids, strict=True):
                outputs[row].append(token)
            open_rows = [row for row in open_rows if outputs[row][-1] != EOS]
        cut += len(open_rows)
        for row in set(range(ROWS)).difference(open_rows):
            answer = loads(str(tokenizer.decode(outputs[row][:-1])).encode())
            jsonschema.validate(answer, schemas[row])
    assert cut <= SCHEMAS * 0.05, f"{cut} answers were cut at {LIMIT} tokens"
