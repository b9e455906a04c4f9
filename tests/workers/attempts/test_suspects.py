"""Whose turn it is among many suspects, and how much is looked at to know it."""

from dataclasses import replace

from tests.workers.engine.engine_rig import Rig
from workers.attempts.start_gate import arrival_key
from workers.attempts.suspects import Suspects
from workers.intake.request import Arrival

MANY = 400
PARTITIONS = 4


def arrivals() -> list[Arrival]:
    rig = Rig()
    those = [rig.arrive(f"r{number}") for number in range(MANY)]
    return [replace(each, id=each.id._replace(partition=each.id.offset % PARTITIONS)) for each in those]


def test_the_fewest_crashes_go_first_then_who_came_first_over_all_partitions() -> None:
    suspects, those = Suspects(), arrivals()[:12]
    for number, arrival in enumerate(those):
        suspects.add(arrival, 1 + number // 3 % 2)
    order: list[Arrival] = []
    while taken := suspects.take_for_engine(lambda _arrival, _crashes: True):
        order += taken
        suspects.leave(arrival_key(taken[0]))
    assert order == [each for number, each in enumerate(those) if number // 3 % 2 == 0] + [
        each for number, each in enumerate(those) if number // 3 % 2
    ]
    assert len(suspects) == 0


def test_a_partition_whose_first_may_not_go_holds_no_other_back() -> None:
    suspects, those = Suspects(), arrivals()[:8]
    for arrival in those:
        suspects.add(arrival, 2)
    barred = those[0].id.partition
    (taken,) = suspects.take_for_engine(lambda arrival, _crashes: arrival.id.partition != barred)
    assert taken == those[1]


def test_at_every_record_each_partition_is_looked_at_once_however_many_wait() -> None:
    """Thousands may wait after many crashes: to look at each of them at every record took a worker seconds, in which
    it lost its membership, and began anew."""
    suspects, looked = Suspects(), 0

    def may_go(_arrival: Arrival, _crashes: int) -> bool:
        nonlocal looked
        looked += 1
        return False

    for arrival in arrivals():
        suspects.add(arrival, 2)
        suspects.take_for_engine(may_go)
    assert looked <= MANY * PARTITIONS
    assert len(suspects) == MANY


def test_those_of_a_partition_that_is_gone_are_forgotten() -> None:
    suspects, those = Suspects(), arrivals()
    for arrival in those:
        suspects.add(arrival, 1)
    suspects.forget(those[0].id.topic, 0)
    assert len(suspects) == MANY - MANY // PARTITIONS
    while taken := suspects.take_for_engine(lambda _arrival, _crashes: True):
        assert taken[0].id.partition != 0
        suspects.leave(arrival_key(taken[0]))
    assert len(suspects) == 0
