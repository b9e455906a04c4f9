"""An engine whose policy, quotas and pauses change while it runs: everybody is answered, and the new rule holds."""

from scheduling.default_tree import default_tree
from scheduling.priority import PriorityClass
from scheduling.quota import Limit, Quota, Quotas, Unit
from tests.workers.engine.engine_rig import Rig
from workers.configuration.config import EngineConfig
from workers.engine.messages import NewPolicy, NewQuotas, PausedClasses, QuotaShare

P0, P1, P2, P3 = PriorityClass
NOBODY: frozenset[str] = frozenset()


def policy(name: str, strict: frozenset[PriorityClass] = frozenset()) -> NewPolicy:
    return NewPolicy(name, default_tree(1_000.0), strict, Quotas(), NOBODY)


def test_a_change_of_policy_in_the_middle_loses_nobody() -> None:
    rig = Rig()
    for number in range(30):
        rig.arrive(f"r{number}", priority=PriorityClass(number % 4), tenant=f"t{number % 3}")
    for name in ("fifo", "vtc", "htb"):
        for _ in range(4):
            rig.parts.engine.step()
        rig.inbox.put(policy(name))
    rig.run_through()
    assert len(rig.endings) == 30
    assert all(publication.ending.error is None for publication in rig.endings.values())  # type: ignore[union-attr]


def test_a_paused_class_is_not_started_and_what_runs_of_it_ends() -> None:
    rig = Rig()
    rig.arrive("runs", priority=P2, output=10)
    for _ in range(3):
        rig.parts.engine.step()
    rig.inbox.put(PausedClasses(frozenset({P2})))
    rig.arrive("waits", priority=P2)
    rig.arrive("other", priority=P3)
    rig.run()
    assert rig.endings.keys() == {"runs", "other"}
    assert rig.parts.engine.next_event() is None, "it would turn for nothing"
    rig.inbox.put(PausedClasses(frozenset()))
    rig.run()
    assert rig.endings.keys() == {"runs", "other", "waits"}


def test_a_paused_tenant_waits_and_its_neighbour_does_not() -> None:
    rig = Rig()
    rig.inbox.put(NewQuotas(Quotas(), frozenset({"paused"})))
    rig.arrive("waits", tenant="paused")
    rig.arrive("goes", tenant="other")
    rig.run()
    assert rig.endings.keys() == {"goes"}
    rig.inbox.put(NewQuotas(Quotas(), NOBODY))
    rig.run()
    assert rig.endings.keys() == {"goes", "waits"}


def test_a_new_quota_is_this_workers_part_of_it() -> None:
    rig = Rig()
    rig.inbox.put(QuotaShare(0.5))
    rig.inbox.put(NewQuotas(Quotas(tenants={"t": Quota(limits=(Limit(4, Unit.REQUESTS, 60.0),))}), NOBODY))
    for number in range(8):
        rig.arrive(f"r{number}")
    rig.run()
    assert len(rig.endings) == 3, "two of its half, and one more that it owes"


def test_with_a_new_policy_other_classes_are_strict() -> None:
    """Under `strict`, P0 may take the slot that is set aside; under `fifo` nobody is before anybody."""
    rig = Rig(policy="fifo")
    rig.inbox.put(policy("strict", frozenset({P0})))
    for number in range(8):
        rig.arrive(f"batch{number}", priority=P3, output=40)
    for _ in range(3):
        rig.parts.engine.step()
    rig.arrive("urgent", priority=P0, output=2)
    for _ in range(4):
        rig.parts.engine.step()
    rig.take()
    assert "urgent" in rig.endings


def test_a_request_that_runs_for_too_long_is_ended_and_the_others_go_on() -> None:
    """Steps of 10 ms and more: a quarter of a second is some twenty tokens."""
    rig = Rig(engine_config=EngineConfig(max_sequences=5, step_tokens=32, max_run_s=0.25))
    rig.arrive("short", output=4)
    rig.arrive("long", output=200)
    rig.arrive("later", output=4, priority=P3)
    rig.run_through()
    errors = {name: publication.ending.error for name, publication in rig.endings.items() if publication.ending}
    assert errors["short"] is None
    assert errors["later"] is None
    assert errors["long"] is not None
    assert errors["long"].code == "run_time_exceeded"
    assert 0 < len(rig.published["long"]) < 200
    assert rig.parts.kv.free_blocks == rig.num_blocks
