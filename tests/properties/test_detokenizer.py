"""The detokenizers' promise: the pieces, joined, are what the tokenizer decodes, however the ids came."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.workers.models.tiny_tokenizers import byte_fallback_tokenizer, byte_level_tokenizer
from workers.answers.detokenizer import Detokenizer, DetokenizerFactory

TEXT = st.text(st.characters(codec="utf-8"), max_size=60)
CUTS = st.lists(st.integers(1, 5), min_size=1, max_size=8)


BYTE_LEVEL = byte_level_tokenizer()
BYTE_FALLBACK = byte_fallback_tokenizer()


def pieces(detokenizer: Detokenizer, ids: Sequence[int], cuts: Sequence[int]) -> list[str]:
    """Feed `ids` in groups of the lengths `cuts`, over and over."""
    found, place, turn = [], 0, 0
    while place < len(ids):
        size = cuts[turn % len(cuts)]
        found.append(detokenizer.feed(ids[place : place + size]))
        place, turn = place + size, turn + 1
    return [*found, detokenizer.flush()]


def decoded(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=True))


@given(ids=st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() + 5), max_size=60), cuts=CUTS)
def test_byte_level_equals_decode_on_any_ids(ids: list[int], cuts: list[int]) -> None:
    assert "".join(pieces(DetokenizerFactory(BYTE_LEVEL)(), ids, cuts)) == decoded(BYTE_LEVEL, ids)


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK], ids=["byte level", "byte fallback"])
@given(text=TEXT, cuts=CUTS)
def test_equals_decode_on_any_text(tokenizer: Tokenizer, text: str, cuts: list[int]) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert "".join(pieces(DetokenizerFactory(tokenizer)(), ids, cuts)) == decoded(tokenizer, ids)


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK], ids=["byte level", "byte fallback"])
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\ufffd"), max_size=60))
def test_never_half_a_character(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert "\ufffd" not in "".join(pieces(DetokenizerFactory(tokenizer)(), ids, [1]))


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK], ids=["byte level", "byte fallback"])
@given(before=st.lists(st.integers(0, 265), max_size=40), after=st.lists(st.integers(0, 265), max_size=20), cuts=CUTS)
def test_state_is_rebuilt_from_ids_alone(
    tokenizer: Tokenizer, before: list[int], after: list[int], cuts: list[int]
) -> None:
    new = DetokenizerFactory(tokenizer)
    streamed, rebuilt = new(), new()
    for token_id in before:
        streamed.feed([token_id])
    rebuilt.feed(before)
    assert pieces(streamed, after, cuts) == pieces(rebuilt, after, cuts)
