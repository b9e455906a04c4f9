"""Request traces from files: arrival, lengths, and whatever else the file tells of each request.

Knows the formats below, which it tells apart by their header. Does not know classes' shares, load or mixing: that is
`workers.runs.trace_mix`.

| format | header |
|---|---|
| Azure LLM inference trace | `TIMESTAMP,ContextTokens,GeneratedTokens` |
| Mooncake | JSON lines with `timestamp` (ms), `input_length`, `output_length`, `hash_ids` |
| VTC arena trace | `req_id,client,prompt_len,output_len,arrival_s` |
| VTC published results | `client,arrival_s,prompt_len,output_len,ttft_s,latency_s` (the last two are not read here) |
| vidur lengths | `num_prefill_tokens,num_decode_tokens,…`: no arrivals |
| LLMServingSim lengths | `arrival_s,input_toks,output_toks` |
| Headrace | `arrival_s,prompt_tokens,output_tokens`, and any of `class`, `tenant`, `flow`: what `simulate` writes |

Arrivals are seconds from the first request of the file, and sorted. A request that generated nothing is read as one
that generated one token: an engine gives at least that.
"""

import csv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from scheduling.priority import PriorityClass

__all__ = ["Trace", "TraceError", "TraceRequest", "read_trace"]


class TraceError(Exception):
    """A trace file that can't be read. The message names the file, the line and what is wrong with it."""

    def __init__(self, path: Path, line: int | None, problem: str) -> None:
        place = f"{path}" if line is None else f"{path}, line {line}"
        super().__init__(f"{place}: {problem}")


@dataclass(frozen=True, slots=True)
class TraceRequest:
    arrival_s: float
    """Seconds from the start of the trace; 0 in a trace without arrivals."""
    prompt_tokens: int
    output_tokens: int
    """What it generated, at least 1."""
    tenant: str | None = None
    """None: the file doesn't tell."""
    flow: str | None = None
    priority: PriorityClass | None = None
    prefix_hashes: tuple[int, ...] = ()
    """One for each piece of `prefix_tokens` of the prompt: equal leading hashes are equal leading tokens."""
    prefix_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Trace:
    name: str
    format: str
    timed: bool
    """False: the file has lengths only, and arrivals must be made up."""
    requests: tuple[TraceRequest, ...]
    """In order of arrival; in the file's order where there are none."""


_MOONCAKE_PREFIX_TOKENS = 512
_Row = Mapping[str, str]


