"""Prompts and text with the real model's tokenizer, beside what transformers does with it."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.answers.detokenizer import DetokenizerFactory
from workers.intake.prompt import PromptBuilder
from workers.models.model_source import find_model, load_tokenizer, prepare_model

pytestmark = pytest.mark.model

TEXT = st.text(st.characters(codec="utf-8"), max_size=80)
CUTS = st.lists(st.integers(1, 5), min_size=1, max_size=8)


class Model:
    """Loaded at the first test, not at collection."""

    def __init__(self) -> None:
        files = prepare_model(find_model("smollm2"))
        self.tokenizer: Any = load_tokenizer(files)
        self.limits = files.limits
        self.prompts = PromptBuilder(self.tokenizer, files.limits, ["smollm2"])
        self.new_detokenizer = DetokenizerFactory(self.tokenizer.backend_tokenizer)

    def prompt(self, **fields: Any) -> tuple[int, ...]:
        return self.prompts.build({"model": "smollm2"} | fields, request_id="r", created_s=0).prompt_token_ids


@pytest.fixture(scope="module")
def model() -> Model:
    return Model()


def streamed(model: Model, ids: Sequence[int], cuts: Sequence[int]) -> str:
    detokenizer = model.new_detokenizer()
    pieces, place, turn = [], 0, 0
    while place < len(ids):
        size = cuts[turn % len(cuts)]
        pieces.append(detokenizer.feed(ids[place : place + size]))
        place, turn = place + size, turn + 1
    return "".join([*pieces, detokenizer.flush()])


@given(ids=st.lists(st.integers(0, 49_151), max_size=80), cuts=CUTS)
def test_pieces_of_any_ids_are_what_the_tokenizer_decodes(model: Model, ids: list[int], cuts: list[int]) -> None:
    assert streamed(model, ids, cuts) == model.tokenizer.decode(ids, skip_special_tokens=True)


@given(text=TEXT, cuts=CUTS)
def test_pieces_of_any_text_are_what_the_tokenizer_decodes(model: Model, text: str, cuts: list[int]) -> None:
    ids = model.tokenizer.encode(text, add_special_tokens=False)
    assert streamed(model, ids, cuts) == model.tokenizer.decode(ids, skip_special_tokens=True)


# The vocabulary has no token for some bytes that only planes without any character need (U+40000 and above).
@given(text=st.text(st.characters(codec="utf-8", max_codepoint=0x3FFFF, exclude_characters="\ufffd"), max_size=80))
def test_no_piece_has_half_a_character(model: Model, text: str) -> None:
    assert "\ufffd" not in streamed(model, model.tokenizer.encode(text, add_special_tokens=False), [1])


@given(contents=st.lists(TEXT, min_size=1, max_size=4))
def test_a_chat_has_the_tokens_that_transformers_gives_it(model: Model, contents: list[str]) -> None:
    roles = ["user", "assistant"]
    messages = [{"role": roles[place % 2], "content": content} for place, content in enumerate(contents)]
    expected = model.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert model.prompt(messages=messages) == tuple(expected)


@given(before=TEXT, after=TEXT)
def test_a_spelled_control_token_is_text_and_the_rest_is_as_ever(model: Model, before: str, after: str) -> None:
    """Tokens of a chat with a spelling are those of its parts, tokenised by transformers with and without control."""
    tokenizer = model.tokenizer
    content = f"{before}<|im_end|>{after}"
    head = tokenizer.encode("<|im_start|>system\ns<|im_end|>\n<|im_start|>", add_special_tokens=False)
    # Between two control tokens the text is one run: the role's name, the content.
    middle = tokenizer.encode(f"user\n{content}", add_special_tokens=False, split_special_tokens=True)
    tokenizer.backend_tokenizer.encode_special_tokens = False
    tail = tokenizer.encode("<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False)
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": content}]
    assert model.prompt(messages=messages) == tuple(head + middle + tail)


def test_a_text_completion_has_the_tokens_that_transformers_gives_it(model: Model) -> None:
    text = "<|im_start|>user\nHello, 12 wörld!<|im_end|>"
    assert model.prompt(prompt=text) == tuple(model.tokenizer.encode(text))


def test_the_limits_are_the_model_s(model: Model) -> None:
    assert (model.limits.context_tokens, model.limits.vocabulary) == (8_192, 49_152)
    assert model.limits.eos_token_ids == {2}
