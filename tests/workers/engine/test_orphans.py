"""Rows that go on when their partition is taken away: renewed when it comes back, dropped when it does not."""

from dataclasses import replace

from tests.workers.engine.engine_rig import Rig
from workers.engine.messages import Dropped, Resumed, Revoked
from workers.intake.request import Arrival

REVOKED = Revoked("inference.p1", 0, 1)


def running(rig: Rig, *names: str, output: int = 10) -> list[Arrival]:
    arrivals = [rig.arrive(name, output=output) for name in names]
    for _ in range(4):
        rig.parts.engine.step()
    rig.take()
    assert all(0 < len(rig.published[name]) < output for name in names)
    return arrivals


def back(arrival: Arrival, epoch: int = 2) -> Resumed:
    return Resumed(replace(arrival, epoch=epoch))


def test_what_is_computed_goes_on_and_ends_as_the_arrival_that_has_come_back() -> None:
    rig, undisturbed = Rig(), Rig()
    (arrival,) = running(rig, "r")
    undisturbed.arrive("r", output=10)
    undisturbed.run()
    rig.inbox.put(REVOKED)
    rig.parts.engine.step()
    rig.inbox.put(back(arrival))
    rig.run()
    assert rig.published == undisturbed.published
    assert rig.endings["r"].arrival == replace(arrival, epoch=2)
    assert rig.parts.engine.statistics().decode_tokens == undisturbed.parts.engine.statistics().decode_tokens
    assert len(rig.parts.index) == 0


def test_it_may_be_taken_away_again_and_again() -> None:
    rig = Rig()
    (arrival,) = running(rig, "r", output=20)
    for epoch in (1, 2, 3):
        rig.inbox.put(replace(REVOKED, epoch=epoch))
        rig.inbox.put(back(arrival, epoch + 1))
        rig.parts.engine.step()
    rig.run()
    assert rig.endings["r"].arrival.epoch == 4
    assert len(rig.published["r"]) == 20


def test_one_that_ends_before_its_record_comes_back_is_no_new_row_however_often_that_goes_and_comes() -> None:
    rig = Rig()
    (arrival,) = running(rig, "r")
    rig.inbox.put(REVOKED)
    rig.run()
    assert rig.endings["r"].arrival.epoch == 1
    for epoch in (2, 3):
        rig.inbox.put(back(arrival, epoch))
        rig.inbox.put(replace(REVOKED, epoch=epoch))
        rig.run()
    assert rig.parts.engine.statistics().ended == 1
    assert len(rig.parts.index) == 0


def test_an_ending_is_remembered_until_it_is_read() -> None:
    rig = Rig()
    (arrival,) = running(rig, "r")
    rig.inbox.put(REVOKED)
    rig.run()
    del rig.endings["r"]
    rig.inbox.put(Dropped(frozenset({arrival.id})))
    rig.inbox.put(back(arrival))
    rig.run()
    assert rig.endings["r"].arrival.epoch == 2


def test_what_only_waits_is_dropped_and_is_a_new_row_when_it_comes_back() -> None:
    rig = Rig()
    names = [f"r{number}" for number in range(4)]
    running(rig, *names, output=30)
    waits = rig.arrive("waits")
    rig.parts.engine.step()
    rig.inbox.put(REVOKED)
    rig.parts.engine.step()
    assert len(rig.parts.index) == 4
    rig.inbox.put(back(waits))
    rig.run()
    assert rig.endings["waits"].arrival.epoch == 2
    assert rig.endings.keys() == {*names, "waits"}


def test_what_nobody_waits_for_any_more_leaves_without_a_word_and_frees_its_blocks() -> None:
    rig = Rig()
    first, _ = running(rig, "gone", "stays", output=30)
    rig.inbox.put(REVOKED)
    rig.inbox.put(Dropped(frozenset({first.id})))
    rig.run()
    assert rig.endings.keys() == {"stays"}
    assert len(rig.parts.index) == 0
    assert rig.parts.kv.statistics().tables == 0


def test_a_record_that_comes_back_after_its_row_was_dropped_is_run_anew() -> None:
    rig = Rig()
    (arrival,) = running(rig, "r")
    told = len(rig.published.pop("r"))
    rig.inbox.put(REVOKED)
    rig.inbox.put(Dropped(frozenset({arrival.id})))
    rig.inbox.put(replace(arrival, epoch=2))
    rig.run()
    assert told > 0
    assert (rig.endings["r"].arrival.epoch, len(rig.published["r"])) == (2, 10)


def test_a_request_of_several_sequences_does_not_go_on() -> None:
    rig = Rig()
    rig.arrive("r", output=30, choices=2)
    for _ in range(4):
        rig.parts.engine.step()
    rig.inbox.put(REVOKED)
    rig.run()
    assert rig.endings == {}
    assert len(rig.parts.index) == 0
