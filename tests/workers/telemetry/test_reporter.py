"""A worker's report of itself, out of an engine on virtual time."""

import pytest

from scheduling.default_tree import default_tree
from scheduling.priority import PriorityClass
from tests.workers.engine.engine_rig import Rig
from topics.assignment import PartitionEpoch
from topics.terminal_replies import Fate
from topics.worker_reports import ClassReport, WorkerReport
from workers.answers.terminal_writer import Settled, Terminal
from workers.engine.observer import EngineSnapshot
from workers.intake.request import Arrival
from workers.telemetry.reporter import Reporter
from workers.telemetry.tenant_labels import TenantLabels

P0, P1, P2, P3 = PriorityClass


class Scene:
    """An engine and its reporter, told of arrivals and of endings as the worker tells it."""

    def __init__(self, max_tenants: int = 50) -> None:
        self.rig = Rig()
        self.reporter = Reporter(
            "inference.reports",
            worker="w1",
            policy=lambda: "htb",
            model="tiny",
            slots=5,
            class_of_node={
                child.name: child.priority for child in default_tree(1_000.0).walk() if child.priority is not None
            },
            tenants=TenantLabels(max_tenants),
            started_s=0.0,
        )

    def arrive(self, name: str, priority: PriorityClass = P1, output: int = 40) -> Arrival:
        arrival = self.rig.arrive(name, priority=priority, output=output)
        self.reporter.arrived(arrival)
        return arrival

    def end(self, name: str, *, met: bool = True, sent_after_s: float = 0.25) -> None:
        publication = self.rig.endings[name]
        arrival, ending = publication.arrival, publication.ending
        assert ending is not None
        assert ending.timeline.ended_s is not None
        reply = self.reporter.record(0.0, self.snapshot(), self.rig.parts.engine.statistics())
        terminal = Terminal(reply, arrival.id, arrival.epoch, arrival.origin_class, None, publication)
        acknowledged_s = ending.timeline.ended_s + sent_after_s
        self.reporter.settled(Settled(terminal, Fate.DELIVERED, acknowledged_s, acknowledged_s), {"ttft": met})

    def snapshot(self) -> EngineSnapshot:
        assert self.rig.parts.observer is not None
        for _ in range(3):  # staged, admitted, looked at
            self.rig.clock.advance(1.0)
            self.rig.parts.engine.step()
        assert self.rig.parts.observer.snapshot is not None
        return self.rig.parts.observer.snapshot

    def report(self) -> WorkerReport:
        snapshot = self.snapshot()
        record = self.reporter.record(self.rig.clock(), snapshot, self.rig.parts.engine.statistics())
        assert (record.topic, record.key) == ("inference.reports", b"w1")
        return WorkerReport.model_validate_json(record.value or b"")

    def of(self, priority: PriorityClass) -> ClassReport:
        return next(found for found in self.report().classes if found.label == priority.label)


def test_who_runs_and_who_waits_is_told_by_class_tenant_and_request() -> None:
    scene = Scene()
    for number in range(7):
        scene.arrive(f"r{number}")
    report = scene.report()
    (p1,) = (found for found in report.classes if found.label == "p1")
    assert (p1.running, p1.waiting) == (5, 2)  # the slot that is P0's is lent
    (tenant,) = report.tenants
    assert (tenant.label, tenant.known, tenant.running) == ("p1", 7, 5)
    assert len(report.requests) == 5
    assert {request.state for request in report.requests} <= {"prefill", "decode"}
    assert all(request.slack_s is not None for request in report.requests)
    assert report.kv.blocks - report.kv.free == p1.kv_blocks > 0


def test_the_most_urgent_requests_come_first() -> None:
    scene = Scene()
    scene.arrive("batch", P3)
    scene.arrive("urgent", P0)
    assert [request.request_id for request in scene.report().requests] == ["urgent", "batch"]


def test_an_answer_is_counted_with_its_stages_and_whether_it_came_in_time() -> None:
    scene = Scene()
    scene.arrive("r", output=3)
    scene.rig.run()
    scene.reporter.tokens(scene.rig.endings["r"].arrival, 3)
    scene.end("r", met=False)
    report = scene.report()
    (p1,) = (found for found in report.classes if found.label == "p1")
    assert (p1.answered, p1.missed, p1.ttft.requests) == (1, 1, 1)
    assert p1.ttft.prefill > 0
    assert p1.ttft.reply == pytest.approx(0.25)
    (tenant,) = report.tenants
    assert (tenant.known, tenant.output_tokens, tenant.answered) == (0, 3, 1)
    assert report.requests == ()


def test_shares_are_promised_by_the_tree() -> None:
    scene = Scene()
    scene.arrive("r")
    report = scene.report()
    promised = [found.rate_units_s or 0.0 for found in report.classes]
    assert promised == sorted(promised, reverse=True)
    assert promised[-1] > 0


def test_a_partition_that_is_gone_takes_its_requests_along() -> None:
    scene = Scene()
    arrival = scene.arrive("r")
    scene.reporter.revoked(PartitionEpoch(arrival.id.topic, arrival.id.partition, arrival.epoch))
    assert all(tenant.known == tenant.running for tenant in scene.report().tenants)


def test_tenants_beyond_the_bound_are_one() -> None:
    scene = Scene(max_tenants=0)
    scene.arrive("r")
    assert [tenant.tenant for tenant in scene.report().tenants] == ["other"]
