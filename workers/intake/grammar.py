"""What an answer may look like, token by token: grammars out of JSON Schemas, and where an answer stands in its own.

Knows the tokenizer's vocabulary, grammars, and the tokens of one answer so far. Does not know requests, logits or which
wire field asked for a grammar (`workers.intake.prompt`), nor how a mask is applied (`workers.runners.logit_edits`).

Library: llguidance (an Earley parser over derivatives of regular expressions, in Rust; Microsoft, MIT). Weighed on this
project's first machine with SmolLM2's 49,152 tokens and three schemas, one core:

| | unpacked | compile | mask and advance, median / p95 | further packages | a keyword it can't hold |
|---|---|---|---|---|---|
| llguidance 1.9 | 7.6 MB | 1–12 ms | 15–100 µs / 70–500 µs | none | refused by name |
| xgrammar 0.2 | 15 MB | 29–37 ms | 33–84 µs / 90–600 µs | tvm-ffi | not tried |
| outlines-core 0.2 | 5.3 MB | 1.0–7.6 s | a table look-up | none | refused |

Compile time is spent on the staging thread, so seconds are out; and a promise that is silently not held would be worse
than a refusal, so it matters that this one refuses by name. Drawback: reading the vocabulary takes 1.2 to 2.3 s and
holds the interpreter's lock, so it is done before the worker joins its groups.

The state is a function of the answer's token ids: after a preemption it goes on, in a next attempt it is built again.

JSON is written as `json.dumps` does, one space after `,` and `:` and no others: a small model that may write spaces
writes nothing else until its limit.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import llguidance
from tokenizers import Tokenizer

from topics.codec import dumps
from workers.runners.runner import ModelLimits

__all__ = ["Grammar", "GrammarCompiler", "GrammarError", "json_options"]

_COMPILED = 64
"""Grammars kept. A job's rows mostly share one; a compiled grammar takes some hundred kilobytes."""
_MESSAGE_CHARACTERS = 200


class GrammarError(ValueError):
    """A schema that can't be held, in the library's words: they name the keyword."""


def json_options() -> dict[str, Any]:
    """How JSON is written, and that nothing of a schema is passed over. Whatever a schema itself says to it."""
    return {
        "item_separator": ", ",
        "key_separator": ": ",
        "whitespace_flexible": False,
        "coerce_one_of": False,
        "lenient": False,
    }


class Grammar:
    """Where one answer stands. Made at staging, then the engine thread's."""

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher
        self._taken = 0

    def follow(self, history: Sequence[int], outputs: int) -> bool:
        """Stand after the last `outputs` tokens of `history`. False: the grammar broke, or they are not of it."""
        if outputs < self._taken:
            self._matcher.rollback(self._taken - outputs)
            self._taken = outputs
        fresh = list(history[len(history) - (outputs - self._taken) :]) if outputs > self._taken else []
        taken = self._matcher.try_consume_tokens(fresh) if fresh else 0
        self._taken += taken
        return taken == len(fresh) and not self.broken

    @property
    def matcher(self) -> llguidance.LLMatcher:
        return self._matcher

    @property
    def broken(self) -> bool:
        return bool(self._matcher.is_error())

    @property
    def complete(self) -> bool:
        """The tokens so far are a whole answer."""
        return bool(self._matcher.is_accepting())


class GrammarCompiler:
    """Owned by the staging thread, but for `warm_up`, which is over before that thread runs."""

    def __init__(self, tokenizer: Tokenizer, limits: ModelLimits) -> None:
        self._tokenizer = tokenizer
        self._limits = limits
        self._vocabulary: llguidance.LLTokenizer | None = None
        self._compiled: OrderedDict[str, llguidance.LLMatcher] = OrderedDict()

    def warm_up(self) -> None:
        """Read the vocabulary: a second or two. Raises `GrammarError` for a tokenizer that the library can't read."""
        if self._vocabulary is not None:
            return
        if not self._limits.eos_token_ids:
            raise GrammarError("the model has no end-of-sequence token")
        try:
            self._vocabulary = llguidance.LLTokenizer(
                self._tokenizer.to_str(),
                n_vocab=self._limits.vocabulary,
                eos_token=sorted(self._limits.eos_token_ids),
            )
        except (ValueError, RuntimeError) as error:
            raise GrammarError(f"the model's tokenizer can't be read: {_shortened(str(error))}") from error

    def json(self, schema: Mapping[str, Any]) -> Grammar:
        """Of JSON documents that fit the schema. Raises `GrammarError`."""
        try:
            text = llguidance.LLMatcher.grammar_from_json_schema(dumps(schema).decode(), overrides=json_options())  # type: ignore[arg-type]  # the stub's TypedDict
        except ValueError as error:
            raise GrammarError(_shortened(str(error))) from error
        return self._grammar(text)

    def lark(self, grammar: str) -> Grammar:
        """Of a Lark grammar. Raises `GrammarError`."""
        return self._grammar(llguidance.LLMatcher.grammar_from_lark(grammar))

    def _grammar(self, text: str) -> Grammar:
        compiled = self._compiled.get(text)
        if compiled is None:
            compiled = self._compile(text)
            self._compiled[text] = compiled
            if len(self._compiled) > _COMPILED:
                self._compiled.popitem(last=False)
        else:
            self._compiled.move_to_end(text)
        return Grammar(compiled.deep_copy())

    def _compile(self, text: str) -> llguidance.LLMatcher:
        self.warm_up()
        assert self._vocabulary is not None
        failed, messages = llguidance.LLMatcher.validate_grammar_with_warnings(text, self._vocabulary)
        if failed:
            raise GrammarError(_shortened(messages[0]))
        matcher = llguidance.LLMatcher(self._vocabulary, text, log_level=0)
        if matcher.is_error():
            raise GrammarError(_shortened(matcher.get_error()))
        return matcher


def _shortened(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= _MESSAGE_CHARACTERS else f"{line[:_MESSAGE_CHARACTERS]}…"
