"""The screen of `top` at 80 × 24: what stands where, and what keys do."""

import pytest

from tests.workers.telemetry.reports import class_report, report, request_report, tenant_report
from topics.worker_reports import TimeToFirstToken, WorkerReport
from workers.telemetry.top_figures import ReportBook
from workers.telemetry.top_screen import Choices, screen

LABELS = ("p0", "p1", "p2", "p3")
BUSY = report(
    10.0,
    classes=tuple(
        class_report(
            label,
            waiting=123_456,
            oldest_s=99_999.0,
            running=64,
            suspended=12,
            kv_blocks=46_592,
            rate_units_s=123_456.0,
            dispatched_units=10**9,
            preempted=9_999,
            answered=100,
            missed=20,
            ttft=TimeToFirstToken(requests=100, queue=123_456.0, slot=2.0, prefill=50.0),
        )
        for label in LABELS
    ),
    tenants=tuple(tenant_report(f"tenant-{number:02}", known=number, label="p3") for number in range(40)),
    more_tenants=7,
    requests=tuple(
        request_report(f"r-{number:02}", slack_s=None if number == 3 else 5.0 - number, age_s=number, tenant="acme")
        for number in range(30)
    ),
)


PLAIN = Choices()


def shown(choices: Choices = PLAIN, data: WorkerReport | None = BUSY, width: int = 80) -> list[str]:
    book = ReportBook()
    if data is not None:
        book.take(data)
    lines = screen(book.figures(), choices, prefix="inference", clock="12:00:00", width=width, height=24)
    return [line.text for line in lines]


def after(keys: str) -> Choices:
    choices = Choices()
    for key in keys:
        choices = choices.after(key)
    return choices


@pytest.mark.parametrize("keys", ["", "r", "?", "/acme", "r/r-0\n"])
def test_everything_fits_into_80_by_24_and_the_keys_are_in_the_last_line(keys: str) -> None:
    lines = shown(after(keys))
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    if keys in ("", "r"):
        assert len(lines) == 24
        assert lines[-1].startswith("q quit")


@pytest.mark.parametrize("keys", ["", "r", "?"])
def test_nothing_is_cut_off(keys: str) -> None:
    assert shown(after(keys), width=200)[1:] == shown(after(keys), width=80)[1:]


def test_classes_show_what_waits_and_where_the_time_went() -> None:
    lines = shown()
    assert lines[3].split()[:5] == ["p0", "123,456", "28h", "64", "12"]
    assert lines[8].split() == ["p0", "100", "1235.080", "0.000", "1234.560", "0.020", "0.500", "0.000"]


def test_more_tenants_than_lines_are_counted() -> None:
    lines = shown()
    hidden = 40 - sum(line.startswith("tenant-") for line in lines)
    assert f"… {hidden + 7} more" in lines


def test_requests_are_sorted_by_slack_and_s_goes_to_the_next_column() -> None:
    by_slack = [line for line in shown(after("r")) if line.startswith("r-")]
    assert by_slack[0].startswith("r-29")
    assert "-24.0" in by_slack[0]
    by_age = [line for line in shown(after("rsi")) if line.startswith("r-")]
    assert by_age[0].startswith("r-00")


def test_a_class_key_shows_only_that_class_and_again_all() -> None:
    assert [line[:2] for line in shown(after("1")) if line[:2] in LABELS] == ["p1", "p1"]
    assert after("11").label is None


def test_a_filter_is_typed_kept_and_dropped() -> None:
    typing = after("/ant-1x\x7f")
    assert (typing.typing, typing.filter) == (True, "ant-1")
    kept = typing.after("\n")
    names = [line.split()[0] for line in shown(kept) if line.startswith("tenant-")]
    assert names
    assert all(name.startswith("tenant-1") for name in names)
    assert "named *ant-1*" in shown(kept)[-1]
    assert kept.after("\x1b").filter == ""
    assert after("/q").quit is False


def test_q_quits_and_other_keys_do_nothing() -> None:
    assert after("q").quit
    assert after("xyz\x00") == Choices()


def test_a_name_can_not_draw_on_the_terminal() -> None:
    evil = report(1.0, tenants=(tenant_report("a\x1b[2Jb", known=1),))
    assert any("a?[2Jb" in line for line in shown(data=evil))


def test_without_workers_it_says_so() -> None:
    assert any("No worker reports here" in line for line in shown(data=None))
