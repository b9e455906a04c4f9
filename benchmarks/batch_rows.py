"""The input of `benchmarks.batch_stories`: rows that ask about this repository's own documentation, some of them bad.

Knows texts and the ten ways in which a row can be bad. Does not know what becomes of them.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import orjson

__all__ = ["BAD_KINDS", "write_rows"]

_DOCS = Path(__file__).parents[1] / "docs"
_LENGTHS = ((0.85, 60), (0.13, 250), (0.01, 1_000), (0.01, 2_000))
"""Part of the rows, and the most characters of their text."""
_ANSWERS = (2, 4, 8)
"""Output limits, in tokens."""


def _line(name: str, body: dict[str, Any], **fields: Any) -> bytes:
    return orjson.dumps({"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body} | fields)


_GOOD = {"messages": [{"role": "user", "content": "Say yes."}], "max_tokens": 2}
BAD_KINDS: dict[str, Callable[[str], bytes]] = {
    "no JSON": lambda name: b"{" + name.encode(),
    "no object": lambda name: orjson.dumps([name]),
    "no name": lambda name: _line("", _GOOD),
    "a name for the second time": lambda name: _line("row-0", _GOOD),
    "another method": lambda name: _line(name, _GOOD, method="GET"),
    "another url": lambda name: _line(name, _GOOD, url="/v1/audio/speech"),
    "no messages": lambda name: _line(name, {"max_tokens": 2}),
    "a temperature that is text": lambda name: _line(name, _GOOD | {"temperature": "0.5"}),
    "a field that nobody knows": lambda name: _line(name, _GOOD | {"tempreature": 0.5}),
    "more tokens than the context has": lambda name: _line(name, _GOOD | {"max_tokens": 100_000}),
}
"""The last one is right in itself: the worker refuses it, all others are refused by the check of the input."""


def write_rows(path: Path, rows: int, bad_rows: int, seed: int = 7) -> None:
    """`bad_rows` of them are bad, the kinds in turn. The first row is a good one, `row-0`."""
    chance = Random(seed)
    texts = list(_texts())
    kinds = list(BAD_KINDS.values())
    bad = dict(zip(sorted(chance.sample(range(1, rows), bad_rows)), range(bad_rows), strict=True))
    with path.open("wb") as file:
        for row in range(rows):
            name = f"row-{row}"
            if row in bad:
                line = kinds[bad[row] % len(kinds)](name)
            else:
                longest = chance.choices([most for _, most in _LENGTHS], [part for part, _ in _LENGTHS])[0]
                content = f"What is this about? {chance.choice(texts)[:longest]}"
                body = {"messages": [{"role": "user", "content": content}], "max_tokens": chance.choice(_ANSWERS)}
                line = _line(name, body)
            file.write(line + b"\n")


def _texts() -> Iterator[str]:
    """Stretches of prose, from each paragraph's beginning to the end of the page."""
    for page in sorted(_DOCS.glob("*.md")):
        paragraphs = re.split(r"\n{2,}", page.read_text(encoding="utf-8"))
        for place in range(len(paragraphs)):
            if re.match(r"[A-Z]", paragraphs[place]):
                yield "\n\n".join(paragraphs[place : place + 4])
