"""Who has run for too long, and what is kept of those that have ended."""

from tests.workers.engine_rig import Rig
from workers.engine.request_table import RequestTable
from workers.engine.run_limit import RunLimit
from workers.engine.timeline import Timeline
from workers.intake.request import Arrival, EngineRequest
from workers.intake.staging import Staged, StageJob


def admitted(table: RequestTable, arrival: Arrival, row: int, admitted_s: float) -> EngineRequest:
    rig = Rig()
    rig.prompts[arrival.headers.request_id] = (8, 4)
    rig.answer(StageJob(row, arrival))
    (staged,) = rig.inbox.take_all()
    assert isinstance(staged, Staged)
    timeline = Timeline(arrived_s=0.0, admitted_s=admitted_s)
    request = EngineRequest(row, arrival, staged.prepared, timeline, [], [], None)
    table.add(row, arrival)
    table.stage(request)
    return request


def test_those_that_have_ended_behind_a_long_one_are_not_kept() -> None:
    table, arrival = RequestTable(), Rig().arrive("r")
    limit = RunLimit(100.0, table)
    limit.admitted(admitted(table, arrival, 0, 0.0))
    for _ in range(1_000):
        limit.admitted(admitted(table, arrival, 1, 1.0))
        table.forget(1)
    assert len(limit) < 100
    limit.admitted(admitted(table, arrival, 2, 2.0))
    assert list(limit.overdue(101.5)) == [0]
    table.forget(0)
    assert list(limit.overdue(102.0)) == [2]
