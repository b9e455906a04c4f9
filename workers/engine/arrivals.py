"""How requests enter the engine: let in or turned away, given a row for each sequence, and later their tokens.

Knows who decides on arrival (`scheduling.intake`), what is foreseen of a request before it is tokenised, and what is
made of it when it is. Does not know when a row is staged or runs, nor tokenisers (`workers.intake.staging`). Owned by
the engine thread.
"""

from collections.abc import Callable
from math import inf

from kvcache.manager import KVCacheManager
from scheduling.batch import BatchScheduler
from scheduling.index import Index
from scheduling.intake import Accepted, Intake, OverQuota, QueueFull
from scheduling.length import LengthPredictor
from scheduling.priority import PriorityClass
from scheduling.prompt_ratio import PromptRatio
from topics.errors import RequestError
from workers.answers.detokenizer import Detokenizer
from workers.engine.cancelling import Cancelling
from workers.engine.departures import Departures
from workers.engine.observer import EngineObserver
from workers.engine.request_table import RequestTable
from workers.engine.sequence_groups import SequenceGroup, SequenceGroups
from workers.engine.stop_strings import StopStrings
from workers.engine.timeline import Timeline
from workers.engine.token_intake import TokenIntake
from workers.intake.prompt import PreparedRequest
from workers.intake.request import Arrival, EngineRequest, StopMatching
from workers.intake.staging import Staged

__all__ = ["Arrivals"]


