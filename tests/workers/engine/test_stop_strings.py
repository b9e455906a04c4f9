"""Stop strings across the borders of pieces."""

from workers.engine.stop_strings import StopStrings


def test_text_without_a_beginning_of_a_stop_string_is_released_at_once() -> None:
    assert StopStrings(["END"]).feed("some text") == ("some text", False)


def test_what_may_begin_a_stop_string_is_held_back() -> None:
    stops = StopStrings(["END", "\n\nUser:"])
    assert stops.feed("done.\n\nUs") == ("done.", False)
    assert stops.feed("ually") == ("\n\nUsually", False)


def test_a_stop_string_over_three_pieces_is_found_and_left_out() -> None:
    stops = StopStrings(["STOP"])
    assert stops.feed("text S") == ("text ", False)
    assert stops.feed("TO") == ("", False)
    assert stops.feed("P more") == ("", True)
    assert stops.matched == "STOP"
    assert stops.flush() == ""


def test_a_failed_beginning_may_contain_the_true_one() -> None:
    stops = StopStrings(["aab"])
    assert stops.feed("a") == ("", False)
    assert stops.feed("a") == ("", False)
    assert stops.feed("a") == ("a", False)
    assert stops.feed("b") == ("", True)


def test_the_one_that_ends_first_counts() -> None:
    stops = StopStrings(["abcd", "bc"])
    assert stops.feed("abcd") == ("a", True)
    assert stops.matched == "bc"


def test_of_two_that_end_together_the_longer_counts() -> None:
    stops = StopStrings(["c", "bc"])
    assert stops.feed("abc") == ("a", True)
    assert stops.matched == "bc"


def test_flush_releases_what_was_held() -> None:
    stops = StopStrings(["###"])
    assert stops.feed("a##") == ("a", False)
    assert stops.flush() == "##"
    assert stops.matched is None


def test_characters_that_mean_something_in_a_pattern_are_plain() -> None:
    assert StopStrings(["]", "^x"]).feed("a-^b]c") == ("a-^b", True)


def test_no_stop_strings_match_nothing() -> None:
    assert StopStrings([]).feed("anything") == ("anything", False)
