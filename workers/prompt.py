"""A request's body becomes what the engine runs: prompt token ids, sampling, limits.

Knows the tokenizer, its chat template, the model's names and its context. Does not know Kafka, priorities or the
model's weights. Runs on the staging thread, which alone may call it: about 0.1 ms for the template and 2.2 ms for 600
tokens (one slow core, SmolLM2's tokenizer; the tokenizer is Rust and lets go of the GIL).

How long an answer may be. `max_tokens` that doesn't fit is refused, not shortened, as OpenAI and vLLM do: a client that
asks for 4,000 tokens and silently gets 100 can't tell why its answer breaks off. Without `max_tokens`: the rest of the
context, or the configured default where that is less.

Control tokens. In a chat, text of the caller that spells a special token (`<|im_end|>`) stays text: otherwise a user
could close its turn and speak as the system. Transformers can only switch that off for a whole string
(`split_special_tokens`), template included; so where a content holds such a spelling the template's own control tokens
are renamed before tokenising, to tokens of a second tokenizer that no caller can spell, and mapped back after. All
other chats are tokenised exactly as transformers does. A text completion's `prompt` is taken as it stands, control
tokens included: whoever sends one writes the template himself.
"""

import re
import secrets
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import Any, Protocol, TypeVar

from jinja2 import TemplateError
from tokenizers import AddedToken, Tokenizer

from topics.codec import loads_object
from topics.errors import RequestError
from topics.headers import RequestHeaders
from topics.messages import ChatCompletionRequest, CompletionRequest, GenerationRequest
from topics.record import InboundRecord
from topics.validation import parse_request
from workers.runner import ModelLimits
from workers.sampling import SamplingParams

__all__ = ["ChatTokenizer", "PreparedRequest", "PromptBuilder", "RequestKind", "seed_of"]

Number = TypeVar("Number", int, float)

_SEED_BITS = (1 << 64) - 1
_PROBE_CHARACTERS = 8
"""Characters per token of context that are tokenised first of a very long text. Prose has about 4.5."""
_PROBE_TAIL_WORDS = 32
"""At the cut a word may be incomplete, and so may a renamed control token: these last words are not counted."""
_TEMPLATE_MESSAGE_CHARACTERS = 200
_LOGPROBS_A_REPLY = 40_000
"""Entries of some hundred bytes; a reply's topic takes records of 8 MiB."""


class ChatTokenizer(Protocol):
    """What is used of a transformers tokenizer of the fast kind."""

    chat_template: Any

    @property
    def backend_tokenizer(self) -> Tokenizer: ...

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> Any: ...


class RequestKind(Enum):
    CHAT = "chat"
    COMPLETION = "completion"


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """All that the engine and the reply need of a body."""

    kind: RequestKind
    model: str
    """As it is written into replies."""
    created_s: int
    """Seconds since the epoch: the record's timestamp, so that every attempt's replies say the same."""
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    max_output_tokens: int
    """At least 1; prompt and output together fit the context."""
    eos_token_ids: frozenset[int]
    """Tokens that end the answer: the request's own, and the model's unless it ignores those."""
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool
    """A last chunk with the usage was asked for."""
    priority: int | None = None
    """The class that the body asks for, 0 to 3."""


