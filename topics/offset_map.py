"""A partition's completed offsets beyond its base, as the text that Kafka keeps beside a committed offset.

Knows the encoding and its limit. Does not know who completes what (`topics.offsets`) or how a commit is made
(`topics.offset_commits`). Pure and synchronous.

Kafka keeps up to `offset.metadata.max.bytes` (4,096) of text with each committed offset, in the same atomic write.
So the offset is the base, and the text tells which records beyond it are complete: the next owner runs only the rest
(the idea of confluentinc/parallel-consumer). Two encodings are tried, and each deflated where it is long; the shortest
wins:

    runs      for each run the offsets since the end of the last one, and its length, as variable-length integers:
              short where whole stretches are done
    bitset    one bit an offset from the base on: short where completion is scattered

The text is `h1` and the URL-safe base64 of checksum, codec and payload. The checksum covers the base: a map that stands
beside another offset than its own (somebody moved the group by hand) is not believed. An empty map is the empty text,
which is also what every other tool writes. A map that is too large for the text stands in a record of its own, and the
text is `h1@PARTITION:OFFSET`, the record's place on the topic for such maps.

Later releases read `h1`; what a release doesn't know is unreadable to it, and it starts at the base alone.
"""

import base64
import binascii
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from topics.offsets import CompletedRun

__all__ = [
    "METADATA_BYTES",
    "MapPlace",
    "UnreadableMapError",
    "decode_map",
    "encode_map",
    "encode_map_within",
    "map_in_text",
    "map_place",
    "place_text",
    "text_of",
]

METADATA_BYTES = 4_096
"""Kafka's default for `offset.metadata.max.bytes`: a commit with more is refused as a whole."""

_PREFIX = "h1"
_PLACE = re.compile(r"h1@(\d{1,9}):(\d{1,18})")
_RUNS, _BITSET, _DEFLATED = 0, 1, 2
_HEAD_BYTES = 5
"""Checksum and codec."""
_DEFLATE_FROM_BYTES = 200
_LARGEST_BYTES = 16 * 2**20
"""Of a map when it is inflated: that many runs no worker can have pending records between."""


class UnreadableMapError(ValueError):
    """The text is no map of this base: another tool's, another release's, or damaged."""


class MapPlace(NamedTuple):
    """Where a map that is too large for the commit stands."""

    partition: int
    offset: int


def encode_map(base: int, runs: Sequence[CompletedRun]) -> bytes:
    """Checksum, codec and payload of these runs: rising, disjoint, all beyond `base`."""
    payload = bytes(_encode_runs(base, runs))
    codec = _RUNS
    # A bitset longer than twice the runs can't win: both deflate about as well.
    if runs and (runs[-1].last - base) // 8 < 2 * len(payload):
        bits = _encode_bits(base, runs)
        if len(bits) < len(payload):
            payload, codec = bits, _BITSET
    if len(payload) > _DEFLATE_FROM_BYTES:
        deflated = zlib.compress(payload, 6)
        if len(deflated) < len(payload):
            payload, codec = deflated, codec | _DEFLATED
    return _checksum(base, codec, payload) + bytes([codec]) + payload


def decode_map(base: int, body: bytes) -> tuple[CompletedRun, ...]:
    """The runs of `encode_map`. Raises `UnreadableMapError`."""
    if len(body) < _HEAD_BYTES:
        raise UnreadableMapError(f"a map of {len(body)} bytes is too short")
    checksum, codec, payload = body[:4], body[4], body[_HEAD_BYTES:]
    if checksum != _checksum(base, codec, payload):
        raise UnreadableMapError(f"its checksum is not that of a map beside the offset {base}")
    if codec & _DEFLATED:
        inflater = zlib.decompressobj()
        try:
            payload = inflater.decompress(payload, _LARGEST_BYTES)
        except zlib.error as error:
            raise UnreadableMapError(f"it can't be inflated: {error}") from error
        if not inflater.eof:
            raise UnreadableMapError(f"it is larger than {_LARGEST_BYTES} bytes")
    if codec & ~_DEFLATED == _RUNS:
        return tuple(_decode_runs(base, payload))
    if codec & ~_DEFLATED == _BITSET:
        return tuple(_decode_bits(base, payload))
    raise UnreadableMapError(f"its codec {codec} is not known to this release")


