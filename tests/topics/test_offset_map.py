"""The map of completed offsets in the commit metadata, by example; its properties stand in tests/properties."""

import base64
import zlib

import pytest

from topics.offset_map import (
    METADATA_BYTES,
    MapPlace,
    UnreadableMapError,
    decode_map,
    encode_map,
    encode_map_within,
    map_in_text,
    map_place,
    place_text,
    text_of,
)
from topics.offsets import CompletedRun


def every_other(count: int, base: int = 0) -> list[CompletedRun]:
    return [CompletedRun(offset, offset) for offset in range(base + 1, base + 2 * count, 2)]


def scattered(count: int) -> list[CompletedRun]:
    """Runs and gaps without a pattern, so that nothing deflates."""
    runs, at, seed = [], 0, 1
    for _ in range(count):
        seed = seed * 6364136223846793005 + 1442695040888963407 & 2**64 - 1
        first = at + 1 + (seed >> 40) % 120
        at = first + (seed >> 50) % 120
        runs.append(CompletedRun(first, at))
        at += 1
    return runs


def test_nothing_beyond_the_base_is_the_empty_text() -> None:
    assert encode_map_within(7, []) == ""
    assert map_in_text(7, "") == ()


def test_a_few_long_runs_take_a_few_bytes() -> None:
    runs = (CompletedRun(11, 5_000), CompletedRun(5_002, 100_000))
    text = encode_map_within(10, runs)
    assert map_in_text(10, text) == runs
    assert len(text) < 24


def test_ten_thousand_scattered_completions_fit_into_the_metadata() -> None:
    runs = every_other(10_000)
    text = text_of(encode_map(0, runs))
    assert text is not None
    assert list(map_in_text(0, text)) == runs


def test_a_map_that_is_too_large_is_said_to_be() -> None:
    assert text_of(encode_map(0, scattered(4_000))) is None


def test_what_has_no_room_is_left_out_from_the_far_end() -> None:
    runs = scattered(4_000)
    text = encode_map_within(0, runs)
    kept = list(map_in_text(0, text))
    assert METADATA_BYTES // 2 < len(text) <= METADATA_BYTES
    assert kept == runs[: len(kept)]


def test_a_map_beside_another_offset_is_not_believed() -> None:
    text = encode_map_within(10, [CompletedRun(12, 13)])
    with pytest.raises(UnreadableMapError, match="offset 11"):
        map_in_text(11, text)


def test_damage_is_noticed() -> None:
    body = bytearray(encode_map(0, every_other(2_000)))
    body[-3] ^= 1
    with pytest.raises(UnreadableMapError, match="checksum"):
        decode_map(0, bytes(body))


@pytest.mark.parametrize("text", ["by another tool", "h2AAAA", "h1*", "h1AAA", "h1" + "A" * 8, "h1é"])
def test_what_is_no_map_is_unreadable(text: str) -> None:
    with pytest.raises(UnreadableMapError):
        map_in_text(0, text)


def test_a_codec_of_a_later_release_is_unreadable() -> None:
    head = zlib.crc32(b"0:4:" + b"x").to_bytes(4, "big") + b"\x04x"
    with pytest.raises(UnreadableMapError, match="codec 4"):
        map_in_text(0, "h1" + base64.urlsafe_b64encode(head).decode())


def test_the_first_release_s_maps_stay_readable() -> None:
    """Written by release 0.1: a later one must go on reading them."""
    assert map_in_text(100, "h1QQ1TmwFH") == (CompletedRun(101, 103), CompletedRun(107, 107))


def test_a_place_is_not_taken_for_a_map_nor_a_map_for_a_place() -> None:
    text = place_text(MapPlace(3, 12_345))
    assert map_place(text) == MapPlace(3, 12_345)
    assert map_place(encode_map_within(0, [CompletedRun(2, 3)])) is None
    with pytest.raises(UnreadableMapError):
        map_in_text(0, text)


RECORDED = {
    "h1l3YpQwAFBQoAUJ8G": (100, [CompletedRun(105, 110), CompletedRun(120, 120), CompletedRun(200, 999)]),
    "h1oscowgGqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqKg==": (
        1_000,
        [CompletedRun(offset, offset) for offset in range(1_002, 1_400, 2)],
    ),
}
"""As release 0.1.0 wrote them: a worker of this release goes on where one of that release stopped, and beside it."""


@pytest.mark.parametrize("text", RECORDED)
def test_what_an_earlier_release_committed_is_read(text: str) -> None:
    base, runs = RECORDED[text]
    assert map_in_text(base, text) == tuple(runs)


def test_what_a_later_release_may_commit_is_unreadable_and_no_map() -> None:
    with pytest.raises(UnreadableMapError):
        map_in_text(100, "h2l3YpQwAFBQoAUJ8G")
