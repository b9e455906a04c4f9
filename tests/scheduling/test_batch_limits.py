from typing import Any

import pytest

from kvcache.manager import KVCacheManager
from scheduling.limits import BatchLimits, LimitsError
from scheduling.priority import PriorityClass
from tests.scheduling.batch_rig import P0, P1, Rig


def test_each_running_sequence_needs_a_token_a_step() -> None:
    with pytest.raises(LimitsError, match=r"step_tokens = 60 < max_sequences = 64.*raise step_tokens by 4"):
        BatchLimits(context_tokens=100, max_sequences=64, step_tokens=60)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_sequences", 0),
        ("step_tokens", 0),
        ("prefill_floor_tokens", 0),
        ("staged_rows", 0),
        ("expiries_a_call", 0),
        ("context_tokens", 1),
        ("backfill_limit", -1),
        ("step_max_s", 0.0),
        ("step_max_s", float("nan")),
    ],
)
def test_a_bound_that_makes_no_sense_is_named(field: str, value: float) -> None:
    fields: dict[str, Any] = {"context_tokens": 100, field: value}
    with pytest.raises(LimitsError, match=f"{field} = {value}"):
        BatchLimits(**fields)


def test_a_class_that_may_stage_nothing_is_refused() -> None:
    quotas = dict.fromkeys(PriorityClass, 4) | {P1: 0}
    with pytest.raises(LimitsError, match=r"staged_by_class\[p1\] = 0"):
        BatchLimits(context_tokens=100, staged_by_class=quotas)


def test_setting_everything_aside_is_refused_with_the_sum() -> None:
    with pytest.raises(LimitsError, match=r"8 \+ 1 = 9 in all"):
        BatchLimits(context_tokens=100, staged_rows=8, staged_set_aside=8)


def test_quotas_default_to_a_half_each_and_a_quarter_set_aside() -> None:
    limits = BatchLimits(context_tokens=100, staged_rows=128)
    assert [limits.staging_quota(priority) for priority in PriorityClass] == [64] * 4
    assert limits.set_aside == 32
    assert BatchLimits(context_tokens=100, staged_rows=4).staging_quota(P0) == 2


def test_a_pool_that_holds_no_longest_request_is_refused_with_the_sum() -> None:
    assert KVCacheManager(24, 4).capacity_tokens == 96
    with pytest.raises(LimitsError, match=r"24 blocks × 4 tokens = 96 tokens.*context_tokens = 100.*25 blocks"):
        Rig(blocks=24, block_size=4, context_tokens=100)
