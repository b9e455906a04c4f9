"""Tokenizers small enough to build in a test, of the two kinds that are told apart."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

__all__ = ["byte_fallback_tokenizer", "byte_level_tokenizer"]


def byte_level_tokenizer() -> Tokenizer:
    """GPT-2's kind. Every byte is a token (ids 0 … 255), then merges, added tokens and three control tokens.

    `ðŁ` and `Ģâ` end in the middle of a character, as merges of a trained vocabulary do.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: place for place, character in enumerate(alphabet)}
    vocabulary |= {"Ġt": 256, "he": 257, "ðŁ": 258, "Ģâ": 259}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("Ġ", "t"), ("h", "e"), ("ð", "Ł"), ("Ģ", "â")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken("<a word>", special=False), AddedToken("…", special=False)])
    tokenizer.add_special_tokens(
        [AddedToken(content, special=True) for content in ("<|start|>", "<|end|>", "<|end|>-of-all")]
    )
    return tokenizer


def byte_fallback_tokenizer() -> Tokenizer:
    """SentencePiece's kind: words with ▁; what isn't in the vocabulary is bytes, `<0x00>` being id 1."""
    vocabulary = {"<unk>": 0} | {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
    for piece in ("▁", "h", "e", "l", "o", "▁h", "ll", "é"):
        vocabulary[piece] = len(vocabulary)
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=[("▁", "h"), ("l", "l")], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    return tokenizer