class Arrivals:
    def __init__(
        self,
        *,
        scheduler: BatchScheduler,
        index: Index,
        kv: KVCacheManager,
        intake: Intake,
        lengths: LengthPredictor,
        prompt_ratio: PromptRatio,
        requests: RequestTable,
        groups: SequenceGroups,
        cancelling: Cancelling,
        departures: Departures,
        tokens: TokenIntake,
        new_detokenizer: Callable[[], Detokenizer],
        default_max_tokens: int,
        context_tokens: int,
        observer: EngineObserver | None,
    ) -> None:
        """`default_max_tokens`: the prior of the length prediction for a body that names no limit. `context_tokens`:
        what the model can hold."""
        self._scheduler = scheduler
        self._index = index
        self._kv = kv
        self._intake = intake
        self._lengths = lengths
        self._prompt_ratio = prompt_ratio
        self._requests = requests
        self._groups = groups
        self._cancelling = cancelling
        self._departures = departures
        self._tokens = tokens
        self._new_detokenizer = new_detokenizer
        self._default_max_tokens = default_max_tokens
        self._context_tokens = context_tokens
        self._observer = observer

    # --- from ingress ---------------------------------------------------------------------------------------------

    def add(self, arrival: Arrival, now: float) -> None:
        """A request has come: it waits from now on, or is answered with why it does not."""
        prompt_tokens = self._prompt_ratio.tokens(arrival.body_bytes)
        verdict = self._intake.decide(arrival.tenant, arrival.service_class, prompt_tokens, now)
        if not isinstance(verdict, Accepted):
            self._departures.turn_away(arrival, _why_not(verdict), now)
            return
        tokens = max(1, prompt_tokens // arrival.prompts)
        row = self._enqueue(arrival, verdict.service, tokens, arrival.max_tokens, now)
        if arrival.sequences > 1:
            group = SequenceGroup(arrival, verdict.service, tokens, arrival.sequences, arrival.max_tokens)
            self._group(row, group, now)

    def fill_groups(self, now: float) -> None:
        """Rows for sequences that found no room so far."""
        while (group := self._groups.next_short()) is not None:
            row = self._enqueue(group.arrival, group.service, group.prompt_tokens, group.max_tokens, now)
            self._groups.join(group, row)
            self._groups.wait_first(group)

    def _enqueue(
        self, arrival: Arrival, service: PriorityClass, prompt_tokens: int, max_tokens: int | None, now: float
    ) -> int:
        """A new row for a sequence of the arrival."""
        while self._requests.dropping and len(self._index) >= self._index.capacity:
            # The same records come again, faster than the old rows are dropped.
            self._departures.drop_revoked(now)
        limit = self._default_max_tokens if max_tokens is None else max_tokens
        # What the body asks for is not checked yet, and may be absurd.
        limit = min(limit, self._context_tokens)
        row = self._index.add(
            origin=arrival.origin_class,
            service=service,
            tenant=arrival.tenant,
            flow=arrival.flow,
            prompt_tokens=prompt_tokens,
            output_tokens=self._lengths.predict(arrival.origin_class, arrival.tenant, limit) if limit else 0,
            arrival_s=arrival.arrived_s,
            ttft_deadline_s=inf if arrival.ttft_deadline_s is None else arrival.ttft_deadline_s,
            hard_deadline_s=inf if arrival.hard_deadline_s is None else arrival.hard_deadline_s,
        )
        self._requests.add(row, arrival)
        if self._observer is not None:
            self._observer.arrived(row)
        self._cancelling.entered(row, arrival.headers.request_id)
        self._scheduler.enqueue(row, now)
        return row

    def _group(self, first: int, group: SequenceGroup, now: float) -> None:
        """A request's first row gets its siblings."""
        self._groups.join(group, first)
        self._groups.wait(group)
        self.fill_groups(now)

    # --- from staging ---------------------------------------------------------------------------------------------

    def staged(self, message: Staged, now: float) -> None:
        """The tokens of a row that still waits for them."""
        row, arrival, prepared = message.job.row, message.job.arrival, message.prepared
        if prepared.sequences > 1 and self._groups.of(row) is None:
            # The body was too large to be looked at before.
            tokens = len(prepared.prompt_token_ids)
            limit = arrival.max_tokens if prepared.embedding is None else 0
            group = SequenceGroup(arrival, self._index.service_of(row), tokens, prepared.sequences, limit)
            self._group(row, group, now)
        request = self._request(message, now)
        self._requests.stage(request)
        if arrival.prompts == 1:
            predicted = self._index.prompt_tokens[row]
            self._prompt_ratio.observe(arrival.body_bytes, predicted, len(prepared.prompt_token_ids))
        if (reason := self._tokens.take_up(request, message.output_token_ids)) is not None:
            # An earlier attempt came to the end, and its terminal reply to nobody.
            self._scheduler.cancel(row, now)
            self._departures.end(row, reason, now)
            return
        # What was told already is computed again, like a prompt.
        self._scheduler.staged(
            row,
            len(request.token_ids),
            prepared.max_output_tokens - request.told_tokens,
            now,
            block_names=request.block_names,
        )
        # At once: the next message may be to cancel it, and nobody but `staged` finds a row impossible.
        for impossible in self._scheduler.take_impossible():
            self._departures.end(impossible, self._too_large(prepared), now)

    def _request(self, message: Staged, now: float) -> EngineRequest:
        arrival, prepared = message.job.arrival, message.prepared
        stop = None
        if prepared.stop:
            stop = StopMatching(self._new_detokenizer(), StopStrings(prepared.stop))
        return EngineRequest(
            row=message.job.row,
            arrival=arrival,
            prepared=prepared,
            timeline=Timeline(arrived_s=arrival.arrived_s, staged_s=now),
            token_ids=list(prepared.prompt_token_ids),
            block_names=list(message.block_names),
            stop=stop,
        )

    def _too_large(self, prepared: PreparedRequest) -> RequestError:
        return RequestError.invalid_request(
            "messages" if prepared.embedding is None else "input",
            f"The prompt has {len(prepared.prompt_token_ids)} tokens, and the KV cache of this worker holds "
            f"{self._kv.capacity_tokens}: shorten it, or give the worker more KV memory (engine.kv_bytes).",
            code="context_length_exceeded",
        )


def _why_not(verdict: OverQuota | QueueFull) -> RequestError:
    retry_after_s = round(verdict.retry_after_s, 1)
    if isinstance(verdict, OverQuota):
        return RequestError.quota_exceeded("The tenant's quota is used up.", retry_after_s=retry_after_s)
    return RequestError.resource_exhausted(
        f"{verdict.queue_depth} requests of this class wait already.",
        retry_after_s=retry_after_s,
        queue_depth=verdict.queue_depth,
    )
