"""The two detokenizers on small tokenizers built here."""

from collections.abc import Callable

import pytest
from tokenizers import Tokenizer

from tests.workers.models.tiny_tokenizers import byte_fallback_tokenizer, byte_level_tokenizer
from workers.answers.detokenizer import ByteLevelDetokenizer, DetokenizerFactory, WindowDetokenizer


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    return byte_level_tokenizer()


@pytest.fixture(scope="module")
def byte_fallback() -> Tokenizer:
    return byte_fallback_tokenizer()


def test_the_decoder_decides_the_algorithm(byte_level: Tokenizer, byte_fallback: Tokenizer) -> None:
    assert isinstance(DetokenizerFactory(byte_level)(), ByteLevelDetokenizer)
    assert isinstance(DetokenizerFactory(byte_fallback)(), WindowDetokenizer)


def test_an_emoji_comes_whole_with_its_last_token(byte_level: Tokenizer) -> None:
    detokenizer = DetokenizerFactory(byte_level)()
    ids = ids_of(byte_level, "🦊!")
    assert len(ids) == 4
    assert [detokenizer.feed([token_id]) for token_id in ids] == ["", "", "🦊", "!"]


def test_an_emoji_of_byte_tokens_comes_whole(byte_fallback: Tokenizer) -> None:
    detokenizer = DetokenizerFactory(byte_fallback)()
    ids = [0xF0 + 1, 0x9F + 1, 0xA6 + 1, 0x8A + 1]
    assert [detokenizer.feed([token_id]) for token_id in ids] == ["", "", "", "🦊"]


@pytest.mark.parametrize("make", [byte_level_tokenizer, byte_fallback_tokenizer])
def test_special_tokens_have_no_text(make: Callable[[], Tokenizer]) -> None:
    tokenizer = make()
    detokenizer = DetokenizerFactory(tokenizer)()
    end = tokenizer.get_vocab_size() - 1
    assert detokenizer.feed([end, *ids_of(tokenizer, "hello"), end]) + detokenizer.flush() == "hello"


def test_an_added_token_that_is_not_special_is_text(byte_level: Tokenizer) -> None:
    detokenizer = DetokenizerFactory(byte_level)()
    ids = [byte_level.get_vocab()[token] for token in ("<a word>", "…")]
    assert detokenizer.feed(ids) == "<a word>…"


def test_ids_beyond_the_vocabulary_have_no_text(byte_level: Tokenizer) -> None:
    detokenizer = DetokenizerFactory(byte_level)()
    assert detokenizer.feed([10**6, *ids_of(byte_level, "the"), 5_000]) == "the"


def test_what_never_becomes_a_character_is_replaced_at_the_end(byte_level: Tokenizer) -> None:
    detokenizer = DetokenizerFactory(byte_level)()
    ids = ids_of(byte_level, "a🦊")[:-1]
    assert detokenizer.feed(ids) == "a"
    assert detokenizer.flush() == "\ufffd"


def test_a_real_replacement_character_is_not_held_for_ever(byte_fallback: Tokenizer) -> None:
    detokenizer = DetokenizerFactory(byte_fallback)()
    invalid = [0xFF + 1] * 40
    streamed = "".join(detokenizer.feed([token_id]) for token_id in invalid)
    assert len(streamed) > 30
    assert streamed + detokenizer.flush() == "\ufffd" * 40


def test_text_in_the_middle_keeps_its_spaces(byte_fallback: Tokenizer) -> None:
    detokenizer = DetokenizerFactory(byte_fallback)()
    ids = ids_of(byte_fallback, "hello hello")
    assert "".join(detokenizer.feed([token_id]) for token_id in ids) == "hello hello"


@pytest.mark.parametrize("make", [byte_level_tokenizer, byte_fallback_tokenizer])
def test_the_bytes_of_an_answers_tokens_are_its_text(make: Callable[[], Tokenizer]) -> None:
    tokenizer = make()
    factory = DetokenizerFactory(tokenizer)
    ids = ids_of(tokenizer, "hello the 🦊!")
    assert b"".join(map(factory.token_bytes, ids)).decode().strip() == "hello the 🦊!"
    assert factory.token_bytes(10**6) == b""


def test_a_special_token_is_its_name(byte_level: Tokenizer) -> None:
    end = byte_level.get_vocab_size() - 1
    name = byte_level.id_to_token(end)
    assert name is not None
    assert DetokenizerFactory(byte_level).token_bytes(end) == name.encode()
