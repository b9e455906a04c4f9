"""How long a simulated step takes: a linear model, given or fitted, or a published table.

Knows step-time models and how they are written on the command line. Does not know requests.

`--step-time` is one of:

- a preset: `llama2-70b-h100x8` or `smollm2-cpu`;
- `linear:FILE`, a JSON object with the coefficients of `scheduling.step_time.LinearStepTime` (as `headrace bench engine
  --fit` writes it, alone or under `figures.step_time`);
- `linear:fixed_s=0.03,per_prefill_token_s=…`, the same in place, terms left out being 0;
- `table:FILE@model=…,hardware=…,tensor_parallel=…`, a performance model of splitwise-sim (Patel et al., "Splitwise",
  ISCA 2024): CSV with `prompt_size`, `batch_size`, `prompt_time` and `token_time` in ms. Keys are needed as far as the
  table holds several.
"""

import csv
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import orjson

from scheduling.step_time import LinearStepTime

__all__ = ["PRESETS", "StepDuration", "StepModelError", "TableStepTime", "linear_guess", "parse_step_model"]

PRESETS: Mapping[str, LinearStepTime] = {
    # The line through the splitwise-sim table of Llama-2-70B on eight H100: a decode of one 30 ms, of 64 at 512 tokens
    # each 50 ms; a prompt of 1,024 tokens 78 ms, of 2,048 135 ms. Longer prompts come in chunks of that size.
    "llama2-70b-h100x8": LinearStepTime(30e-3, 50e-6, 0.2e-3, 0.2e-6),
    "smollm2-cpu": LinearStepTime(),
}

_KEYS = ("model", "hardware", "tensor_parallel")
_CONTEXT_PROMPT = 512
"""Decode times by batch size are of sequences with such a prompt."""
_TERMS = tuple(field.name for field in fields(LinearStepTime))


class StepModelError(ValueError):
    """A step-time model that can't be read. The message says what is wrong with it and the remedy."""


class StepDuration(Protocol):
    """What a simulated machine needs of a model: the prediction alone, which is the truth there."""

    def predict(self, prefill_tokens: int, decode_sequences: int, context_tokens: int) -> float: ...


def parse_step_model(text: str) -> StepDuration:
    """Raises `StepModelError`."""
    kind, colon, rest = text.partition(":")
    if not colon:
        if kind not in PRESETS:
            raise StepModelError(
                f"step-time model {text!r}: a preset ({', '.join(PRESETS)}), linear:… or table:FILE is expected"
            )
        return PRESETS[kind]
    if kind == "linear":
        return _linear(text, rest)
    if kind == "table":
        path, _, keys = rest.partition("@")
        return TableStepTime.read(Path(path), _pairs(text, keys))
    raise StepModelError(f"step-time model {text!r}: {kind!r} is neither linear nor table")


def linear_guess(model: StepDuration) -> LinearStepTime:
    """What a scheduler may start from: the model itself if it is linear, else the line through a few of its values."""
    if isinstance(model, LinearStepTime):
        return model
    one = model.predict(0, 1, _CONTEXT_PROMPT)
    context_s = (model.predict(0, 1, 8 * _CONTEXT_PROMPT) - one) / (7 * _CONTEXT_PROMPT)
    many = model.predict(0, 64, 64 * _CONTEXT_PROMPT)
    decode_s = (many - one) / 63 - context_s * _CONTEXT_PROMPT
    prefill_s = (model.predict(2048, 0, 2048) - one) / 2048
    return LinearStepTime(one, max(0.0, prefill_s), max(0.0, decode_s), max(0.0, context_s))


# --- linear -----------------------------------------------------------------------------------------------------------


def _linear(text: str, rest: str) -> LinearStepTime:
    terms: Mapping[str, Any]
    terms = dict.fromkeys(_TERMS, 0.0) | _pairs(text, rest) if "=" in rest else _terms_of_file(Path(rest))
    unknown = sorted(set(terms) - set(_TERMS))
    if unknown:
        raise StepModelError(
            f"step-time model {text!r}: no term {', '.join(unknown)}; a linear model has {', '.join(_TERMS)}"
        )
    missing = sorted(set(_TERMS) - set(terms))
    if missing:
        raise StepModelError(f"step-time model {text!r}: {', '.join(missing)} is missing")
    try:
        return LinearStepTime(**{name: float(value) for name, value in terms.items()})
    except (TypeError, ValueError) as error:
        raise StepModelError(f"step-time model {text!r}: {error}") from error


