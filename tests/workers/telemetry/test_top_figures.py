"""What `top` shows out of reports: rates, sums over workers, workers that come and go."""

import pytest

from tests.workers.telemetry.reports import class_report, report, request_report, tenant_report
from topics.worker_reports import TimeToFirstToken, WorkerReport
from workers.telemetry.top_figures import ReportBook, TopFigures


def figures(*reports: WorkerReport) -> TopFigures:
    book = ReportBook()
    for one in reports:
        book.take(one)
    return book.figures()


def test_rates_are_over_the_last_ten_seconds() -> None:
    found = figures(report(0.0, steps=0), report(20.0, steps=1_000), report(30.0, steps=1_100, step_seconds=9.0))
    assert found.steps_s == pytest.approx(10.0)
    assert found.busy == pytest.approx(0.9)


def test_one_report_has_no_rate() -> None:
    assert figures(report(5.0, steps=77)).steps_s == 0


def test_a_worker_that_was_started_anew_counts_from_nothing() -> None:
    restarted = report(12.0, steps=5, up_s=1.0)
    assert figures(report(10.0, steps=900), restarted).steps_s == 0


def test_workers_add_up() -> None:
    classes = (class_report("p0", waiting=3, oldest_s=2.0, rate_units_s=50.0),)
    other = (class_report("p0", waiting=4, oldest_s=9.0, rate_units_s=70.0), class_report("p3", running=1))
    found = figures(report(1.0, "a", classes=classes), report(1.0, "b", classes=other))
    p0, p3 = found.classes
    assert (found.workers, found.kv_blocks, p0.waiting, p0.oldest_s, p0.promised_units_s) == (2, 200, 7, 9.0, 120.0)
    assert (p3.label, p3.running, p3.promised_units_s) == ("p3", 1, None)


def test_borrowing_is_a_part_of_what_was_dispatched_meanwhile() -> None:
    before = (class_report(dispatched_units=1_000, borrowed_units=900),)
    after = (class_report(dispatched_units=1_200, borrowed_units=950),)
    (p0,) = figures(report(0.0, classes=before), report(10.0, classes=after)).classes
    assert (p0.units_s, p0.borrowed) == (20.0, 0.25)


def test_the_split_is_of_those_answered_within_the_last_minute() -> None:
    early = TimeToFirstToken(requests=10, queue=1_000.0)
    later = TimeToFirstToken(requests=14, queue=1_008.0, prefill=2.0)
    reports = [report(0.0, classes=(class_report(ttft=early, answered=10, missed=10),))]
    reports += [report(50.0, classes=(class_report(ttft=later, answered=14, missed=11),))]
    (p0,) = figures(*reports).classes
    assert (p0.ttft_requests, p0.ttft_split_s["queue"], p0.ttft_split_s["prefill"]) == (4, 2.0, 0.5)
    assert p0.met == pytest.approx(0.75)


def test_tenants_of_all_workers_are_one() -> None:
    before = (tenant_report("acme", output_tokens=100),)
    after = (tenant_report("acme", known=5, running=2, output_tokens=150),)
    found = figures(
        report(0.0, "a", tenants=before), report(10.0, "a", tenants=after), report(10.0, "b", tenants=after)
    )
    (acme,) = found.tenants
    assert (acme.waiting, acme.running, acme.tokens_s) == (6, 4, 5.0)


def test_a_silent_worker_is_gone() -> None:
    book = ReportBook()
    book.take(report(1.0, "a", requests=(request_report("r"),)))
    book.take(report(9.0, "b"))
    book.forget_gone(12_000)
    assert book.workers == ("b",)
    assert book.figures().requests == ()
