"""The matcher against the plain definition: look at every prefix of the text for a stop string at its end."""

from hypothesis import given
from hypothesis import strategies as st

from workers.engine.stop_strings import StopStrings

# Two letters, so that strings overlap with themselves and each other all the time.
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4)
PIECES = st.lists(st.text("abc", max_size=4), max_size=15)


def expected(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text before the stop string that ends first (the longest there), and that string."""
    for end in range(1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            longest = max(ended, key=len)
            return text[: end - len(longest)], longest
    return text, None


def streamed(pieces: list[str], stops: list[str]) -> tuple[str, str | None]:
    matcher = StopStrings(stops)
    released = ""
    for piece in pieces:
        text, matched = matcher.feed(piece)
        released += text
        if matched:
            return released, matcher.matched
    return released + matcher.flush(), None


@given(pieces=PIECES, stops=STOPS)
def test_equals_the_definition_however_the_text_is_cut(pieces: list[str], stops: list[str]) -> None:
    assert streamed(pieces, stops) == expected("".join(pieces), stops)


@given(pieces=PIECES, stops=STOPS)
def test_holds_back_no_more_than_the_longest_beginning(pieces: list[str], stops: list[str]) -> None:
    matcher = StopStrings(stops)
    text, released = "", ""
    for piece in pieces:
        text += piece
        shown, matched = matcher.feed(piece)
        released += shown
        if matched:
            return
        may_begin = [text[place:] for place in range(len(text)) if any(s.startswith(text[place:]) for s in stops)]
        assert text == released + max(may_begin, key=len, default="")
