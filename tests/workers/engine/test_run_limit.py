"""Who has run for too long, and what is kept of those that have ended."""

from tests.workers.engine.engine_rig import Rig
from tests.workers.engine.table_rig import TableRig
from workers.engine.run_limit import RunLimit
from workers.engine.timeline import Timeline
from workers.intake.request import Arrival, EngineRequest
from workers.intake.staging import Staged, StageJob


def admitted(known: TableRig, arrival: Arrival, admitted_s: float) -> EngineRequest:
    rig = Rig()
    rig.prompts[arrival.headers.request_id] = (8, 4)
    row = known.add(arrival)
    rig.answer(StageJob(row, arrival))
    (staged,) = rig.inbox.take_all()
    assert isinstance(staged, Staged)
    timeline = Timeline(arrived_s=0.0, admitted_s=admitted_s)
    request = EngineRequest(row, arrival, staged.prepared, timeline, [], [], None)
    known.table.stage(request)
    return request


def test_those_that_have_ended_behind_a_long_one_are_not_kept() -> None:
    known, arrival = TableRig(), Rig().arrive("r")
    limit = RunLimit(100.0, known.table)
    limit.admitted(admitted(known, arrival, 0.0))
    for _ in range(1_000):
        limit.admitted(admitted(known, arrival, 1.0))
        known.end(1)
    assert len(limit) < 100
    limit.admitted(admitted(known, arrival, 2.0))
    assert list(limit.overdue(101.5)) == [0]
    known.end(0)
    assert list(limit.overdue(102.0)) == [1], "which is the row of all those that have ended, too"