def _terms_of_file(path: Path) -> Mapping[str, Any]:
    try:
        content = orjson.loads(path.read_bytes())
    except OSError as error:
        raise StepModelError(f"{path}: can't be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise StepModelError(f"{path}: is not JSON: {error}") from error
    if isinstance(content, dict) and isinstance(figures := content.get("figures"), dict):
        content = figures.get("step_time")
    if not isinstance(content, dict):
        raise StepModelError(f"{path}: holds no object of coefficients ({', '.join(_TERMS)})")
    return content


def _pairs(text: str, rest: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise StepModelError(f"step-time model {text!r}: {part!r} is not key=value")
        pairs[key] = value
    return pairs


# --- the published table ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TableStepTime:
    """Interpolated between measured points, extended by the last two beyond them.

    A step of prompts and decodes takes the prompts' time and what the decodes cost beyond a single one: the weights
    are read once. Context beyond the table's prompts is priced by the slope that decodes of one have.
    """

    prompt_s: tuple[tuple[float, float], ...]
    """(prompt tokens in the step, seconds), ascending in both."""
    decode_s: tuple[tuple[float, float], ...]
    """(sequences, seconds)."""
    context_token_s: float

    @classmethod
    def read(cls, path: Path, keys: Mapping[str, str]) -> "TableStepTime":
        """Raises `StepModelError`."""
        for key in keys:
            if key not in _KEYS:
                raise StepModelError(f"{path}: no key {key!r}; rows are chosen by {', '.join(_KEYS)}")
        try:
            with path.open(encoding="utf-8", newline="") as file:
                rows = [row for row in csv.DictReader(file) if all(row.get(key) == keys[key] for key in keys)]
        except OSError as error:
            raise StepModelError(f"{path}: can't be read: {error.strerror}") from error
        if not rows:
            raise StepModelError(f"{path}: no row has {dict(keys)}")
        for key in _KEYS:
            if len(values := sorted({row.get(key, "") for row in rows})) > 1:
                raise StepModelError(f"{path}: holds several values of {key}; choose one: {', '.join(values)}")
        try:
            return cls._of([_Point.of(row) for row in rows])
        except (KeyError, TypeError, ValueError) as error:
            raise StepModelError(f"{path}: a row lacks a number: {error}") from error

    @classmethod
    def _of(cls, points: Sequence["_Point"]) -> "TableStepTime":
        decode = _means((point.batch, point.token_s) for point in points if point.prompt == _CONTEXT_PROMPT)
        prompt = _means((point.prompt * point.batch, point.prompt_s) for point in points)
        single = _means((point.prompt, point.token_s) for point in points if point.batch == 1)
        if len(decode) < 2 or len(prompt) < 2:
            raise StepModelError(f"the table has too few rows: {len(prompt)} prompt sizes, {len(decode)} batch sizes")
        slope = (single[-1][1] - single[0][1]) / (single[-1][0] - single[0][0]) if len(single) > 1 else 0.0
        # A prompt of one token is a decode of one.
        return cls((((1.0, decode[0][1])), *prompt), decode, max(0.0, slope))

    def predict(self, prefill_tokens: int, decode_sequences: int, context_tokens: int) -> float:
        seconds = _interpolated(self.prompt_s, prefill_tokens) if prefill_tokens else 0.0
        if decode_sequences:
            decode = _interpolated(self.decode_s, decode_sequences)
            seconds += decode - self.decode_s[0][1] if prefill_tokens else decode
        beyond = context_tokens - prefill_tokens - decode_sequences * _CONTEXT_PROMPT
        return seconds + self.context_token_s * max(0, beyond)


@dataclass(frozen=True, slots=True)
class _Point:
    prompt: int
    batch: int
    prompt_s: float
    token_s: float

    @classmethod
    def of(cls, row: Mapping[str, str]) -> "_Point":
        return cls(
            int(row["prompt_size"]),
            int(row["batch_size"]),
            float(row["prompt_time"]) / 1000,
            float(row["token_time"]) / 1000,
        )


def _means(pairs: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """The mean of each size, ascending. A size that took less than a smaller one was not really run, and is left out:
    the table has such rows where a batch did not fit into memory."""
    by_size: dict[float, list[float]] = {}
    for size, seconds in pairs:
        by_size.setdefault(size, []).append(seconds)
    kept: list[tuple[float, float]] = []
    for size in sorted(by_size):
        seconds = fmean(by_size[size])
        if not kept or seconds >= kept[-1][1] * 0.97:  # noise of the measurement: 3 %
            kept.append((size, max(seconds, kept[-1][1] if kept else 0.0)))
    return tuple(kept)


def _interpolated(points: tuple[tuple[float, float], ...], size: float) -> float:
    after = min(max(1, bisect_right(points, (size, float("inf")))), len(points) - 1)
    (size_0, seconds_0), (size_1, seconds_1) = points[after - 1], points[after]
    return seconds_0 + (seconds_1 - seconds_0) * (size - size_0) / (size_1 - size_0)