def read_trace(path: Path) -> Trace:
    """Raises `TraceError`."""
    try:
        with path.open("rb") as file:
            first = file.readline(65_536)
        if first.lstrip().startswith(b"{"):
            return _finish(path, "mooncake", True, _mooncake(path))
        return _read_csv(path)
    except OSError as error:
        raise TraceError(path, None, f"can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TraceError(path, None, f"is not text: {error.reason}") from error


def _read_csv(path: Path) -> Trace:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        header = frozenset(reader.fieldnames or ())
        for format_ in _FORMATS:
            if format_.columns <= header:
                break
        else:
            known = "; ".join(",".join(sorted(format_.columns)) for format_ in _FORMATS)
            raise TraceError(
                path, 1, f"no known trace has the columns {','.join(reader.fieldnames or ())!r}; known are: {known}"
            )
        requests: list[TraceRequest] = []
        try:
            requests.extend(_one(path, reader.line_num, format_.parse, row) for row in reader)
        except csv.Error as error:
            raise TraceError(path, reader.line_num, f"is not CSV: {error}") from error
    return _finish(path, format_.name, format_.timed, iter(requests))


def _finish(path: Path, format_: str, timed: bool, requests: Iterator[TraceRequest]) -> Trace:
    """Sorted, and counted from the first arrival."""
    read = list(requests)
    if not read:
        raise TraceError(path, None, "holds no request")
    if timed:
        read.sort(key=lambda request: request.arrival_s)
        start_s = read[0].arrival_s
        if start_s:
            read = [_shifted(request, start_s) for request in read]
    return Trace(path.stem, format_, timed, tuple(read))


def _shifted(request: TraceRequest, start_s: float) -> TraceRequest:
    # Rounded, so that shifting a file that starts at 1.7 billion seconds leaves no digits of noise.
    return TraceRequest(
        round(request.arrival_s - start_s, 7),
        request.prompt_tokens,
        request.output_tokens,
        request.tenant,
        request.flow,
        request.priority,
        request.prefix_hashes,
        request.prefix_tokens,
    )


# --- one row of each format -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Format:
    name: str
    columns: frozenset[str]
    """A file with these columns is of this format; it may have more."""
    timed: bool
    parse: Callable[[_Row], TraceRequest]


def _one(path: Path, line: int, parse: Callable[[Any], TraceRequest], row: Any) -> TraceRequest:
    try:
        return parse(row)
    except KeyError as error:
        raise TraceError(path, line, f"{error.args[0]!r} is missing") from error
    except (TypeError, ValueError) as error:
        # DictReader gives None for a column that a short row lacks, which int() and float() call a TypeError.
        raise TraceError(path, line, f"{error}") from error


def _tokens(value: object, name: str, least: int) -> int:
    """A whole number of tokens, `least` where it is less by one (a prompt or an output of nothing)."""
    try:
        tokens = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise ValueError(f"{name} = {value!r} is not a whole number of tokens") from None
    if tokens < 0:
        raise ValueError(f"{name} = {tokens} is negative")
    return max(least, int(tokens))


def _seconds(value: object, name: str) -> float:
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError(f"{name} = {value!r} is not a number") from None
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{name} = {value!r}: must be a point in time, from 0 up")
    return seconds


def _azure(row: _Row) -> TraceRequest:
    text = row["TIMESTAMP"]
    # Seven digits behind the point, which datetime would cut to six.
    whole, _, fraction = text.partition(".")
    digits = fraction.split("+")[0].rstrip("Z")
    try:
        seconds = (datetime.fromisoformat(whole) - datetime(1970, 1, 1)).total_seconds()
        seconds += float(f"0.{digits or 0}")
    except ValueError:
        raise ValueError(f"TIMESTAMP = {text!r} is not a date and time") from None
    return TraceRequest(
        seconds,
        _tokens(row["ContextTokens"], "ContextTokens", 1),
        _tokens(row["GeneratedTokens"], "GeneratedTokens", 1),
    )


def _vtc(row: _Row) -> TraceRequest:
    return TraceRequest(
        _seconds(row["arrival_s"], "arrival_s"),
        _tokens(row["prompt_len"], "prompt_len", 1),
        _tokens(row["output_len"], "output_len", 1),
        tenant=row["client"],
    )


def _vidur(row: _Row) -> TraceRequest:
    return TraceRequest(
        0.0,
        _tokens(row["num_prefill_tokens"], "num_prefill_tokens", 1),
        _tokens(row["num_decode_tokens"], "num_decode_tokens", 1),
    )


def _servingsim(row: _Row) -> TraceRequest:
    return TraceRequest(
        _seconds(row["arrival_s"], "arrival_s"),
        _tokens(row["input_toks"], "input_toks", 1),
        _tokens(row["output_toks"], "output_toks", 1),
    )


def _headrace(row: _Row) -> TraceRequest:
    label = row.get("class")
    return TraceRequest(
        _seconds(row["arrival_s"], "arrival_s"),
        _tokens(row["prompt_tokens"], "prompt_tokens", 1),
        _tokens(row["output_tokens"], "output_tokens", 1),
        tenant=row.get("tenant") or None,
        flow=row.get("flow") or None,
        priority=PriorityClass.from_label(label) if label else None,
    )


def _mooncake(path: Path) -> Iterator[TraceRequest]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise TraceError(path, number, f"is not JSON: {error}") from error
            if not isinstance(record, dict):
                raise TraceError(path, number, "is not a JSON object")
            yield _one(path, number, _mooncake_record, record)


def _mooncake_record(record: Mapping[str, Any]) -> TraceRequest:
    hashes = record.get("hash_ids", [])
    if not isinstance(hashes, list) or not all(isinstance(value, int) for value in hashes):
        raise ValueError("hash_ids is not a list of whole numbers")
    return TraceRequest(
        _seconds(record["timestamp"], "timestamp") / 1000,
        _tokens(record["input_length"], "input_length", 1),
        _tokens(record["output_length"], "output_length", 1),
        prefix_hashes=tuple(hashes),
        prefix_tokens=_MOONCAKE_PREFIX_TOKENS if hashes else 0,
    )


_FORMATS = (
    _Format("azure", frozenset({"TIMESTAMP", "ContextTokens", "GeneratedTokens"}), True, _azure),
    _Format("vtc", frozenset({"client", "arrival_s", "prompt_len", "output_len"}), True, _vtc),
    _Format("vidur", frozenset({"num_prefill_tokens", "num_decode_tokens"}), False, _vidur),
    _Format("llmservingsim", frozenset({"arrival_s", "input_toks", "output_toks"}), True, _servingsim),
    _Format("headrace", frozenset({"arrival_s", "prompt_tokens", "output_tokens"}), True, _headrace),
)
