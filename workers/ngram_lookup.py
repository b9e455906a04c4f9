"""Where the last tokens of a text stood in it before: a table that grows with the text.

Knows token ids. Does not know models or steps. Memory: two entries a token, for as long as the request runs.
"""

from collections.abc import Sequence

__all__ = ["NGramLookup"]

_LENGTHS = (3, 2)
"""The longest first: what followed three tokens is likelier to follow again than what followed two."""


class NGramLookup:
    __slots__ = ("_seen", "_upto")

    def __init__(self) -> None:
        self._seen: dict[tuple[int, ...], int] = {}
        """The n-gram → the place behind its last occurrence, the very end of the text excepted."""
        self._upto = 0
        """N-grams that end before this place are in the table."""

    def after(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        """Up to `most` tokens that followed the text's last ones when those last stood in it; empty if never.

        `tokens`: the same text as before, and perhaps more.
        """
        end = len(tokens)
        for place in range(self._upto, end):
            for length in _LENGTHS:
                # An n-gram is known once something followed it.
                if place >= length:
                    self._seen[tuple(tokens[place - length : place])] = place
        self._upto = end
        for length in _LENGTHS:
            before = self._seen.get(tuple(tokens[end - length :])) if end >= length else None
            if before is not None:
                return tokens[before : before + most]
        return ()
