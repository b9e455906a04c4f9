"""When a consumer that stands still is replaced, and when the watchdog gives up."""

from topics.consumer_watchdog import StallWatch, Verdict


def test_a_consumer_that_stays_behind_is_replaced_once_and_then_given_up() -> None:
    watch = StallWatch(60)
    assert watch.moved(10)
    told = []
    for now_s in range(0, 181, 15):
        assert not watch.moved(10)
        told.append(watch.behind(float(now_s)))
    assert [told.index(Verdict.REPLACE) * 15, told.index(Verdict.GIVE_UP) * 15] == [60, 120]


def test_whoever_moves_again_begins_anew() -> None:
    watch = StallWatch(60)
    watch.moved(10)
    watch.behind(0.0)
    assert watch.behind(60.0) is Verdict.REPLACE
    assert watch.moved(11)
    assert watch.behind(70.0) is Verdict.WELL
    assert watch.behind(130.0) is Verdict.REPLACE


def test_time_in_which_there_was_nothing_to_read_does_not_count() -> None:
    watch = StallWatch(60)
    watch.moved(10)
    watch.behind(0.0)
    watch.idle()
    assert watch.behind(70.0) is Verdict.WELL
