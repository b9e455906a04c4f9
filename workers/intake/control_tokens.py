"""Keeps callers' spellings of control tokens apart from a chat template's own (`workers.intake.prompt` says why).

Knows a tokenizer's control tokens. Does not know templates or requests.
"""

import re
import secrets
from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer

__all__ = ["ControlTokens"]


class ControlTokens:
    """Keeps callers' spellings of control tokens apart from the template's own (see the module's text)."""

    def __init__(self, backend: Tokenizer) -> None:
        special = {token_id: token for token_id, token in backend.get_added_tokens_decoder().items() if token.special}
        # Longest first, as the tokenizer itself prefers where one control token begins like another.
        self._ids = sorted(special, key=lambda token_id: -len(special[token_id].content))
        self._contents = [special[token_id].content for token_id in self._ids]
        self._pattern = _any_of(self._contents)
        # Unguessable, and in characters that Unicode assigns to nobody: no caller's text has these names.
        nonce = secrets.token_hex(8)
        self._hidden = [f"\U000f0000{nonce}h{place}\U000f0001" for place in range(len(self._ids))]
        self._hidden_pattern = _any_of(self._hidden)
        self._renamed = [f"\U000f0000{nonce}c{place}\U000f0001" for place in range(len(self._ids))]
        self.tokenizer = Tokenizer.from_str(backend.to_str())
        """Takes control tokens for text, and their new names for tokens. `restore` belongs to its ids."""
        self.tokenizer.encode_special_tokens = True
        self.tokenizer.add_tokens(
            [
                AddedToken(name, lstrip=token.lstrip, rstrip=token.rstrip, normalized=token.normalized, special=False)
                for name, token in zip(self._renamed, (special[token_id] for token_id in self._ids), strict=True)
            ]
        )
        self._original = {
            self.tokenizer.token_to_id(name): token_id for name, token_id in zip(self._renamed, self._ids, strict=True)
        }

    def occur_in(self, content: str) -> bool:
        return self._pattern.search(content) is not None

    def hide(self, content: str) -> str:
        """A caller's text, its spellings of control tokens replaced by something that no template knows."""
        return self._pattern.sub(lambda match: self._hidden[self._contents.index(match[0])], content)

    def rename(self, rendered: str) -> str:
        """The template's control tokens renamed, the callers' spellings put back."""
        text = self._pattern.sub(lambda match: self._renamed[self._contents.index(match[0])], rendered)
        return self._hidden_pattern.sub(lambda match: self._contents[self._hidden.index(match[0])], text)

    def restore(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Renamed control tokens → the model's."""
        return tuple(self._original.get(token_id, token_id) for token_id in token_ids)


def _any_of(alternatives: Sequence[str]) -> re.Pattern[str]:
    """Matches any of them, the first that fits; nothing where there are none."""
    return re.compile("|".join(map(re.escape, alternatives)) if alternatives else r"(?!)")
