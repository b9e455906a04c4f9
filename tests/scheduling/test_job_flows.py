"""Jobs of one tenant: a job is a flow, so a short one does not wait for a long one; a weight is so many flows."""

from collections import Counter
from typing import Any

from tests.scheduling.queue_rig import Job, Server, one_class, order

ROW: dict[str, Any] = {"prompt": 40, "output": 8}
LONG, SHORT = 5_000, 100


def rows(job_id: str, count: int, *, weight: int = 1, arrival_s: float = 0.0) -> list[Job]:
    """As `headrace submit` makes them: flow `JOB`, or `JOB#0` … for a weight above 1."""
    flows = [job_id] if weight == 1 else [f"{job_id}#{number}" for number in range(weight)]
    return [Job(flow=flows[row % weight], arrival_s=arrival_s, **ROW) for row in range(count)]


def job_of(row: Job) -> str:
    return row.flow.partition("#")[0]


def test_a_job_of_100_rows_is_not_behind_one_of_5000() -> None:
    long, short = rows("long", LONG), rows("short", SHORT, arrival_s=20.0)
    server = Server([*long, *short], tree=one_class(), slots=8).run()
    jobs = [job_of(row) for row in order(server)]
    begun, ended = jobs.index("short"), len(jobs) - jobs[::-1].index("short")
    # From its first row on they take turns, so its last is the 200th or so.
    assert ended - begun <= 2 * SHORT + 8
    before = sum(dispatch.at_s <= 20.0 for dispatch in server.dispatched)
    assert begun - before <= 8, "it waited for more than what ran when it came"


def test_both_jobs_go_on_side_by_side() -> None:
    server = Server([*rows("one", 400), *rows("two", 400)], tree=one_class(), slots=4).run()
    shares = Counter(job_of(row) for row in order(server)[:400])
    assert abs(shares["one"] - shares["two"]) <= 8


def test_a_job_of_weight_3_gets_three_turns_for_one() -> None:
    server = Server([*rows("heavy", 600, weight=3), *rows("light", 600)], tree=one_class(), slots=4).run()
    shares = Counter(job_of(row) for row in order(server)[:600])
    assert abs(shares["heavy"] - 3 * shares["light"]) <= 24
