"""A chat's messages, or a text, become token ids.

Knows the tokenizer and its chat template. Does not know what else a request asks for (`workers.intake.prompt`).

Control tokens. In a chat, text of the caller that spells a special token (`<|im_end|>`) stays text: otherwise a user
could close its turn and speak as the system. Transformers can only switch that off for a whole string
(`split_special_tokens`), template included; so where a content holds such a spelling the template's own control tokens
are renamed before tokenising, to tokens of a second tokenizer that no caller can spell, and mapped back after. All
other chats are tokenised exactly as transformers does. A text completion's `prompt` is taken as it stands, control
tokens included: whoever sends one writes the template himself.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from jinja2 import TemplateError
from tokenizers import Tokenizer

from topics.errors import RequestError
from topics.messages import ChatCompletionRequest
from workers.intake.control_tokens import ControlTokens
from workers.intake.tool_calls import Conversation, conversation
from workers.runners.runner import ModelLimits

__all__ = ["ChatTokenizer", "PromptTokens"]

_PROBE_CHARACTERS = 8
"""Characters per token of context that are tokenised first of a very long text. Prose has about 4.5."""
_PROBE_TAIL_WORDS = 32
"""At the cut a word may be incomplete, and so may a renamed control token: these last words are not counted."""
_TEMPLATE_MESSAGE_CHARACTERS = 200


class ChatTokenizer(Protocol):
    """What is used of a transformers tokenizer of the fast kind."""

    chat_template: Any

    @property
    def backend_tokenizer(self) -> Tokenizer: ...

    def apply_chat_template(
        self,
        conversation: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None,
        tokenize: bool,
        add_generation_prompt: bool,
    ) -> Any: ...


class PromptTokens:
    def __init__(self, tokenizer: ChatTokenizer, limits: ModelLimits) -> None:
        """Takes over the tokenizer: truncation and padding that its files may ask for are switched off."""
        self._chat = tokenizer
        self._limits = limits
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self._control = ControlTokens(self._backend)

    def chat(self, request: ChatCompletionRequest) -> tuple[int, ...]:
        if self._chat.chat_template is None:
            raise RequestError.invalid_request(
                "messages", "this model has no chat template: send prompt (a text completion) instead of messages."
            )
        form = conversation(request, self._chat.chat_template)
        if not any(self._control.occur_in(text) for text in _texts([form.messages, form.tools])):
            return self._encode(self._backend, self._render(form), "messages")
        hidden = Conversation(_changed(form.messages, self._control.hide), _changed(form.tools, self._control.hide))
        text = self._render(hidden)
        token_ids = self._encode(self._control.tokenizer, self._control.rename(text), "messages")
        return self._control.restore(token_ids)

    def _render(self, form: Conversation) -> str:
        """The template's text. A last message of the assistant is a turn like any other, and a new turn is begun."""
        try:
            rendered = self._chat.apply_chat_template(
                form.messages, tools=form.tools, tokenize=False, add_generation_prompt=True
            )
        except TemplateError as error:
            reason = str(error)[:_TEMPLATE_MESSAGE_CHARACTERS]
        else:
            return str(rendered)
        # Raised outside the handler: a template's error may hold the messages. Its own text is the model author's.
        contents = [message["content"] for message in form.messages]
        quotes = any(content and content in reason for content in contents)
        detail = "" if quotes or not reason else f" ({reason})"
        raise RequestError.invalid_request(
            "messages",
            f"the model's chat template refuses these messages{detail}: change the order of roles or their content.",
        )

    def text(self, prompt: str | tuple[int, ...], field: str) -> tuple[int, ...]:
        """Of a text completion's prompt, which `field` of the body holds."""
        if isinstance(prompt, str):
            return self._encode(self._backend, prompt, field, add_special_tokens=True)
        vocabulary = self._limits.vocabulary
        if max(prompt) >= vocabulary:
            place = next(place for place, token_id in enumerate(prompt) if token_id >= vocabulary)
            raise RequestError.invalid_request(
                f"{field}.{place}",
                f"{field}.{place} is {prompt[place]}, this model's token ids end at {vocabulary - 1}: "
                "tokenise with this model's tokenizer.",
                "invalid_value",
            )
        return prompt

    def _encode(
        self, tokenizer: Tokenizer, text: str, param: str, *, add_special_tokens: bool = False
    ) -> tuple[int, ...]:
        """Raises `RequestError` early for a text that is far too long, so that it doesn't hold up the thread.

        A megabyte takes 1.5 s to tokenise. The words of its beginning are as many tokens there as in the whole text,
        so when they alone exceed the context, the whole does. Text that hides its length (spaces first, one endless
        word) is tokenised whole; the cap on a record's bytes bounds that.
        """
        context = self._limits.context_tokens
        probe = context * _PROBE_CHARACTERS
        if len(text) > 2 * probe:
            encoding = tokenizer.encode(text[:probe], add_special_tokens=False)
            words = [word for word in encoding.word_ids if word is not None]
            whole = bisect_left(words, words[-1] - _PROBE_TAIL_WORDS) if words else 0
            if whole > context:
                raise RequestError.context_length_exceeded(
                    context_tokens=context, prompt_tokens=whole, output_tokens=None, param=param, at_least=True
                )
        return tuple(tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)


def _texts(part: Any) -> Iterator[str]:
    """All strings of a JSON document, keys included."""
    if isinstance(part, str):
        yield part
    elif isinstance(part, dict):
        for key, value in part.items():
            yield key
            yield from _texts(value)
    elif isinstance(part, list):
        for value in part:
            yield from _texts(value)


def _changed(part: Any, change: Callable[[str], str]) -> Any:
    """A JSON document with every string changed, and every key that a caller chose."""
    if isinstance(part, str):
        return change(part)
    if isinstance(part, dict):
        return {change(key): _changed(value, change) for key, value in part.items()}
    return [_changed(value, change) for value in part] if isinstance(part, list) else part
