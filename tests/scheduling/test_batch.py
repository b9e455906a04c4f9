"""A request's way through the batch scheduler, and what a step may hold."""

import pytest

from scheduling.state import RequestState
from scheduling.step_time import LinearStepTime
from tests.scheduling.batch_rig import P0, P2, P3, Rig


def test_a_prompt_is_computed_once_and_each_step_then_gives_a_token() -> None:
    rig = Rig()
    row = rig.add_staged(prompt=10, answer=3)
    chunks = [chunk for plan in rig.drain() for chunk in plan.chunks]
    assert [(chunk.start, chunk.tokens, chunk.samples, chunk.decode) for chunk in chunks] == [
        (0, 10, True, False),
        (10, 1, True, True),
        (11, 1, True, True),
    ]
    assert rig.state(row) is RequestState.FINISHED
    assert rig.kv.free_blocks == rig.kv.num_blocks


def test_a_request_of_no_output_ends_with_its_prompt() -> None:
    rig = Rig(step_tokens=8)
    row = rig.add_staged(prompt=20, answer=0)
    beside = rig.add_staged(prompt=4, answer=3)
    chunks = [chunk for plan in rig.drain() for chunk in plan.chunks if chunk.row == row]
    assert [(chunk.start, chunk.tokens, chunk.samples) for chunk in chunks] == [
        (0, 8, False),
        (8, 8, False),
        (16, 4, True),
    ]
    assert rig.state(row) is rig.state(beside) is RequestState.FINISHED
    assert rig.kv.free_blocks == rig.kv.num_blocks


def test_a_request_of_no_output_costs_its_prompt_alone() -> None:
    rig = Rig()
    row = rig.add(estimate=30, output=9)  # as it looks before its body was read
    rig.scheduler.to_stage(0.0)
    rig.stage(row, prompt=20, answer=0)
    assert rig.index.predicted_cost(row) == rig.cost.prompt(20)
    rig.drain()
    assert rig.qdisc.charged[row] == rig.cost.prompt(20)


def test_a_prompt_may_fill_the_context_where_no_output_follows() -> None:
    rig = Rig()
    context = rig.limits.context_tokens
    fits, too_long = rig.add_staged(prompt=context, answer=0), rig.add_staged(prompt=context, answer=1)
    assert rig.scheduler.take_impossible() == [too_long]
    rig.drain()
    assert rig.state(fits) is RequestState.FINISHED


def test_states_follow_the_request() -> None:
    rig = Rig(step_tokens=8)
    row = rig.add()
    assert rig.state(row) is RequestState.WAITING
    rig.scheduler.to_stage(0.0)
    rig.stage(row, prompt=10, answer=2)
    assert rig.state(row) is RequestState.STAGED
    rig.step()
    assert rig.state(row) is RequestState.PREFILL
    rig.step()
    assert rig.state(row) is RequestState.DECODE
    rig.step()
    assert rig.state(row) is RequestState.FINISHED


def test_a_long_prompt_is_cut_to_the_token_budget() -> None:
    rig = Rig(step_tokens=32)
    rig.add_staged(prompt=70, answer=1)
    plans = rig.drain()
    assert [chunk.tokens for plan in plans for chunk in plan.chunks] == [32, 32, 6]
    assert [chunk.samples for plan in plans for chunk in plan.chunks] == [False, False, True]


def test_decodes_take_their_token_before_prompts_share_the_rest() -> None:
    rig = Rig(step_tokens=12)
    first = rig.add_staged(prompt=8, answer=9)
    second = rig.add_staged(prompt=4, answer=9)
    rig.step()
    third = rig.add_staged(prompt=40, answer=1)
    plan = rig.step()
    assert [(chunk.row, chunk.tokens) for chunk in plan.chunks] == [(first, 1), (second, 1), (third, 10)]


