"""One stream out of several traces: classes, tenants, flows, arrivals."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from scheduling.priority import PriorityClass
from workers.runs.trace_files import Trace, TraceRequest
from workers.runs.trace_mix import ArrivingRequest, SourceError, mix, parse_source, scaled

P0, P1, P2, P3 = PriorityClass


def trace(requests: int = 100, name: str = "chat", *, timed: bool = True, **fields: Any) -> Trace:
    return Trace(name, "test", timed, tuple(TraceRequest(float(number), 10, 5, **fields) for number in range(requests)))


def stream(text: str, source: Trace, seed: int = 1) -> tuple[ArrivingRequest, ...]:
    return mix([(parse_source(text), source)], seed)


def test_without_rules_a_request_is_its_files() -> None:
    first = stream("chat.csv", trace(priority=P0, tenant="acme", flow="f"))[0]
    assert (first.priority, first.tenant, first.flow) == (P0, "acme", "f")


def test_what_a_file_leaves_open_gets_p1_and_the_files_name() -> None:
    first = stream("chat.csv", trace())[0]
    assert (first.priority, first.tenant, first.flow) == (P1, "chat", "chat")


def test_a_class_rule_overrides_the_file_even_for_p0() -> None:
    assert {request.priority for request in stream("chat.csv@class=p0", trace(priority=P2))} == {P0}


def test_classes_are_split_in_the_given_proportions() -> None:
    counts = Counter(request.priority for request in stream("chat.csv@class=p0:1+p1:3", trace(2000)))
    assert counts.keys() == {P0, P1}
    assert counts[P0] == pytest.approx(500, rel=0.15)


def test_tenants_by_name_and_by_number() -> None:
    assert {request.tenant for request in stream("c@tenant=a:2+b:1", trace())} == {"a", "b"}
    assert {request.tenant for request in stream("c@tenants=3", trace())} == {"chat-0", "chat-1", "chat-2"}


def test_flows_divide_a_tenant() -> None:
    assert len({request.flow for request in stream("c@flows=4", trace())}) == 4


def test_a_rate_scales_a_traces_time() -> None:
    scaled_to = stream("c@rate=10", trace(101))
    assert scaled_to[-1].arrival_s == pytest.approx(10.1)
    assert scaled_to[1].arrival_s == pytest.approx(0.101)


def test_a_trace_without_arrivals_gets_poisson_ones() -> None:
    arrivals = [request.arrival_s for request in stream("c@rate=4", trace(2000, timed=False))]
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] == pytest.approx(500, rel=0.1)


def test_a_trace_without_arrivals_needs_a_rate() -> None:
    with pytest.raises(SourceError, match="no arrivals; give rate="):
        stream("c", trace(timed=False))


def test_a_synthetic_source_arrives_at_once_where_it_starts() -> None:
    source = parse_source("synthetic@requests=3,prompt=7,output=2,start=5,class=p3")
    requests = mix([(source, source.synthetic())], seed=1)
    assert [(request.arrival_s, request.prompt_tokens, request.output_tokens) for request in requests] == [
        (5.0, 7, 2)
    ] * 3


def test_sources_are_merged_in_order_of_arrival() -> None:
    requests = mix(
        [(parse_source("a@limit=2"), trace(name="a")), (parse_source("b@start=0.5,limit=2"), trace(name="b"))], seed=1
    )
    assert [(request.number, request.tenant) for request in requests] == [(0, "a"), (1, "b"), (2, "a"), (3, "b")]


def test_the_same_seed_gives_the_same_stream_and_another_does_not() -> None:
    text, source = "c@class=p0:1+p1:1,tenants=5,rate=2", trace(timed=False)
    assert stream(text, source, seed=1) == stream(text, source, seed=1)
    assert stream(text, source, seed=1) != stream(text, source, seed=2)


def test_a_second_source_changes_nothing_in_the_first() -> None:
    alone = stream("c@class=p0:1+p1:1,tenants=5", trace())
    both = mix([(parse_source("c@class=p0:1+p1:1,tenants=5"), trace()), (parse_source("d"), trace(name="d"))], seed=1)
    of_first = [(r.arrival_s, r.priority, r.tenant) for r in both if r.tenant != "d"]
    assert of_first == [(r.arrival_s, r.priority, r.tenant) for r in alone]


def test_time_is_stretched_as_a_whole() -> None:
    requests = stream("c", trace(3))
    assert [request.arrival_s for request in scaled(requests, 0.5)] == [0.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("@class=p0", "a file name, or one of synthetic, "),
        ("a@class", "'class' is not key=value"),
        ("a@colour=red", "no key 'colour' here; known are class"),
        ("a@class=p0,class=p1", "class is given twice"),
        ("a@class=p7", "unknown priority class 'p7'"),
        ("a@tenant=x:0", "tenant=0 must be above 0"),
        ("a@tenant=x,tenants=3", "either tenant= or tenants="),
        ("a@limit=0", "limit=0 must be a whole number from 1 up"),
        ("a@rate=fast", "rate=fast is not a number"),
        ("a@rate=0", "rate=0 must be above 0"),
        ("a@start=-1", "start=-1 must be a number from 0 up"),
        ("a@requests=3", "no key 'requests' here"),
        ("synthetic@requests=3", "needs prompt, output as well"),
        ("synthetic@limit=3,requests=3,prompt=1,output=1", "no key 'limit' here"),
    ],
)
def test_a_source_that_makes_no_sense_is_refused(text: str, says: str) -> None:
    with pytest.raises(SourceError, match=says):
        parse_source(text)


def test_a_file_source_keeps_its_path() -> None:
    assert parse_source("folder/a.csv@limit=5").path == Path("folder/a.csv")


@pytest.mark.parametrize(
    ("name", "prompt", "output"), [("chat", 1020, 129), ("code", 1469, 13), ("summarise", 2730, 167)]
)
def test_a_named_mix_has_the_lengths_of_its_trace(name: str, prompt: int, output: int) -> None:
    source = parse_source(f"{name}@requests=1000,rate=5")
    requests = mix([(source, source.synthetic())], seed=1)
    assert sorted(request.prompt_tokens for request in requests)[500] == pytest.approx(prompt, rel=0.02)
    assert sorted(request.output_tokens for request in requests)[500] == pytest.approx(output, rel=0.05)
    assert requests == mix([(source, source.synthetic())], seed=1)


def test_the_mix_of_classes_has_its_parts_and_a_source_may_name_others() -> None:
    source = parse_source("5/60/30/5@requests=4000")
    counts = Counter(request.priority for request in mix([(source, source.synthetic())], seed=1))
    assert [counts[priority] / 40 for priority in PriorityClass] == pytest.approx([5, 60, 30, 5], abs=2)
    other = parse_source("5/60/30/5@requests=10,class=p3")
    assert {request.priority for request in mix([(other, other.synthetic())], seed=1)} == {P3}


def test_a_named_mix_needs_a_number_and_takes_no_lengths() -> None:
    with pytest.raises(SourceError, match="chat needs requests"):
        parse_source("chat@rate=1")
    with pytest.raises(SourceError, match="no key 'prompt'"):
        parse_source("chat@requests=1,prompt=5")
