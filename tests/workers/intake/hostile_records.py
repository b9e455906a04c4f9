"""Records that nobody in their right mind would send: a seeded stream of them, fast enough for millions.

Knows valid requests, and how to spoil them: bytes flipped, cut, doubled and spliced; JSON values swapped for absurd
ones; headers of every name with every kind of value. Does not know what should become of them.

Why not hypothesis alone: it gives some hundred records a second, and finds by structure what bytes don't; these give
tens of thousands, and find what nobody thought of. `tests.workers.intake.test_hostile_input` uses both.
"""

import random
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

import orjson

from topics.headers import CAP_BYTES
from topics.record import InboundRecord, RecordId

__all__ = ["ABSURD", "hostile_records"]

_CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Say hello, wörld 🌍."}]},
    ],
    "max_tokens": 16,
    "temperature": 0.7,
    "top_p": 0.9,
    "stop": ["\n\n"],
    "stream": True,
    "stream_options": {"include_usage": True},
    "seed": 7,
    "logit_bias": {"17": -5},
    "priority": 2,
    "metadata": {"a": "b"},
}
_COMPLETION: dict[str, Any] = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 4, "min_p": 0.1, "ignore_eos": True}
_BODIES: tuple[dict[str, Any], ...] = (_CHAT, _COMPLETION, {"prompt": "text"}, {"messages": []})
_SEEDS = tuple(map(orjson.dumps, _BODIES))
ABSURD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**31,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
    1e308,
    -0.0,
    5e-324,
    "",
    "\x00",
    "\u202e\ufeff",
    "p0",
    "<|end|>" * 50,
    "x" * 5_000,
    [],
    {},
    [[]] * 20,
    {"": {"": {"": ""}}},
    ["a"] * 300,
    [2**40] * 10,
)
_RAW = (
    b"",
    b"null",
    b"[]",
    b"NaN",
    b'{"a":1e999}',
    b"\xff\xfe{}",
    b'{"messages":"\\ud800"}',
    b"[" * 2_000,
    b'{"a":' * 1_500 + b"1" + b"}" * 1_500,
    b'{"messages":[{"role":"user","content":"hi"}],"messages":1}',
)
_HEADER_NAMES = (*CAP_BYTES, "traceparent", "tokens", "event", "", "x" * 300, "Request-Id", "\u202e")
_HEADER_VALUES = (
    b"",
    b" ",
    b"p0",
    b"p3",
    b"acme",
    b"0",
    b"-1",
    b"1",
    b"99999999999999999999",
    b"\x00\x00\x00\x07",
    b"\xff\xff\xff\xff",
    b"inference.replies",
    b"../../etc",
    "ö\u202e".encode(),
    b"\xff\xfe",
    b"\n\r\t",
    b"x" * 9_000,
    b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    b"1790000000000",
)


def hostile_records(seed: int, count: int) -> Iterator[InboundRecord]:
    """The same ones for the same seed."""
    chance = random.Random(seed)
    for offset in range(count):
        yield InboundRecord(
            id=RecordId("inference.p1", chance.randrange(3), offset),
            timestamp_ms=chance.choice((1_790_000_000_000, -1, 0, 2**62)),
            key=chance.choice((None, b"", b"key", b"\xff" * 3, b"k" * 600)),
            value=_value(chance),
            headers=_headers(chance),
        )


def _value(chance: random.Random) -> bytes | None:
    kind = chance.random()
    if kind < 0.02:
        return None
    if kind < 0.08:
        return chance.choice(_RAW)
    if kind < 0.50:
        body = orjson.loads(chance.choice(_SEEDS))
        for _ in range(chance.randint(1, 3)):
            _spoil(chance, body)
        return orjson.dumps(body)
    if kind < 0.55:
        return chance.choice(_SEEDS)
    raw = bytearray(chance.choice(_SEEDS))
    for _ in range(chance.randint(1, 6)):
        _spoil_bytes(chance, raw)
    return bytes(raw)


def _spoil(chance: random.Random, body: Any) -> None:
    """Swap, drop or add a value somewhere in a document."""
    place = body
    while chance.random() < 0.6:
        inner = [value for value in _members(place) if isinstance(value, dict | list) and value]
        if not inner:
            break
        place = chance.choice(inner)
    absurd = deepcopy(chance.choice(ABSURD))
    if isinstance(place, list):
        place.insert(chance.randint(0, len(place)), absurd) if chance.random() < 0.5 or not place else place.pop()
        return
    names = [*place]
    if names and chance.random() < 0.15:
        del place[chance.choice(names)]
    elif names and chance.random() < 0.85:
        place[chance.choice(names)] = absurd
    else:
        place[chance.choice(("n", "tools", "priority", "user", "\x00", "prompt", "x" * 200))] = absurd


def _members(place: Any) -> Sequence[Any]:
    return list(place.values()) if isinstance(place, dict) else place


def _spoil_bytes(chance: random.Random, raw: bytearray) -> None:
    at = chance.randrange(len(raw) + 1)
    match chance.randrange(6):
        case 0 if raw:
            raw[at % len(raw)] ^= 1 << chance.randrange(8)
        case 1:
            del raw[at : at + chance.randint(1, 20)]
        case 2:
            raw[at:at] = chance.randbytes(chance.randint(1, 8))
        case 3:
            raw[at:at] = raw[at : at + 40]
        case 4:
            raw[at:at] = chance.choice((b"\\u0000", b'"', b"}", b"]", b"{", b"\\", b"1e9", b",", b"\xf0\x9f"))
        case _:
            other = chance.choice(_SEEDS)
            raw[at:] = other[chance.randrange(len(other)) :]


def _headers(chance: random.Random) -> tuple[tuple[str, bytes], ...]:
    if chance.random() < 0.3:
        return ()
    many = 200 if chance.random() < 0.002 else chance.randint(1, 4)
    return tuple((chance.choice(_HEADER_NAMES), _header_value(chance)) for _ in range(many))


def _header_value(chance: random.Random) -> bytes:
    if chance.random() < 0.2:
        return chance.randbytes(chance.randint(0, 30))
    return chance.choice(_HEADER_VALUES)
