"""What holding answers to a schema costs a step: python -m benchmarks.grammar_cost [--sequences 32] [--steps 60]

The shipped model decodes the same sequences with and without a grammar, step by step in turns; of each step the time
inside the masks is taken apart. Prints one JSON.
"""

import argparse
import json
import random
import statistics
import time
from typing import Any

from tests.workers.intake.random_schemas import bounded_schema
from workers.configuration.config import load_config
from workers.intake.grammar import GrammarCompiler
from workers.intake.sampling import SamplingParams
from workers.models.loaded_model import LoadedModel, load_model
from workers.runners.grammar_masks import GrammarMasks
from workers.runners.runner import SequenceInput

_PROMPT = "Write a record of a person, with the name, the age and a longer note, as JSON."
_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 4, "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["new", "old", "guest"]}, "minItems": 2, "maxItems": 6},
        "note": {"type": "string", "minLength": 600, "maxLength": 900},
    },
    "required": ["name", "age", "tags", "note"],
    "additionalProperties": False,
}


class _Timed(GrammarMasks):
    """Says how long the last step was in it."""

    seconds = 0.0

    def apply(self, *arguments: Any) -> tuple[int, ...]:
        started = time.perf_counter()
        broken = super().apply(*arguments)
        self.seconds = time.perf_counter() - started
        return broken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    config = load_config({})
    model = load_model(config.model, config.engine, config.kv)
    print(json.dumps(measure(model, arguments.sequences, arguments.steps), indent=2))


def measure(model: LoadedModel, count: int, steps: int) -> dict[str, Any]:
    tokenizer = model.tokenizer.backend_tokenizer
    compiler = GrammarCompiler(tokenizer, model.limits)
    compiler.warm_up()
    started = time.perf_counter()
    schemas = [bounded_schema(random.Random(seed)) for seed in range(200)]
    compile_s = []
    for schema in schemas:
        started = time.perf_counter()
        compiler.json(schema)
        compile_s.append(time.perf_counter() - started)
    masks = model.runner._sampler._masks = _Timed()  # type: ignore[attr-defined]  # of the runners on real models
    prompt = tokenizer.encode(_PROMPT).ids
    blocks = -(-(len(prompt) + steps + 2) // model.runner.block_size)
    free, held = ([[*prompt] for _ in range(count)] for _ in range(2))
    params = [SamplingParams(seed=row) for row in range(count)]
    formed = [SamplingParams(seed=row, grammar=compiler.json(_SCHEMA)) for row in range(count)]
    step_s: dict[str, list[float]] = {"free": [], "held": []}
    mask_s: list[float] = []
    for step in range(steps):
        for name, rows, wishes, first in (("free", free, params, 0), ("held", held, formed, count)):
            start = 0 if step == 0 else len(rows[0]) - 1
            inputs = [
                SequenceInput(
                    row[start:], start, range((first + at) * blocks, (first + at + 1) * blocks), wish, step, row
                )
                for at, (row, wish) in enumerate(zip(rows, wishes, strict=True))
            ]
            started = time.perf_counter()
            tokens = model.runner.step(inputs)
            step_s[name].append(time.perf_counter() - started)
            if name == "held":
                mask_s.append(masks.seconds)
            for row, token in zip(rows, tokens, strict=True):
                assert token is not None
                row.append(token)
    free_s, in_masks_s = (statistics.median(values[1:]) for values in (step_s["free"], mask_s))
    return {
        "sequences": count,
        "step_free_ms": 1000 * free_s,
        "step_held_ms": 1000 * statistics.median(step_s["held"][1:]),
        "masks_ms": 1000 * in_masks_s,
        "masks_of_step": in_masks_s / free_s,
        "masks_us_a_token": 1e6 * in_masks_s / count,
        "compile_ms": {"median": 1000 * statistics.median(compile_s), "max": 1000 * max(compile_s)},
    }


if __name__ == "__main__":
    main()
