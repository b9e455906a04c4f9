"""What followed the last tokens before: as a search of the whole text says it."""

from hypothesis import given
from hypothesis import strategies as st

from workers.engine.ngram_lookup import NGramLookup


def searched(tokens: list[int], most: int) -> list[int]:
    for length in (3, 2):
        tail = tokens[len(tokens) - length :]
        for place in range(len(tokens) - 1, length - 1, -1):
            if tokens[place - length : place] == tail:
                return tokens[place : place + most]
    return []


@given(
    st.lists(st.integers(0, 2), max_size=40),
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=10),
    st.integers(1, 5),
)
def test_a_growing_text_finds_what_a_search_finds(start: list[int], parts: list[list[int]], most: int) -> None:
    lookup, text = NGramLookup(), list(start)
    assert list(lookup.after(text, most)) == searched(text, most)
    for part in parts:
        text += part
        assert list(lookup.after(text, most)) == searched(text, most)


def test_a_text_that_never_repeats_gives_nothing() -> None:
    assert list(NGramLookup().after([1, 2, 3, 4, 5], 4)) == []