def test_order_in_a_step() -> None:
    rig = Rig(step_tokens=32)
    other_decode = rig.add_staged(P2, prompt=4, answer=9)
    strict_decode = rig.add_staged(P0, prompt=4, answer=9)
    rig.step()
    other_prompt = rig.add_staged(P2, prompt=4, answer=9)
    rig.schedule()  # dropped: the prompt is admitted and not computed
    strict_prompt = rig.add_staged(P0, prompt=4, answer=9)
    plan = rig.step()
    assert [chunk.row for chunk in plan.chunks] == [strict_decode, strict_prompt, other_decode, other_prompt]


def test_strict_prompts_take_the_budget_from_other_prompts_that_run() -> None:
    rig = Rig(step_tokens=10)
    rig.add_staged(P2, prompt=60, answer=1)
    rig.step()
    strict = rig.add_staged(P0, prompt=30, answer=1)
    plan = rig.step()
    assert [(chunk.row, chunk.tokens) for chunk in plan.chunks] == [(strict, 10)]


def test_the_time_cap_cuts_prompts() -> None:
    rig = Rig(step_max_s=0.0305, prefill_floor_tokens=1)  # 10 ms and 1 ms a token
    rig.add_staged(prompt=70, answer=1)
    plan = rig.step()
    assert plan.chunks[0].tokens == 20
    assert plan.predicted_s == pytest.approx(0.030)


def test_a_cap_shorter_than_the_decodes_still_lets_prompts_on_by_the_floor() -> None:
    rig = Rig(step_max_s=0.010, prefill_floor_tokens=4, max_sequences=4)
    decodes = [rig.add_staged(prompt=1, answer=50) for _ in range(3)]
    rig.step()
    prompt = rig.add_staged(prompt=12, answer=1)
    plans = [rig.step() for _ in range(3)]
    assert all({chunk.row for chunk in plan.chunks} == {*decodes, prompt} for plan in plans)
    assert [chunk.tokens for plan in plans for chunk in plan.chunks if chunk.row == prompt] == [4, 4, 4]


def test_the_cap_follows_the_machine() -> None:
    rig = Rig(step_max_s=0.030, context_tokens=200, blocks=200, step_tokens=64, prefill_floor_tokens=1)
    rig.add_staged(prompt=190, answer=1)
    first = rig.schedule()
    assert first is not None
    rig.settle(first, measured_s=4 * first.predicted_s)
    second = rig.schedule()
    assert second is not None
    assert second.chunks[0].tokens < first.chunks[0].tokens


def test_slots_are_never_exceeded() -> None:
    rig = Rig(max_sequences=2)
    rows = [rig.add_staged(prompt=2, answer=3) for _ in range(5)]
    plans = rig.drain()
    assert max(len(plan.chunks) for plan in plans) == 2
    assert {rig.state(row) for row in rows} == {RequestState.FINISHED}


def test_the_prompt_is_charged_at_dispatch_and_each_token_in_its_step() -> None:
    rig = Rig(step_tokens=8)
    row = rig.add_staged(prompt=10, answer=3)
    rig.step()
    assert rig.qdisc.charged[row] == 10
    rig.drain()
    assert rig.qdisc.charged[row] == 10 + 2 * 3
    assert rig.qdisc.settled[row] == 1


def test_a_row_picked_by_its_estimate_is_charged_its_true_prompt_at_staging() -> None:
    rig = Rig()
    row = rig.add(estimate=50)
    assert rig.schedule() is None
    assert rig.qdisc.charged[row] == 50
    rig.scheduler.to_stage(rig.now)
    rig.stage(row, prompt=12, answer=1)
    assert rig.qdisc.charged[row] == 12


def test_a_row_staged_while_queued_is_charged_once() -> None:
    rig = Rig()
    row = rig.add(estimate=50)
    rig.scheduler.to_stage(rig.now)
    rig.stage(row, prompt=12, answer=1)
    assert rig.qdisc.charged[row] == 0
    rig.drain()
    assert rig.qdisc.charged[row] == 12 + 2


def test_output_is_predicted_anew_at_staging() -> None:
    rig = Rig()
    row = rig.add()
    rig.lengths.output_tokens = 7
    rig.scheduler.to_stage(rig.now)
    rig.stage(row, prompt=4, answer=1, max_output=50)
    assert rig.index.output_tokens[row] == 7


