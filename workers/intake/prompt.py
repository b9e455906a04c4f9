"""A request's body becomes what the engine runs: prompt token ids, sampling, limits.

Knows the tokenizer, its chat template, the model's names and its context. Does not know Kafka, priorities or the
model's weights. Runs on the staging thread, which alone may call it: about 0.1 ms for the template and 2.2 ms for 600
tokens (one slow core, SmolLM2's tokenizer; the tokenizer is Rust and lets go of the GIL).

How long an answer may be. `max_tokens` that doesn't fit is refused, not shortened, as OpenAI and vLLM do: a client that
asks for 4,000 tokens and silently gets 100 can't tell why its answer breaks off. Without `max_tokens`: the rest of the
context, or the configured default where that is less.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import Any, TypeVar

from topics.codec import loads_object
from topics.embeddings import EmbeddingRequest
from topics.errors import RequestError
from topics.headers import RequestHeaders
from topics.messages import ChatCompletionRequest, GenerationRequest
from topics.record import InboundRecord
from topics.validation import Request, parse_request
from workers.intake.answer_form import answer_grammar
from workers.intake.embedding import EmbeddingForm, embedding_form
from workers.intake.grammar import Grammar, GrammarCompiler, GrammarError
from workers.intake.prompt_tokens import ChatTokenizer, PromptTokens
from workers.intake.sampling import GREEDY, SamplingParams
from workers.intake.tool_calls import offered_tools
from workers.runners.runner import ModelLimits

__all__ = ["ChatTokenizer", "PreparedRequest", "PromptBuilder", "RequestKind", "seed_of"]

Number = TypeVar("Number", int, float)

_SEED_BITS = (1 << 64) - 1
_TOKENS_A_REPLY = 500_000
"""Of some four bytes, most of them; twice that in JSON, at worst."""
_LOGPROBS_A_REPLY = 40_000
"""Entries of some hundred bytes; a reply's topic takes records of 8 MiB."""


class RequestKind(Enum):
    CHAT = "chat"
    COMPLETION = "completion"
    EMBEDDING = "embedding"


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
    """Prompt and output together fit the context. 0: of an embedding, for which nothing is sampled."""
    eos_token_ids: frozenset[int]
    """Tokens that end the answer: the request's own, and the model's unless it ignores those."""
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool
    """A last chunk with the usage was asked for."""
    tool_calls: bool = False
    """The answer may hold calls of tools, which are to be told apart from its text."""
    priority: int | None = None
    """The class that the body asks for, 0 to 3."""
    sequence: int = 0
    """Which of the request's sequences this is, and its choice's `index`: prompt by prompt, `choices` of each."""
    sequences: int = 1
    """Of the whole request."""
    choices: int = 1
    """For each prompt."""
    embedding: EmbeddingForm | None = None
    """None: text is generated."""

    @property
    def first_of_prompt(self) -> bool:
        """The one whose prompt tokens count in the usage."""
        return self.sequence % self.choices == 0


