"""Take the tokens that a step sampled into their requests, and say which of them was a request's last.

Knows end tokens, output limits and stop strings, and that a full block gets a name. Does not know steps or plans. Owned
by the engine thread.
"""

from collections.abc import Sequence

from kvcache.block_hash import BlockHasher
from workers.engine_observer import EngineObserver
from workers.outbox import Outbox
from workers.request import EngineRequest, FinishReason, StopMatching
from workers.sampling import TokenLogprobs

__all__ = ["TokenIntake"]


class TokenIntake:
    def __init__(self, outbox: Outbox, hasher: BlockHasher | None, observer: EngineObserver | None = None) -> None:
        """`hasher`: names blocks as they fill with sampled tokens, as staging did those of prompts; None without a
        prefix cache."""
        self._outbox = outbox
        self._hasher = hasher
        self._observer = observer

    def accept_until_end(
        self, request: EngineRequest, tokens: Sequence[int], now: float, logprobs: TokenLogprobs | None
    ) -> tuple[int, FinishReason | None]:
        """Tokens drawn in one step, up to the one that ends the request: how many were taken, and why it ended, if so.

        `logprobs`: of the first one; there is only one where they are wanted. What was drawn behind an end is nobody's.
        """
        for taken, token in enumerate(tokens, start=1):
            reason = self.accept(request, token, now, logprobs if taken == 1 else None)
            if reason is not None:
                return taken, reason
        return len(tokens), None

    def accept(
        self, request: EngineRequest, token: int, now: float, logprobs: TokenLogprobs | None = None
    ) -> FinishReason | None:
        """The next token of the request, published; why it was the last one, None if the request goes on."""
        gap_s = request.timeline.token(now)
        if gap_s is not None and self._observer is not None:
            self._observer.gap(request.arrival.origin_class, gap_s)
        return self._take(request, token, logprobs)

    def take_up(self, request: EngineRequest, token_ids: Sequence[int]) -> FinishReason | None:
        """Tokens that an earlier attempt has told, as if they had just been sampled: so text, stop strings and names
        of blocks are what they were. A finish reason if nothing is left to be sampled."""
        for token in token_ids:
            if (reason := self._take(request, token, None)) is not None:
                return reason
        request.told_tokens = request.output_tokens
        return None

    def _take(self, request: EngineRequest, token: int, logprobs: TokenLogprobs | None) -> FinishReason | None:
        request.token_ids.append(token)
        if self._hasher is not None and len(request.token_ids) % self._hasher.block_size == 0:
            self._hasher.extend(request.block_names, request.token_ids, request.arrival.tenant)
        prepared = request.prepared
        reason = None
        if token in prepared.eos_token_ids:
            reason = FinishReason.STOP
        elif request.output_tokens >= prepared.max_output_tokens:
            reason = FinishReason.LENGTH
        text = None
        if request.stop is not None:
            shown = [] if token in prepared.eos_token_ids else [token]
            text, matched = _match(request.stop, shown, last=reason is not None)
            reason = FinishReason.STOP if matched else reason
        self._outbox.tokens(request.arrival, prepared, [token], text, logprobs)
        return reason


def _match(stop: StopMatching, shown: list[int], *, last: bool) -> tuple[str, bool]:
    """The text that may be shown after these tokens, and whether a stop string was met."""
    text, matched = stop.matcher.feed(stop.detokenizer.feed(shown))
    if last and not matched:
        rest, matched = stop.matcher.feed(stop.detokenizer.flush())
        text += rest
        if not matched:
            text += stop.matcher.flush()
    return text, matched