def test_a_predictor_that_only_knows_the_limit_does_not_replace_the_estimate() -> None:
    rig = Rig()
    row = rig.add()  # estimated at 4
    rig.scheduler.to_stage(rig.now)
    rig.stage(row, prompt=4, answer=1, max_output=90)
    assert rig.index.output_tokens[row] == 4


def test_a_prompt_that_leaves_no_room_for_a_token_is_impossible() -> None:
    rig = Rig(context_tokens=100)
    row = rig.add()
    other = rig.add()
    rig.scheduler.to_stage(rig.now)
    rig.stage(row, prompt=100)
    rig.stage(other, prompt=99, answer=1)
    assert rig.scheduler.take_impossible() == [row]
    assert rig.scheduler.take_impossible() == []
    assert rig.state(row) is RequestState.FAILED
    rig.drain()
    assert rig.state(other) is RequestState.FINISHED


def test_an_impossible_row_that_was_picked_frees_its_class() -> None:
    rig = Rig()
    row = rig.add()
    assert rig.schedule() is None
    rig.scheduler.to_stage(rig.now)
    rig.stage(row, prompt=100)
    assert rig.qdisc.settled[row] == 1
    following = rig.add_staged()
    assert following in rig.step().admitted


def test_a_request_may_fill_the_context_to_the_last_token() -> None:
    rig = Rig(context_tokens=20, blocks=5, block_size=4)
    row = rig.add_staged(prompt=10, answer=10, max_output=1000)
    rig.drain()
    assert rig.state(row) is RequestState.FINISHED
    assert rig.produced[row] == 10


def test_going_on_past_the_limit_is_a_bug_of_the_engine() -> None:
    rig = Rig(context_tokens=20, blocks=5, block_size=4)
    rig.add_staged(prompt=10, answer=11, max_output=1000)
    with pytest.raises(AssertionError, match="past its limit"):
        rig.drain()


@pytest.mark.parametrize(
    "state",
    [
        RequestState.WAITING,
        RequestState.STAGED,
        RequestState.CLAIMED,
        RequestState.PREFILL,
        RequestState.DECODE,
    ],
)
@pytest.mark.parametrize("end", ["cancel", "fail"])
def test_a_request_can_be_ended_in_any_state(state: RequestState, end: str) -> None:
    rig = Rig(step_tokens=8)
    row = rig.add()
    if state is RequestState.CLAIMED:
        assert rig.schedule() is None
    if state not in (RequestState.WAITING, RequestState.CLAIMED):
        rig.scheduler.to_stage(rig.now)
        rig.stage(row, prompt=12, answer=5)
    while rig.state(row) < state:
        rig.step()
    assert rig.state(row) is state
    getattr(rig.scheduler, end)(row, rig.now)
    assert rig.state(row) is (RequestState.CANCELLED if end == "cancel" else RequestState.FAILED)
    rig.scheduler.check_integrity()
    assert rig.kv.free_blocks == rig.kv.num_blocks
    dequeued = state in (RequestState.CLAIMED, RequestState.PREFILL, RequestState.DECODE)
    assert rig.qdisc.settled[row] == dequeued
    assert not rig.scheduler.has_work
    assert rig.schedule() is None


def test_a_row_that_ends_at_the_staging_thread_may_be_used_again_at_once() -> None:
    rig = Rig()
    row = rig.add()
    assert rig.scheduler.to_stage(rig.now) == [row]
    rig.scheduler.cancel(row, rig.now)
    rig.forget(row)
    assert rig.add() == row
    assert rig.scheduler.to_stage(rig.now) == [row], "the new request has its own turn"


def test_a_row_refused_at_staging_is_failed() -> None:
    rig = Rig()
    queued, picked = rig.add(P2), rig.add(P3)
    rig.scheduler.to_stage(rig.now)
    rig.scheduler.staging_failed(queued, rig.now)
    assert rig.schedule() is None
    assert rig.state(picked) is RequestState.CLAIMED
    rig.scheduler.staging_failed(picked, rig.now)
    assert rig.state(queued) is rig.state(picked) is RequestState.FAILED
    assert rig.qdisc.settled == {picked: 1}
    rig.scheduler.check_integrity()