class PromptBuilder:
    def __init__(
        self,
        tokenizer: ChatTokenizer,
        limits: ModelLimits,
        served_names: Sequence[str],
        *,
        default_max_tokens: int | None = None,
    ) -> None:
        """`served_names`: the first is written into replies, any is accepted. `default_max_tokens`: see above.

        Takes over the tokenizer: truncation and padding that its files may ask for are switched off.
        """
        assert served_names, "a model has a name"
        self._tokenizer = tokenizer
        self._limits = limits
        self._served_names = tuple(served_names)
        self._default_max_tokens = default_max_tokens
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self._control = _ControlTokens(self._backend)

    def prepare(self, record: InboundRecord, headers: RequestHeaders) -> PreparedRequest:
        """Raises `RequestError` for what the client got wrong. `record.value` is a body (ingress saw to it)."""
        assert record.value is not None, "a tombstone is refused at ingress"
        created_s = max(0, record.timestamp_ms // 1000)
        return self.build(loads_object(record.value), request_id=headers.request_id, created_s=created_s)

    def build(self, body: Mapping[str, Any], *, request_id: str, created_s: int) -> PreparedRequest:
        """Check a decoded body and make its prompt. Raises `RequestError`."""
        request = parse_request(body)
        if request.model is not None and request.model not in self._served_names:
            raise RequestError.model_not_found(request.model, self._served_names)
        self._check_limit(request)
        if isinstance(request, ChatCompletionRequest):
            kind, param = RequestKind.CHAT, "messages"
            token_ids = self._chat_tokens(request)
        else:
            kind, param = RequestKind.COMPLETION, "prompt"
            token_ids = self._completion_tokens(request)
        end_tokens = self._end_tokens(request)
        return PreparedRequest(
            kind=kind,
            model=self._served_names[0],
            created_s=created_s,
            prompt_token_ids=token_ids,
            sampling=_sampling(request, request_id, self._limits, end_tokens),
            max_output_tokens=self._output_limit(request, len(token_ids), param),
            eos_token_ids=end_tokens,
            stop=tuple(dict.fromkeys(request.stop or ())),
            stream=bool(request.stream),
            include_usage=request.wants_usage_chunk,
            priority=request.priority,
        )

    # --- lengths ---

    def _check_limit(self, request: GenerationRequest) -> None:
        """An output limit that no prompt could leave room for is wrong by itself."""
        asked, context = request.requested_tokens, self._limits.context_tokens
        if asked is None or asked < context:
            return
        chat = isinstance(request, ChatCompletionRequest) and request.max_completion_tokens is not None
        field = "max_completion_tokens" if chat else "max_tokens"
        raise RequestError.invalid_request(
            field,
            f"{field} is too large: {asked}. This model's context has {context} tokens for prompt and answer "
            f"together: ask for at most {context - 1}, less the length of the prompt.",
            "invalid_value",
        )

    def _output_limit(self, request: GenerationRequest, prompt_tokens: int, param: str) -> int:
        if prompt_tokens == 0:
            raise RequestError.invalid_request(param, f"{param} has no tokens: write something.", "invalid_value")
        room = self._limits.context_tokens - prompt_tokens
        asked, most = request.requested_tokens, _most_with_logprobs(request)
        if asked is not None and most is not None and asked > most:
            raise RequestError.invalid_request(
                "logprobs",
                f"{asked} tokens with {request.wanted_logprobs} alternatives each are more than one reply holds: ask "
                f"for at most {most} tokens, or for fewer alternatives.",
                "invalid_value",
            )
        if room < 1 or (asked is not None and asked > room):
            raise RequestError.context_length_exceeded(
                context_tokens=self._limits.context_tokens,
                prompt_tokens=prompt_tokens,
                output_tokens=asked,
                param=param,
            )
        if asked is not None:
            return asked
        return min(limit for limit in (room, self._default_max_tokens, most) if limit is not None)

    # --- tokens ---

    def _end_tokens(self, request: GenerationRequest) -> frozenset[int]:
        own = frozenset(request.stop_token_ids or ())
        if max(own, default=0) >= self._limits.vocabulary:
            raise RequestError.invalid_request(
                "stop_token_ids",
                f"stop_token_ids names token {max(own)}, this model's token ids end at {self._limits.vocabulary - 1}: "
                "use this model's token ids.",
                "invalid_value",
            )
        return own if request.ignore_eos else own | self._limits.eos_token_ids

    def _chat_tokens(self, request: ChatCompletionRequest) -> tuple[int, ...]:
        if self._tokenizer.chat_template is None:
            raise RequestError.invalid_request(
                "messages", "this model has no chat template: send prompt (a text completion) instead of messages."
            )
        contents = [message.text for message in request.messages]
        spelled = any(self._control.occur_in(content) for content in contents)
        if not spelled:
            return self._encode(self._backend, self._render(request, contents), "messages")
        text = self._render(request, [self._control.hide(content) for content in contents])
        token_ids = self._encode(self._control.tokenizer, self._control.rename(text), "messages")
        return self._control.restore(token_ids)

    def _render(self, request: ChatCompletionRequest, contents: Sequence[str]) -> str:
        """The template's text. A last message of the assistant is a turn like any other, and a new turn is begun."""
        conversation = [
            # `developer` is OpenAI's newer name of the system's role; templates know only the old one.
            {"role": "system" if message.role == "developer" else message.role, "content": content}
            for message, content in zip(request.messages, contents, strict=True)
        ]
        try:
            rendered = self._tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
        except TemplateError as error:
            reason = str(error)[:_TEMPLATE_MESSAGE_CHARACTERS]
        else:
            return str(rendered)
        # Raised outside the handler: a template's error may hold the messages. Its own text is the model author's.
        quotes = any(content and content in reason for content in contents)
        detail = "" if quotes or not reason else f" ({reason})"
        raise RequestError.invalid_request(
            "messages",
            f"the model's chat template refuses these messages{detail}: change the order of roles or their content.",
        )

    def _completion_tokens(self, request: CompletionRequest) -> tuple[int, ...]:
        if isinstance(request.prompt, str):
            return self._encode(self._backend, request.prompt, "prompt", add_special_tokens=True)
        vocabulary = self._limits.vocabulary
        if max(request.prompt) >= vocabulary:
            place = next(place for place, token_id in enumerate(request.prompt) if token_id >= vocabulary)
            raise RequestError.invalid_request(
                f"prompt.{place}",
                f"prompt.{place} is {request.prompt[place]}, this model's token ids end at {vocabulary - 1}: "
                "tokenise with this model's tokenizer.",
                "invalid_value",
            )
        return request.prompt

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


class _ControlTokens:
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


def _sampling(
    request: GenerationRequest, request_id: str, limits: ModelLimits, end_tokens: frozenset[int]
) -> SamplingParams:
    """`end_tokens`: the model's and the request's own.

    Raises `RequestError` for a bias on a token that the model doesn't have.
    """
    bias = {int(token): value for token, value in (request.logit_bias or {}).items()}
    for token in bias:
        if token >= limits.vocabulary:
            raise RequestError.invalid_request(
                "logit_bias",
                f"logit_bias names token {token}, this model's token ids end at {limits.vocabulary - 1}: use this "
                "model's token ids.",
                "invalid_value",
            )
    return SamplingParams(
        temperature=_or(request.temperature, 1.0),
        top_p=_or(request.top_p, 1.0),
        top_k=request.top_k if request.top_k is not None and request.top_k > 0 else None,
        seed=seed_of(request_id) if request.seed is None else request.seed & _SEED_BITS,
        min_p=_or(request.min_p, 0.0),
        repetition_penalty=_or(request.repetition_penalty, 1.0),
        presence_penalty=_or(request.presence_penalty, 0.0),
        frequency_penalty=_or(request.frequency_penalty, 0.0),
        logit_bias=tuple(bias.items()),
        min_tokens=_or(request.min_tokens, 0),
        end_token_ids=tuple(sorted(end_tokens)) if request.min_tokens else (),
        logprobs=request.wanted_logprobs,
    )


def _most_with_logprobs(request: GenerationRequest) -> int | None:
    """Tokens of an answer whose log probabilities one record can hold; None: none are wanted."""
    wanted = request.wanted_logprobs
    return None if wanted is None else _LOGPROBS_A_REPLY // (1 + wanted)


def _or(value: Number | None, neutral: Number) -> Number:
    return neutral if value is None else value


def seed_of(request_id: str) -> int:
    """64 bits that are the same for every attempt of a request, on any machine."""
    return int.from_bytes(blake2b(request_id.encode(), digest_size=8).digest(), "big")
