"""Maps of completed offsets: whatever is complete, the next owner reads the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.offset_map import (
    METADATA_BYTES,
    UnreadableMapError,
    decode_map,
    encode_map,
    encode_map_within,
    map_in_text,
)
from topics.offsets import CompletedRun

SHORT = st.integers(1, 3)
LONG = st.integers(1, 10_000)


@st.composite
def maps(draw: st.DrawFn) -> tuple[int, list[CompletedRun]]:
    """A base, and runs beyond it with one pending offset at least between two."""
    base = end = draw(st.integers(0, 2**40))
    runs: list[CompletedRun] = []
    for gap, length in draw(st.lists(st.one_of(st.tuples(SHORT, SHORT), st.tuples(LONG, LONG)), max_size=300)):
        first = end + gap + (1 if runs else 0)
        runs.append(CompletedRun(first, first + length - 1))
        end = runs[-1].last
    return base, runs


@given(maps())
def test_what_is_written_is_read(given_map: tuple[int, list[CompletedRun]]) -> None:
    base, runs = given_map
    assert list(decode_map(base, encode_map(base, runs))) == runs


@given(maps())
def test_the_text_keeps_within_kafkas_limit_and_holds_the_beginning(given_map: tuple[int, list[CompletedRun]]) -> None:
    base, runs = given_map
    text = encode_map_within(base, runs)
    assert len(text.encode()) <= METADATA_BYTES
    kept = list(map_in_text(base, text))
    assert kept == runs[: len(kept)]


@given(st.integers(0, 2**40), st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(base: int, body: bytes) -> None:
    try:
        runs = decode_map(base, body)
    except UnreadableMapError:
        return
    assert encode_map(base, runs)


@given(maps(), st.data())
def test_a_flipped_bit_is_noticed(given_map: tuple[int, list[CompletedRun]], data: st.DataObject) -> None:
    base, runs = given_map
    body = bytearray(encode_map(base, runs))
    body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(UnreadableMapError):
        decode_map(base, bytes(body))
