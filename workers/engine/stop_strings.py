"""Finds stop strings in text that comes in pieces, and says what of it may be shown.

Knows characters. Does not know tokens (a stop string may begin and end in the middle of one).

Algorithm: one Knuth–Morris–Pratt automaton a stop string (Knuth, Morris, Pratt, "Fast pattern matching in strings",
1977), fed character by character; each automaton's state is the length of the longest suffix of the text that begins
its string, so what must be held back is the longest state. Chosen over searching the held text again with each piece,
because its cost is linear in the text whatever the strings are (four of 256 characters each, repetitive ones too).
Drawback: a Python loop over characters, about 0.4 µs each and string; only requests with stop strings pay it, and only
from the first character that may begin one.

The stop string that *ends* first counts; of several ending there, the longest. That choice alone doesn't depend on
how the text was cut into pieces.
"""

import re
from collections.abc import Sequence

__all__ = ["StopStrings"]


class StopStrings:
    """One request's matcher. The stop string and what follows it are never released."""

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops`: non-empty strings (`topics.messages` sees to it)."""
        assert all(stops), "an empty stop string matches everywhere"
        self._stops = tuple(stops)
        self._fallbacks = tuple(_fallback(stop) for stop in stops)
        self._beginning = re.compile("[" + "".join(re.escape(stop[0]) for stop in stops) + "]" if stops else r"(?!)")
        self._states = [0] * len(stops)
        self._held = ""
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text, None so far."""
        return self._matched

    def feed(self, piece: str) -> tuple[str, bool]:
        """Text that can be released now, and whether a stop string was met. After a match nothing may be fed."""
        assert self._matched is None, "the text has ended"
        start = 0
        if not self._held:
            beginning = self._beginning.search(piece)
            if beginning is None:
                return piece, False
            start = beginning.start()
        text = self._held + piece
        for place, character in enumerate(piece[start:], start=len(self._held) + start):
            ended = [stop for index, stop in enumerate(self._stops) if self._advance(index, stop, character)]
            if ended:
                self._matched = max(ended, key=len)
                self._held = ""
                return text[: place + 1 - len(self._matched)], True
        cut = len(text) - max(self._states, default=0)
        self._held = text[cut:]
        return text[:cut], False

    def flush(self) -> str:
        """The text has ended without a stop string: what was held back."""
        held, self._held = self._held, ""
        return held

    def _advance(self, index: int, stop: str, character: str) -> bool:
        """Move one automaton on; True if its string ends with this character."""
        state, fallback = self._states[index], self._fallbacks[index]
        while state and stop[state] != character:
            state = fallback[state - 1]
        if stop[state] == character:
            state += 1
        self._states[index] = state
        return state == len(stop)


def _fallback(stop: str) -> tuple[int, ...]:
    """For each prefix of `stop`, the length of its longest proper suffix that is also a prefix."""
    lengths = [0]
    for character in stop[1:]:
        length = lengths[-1]
        while length and stop[length] != character:
            length = lengths[length - 1]
        lengths.append(length + 1 if stop[length] == character else 0)
    return tuple(lengths)