class _Parsed:
    """A body that was checked, and the tokens of the prompt that was asked for last."""

    def __init__(self, record: InboundRecord | None, request: Request) -> None:
        self.record = record
        self.request = request
        self._texts = () if isinstance(request, ChatCompletionRequest) else request.prompts
        self._place: int | None = None
        self._token_ids: tuple[int, ...] = ()

    @property
    def prompts(self) -> int:
        return max(1, len(self._texts))

    def prompt(self, place: int, tokens: PromptTokens) -> tuple[tuple[int, ...], str]:
        """Its token ids, and the field of the body that holds it. The choices of one prompt ask one after another."""
        request = self.request
        if isinstance(request, ChatCompletionRequest):
            field = "messages"
        else:
            field = "input" if isinstance(request, EmbeddingRequest) else "prompt"
            field = field if self.prompts == 1 else f"{field}.{place}"
        if self._place != place:
            if isinstance(request, ChatCompletionRequest):
                self._token_ids = tokens.chat(request)
            else:
                self._token_ids = tokens.text(self._texts[place], field)
            self._place = place
        return self._token_ids, field


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
        self._limits = limits
        self._served_names = tuple(served_names)
        self._default_max_tokens = default_max_tokens
        self._tokens = PromptTokens(tokenizer, limits)
        self._grammars = GrammarCompiler(tokenizer.backend_tokenizer, limits)
        self._parsed: _Parsed | None = None
        """Of the last record: its sequences are staged one after another."""

    def prepare(self, record: InboundRecord, headers: RequestHeaders, sequence: int = 0) -> PreparedRequest:
        """One of the sequences that the record asks for.

        Raises `RequestError` for what the client got wrong. `record.value` is a body (ingress saw to it).
        """
        if self._parsed is None or self._parsed.record is not record:
            assert record.value is not None, "a tombstone is refused at ingress"
            self._parsed = None
            self._parsed = _Parsed(record, self._checked(loads_object(record.value)))
        created_s = max(0, record.timestamp_ms // 1000)
        return self._build(self._parsed, headers.request_id, created_s, sequence)

    def build(self, body: Mapping[str, Any], *, request_id: str, created_s: int) -> PreparedRequest:
        """The first sequence of a decoded body. Raises `RequestError`."""
        return self._build(_Parsed(None, self._checked(body)), request_id, created_s, 0)

    def _checked(self, body: Mapping[str, Any]) -> Request:
        request = parse_request(body)
        if request.model is not None and request.model not in self._served_names:
            raise RequestError.model_not_found(request.model, self._served_names)
        if not isinstance(request, EmbeddingRequest):
            self._check_limit(request)
        return request

    def _build(self, parsed: "_Parsed", request_id: str, created_s: int, sequence: int) -> PreparedRequest:
        request = parsed.request
        if isinstance(request, EmbeddingRequest):
            return self._build_embedding(parsed, request, created_s, sequence)
        choices = request.n or 1
        kind = RequestKind.CHAT if isinstance(request, ChatCompletionRequest) else RequestKind.COMPLETION
        prompt, param = parsed.prompt(sequence // choices, self._tokens)
        end_tokens = self._end_tokens(request)
        grammar = answer_grammar(request, self._grammars)
        return PreparedRequest(
            kind=kind,
            model=self._served_names[0],
            created_s=created_s,
            prompt_token_ids=prompt,
            sampling=_sampling(request, seed_of(request_id), sequence, self._limits, end_tokens, grammar),
            max_output_tokens=self._output_limit(request, len(prompt), param, parsed.prompts * choices),
            eos_token_ids=end_tokens,
            stop=tuple(dict.fromkeys(request.stop or ())),
            stream=bool(request.stream),
            include_usage=request.wants_usage_chunk,
            tool_calls=isinstance(request, ChatCompletionRequest) and bool(offered_tools(request)),
            priority=request.priority,
            sequence=sequence,
            sequences=parsed.prompts * choices,
            choices=choices,
        )

    def _build_embedding(
        self, parsed: "_Parsed", request: EmbeddingRequest, created_s: int, sequence: int
    ) -> PreparedRequest:
        form = embedding_form(request, parsed.prompts, self._limits)
        prompt, param = parsed.prompt(sequence, self._tokens)
        _check_not_empty(len(prompt), param)
        if len(prompt) > self._limits.context_tokens:
            raise RequestError.context_length_exceeded(
                context_tokens=self._limits.context_tokens, prompt_tokens=len(prompt), output_tokens=None, param=param
            )
        return PreparedRequest(
            kind=RequestKind.EMBEDDING,
            model=self._served_names[0],
            created_s=created_s,
            prompt_token_ids=prompt,
            sampling=GREEDY,
            max_output_tokens=0,
            eos_token_ids=frozenset(),
            stop=(),
            stream=False,
            include_usage=False,
            priority=request.priority,
            sequence=sequence,
            sequences=parsed.prompts,
            embedding=form,
        )

    def warm_up(self) -> None:
        """What the first answer of a given form would wait for. Takes a second or two, and holds the interpreter."""
        # A tokenizer that can't be read is said to those who ask for a form.
        with suppress(GrammarError):
            self._grammars.warm_up()

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

    def _output_limit(self, request: GenerationRequest, prompt_tokens: int, param: str, sequences: int) -> int:
        _check_not_empty(prompt_tokens, param)
        room = self._limits.context_tokens - prompt_tokens
        asked, most = request.requested_tokens, _most_tokens(request, sequences)
        if asked is not None and asked > most:
            raise RequestError.invalid_request(
                "n" if request.wanted_logprobs is None else "logprobs",
                f"{sequences} answer(s) of {asked} tokens"
                f"{'' if request.wanted_logprobs is None else f' with {request.wanted_logprobs} alternatives each'} "
                f"are more than one reply holds: ask for at most {most} tokens each, or for less of them.",
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
        return min(room, most, room if self._default_max_tokens is None else self._default_max_tokens)

    # --- ends ---

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


def _check_not_empty(prompt_tokens: int, param: str) -> None:
    if prompt_tokens == 0:
        raise RequestError.invalid_request(param, f"{param} has no tokens: write something.", "invalid_value")


def _sampling(
    request: GenerationRequest,
    default_seed: int,
    sequence: int,
    limits: ModelLimits,
    end_tokens: frozenset[int],
    grammar: Grammar | None,
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
        seed=_seed_of_sequence(default_seed if request.seed is None else request.seed & _SEED_BITS, sequence),
        min_p=_or(request.min_p, 0.0),
        repetition_penalty=_or(request.repetition_penalty, 1.0),
        presence_penalty=_or(request.presence_penalty, 0.0),
        frequency_penalty=_or(request.frequency_penalty, 0.0),
        logit_bias=tuple(bias.items()),
        min_tokens=_or(request.min_tokens, 0),
        end_token_ids=tuple(sorted(end_tokens)) if request.min_tokens else (),
        grammar=grammar,
        logprobs=request.wanted_logprobs,
    )


def _most_tokens(request: GenerationRequest, sequences: int) -> int:
    """Of each answer, so that one record holds them all."""
    wanted = request.wanted_logprobs
    return max(1, (_TOKENS_A_REPLY if wanted is None else _LOGPROBS_A_REPLY // (1 + wanted)) // sequences)


def _or(value: Number | None, neutral: Number) -> Number:
    return neutral if value is None else value


def seed_of(request_id: str) -> int:
    """64 bits that are the same for every attempt of a request, on any machine."""
    return int.from_bytes(blake2b(request_id.encode(), digest_size=8).digest(), "big")


def _seed_of_sequence(seed: int, sequence: int) -> int:
    """The choices of a request are drawn independently; the first of them as if it were alone."""
    return seed if sequence == 0 else seed_of(f"{seed}/{sequence}")