def test_a_plan_that_did_not_run_is_planned_again() -> None:
    rig = Rig()
    first, second = rig.add_staged(prompt=4), rig.add_staged(prompt=5)
    dropped = rig.schedule()
    assert dropped is not None
    rig.scheduler.cancel(first, rig.now)
    again = rig.step()
    assert dropped.admitted == (first, second)
    assert again.admitted == ()
    assert again.chunks == dropped.chunks[1:]


def test_only_the_latest_plan_is_settled_and_once() -> None:
    rig = Rig()
    rig.add_staged(answer=9)
    old = rig.schedule()
    new = rig.schedule()
    assert old is not None
    assert new is not None
    with pytest.raises(AssertionError, match="only the latest plan"):
        rig.settle(old)
    rig.settle(new)
    with pytest.raises(AssertionError, match="only the latest plan"):
        rig.settle(new)


def test_a_plan_is_void_when_one_of_its_rows_has_ended() -> None:
    rig = Rig()
    row = rig.add_staged()
    plan = rig.schedule()
    assert plan is not None
    rig.scheduler.cancel(row, rig.now)
    with pytest.raises(AssertionError, match="not after one of its rows ended"):
        rig.settle(plan)


def test_nothing_new_starts_without_leave_to_dispatch() -> None:
    rig = Rig()
    running = rig.add_staged(answer=3)
    rig.step()
    waiting = rig.add_staged()
    plan = rig.step(may_dispatch=False)
    assert [chunk.row for chunk in plan.chunks] == [running]
    assert rig.state(waiting) is RequestState.STAGED
    rig.step(may_dispatch=False)
    assert rig.schedule(may_dispatch=False) is None
    assert rig.step().admitted == (waiting,)


def test_nothing_is_picked_while_no_slot_is_free() -> None:
    rig = Rig(max_sequences=1)
    rig.add_staged(P3, answer=3)
    rig.step()
    late = rig.add_staged(P3)
    urgent = rig.add_staged(P2)
    rig.step()
    assert rig.state(late) is RequestState.STAGED, "a pick is bound late, so the more urgent one is first"
    rig.step()
    assert rig.step().admitted == (urgent,)


def test_next_event_is_the_earlier_of_deadline_and_eligibility() -> None:
    rig = Rig()
    assert rig.scheduler.next_event(0.0) is None
    rig.add(deadline_s=8.0)
    assert rig.scheduler.next_event(0.0) == 8.0
    rig.qdisc.next_time = 5.0
    assert rig.scheduler.next_event(0.0) == 5.0
    rig.schedule(may_dispatch=False)
    assert rig.scheduler.next_event(0.0) == 8.0, "what becomes eligible can't start"


def test_statistics_count_what_happened() -> None:
    rig = Rig(max_sequences=2)
    for _ in range(3):
        rig.add_staged(prompt=6, answer=3)
    rig.add()
    rig.step()
    statistics = rig.scheduler.statistics()
    assert (statistics.queued, statistics.staged, statistics.staging, statistics.running) == (2, 1, 0, 2)
    rig.drain()
    rig.scheduler.to_stage(rig.now)
    statistics = rig.scheduler.statistics()
    assert (statistics.admitted, statistics.prefill_tokens, statistics.decode_tokens) == (3, 18, 6)
    assert (statistics.claimed, statistics.staging, statistics.running) == (1, 1, 0)


def test_context_is_what_the_chunks_look_at() -> None:
    model = LinearStepTime(fixed_s=1.0, per_prefill_token_s=0.0, per_decode_sequence_s=0.0, per_context_token_s=1.0)
    rig = Rig(step_time=model, step_max_s=1e6, step_tokens=8)
    rig.add_staged(prompt=12, answer=9)
    assert rig.step().predicted_s == 1.0 + 8
    assert rig.step().predicted_s == 1.0 + 12
    assert rig.step().predicted_s == 1.0 + 13
