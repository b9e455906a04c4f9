"""Trace files of every known format, and what is said of those that can't be read."""

from pathlib import Path

import pytest

from scheduling.priority import PriorityClass
from workers.runs.trace_files import TraceError, TraceRequest, read_trace

DATA = Path(__file__).parents[2] / "data"


def write(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("file", "format_", "timed", "requests"),
    [
        ("azure_2023_conv.csv", "azure", True, 120),
        ("azure_2023_code.csv", "azure", True, 60),
        ("mooncake_conversation.jsonl", "mooncake", True, 40),
        ("vtc_arena.csv", "vtc", True, 100),
        ("vtc_fcfs_overload.csv", "vtc", True, 100),
        ("vidur_arxiv.csv", "vidur", False, 60),
        ("llmservingsim_sharegpt.csv", "llmservingsim", True, 40),
    ],
)
def test_the_format_is_told_by_the_header(file: str, format_: str, timed: bool, requests: int) -> None:
    trace = read_trace(DATA / file)
    assert (trace.format, trace.timed, len(trace.requests)) == (format_, timed, requests)
    assert trace.requests[0].arrival_s == 0
    arrivals = [request.arrival_s for request in trace.requests]
    assert arrivals == sorted(arrivals)
    assert all(request.prompt_tokens >= 1 and request.output_tokens >= 1 for request in trace.requests)


def test_azure_arrivals_keep_their_seventh_digit() -> None:
    first, second = read_trace(DATA / "azure_2023_conv.csv").requests[:2]
    assert (first.prompt_tokens, first.output_tokens) == (374, 44)
    assert second.arrival_s == pytest.approx(50.9951690 - 46.6805900, abs=1e-7)


def test_mooncake_prompts_carry_the_hashes_of_their_prefixes() -> None:
    first, second = read_trace(DATA / "mooncake_conversation.jsonl").requests[:2]
    assert (first.prompt_tokens, first.output_tokens) == (6758, 500)
    assert len(first.prefix_hashes) == -(-6758 // first.prefix_tokens) == 14
    assert first.prefix_hashes[0] == second.prefix_hashes[0]
    assert first.prefix_hashes[1] != second.prefix_hashes[1]


def test_vtc_clients_are_tenants() -> None:
    assert {request.tenant for request in read_trace(DATA / "vtc_fcfs_overload.csv").requests} == {"8-0", "8-1"}


def test_arrivals_are_sorted_and_counted_from_the_first(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, "arrival_s,prompt_tokens,output_tokens\n12.5,3,4\n10,1,2\n"))
    assert trace.requests == (TraceRequest(0.0, 1, 2), TraceRequest(2.5, 3, 4))


def test_our_own_format_names_class_tenant_and_flow(tmp_path: Path) -> None:
    path = write(tmp_path, "arrival_s,prompt_tokens,output_tokens,class,tenant,flow\n0,3,4,p0,acme,f1\n1,3,4,,,\n")
    named, plain = read_trace(path).requests
    assert (named.priority, named.tenant, named.flow) == (PriorityClass.P0, "acme", "f1")
    assert (plain.priority, plain.tenant, plain.flow) == (None, None, None)


def test_nothing_generated_counts_as_one_token(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, "arrival_s,prompt_tokens,output_tokens\n0,5,0\n"))
    assert trace.requests[0].output_tokens == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n", r"trace.csv, line 1: no known trace has the columns 'a,b'"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1,2\n1,x,2\n", r"line 3: prompt_tokens = 'x' is not a whole number"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1\n", r"line 2: output_tokens = None is not a whole number"),
        ("arrival_s,prompt_tokens,output_tokens\n0,-1,2\n", r"line 2: prompt_tokens = -1 is negative"),
        ("arrival_s,prompt_tokens,output_tokens\nnan,1,2\n", r"line 2: arrival_s = 'nan': must be a point in time"),
        ("arrival_s,prompt_tokens,output_tokens\n", r"trace.csv: holds no request"),
        ("arrival_s,prompt_tokens,output_tokens,class\n0,1,2,p9\n", r"line 2: unknown priority class 'p9'"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n", r"line 2: TIMESTAMP = 'yesterday'"),
        ('{"timestamp": 0, "input_length": 5}\n', r"line 1: 'output_length' is missing"),
        ('{"timestamp": 0\n', r"line 1: is not JSON"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1, "a"]}\n', r"line 1: hash_ids"),
    ],
)
def test_an_error_names_file_line_and_what_is_wrong(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(TraceError, match=says):
        read_trace(write(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nowhere.csv: can't be read"):
        read_trace(tmp_path / "nowhere.csv")


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bytes.csv"
    path.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(TraceError, match=r"bytes.csv: is not text"):
        read_trace(path)
