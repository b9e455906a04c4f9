"""Token ids → text, piece by piece, never half a character.

Knows a tokenizer's decoding and the ids seen so far. Does not know stop strings (`workers.engine.stop_strings`) or
replies. The state is a function of the ids alone: feeding ids 0 … n in one go, after a crash or a preemption, leaves
the same state and the same text as having streamed them.

Promise: the pieces, joined, are `tokenizer.decode(ids, skip_special_tokens=True)` without clean-up of spaces; a
character that takes several tokens comes with its last one; a tail that is no character is replaced at `flush`.

Two algorithms:

- **Byte level** (GPT-2, Llama 3, Qwen, SmolLM): a token *is* bytes, so a table of bytes and an incremental UTF-8
  decoder do it exactly, invalid bytes included, in constant time a token. Python and Rust both replace the maximal
  invalid part (Unicode 3.9, "U+FFFD substitution of maximal subparts").
- **Window** (everything else: SentencePiece with byte fallback, WordPiece), as in text-generation-inference and vLLM:
  decode what was emitted last and what is new, emit the difference unless it ends in U+FFFD. About twice a token's
  decoding cost. Limit: byte fallback replaces every byte of a run that isn't UTF-8 as a whole, also those already
  emitted as characters; for such a run the number of characters is the promised one, the characters may differ.
"""

import codecs
import re
from collections.abc import Sequence
from typing import Protocol

from tokenizers import Tokenizer, decoders

__all__ = ["ByteLevelDetokenizer", "Detokenizer", "DetokenizerFactory", "WindowDetokenizer"]

_REPLACEMENT = "\ufffd"
_BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")
"""SentencePiece's byte fallback. Its U+2581 is a space."""
_LONGEST_CHARACTER_TOKENS = 8
"""A character has at most 4 bytes, so at most 4 tokens; past twice that, a trailing U+FFFD is meant."""


class Detokenizer(Protocol):
    """One request's text."""

    def feed(self, token_ids: Sequence[int]) -> str:
        """The text that these ids complete; empty while a character is unfinished."""
        ...

    def flush(self) -> str:
        """The end: what was held back, U+FFFD for what is no character. Nothing may be fed after it."""
        ...


class DetokenizerFactory:
    """Makes a detokenizer for each request; what they share (the byte table) is made once.

    Thread-safe after construction: detokenizers of different requests may run on different threads.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """`tokenizer` is kept for decoding; nobody may change its settings while requests run."""
        self._tokenizer = tokenizer
        self._special = frozenset(
            token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special
        )
        byte_level = isinstance(tokenizer.decoder, decoders.ByteLevel)
        self._table = _byte_table(tokenizer, self._special) if byte_level else None

    def token_bytes(self, token_id: int) -> bytes:
        """What one token stands for, taken alone; a special token for its name, none for what the tokenizer lacks."""
        if self._table is not None and token_id not in self._special:
            return self._table[token_id] if token_id < len(self._table) else b""
        token = self._tokenizer.id_to_token(token_id) or ""
        if _BYTE_TOKEN.fullmatch(token):
            return bytes.fromhex(token[3:5])
        return token.replace("\u2581", " ").encode()

    def __call__(self) -> Detokenizer:
        if self._table is not None:
            return ByteLevelDetokenizer(self._table)
        return WindowDetokenizer(self._tokenizer, self._special)


class ByteLevelDetokenizer:
    """For tokenizers whose tokens are bytes."""

    def __init__(self, table: Sequence[bytes]) -> None:
        """`table[id]` is the token's bytes; special tokens have none."""
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token_ids: Sequence[int]) -> str:
        table = self._table
        # A model's vocabulary may be padded beyond the tokenizer's: those ids have no text, as in `decode`.
        data = b"".join([table[token_id] for token_id in token_ids if token_id < len(table)])
        return self._decoder.decode(data)

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For any tokenizer with a decoder. The window holds the ids emitted last and those not yet emitted."""

    def __init__(self, tokenizer: Tokenizer, special: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._window: list[int] = []
        self._emitted = 0
        """The first `_emitted` ids of the window are those whose text was emitted last: the new ones' context."""

    def feed(self, token_ids: Sequence[int]) -> str:
        # One by one, so that the window's state doesn't depend on how the ids were grouped.
        return "".join([self._feed_one(token_id) for token_id in token_ids])

    def flush(self) -> str:
        return self._text(self._window)[len(self._text(self._window[: self._emitted])) :]

    def _feed_one(self, token_id: int) -> str:
        if token_id in self._special:
            return ""
        self._window.append(token_id)
        pending = len(self._window) - self._emitted
        text = self._text(self._window)
        if text.endswith(_REPLACEMENT) and pending <= _LONGEST_CHARACTER_TOKENS:
            return ""
        piece = text[len(self._text(self._window[: self._emitted])) :]
        if not piece and pending <= _LONGEST_CHARACTER_TOKENS:
            return ""
        self._window = self._window[self._emitted :]
        self._emitted = len(self._window)
        return piece

    def _text(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=True)


def _byte_table(tokenizer: Tokenizer, special: frozenset[int]) -> tuple[bytes, ...]:
    """Each token's bytes, by id. One with a character outside the alphabet is UTF-8, as in the ByteLevel decoder."""
    byte_of = {character: byte for byte, character in enumerate(_byte_characters())}
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for token, token_id in vocabulary.items():
        if token_id not in special:
            known = all(character in byte_of for character in token)
            table[token_id] = bytes(byte_of[character] for character in token) if known else token.encode()
    return tuple(table)


def _byte_characters() -> list[str]:
    """GPT-2's alphabet: the character that stands for each byte. Printable Latin-1 stands for itself."""
    characters: list[str] = []
    moved = 0
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255:
            characters.append(chr(byte))
        else:
            characters.append(chr(256 + moved))
            moved += 1
    return characters