def text_of(body: bytes) -> str | None:
    """The commit metadata that holds this map, or None if it is too large for it."""
    text = _PREFIX + base64.urlsafe_b64encode(body).decode("ascii")
    return text if len(text) <= METADATA_BYTES else None


def encode_map_within(base: int, runs: Sequence[CompletedRun]) -> str:
    """Commit metadata with as many of the runs, from the base on, as there is room for. No runs: the empty text.

    For whoever may run a completed record again: what is left out is only forgotten work.
    """
    kept = list(runs)
    while kept:
        if (text := text_of(encode_map(base, kept))) is not None:
            return text
        del kept[len(kept) * 3 // 4 :]
    return ""


def place_text(place: MapPlace) -> str:
    """Commit metadata that points to a map."""
    return f"{_PREFIX}@{place.partition}:{place.offset}"


def map_place(text: str) -> MapPlace | None:
    """Where the map stands that this metadata points to; None if it points nowhere."""
    found = _PLACE.fullmatch(text)
    return None if found is None else MapPlace(int(found[1]), int(found[2]))


def map_in_text(base: int, text: str) -> tuple[CompletedRun, ...]:
    """The runs that commit metadata holds. Raises `UnreadableMapError`."""
    if not text:
        return ()
    if not text.startswith(_PREFIX):
        raise UnreadableMapError("it was not written by this release, or not by a worker at all")
    try:
        body = base64.b64decode(text.removeprefix(_PREFIX).encode("ascii"), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise UnreadableMapError(f"it is no base64: {error}") from error
    return decode_map(base, body)


def _checksum(base: int, codec: int, payload: bytes) -> bytes:
    return zlib.crc32(b"%d:%d:" % (base, codec) + payload).to_bytes(4, "big")


# --- runs -------------------------------------------------------------------------------------------------------------


def _encode_runs(base: int, runs: Iterable[CompletedRun]) -> Iterator[int]:
    end = base
    for run in runs:
        assert end < run.first <= run.last, f"{run} after {end}"
        yield from _varint(run.first - end)
        yield from _varint(run.last - run.first)
        end = run.last


def _decode_runs(base: int, payload: bytes) -> Iterator[CompletedRun]:
    numbers = _varints(payload)
    end = base
    for gap in numbers:
        length = next(numbers, None)
        if length is None or gap == 0:
            raise UnreadableMapError("its runs are not whole")
        run = CompletedRun(end + gap, end + gap + length)
        yield run
        end = run.last


def _varint(number: int) -> Iterator[int]:
    """Seven bits a byte, the lowest first; the highest bit says that more follow."""
    while number > 0x7F:
        yield number & 0x7F | 0x80
        number >>= 7
    yield number


def _varints(payload: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in payload:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield number
            number = shift = 0
        elif shift > 63:
            raise UnreadableMapError("a number in it is too long")
    if shift:
        raise UnreadableMapError("its last number is cut off")


# --- bitset -----------------------------------------------------------------------------------------------------------


def _encode_bits(base: int, runs: Sequence[CompletedRun]) -> bytes:
    """Bit 0 is the offset behind the base, which the base's own record keeps pending."""
    digits: list[str] = []
    end = base
    for run in runs:
        digits.append("0" * (run.first - end - 1))
        digits.append("1" * (run.last - run.first + 1))
        end = run.last
    # Highest first, as int() reads them.
    number = int("".join(digits)[::-1], 2)
    return number.to_bytes((number.bit_length() + 7) // 8, "little")


def _decode_bits(base: int, payload: bytes) -> Iterator[CompletedRun]:
    digits = f"{int.from_bytes(payload, 'little'):b}"[::-1]
    for found in re.finditer("1+", digits):
        yield CompletedRun(base + 1 + found.start(), base + found.end())
