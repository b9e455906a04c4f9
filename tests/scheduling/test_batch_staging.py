"""What is tokenised ahead: quotas, the part set aside, and what is picked already."""

from collections import Counter

from scheduling.priority import PriorityClass
from tests.scheduling.batch_rig import P0, P1, P2, P3, PlainDiscipline, Rig


def handed_out(rig: Rig) -> Counter[PriorityClass]:
    return Counter(rig.index.service_of(row) for row in rig.scheduler.to_stage(rig.now))


def test_one_class_takes_its_quota_and_no_more() -> None:
    rig = Rig(staged_rows=16)
    for _ in range(40):
        rig.add(P2)
    assert handed_out(rig) == {P2: 8}
    assert handed_out(rig) == {}


def test_a_full_class_leaves_the_rest_to_others() -> None:
    rig = Rig(staged_rows=16)
    for _ in range(40):
        rig.add(P2)
    for _ in range(40):
        rig.add(P3)
    assert handed_out(rig) == {P2: 8, P3: 4}


def test_a_flood_leaves_what_is_set_aside_for_p0() -> None:
    rig = Rig(staged_rows=16)
    for priority in (P1, P2, P3):
        for _ in range(40):
            rig.add(priority)
    assert sum(handed_out(rig).values()) == 12
    for _ in range(40):
        rig.add(P0)
    assert handed_out(rig) == {P0: 4}


def test_p0_uses_the_common_part_too() -> None:
    rig = Rig(staged_rows=16)
    for _ in range(40):
        rig.add(P0)
    assert handed_out(rig) == {P0: 8}


def test_a_strict_class_is_set_aside_for_like_p0() -> None:
    rig = Rig(staged_rows=16, strict=(P0, P1))
    for _ in range(40):
        rig.add(P3)
    for _ in range(40):
        rig.add(P2)
    assert sum(handed_out(rig).values()) == 12
    for _ in range(40):
        rig.add(P1)
    assert handed_out(rig) == {P1: 4}


def test_quotas_by_class_are_kept() -> None:
    quotas = {P0: 1, P1: 2, P2: 3, P3: 4}
    rig = Rig(staged_rows=32, staged_by_class=quotas)
    for priority in quotas:
        for _ in range(10):
            rig.add(priority)
    assert handed_out(rig) == quotas


def test_a_row_leaves_its_place_when_it_is_admitted() -> None:
    rig = Rig(staged_rows=4, max_sequences=4)
    for _ in range(4):
        rig.add(P2)
    rows = rig.scheduler.to_stage(rig.now)
    assert len(rows) == 2
    for row in rows:
        rig.stage(row, prompt=4, answer=9)
    assert handed_out(rig) == {}
    assert rig.step().admitted == tuple(rows)
    assert handed_out(rig) == {P2: 2}


def test_a_row_leaves_its_place_when_it_ends() -> None:
    rig = Rig(staged_rows=4)
    for _ in range(6):
        rig.add(P2)
    staging, staged = rig.scheduler.to_stage(rig.now)
    rig.stage(staged, prompt=4)
    rig.scheduler.cancel(staging, rig.now)
    rig.scheduler.cancel(staged, rig.now)
    assert handed_out(rig) == {P2: 2}


def test_picked_rows_are_handed_out_beyond_the_quotas() -> None:
    rig = Rig(staged_rows=4)
    for _ in range(6):
        rig.add(P2)
    rows = rig.scheduler.to_stage(rig.now)
    for row in rows:
        rig.stage(row, prompt=60, answer=9)
    urgent = rig.add(P1)
    rig.step()  # picks P1's row, unstaged, and admits P2's
    for _ in range(10):
        rig.add(P1)
    assert rig.scheduler.to_stage(rig.now)[0] == urgent


class CountsLooks(PlainDiscipline):
    """Looking ahead walks over what is queued: how often it is asked to."""

    looks = 0

    def upcoming(self, limit: int, skip: frozenset[PriorityClass] = frozenset()) -> list[int]:
        self.looks += 1
        return super().upcoming(limit, skip)


def test_nobody_is_looked_for_while_only_a_full_class_waits() -> None:
    rig = Rig(staged_rows=16, qdisc=CountsLooks)
    for _ in range(40):
        rig.add(P2)
    assert handed_out(rig) == {P2: 8}
    looks = rig.qdisc.looks
    assert handed_out(rig) == {}
    assert rig.qdisc.looks == looks
