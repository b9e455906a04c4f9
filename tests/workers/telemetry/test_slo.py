"""Objectives of a request, and what part of the requests met them."""

import pytest

from scheduling.priority import PriorityClass
from scheduling.tree import Slo
from tests.workers.engine.engine_rig import Rig
from topics.errors import RequestError
from workers.engine.timeline import Timeline
from workers.intake.request import Arrival, Ending, FinishReason
from workers.telemetry.slo import SlidingRatio, SloTracker, objectives

ALL = Slo(ttft_s=0.3, tpot_s=0.05, e2e_s=2.0, gap_s=0.2)


def arrival(hard_deadline_s: float | None = None) -> Arrival:
    return Rig().arrive("r", priority=PriorityClass.P0, hard_deadline_s=hard_deadline_s)


def ended(*token_s: float, error: RequestError | None = None, end_s: float | None = None) -> Ending:
    """A request that came at 0 and had its tokens at these times."""
    timeline = Timeline(arrived_s=0.0)
    for at_s in token_s:
        timeline.token(at_s)
    timeline.ended_s = token_s[-1] if end_s is None else end_s
    return Ending(error or FinishReason.STOP, timeline, 10, len(token_s))


@pytest.mark.parametrize(
    ("tokens", "missed"),
    [
        ((0.3, 0.34, 0.38), set()),
        ((0.31, 0.35, 0.39), {"ttft"}),
        ((0.1, 0.2, 0.3), {"tpot"}),
        ((0.1, 0.301, 0.302, 0.303, 0.304, 0.305), {"gap"}),
        ((0.1, 2.1), {"tpot", "gap", "e2e"}),
    ],
)
def test_each_objective_is_met_or_missed_by_its_own_time(tokens: tuple[float, ...], missed: set[str]) -> None:
    met = objectives(ALL, arrival(), ended(*tokens))
    assert met.keys() == {"ttft", "tpot", "gap", "e2e"}
    assert {name for name, was_met in met.items() if not was_met} == missed


def test_one_token_has_no_time_a_token() -> None:
    assert objectives(ALL, arrival(), ended(0.1)) == {"ttft": True, "e2e": True}


def test_a_class_without_objectives_still_has_the_requests_own_deadline() -> None:
    assert objectives(Slo(), arrival(hard_deadline_s=1.0), ended(0.5)) == {"deadline": True}
    assert objectives(Slo(), arrival(hard_deadline_s=1.0), ended(1.5)) == {"deadline": False}


def test_what_expired_missed_and_what_the_caller_got_wrong_does_not_count() -> None:
    expired = ended(error=RequestError.expired(5), end_s=1.0)
    assert objectives(ALL, arrival(1.0), expired) == {"deadline": False, "ttft": False, "e2e": False}
    wrong = ended(error=RequestError.invalid_request("x", "is wrong"), end_s=1.0)
    assert objectives(ALL, arrival(), wrong) == {}


def test_a_ratio_forgets_what_is_older_than_its_window() -> None:
    ratio = SlidingRatio(60.0)
    assert ratio.ratio(0.0) is None
    ratio.add(0.5, False)
    ratio.add(30.0, True)
    assert ratio.ratio(31.0) == 0.5
    assert ratio.ratio(61.0) == 1.0
    assert ratio.ratio(91.0) is None


def test_a_ratio_holds_no_more_than_its_window() -> None:
    ratio = SlidingRatio(60.0)
    for second in range(10_000):
        ratio.add(float(second), second % 2 == 0)
    assert len(ratio._cells) <= 121
    assert ratio.ratio(9_999.0) == 0.5


def test_attainment_is_by_class_objective_and_window() -> None:
    tracker = SloTracker({PriorityClass.P0: Slo(ttft_s=0.3)})
    tracker.record(arrival(), ended(0.1), 0.0)
    tracker.record(arrival(), ended(0.5), 400.0)
    assert {(one.slo, one.window): one.ratio for one in tracker.attainment(401.0)} == {
        ("ttft", "5m"): 0.0,
        ("ttft", "1h"): 0.5,
    }
