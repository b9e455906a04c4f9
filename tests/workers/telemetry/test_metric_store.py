"""Metrics' values: what is declared is kept and read, and nothing else."""

import pytest

from workers.telemetry.distribution import Distribution
from workers.telemetry.metric import Kind, Metric
from workers.telemetry.metric_store import MetricStore, Reading

COUNT = Metric("count", "", Kind.COUNTER, ("class",), "a count")
TIME = Metric("time", "s", Kind.HISTOGRAM, (), "a time", (1.0, 2.0))
LEVEL = Metric("level", "", Kind.GAUGE, (), "a level")
UNDECLARED = Metric("other", "", Kind.COUNTER, (), "not exported")


def store() -> MetricStore:
    return MetricStore([COUNT, TIME, LEVEL])


def test_counts_add_up_by_labels() -> None:
    kept = store()
    kept.add(COUNT, 2, "p0")
    kept.add(COUNT, 1, "p3")
    kept.add(COUNT, 3, "p0")
    assert kept.read().of(COUNT) == {("p0",): 5, ("p3",): 1}


def test_a_value_on_a_bound_is_in_the_bucket_that_ends_there() -> None:
    kept = store()
    for value in (0.5, 1.0, 1.5, 7.0):
        kept.observe(TIME, value)
    snapshot = kept.read().of(TIME)[()]
    assert not isinstance(snapshot, float)
    assert (snapshot.counts, snapshot.sum, snapshot.count) == ((2, 1, 1), 10.0, 4)


def test_many_equal_values_are_one_act() -> None:
    kept = Distribution((1.0, 2.0))
    kept.observe(1.5, 64)
    assert (kept.snapshot().counts, kept.snapshot().sum) == ((0, 64, 0), 96.0)


def test_a_source_is_asked_at_each_reading() -> None:
    kept = store()
    levels = iter((1.0, 2.0))
    kept.read_from(lambda reading: reading.set(LEVEL, next(levels)))
    assert kept.read().of(LEVEL) == {(): 1.0}
    assert kept.read().of(LEVEL) == {(): 2.0}


def test_what_is_not_declared_is_a_bug() -> None:
    kept = store()
    with pytest.raises(AssertionError, match="not in the catalogue"):
        kept.add(UNDECLARED, 1)
    kept.read_from(lambda reading: reading.set(UNDECLARED, 1))
    with pytest.raises(AssertionError, match="not in the catalogue"):
        kept.read()


def test_other_labels_or_another_kind_than_declared_are_a_bug() -> None:
    kept = store()
    with pytest.raises(AssertionError, match="has the labels"):
        kept.add(COUNT, 1)
    with pytest.raises(AssertionError, match="is a counter"):
        kept.observe(COUNT, 1, "p0")
    with pytest.raises(AssertionError, match="is a histogram"):
        Reading(kept.declared).set(TIME, 1)
