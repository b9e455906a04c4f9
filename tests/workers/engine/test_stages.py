"""Where a request's time went, out of its timeline."""

import time
from dataclasses import replace

import pytest

from tests.workers.engine.engine_rig import Rig
from topics.stage_times import StageTimes
from workers.engine.stages import stage_times
from workers.engine.timeline import Suspension, Timeline
from workers.telemetry.wall_clock import WallClock


def stages(timeline: Timeline, timestamp_ms: int = -1) -> StageTimes:
    arrival = Rig().arrive("r")
    arrival = replace(arrival, timestamp_ms=timestamp_ms)
    return stage_times(arrival, timeline, WallClock())


def test_a_whole_life_is_five_stages() -> None:
    timeline = Timeline(1.0, staged_s=1.5, admitted_s=2.5, first_token_s=4.0, last_token_s=9.0, ended_s=9.0)
    timeline.chosen_s = 2.0
    assert stages(timeline) == StageTimes(queue=1.0, slot=0.5, prefill=1.5, decode=5.0)


def test_what_is_prepared_and_waits_for_its_turn_is_in_the_queue() -> None:
    found = stages(Timeline(1.0, staged_s=1.5, admitted_s=2.5, first_token_s=4.0, last_token_s=9.0, ended_s=9.0))
    assert found == StageTimes(queue=1.5, slot=0.0, prefill=1.5, decode=5.0)


def test_an_end_while_it_waits_for_room_is_in_the_slot() -> None:
    assert stages(Timeline(1.0, staged_s=1.5, chosen_s=2.0, ended_s=4.0)) == StageTimes(queue=1.0, slot=2.0)


def test_an_end_in_the_queue_is_all_queue() -> None:
    assert stages(Timeline(1.0, ended_s=4.0)) == StageTimes(queue=3.0)


def test_an_end_before_the_first_token_ends_the_stage_it_was_in() -> None:
    found = stages(Timeline(1.0, staged_s=2.0, admitted_s=2.5, ended_s=4.0))
    assert found == StageTimes(queue=1.5, slot=0.0, prefill=1.5)


def test_ingress_counts_from_the_records_timestamp() -> None:
    now_s, now_ms = time.monotonic(), time.time_ns() / 1e6
    found = stages(Timeline(now_s, ended_s=now_s), int(now_ms) - 250)
    assert found.ingress == pytest.approx(0.25, abs=0.05)
    assert stages(Timeline(now_s, ended_s=now_s), int(now_ms) + 5_000).ingress == 0


def test_suspensions_are_told_beside_the_stages() -> None:
    timeline = Timeline(1.0, staged_s=1.0, admitted_s=1.0, first_token_s=2.0, last_token_s=9.0, ended_s=9.0)
    timeline.suspensions.append(Suspension(3.0, False, 5, None, 0.1, resumed_s=5.0))
    assert stages(timeline).suspended == 2.0
