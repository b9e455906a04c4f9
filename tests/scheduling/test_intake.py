"""What becomes of a request on arrival: lowered, refused with a time to come again, or let in."""

import pytest

from scheduling.default_tree import default_tree
from scheduling.index import Index
from scheduling.intake import Accepted, Full, Intake, IntakeError, IntakeLimits, OverQuota, QueueFull
from scheduling.policies import make_qdisc
from scheduling.quota import Limit, Over, Quota, Quotas, Unit
from tests.scheduling.queue_rig import P0, P1, P2, P3, Job, add, release

TREE = default_tree(1000.0, 100)


class Desk:
    """An intake before a real discipline."""

    def __init__(self, limits: IntakeLimits, quotas: Quotas | None = None) -> None:
        quotas = quotas or Quotas()
        self.index = Index()
        self.qdisc = make_qdisc("htb", self.index, TREE, quotas=quotas)
        self.intake = Intake(limits, quotas, self.qdisc, 0.0)
        self.now = 0.0

    def ask(self, job: Job) -> Accepted | OverQuota | QueueFull:
        """Queue it if it is accepted."""
        verdict = self.intake.decide(job.tenant, job.priority, job.prompt, self.now)
        if isinstance(verdict, Accepted):
            row = add(self.index, job)
            if verdict.service > job.priority:
                self.index.demote(row, verdict.service)
            self.qdisc.enqueue(row, self.now)
        return verdict

    def serve(self, count: int) -> None:
        for _ in range(count):
            row = self.qdisc.dequeue(self.now)
            assert row is not None
            self.qdisc.settle(row, self.now)
            release(self.index, row)


def test_by_default_nobody_is_refused() -> None:
    desk = Desk(IntakeLimits())
    assert all(desk.ask(Job(priority=P2)) == Accepted(P2) for _ in range(1000))


def test_a_full_class_is_refused_and_the_others_are_not() -> None:
    desk = Desk(IntakeLimits(full=Full.REJECT, max_queued=3))
    for _ in range(3):
        assert desk.ask(Job()) == Accepted(P1)
    refused = desk.ask(Job())
    assert isinstance(refused, QueueFull)
    assert refused.queue_depth == 3
    assert desk.ask(Job(priority=P0)) == Accepted(P0)


def test_the_bound_in_cost_counts_what_is_predicted() -> None:
    desk = Desk(IntakeLimits(full=Full.REJECT, max_queued_cost=100))
    assert desk.ask(Job(prompt=60, output=10)) == Accepted(P1)
    assert desk.ask(Job(prompt=60, output=10)) == Accepted(P1)
    assert isinstance(desk.ask(Job(prompt=1)), QueueFull)


def test_retry_after_is_what_the_measured_drain_says() -> None:
    desk = Desk(IntakeLimits(full=Full.REJECT, max_queued=100))
    for _ in range(100):
        desk.ask(Job(prompt=10, output=0))
    for _ in range(20):
        desk.now += 1.0
        desk.serve(2)  # 20 units a second
        while isinstance(verdict := desk.ask(Job(prompt=10, output=0)), Accepted):
            pass
    assert isinstance(verdict, QueueFull)
    assert verdict.queue_depth == 100
    assert verdict.retry_after_s == pytest.approx(1000 / 20, rel=0.1)


def test_without_any_drain_a_minute_is_named() -> None:
    desk = Desk(IntakeLimits(full=Full.REJECT, max_queued=1))
    desk.ask(Job())
    refused = desk.ask(Job())
    assert isinstance(refused, QueueFull)
    assert refused.retry_after_s == 60.0


def test_a_full_class_sinks_and_is_refused_where_there_is_no_room_either() -> None:
    desk = Desk(IntakeLimits(full=Full.DEMOTE, max_queued=2))
    verdicts = [desk.ask(Job()) for _ in range(5)]
    assert verdicts[:4] == [Accepted(P1), Accepted(P1), Accepted(P3), Accepted(P3)]
    assert isinstance(verdicts[4], QueueFull)


def test_a_long_prompt_sinks() -> None:
    desk = Desk(IntakeLimits(long_prompt_tokens=1000, demote_to=P2))
    assert desk.ask(Job(priority=P0, prompt=1001)) == Accepted(P2)
    assert desk.ask(Job(priority=P0, prompt=1000)) == Accepted(P0)
    assert desk.ask(Job(priority=P3, prompt=1001)) == Accepted(P3)


@pytest.mark.parametrize("over", Over)
def test_beyond_its_quota_a_tenant_waits_sinks_or_is_refused(over: Over) -> None:
    quotas = Quotas(tenants={"a": Quota(limits=(Limit(1, Unit.REQUESTS, 60.0),), over=over)})
    desk = Desk(IntakeLimits(), quotas)
    verdicts = [desk.ask(Job(tenant="a")) for _ in range(3)]
    assert verdicts[:2] == [Accepted(P1), Accepted(P1)]
    if over is Over.REJECT:
        assert isinstance(verdicts[2], OverQuota)
        assert verdicts[2].retry_after_s == pytest.approx(60.0)
    else:
        assert verdicts[2] == Accepted(P1 if over is Over.WAIT else P3)
    assert desk.ask(Job(tenant="b")) == Accepted(P1)


@pytest.mark.parametrize("limits", [{"max_queued": 5}, {"full": Full.REJECT}])
def test_bounds_and_what_to_do_at_them_belong_together(limits: dict[str, object]) -> None:
    with pytest.raises(IntakeError):
        IntakeLimits(**limits)  # type: ignore[arg-type]
